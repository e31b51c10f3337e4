"""Searches for records that add more to the clipped sum than the clip norm."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.model.preparation import Contents
from tf_bandmf.keras.optimizer.private import private_optimizer_of

# By what records are multiplied.
_SCALES = (0.0, 1e-42, 1e-30, 1e-12, 1e-3, 1e3, 1e6, 1e12, 1e19, 1e30, 3e38)
# What a single number becomes.
_VALUES = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.0, 1e6, 1e19)
# How far apart near-duplicates are, relative to their size.
_NEARNESS = (0.0, 1e-7, 1e-5, 1e-3)
# Ordinary records beside the one that is tried.
_COMPANY = 7


@dataclasses.dataclass(frozen=True, eq=False)
class Contribution:
    """The largest contribution that a search found.

    Attributes:
      ratio: the contribution's l2 norm divided by the clip norm; infinite if it is NaN.
      record: inputs and targets of the record, without the axis of examples.
      num_records: number of records that were tried.
      kind: how the record was made from an ordinary one.
    """

    ratio: float
    record: Any
    num_records: int
    kind: str


def largest_contribution(
    model: Any, x: Any, y: Any = None, *, rounds: int = 100, seed: int = 0
) -> Contribution:
    """Searches for the record that adds most to the clipped sum of a private model.

    Clipping promises that a record's contribution has norm at most l2_norm_clip, up to
    a relative 1e-3 (docs/guarantee.md); the guarantee of every step rests on this
    ratio. It is measured for the record by itself, and as the change that the record
    makes in the sum of a batch with seven others. The records are extreme: scaled by 0
    to 3e38, single numbers NaN, infinite, denormal or huge, all numbers equal, several
    inputs that are near-duplicates, integers outside the range seen; then a random
    search starts from the worst record.

    Args:
      model: a private model, compiled with a PrivateOptimizer and built, or buildable from
        x. Its weights do not change, and no step is taken.
      x: ordinary records: array or nested structure of arrays [m, ...].
      y: their targets, likewise, or None.
      rounds: number of rounds of the random search.
      seed: seed of the random search.

    Returns:
      The largest contribution.
    """
    optimizer = private_optimizer_of(model)
    records = tf.nest.map_structure(np.asarray, (x, y))
    if not model.built:
        model(tf.nest.map_structure(lambda part: part[:1], records[0]), training=False)
    clip = optimizer.plan.l2_norm_clip
    optimizer.build(model.trainable_variables)
    # Those of the training step, with records that raise.
    programs = model._programs()

    company = tf.nest.map_structure(lambda part: part[:_COMPANY], records)
    ordinary = len(tf.nest.flatten(company)[0])

    def total(inputs: Any, targets: Any, weights: Any) -> tf.Tensor:
        given = tf.nest.map_structure(tf.convert_to_tensor, (inputs, targets, weights))
        contents = Contents(*given)
        if programs._nothing is None:
            programs._try_on_made_up(contents)
        seed = tf.zeros([2], tf.int32)
        clipped = programs._clip_all(contents, programs._checked_scales(), seed)
        parts = [tf.cast(tf.reshape(part, [-1]), tf.float64) for part in clipped.sums]
        return tf.concat(parts, axis=0)

    def ratio(record: Any) -> float:
        """By itself, and among others: their sums are rounded together."""
        single = tf.nest.map_structure(lambda part: part[None], record)
        group = tf.nest.map_structure(
            lambda one, others: np.concatenate([one, others]), single, company
        )
        with_it = np.ones(1 + ordinary, np.float32)
        without = np.concatenate([np.zeros(1, np.float32), with_it[1:]])
        moved = [
            total(*single, np.ones(1, np.float32)),
            total(*group, with_it) - total(*group, without),
        ]
        actual = max(float(tf.linalg.norm(vector)) for vector in moved)
        return actual / clip if np.isfinite(actual) else np.inf

    rng = np.random.default_rng(seed)
    best, kind, worst, tried = -1.0, "", None, 0
    for name, record in _extremes(records, rng):
        actual, tried = ratio(record), tried + 1
        if actual > best:
            best, kind, worst = actual, name, record
    for _ in range(rounds):
        record = _map_floats(worst, lambda part: _moved(part, rng))
        actual, tried = ratio(record), tried + 1
        if actual > best:
            best, kind, worst = actual, f"{kind.removesuffix(', moved')}, moved", record
    return Contribution(best, worst, tried, kind)


def _extremes(records: Any, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Records by what was done to ordinary ones."""
    size = len(tf.nest.flatten(records)[0])
    for i in range(min(size, 4)):
        record = tf.nest.map_structure(lambda part, i=i: part[i], records)
        yield "ordinary", record
        for scale in _SCALES:
            times = functools.partial(np.multiply, scale)
            yield f"times {scale:g}", _map_inputs(record, times)
            yield f"all times {scale:g}", _map_floats(record, times)
        for value in _VALUES:
            one = functools.partial(_one, value=value, rng=rng)
            yield f"one {value:g}", _map_inputs(record, one)
            everywhere = functools.partial(np.full_like, fill_value=value)
            yield f"all {value:g}", _map_inputs(record, everywhere)
        for nearness in _NEARNESS:
            for scale in (1.0, 1e4, 1e8, 1e12):
                near = _near_duplicates(record, nearness, scale, rng)
                if near is not None:
                    yield f"inputs {nearness:g} apart, times {scale:g}", near
        yield "integers shuffled", _map_integers(record, rng.permutation)
        yield "largest integers", _map_integers(record, _largest)
        yield "integers of -1", _map_integers(record, lambda p: p * 0 - 1)


