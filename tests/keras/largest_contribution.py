"""Searches for records whose contribution to the clipped sum exceeds the clip norm."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.model.preparation import Contents
from tf_bandmf.keras.optimizer.private import private_optimizer_of

# Factors that scale whole records.
_SCALES = (0.0, 1e-42, 1e-30, 1e-12, 1e-3, 1e3, 1e6, 1e12, 1e19, 1e30, 3e38)
# Values that replace one entry of a record, or all its entries.
_VALUES = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.0, 1e6, 1e19)
# Relative distances between rows of an input that are made almost equal.
_NEARNESS = (0.0, 1e-7, 1e-5, 1e-3)
# Number of ordinary records in the batch to which the tested record is added.
_COMPANY = 7


def largest_contribution(model, x, y):
    """Searches for the record that adds most to the clipped sum of a private model.

    Clipping promises that the norm of a record's contribution is at most l2_norm_clip,
    up to a relative error of 1e-3 (docs/guarantee.md). The guarantee of every step
    rests on this bound. The contribution is measured in two ways: as the sum of a batch
    that contains only this record, and as the change in the sum of seven other records
    if the record is added to them. The search tests extreme records first, and then
    random changes of the record with the largest contribution. It takes no step and
    does not change the weights.

    Returns:
      The norm of the largest contribution divided by the clip norm (infinite if the norm
      is not finite), how its record was made from an ordinary one, and the number of
      records that the search has tested.
    """
    optimizer = private_optimizer_of(model)
    records = tf.nest.map_structure(np.asarray, (x, y))
    model(tf.nest.map_structure(lambda part: part[:1], records[0]), training=False)
    clip = optimizer.plan.l2_norm_clip
    optimizer.build(model.trainable_variables)
    # The search uses the programs of the training step, because they also handle
    # records that raise errors.
    programs = model._programs()
    company = tf.nest.map_structure(lambda part: part[:_COMPANY], records)
    ordinary = len(tf.nest.flatten(company)[0])

    def total(batch, weights):
        given = tf.nest.map_structure(
            tf.convert_to_tensor, (*batch, np.float32(weights))
        )
        contents = Contents(*given)
        if programs._nothing is None:
            programs._try_on_made_up(contents)
        seed = tf.zeros([2], tf.int32)
        clipped = programs._clip_all(contents, programs._of_no_step()[0], seed)
        parts = [tf.cast(tf.reshape(part, [-1]), tf.float64) for part in clipped.sums]
        return tf.concat(parts, axis=0)

    def ratio(record):
        """Divides the larger of the two contributions of a record by the clip norm."""
        alone = tf.nest.map_structure(lambda part: np.asarray(part)[None], record)
        group = tf.nest.map_structure(lambda *p: np.concatenate(p), alone, company)
        others = [1] * ordinary
        moved = total(group, [1, *others]) - total(group, [0, *others])
        norms = [float(tf.linalg.norm(v)) for v in (total(alone, [1]), moved)]
        return max(norms) / clip if np.isfinite(sum(norms)) else np.inf

    rng = np.random.default_rng(0)
    tried = [(ratio(record), name, record) for name, record in _extremes(records, rng)]
    for _ in range(100):
        _, name, worst = max(tried, key=lambda one: one[0])
        record = _changed(worst, np.floating, lambda part: _moved(part, rng))
        tried.append((ratio(record), f"{name.removesuffix(', moved')}, moved", record))
    largest, name, _ = max(tried, key=lambda one: one[0])
    return largest, name, len(tried)


def _extremes(records, rng):
    """Yields extreme records, as pairs (description, record)."""

    def one(part, value):
        changed = np.array(part)
        changed.ravel()[rng.integers(changed.size)] = value
        return changed

    def near(part, scale, nearness):
        """Returns an input whose rows are almost equal."""
        base = np.resize(first if len(leaves) > 1 else part[:1], part.shape)
        return scale * base * (1.0 + nearness * rng.standard_normal(part.shape))

    for i in range(4):
        record = tf.nest.map_structure(lambda part, i=i: part[i], records)
        leaves = tf.nest.flatten(record[0])
        first = leaves[0]
        yield "ordinary", record
        changes = {f"times {s:g}": lambda p, s=s: s * p for s in _SCALES}
        changes |= {f"one {v:g}": lambda p, v=v: one(p, v) for v in _VALUES}
        changes |= {f"all {v:g}": lambda p, v=v: np.full_like(p, v) for v in _VALUES}
        changes |= {
            f"inputs {n:g} apart, times {s:g}": lambda p, s=s, n=n: near(p, s, n)
            for n in _NEARNESS
            for s in (1.0, 1e4, 1e8, 1e12)
        }
        for name, change in changes.items():
            yield name, (_changed(record[0], np.floating, change), record[1])
            yield f"{name}, with targets", _changed(record, np.floating, change)
        for name, change in {
            "integers shuffled": rng.permutation,
            "largest integers": lambda p: np.full_like(p, np.iinfo(p.dtype).max),
            "integers of -1": lambda p: np.full_like(p, -1),
        }.items():
            yield name, _changed(record, np.integer, change)


def _changed(record: Any, kind: type, change: Any) -> Any:
    """Applies `change` to the tensors of a record whose dtype is a subtype of `kind`."""

    def changed(part):
        if not np.issubdtype(part.dtype, kind):
            return part
        with np.errstate(all="ignore"):
            return np.asarray(change(part)).astype(part.dtype)

    return tf.nest.map_structure(changed, record)


def _moved(part, rng):
    factors = np.exp(rng.standard_normal() * 0.5 * rng.standard_normal(part.shape))
    return part * factors * 10.0 ** (0.3 * rng.standard_normal())