def _map_inputs(record: Any, change: Callable[[np.ndarray], Any]) -> Any:
    return _map_floats(record[0], change), record[1]


def _map_floats(record: Any, change: Callable[[np.ndarray], Any]) -> Any:
    def changed(part: np.ndarray) -> np.ndarray:
        if np.issubdtype(part.dtype, np.floating):
            with np.errstate(all="ignore"):
                return np.asarray(change(part)).astype(part.dtype)
        return part

    return tf.nest.map_structure(changed, record)


def _map_integers(record: Any, change: Callable[[np.ndarray], Any]) -> Any:
    def changed(part: np.ndarray) -> np.ndarray:
        if part.ndim and np.issubdtype(part.dtype, np.integer):
            return np.asarray(change(part)).astype(part.dtype)
        return part

    return tf.nest.map_structure(changed, record)


def _largest(part: np.ndarray) -> np.ndarray:
    return np.full(part.shape, np.iinfo(part.dtype).max)


def _one(part: np.ndarray, value: float, rng: np.random.Generator) -> np.ndarray:
    changed = np.array(part)
    if changed.size:
        changed.ravel()[rng.integers(changed.size)] = value
    return changed


def _near_duplicates(
    record: Any, nearness: float, scale: float, rng: np.random.Generator
) -> Any:
    """All float inputs almost the same; within an input its halves."""
    leaves = tf.nest.flatten(record[0])
    first = next((p for p in leaves if np.issubdtype(p.dtype, np.floating)), None)
    if first is None or not first.size:
        return None

    def near(part: np.ndarray) -> np.ndarray:
        base = first if part.shape == first.shape else np.resize(first, part.shape)
        if part.ndim > 1 and len(leaves) == 1:
            base = np.broadcast_to(base[:1], part.shape)
        return scale * base * (1.0 + nearness * rng.standard_normal(part.shape))

    return _map_inputs(record, near)


def _moved(part: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    factors = np.exp(rng.standard_normal() * 0.5 * rng.standard_normal(part.shape))
    return part * factors * 10.0 ** (0.3 * rng.standard_normal())
