"""Adds the noise of a step to its sums.

The noise is a function of the sums, the step's keys, and stored variables. The function
refers to no run and no model, and it changes nothing. Therefore all runs of equal
plans, on models whose weights have equal shapes, share one compiled program, and a step
that is interrupted before its update can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.gaussian import grid_of
from tf_bandmf.keras.run.programs import Program
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.digests import BLOCK, keyed_digest
from tf_bandmf.noise.shared import shared_function
from tf_bandmf.planning.plan import Plan

# The code of the Philox algorithm in TensorFlow's random operations.
_PHILOX = 1
# The number of `Noising` objects that a process keeps for later runs.
_MOST = 2
SHARED: dict[Any, Noising] = {}


class Stored(NamedTuple):
    """The secret variables of a `SecretState`, from which a run's noise is computed.

    Attributes:
      points: for each step, the digest to which its noise is bound, int64, shape
        [num_steps].
      buffer: vectors that the noise generator keeps between steps, float32, shape
        [memory_vectors, num_parameters].
      digest_key: key of the digests of sums, int64.
      chain_key: key of the function that chains the points, int64, shape [1].
    """

    points: tf.Variable
    buffer: tf.Variable
    digest_key: tf.Variable
    chain_key: tf.Variable

    def __repr__(self) -> str:
        return "Stored(<secret>)"

    def point_before(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the previous step's point, a digest, int64; 0 at step 0."""
        return tf.where(step > 0, self.points.sparse_read(tf.maximum(step - 1, 0)), 0)


class Drawn(NamedTuple):
    """A step whose noise is drawn, and of which nothing is released yet.

    Attributes:
      step: the number of the step, int64 scalar.
      point: the digest to which the step's noise is bound (see `SecretState`), int64
        scalar; secret.
      rows: the changes to the noise buffer, `IndexedSlices`; secret.
    """

    step: tf.Tensor
    point: tf.Tensor
    rows: Sequence[Any]


class Noisy(NamedTuple):
    """The inputs of a step's update: noisy gradients, noisy counts and the drawn step.

    Attributes:
      gradients: noisy mean gradients, in the shapes and dtypes of the variables that
        get noise in each step (all but the lazy tables).
      rows: the sums of the lazy tables by row, without noise: each row gets its noise
        when it is read.
      drawn: the drawn step, for `SecretState.take`.
      counts: the noisy counts; empty if the plan has none.
    """

    gradients: list[Any]
    rows: list[tf.IndexedSlices]
    drawn: Drawn
    counts: tf.Tensor


class Noising:
    """Adds noise to the clipped sums of a step and divides by the expected batch size.

    Args:
      plan: plan of the run. If it has a test seed, the noise does not depend on the
        sums, so that runs can be compared; such noise protects nobody.
      weights: the spec of each variable that gets noise in each step.
      num_counts: number of counts that follow the sums of the variables.
      keep_normals: True to keep the last normals in memory instead of redrawing them.

    Attributes:
      generator: the noise generator of the plan's strategy.
      programs: the compiled programs of `noisy`, without and with XLA.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Sequence[tf.TensorSpec],
        num_counts: int,
        keep_normals: bool,
    ) -> None:
        assert plan.expected_batch_size is not None
        self._settings = plan.noise_stddev, plan.expected_batch_size
        self._is_bound = plan.test_seed is None
        self._weights = weights
        self._sizes = [*(spec.shape.num_elements() for spec in weights), num_counts]
        # If all weights are in lazy tables, there is one dummy parameter.
        self.generator = NoiseGenerator(
            plan.strategy,
            sum(self._sizes) or 1,
            keep_normals=keep_normals,
            generator=plan.generator,
        )
        self.programs = [Program(self.noisy, xla, rounds=0) for xla in (False, True)]

    @classmethod
    def of(cls, plan: Plan, *settings: Any) -> Noising:
        """Returns a `Noising`, which all runs with equal arguments share."""
        # TensorFlow compiles a program for the device on which it is traced.
        key = plan.fingerprint, plan.test_seed, tf.zeros([]).device, repr(settings)
        if key not in SHARED:
            while len(SHARED) >= _MOST:
                del SHARED[next(iter(SHARED))]
            SHARED[key] = cls(plan, *settings)
        return SHARED[key]

    def noisy(
        self,
        sums: Sequence[tf.Tensor],
        scales: Sequence[tf.Tensor] | None,
        step: tf.Tensor,
        keys: tf.Tensor,
        facts: tf.Tensor,
        stored: Stored,
        of_rows: tf.Tensor | None = None,
    ) -> Noisy:
        """Adds noise to the clipped sums and divides them by the expected batch size.

        Args:
          sums: the sums of clipped gradients over all replicas, one for each variable,
            followed by the counts of examples, if the plan has any.
          scales: the factor by which each coordinate of the gradients was multiplied,
            in the shapes of the variables; or None.
          step: the admitted step, int64 scalar.
          keys: keys of the step's noise, from `SecretState.step_keys`.
          facts: numbers that identify the batch, from `admission.facts`; the first one
            is the batch's digest.
          stored: the variables from which the run's noise is computed.
          of_rows: digest of the sums of lazy tables, int32, shape [2], if there are any.
        """
        parts = [tf.reshape(part, [-1]) for part in sums]
        # The digest hashes whole blocks; appending zeros here saves a copy.
        count = self.generator.num_parameters
        rest = tf.zeros([-(-count // BLOCK) * BLOCK - sum(self._sizes)])
        total = tf.concat([*parts, rest], axis=0)
        words = tf.bitcast(facts[0], tf.int32)
        if of_rows is not None:
            words = tf.concat([words, of_rows], axis=0)
        digest = keyed_digest(stored.digest_key, total, words)
        point = _point(tf.bitcast(digest, tf.int64), step, stored)
        noise, drawn = self.row(step, keys, point, stored)
        # A slice that changes nothing would still take time to trace and to start.
        total, noise = (t if t.shape[0] == count else t[:count] for t in (total, noise))
        mean = noisy_mean(total, noise, *self._settings)
        sizes = [*self._sizes, count - sum(self._sizes)]
        *split, counts, _ = tf.split(mean, sizes)
        gradients = [tf.reshape(g, w.shape) for g, w in zip(split, self._weights)]
        if scales:
            gradients = list(map(tf.divide, gradients, scales))
        gradients = [tf.cast(g, w.dtype) for g, w in zip(gradients, self._weights)]
        return Noisy(gradients, [], drawn, counts)

    def recent_steps(self, step: Any) -> Any:
        """Returns the last `key_terms` steps up to and including `step`.

        The step at index i has the remainder i modulo `key_terms`. If fewer steps
        precede `step`, the missing ones have negative numbers.
        """
        terms = self.generator.key_terms
        return step - (step - np.arange(terms)) % terms

    def row(
        self, step: tf.Tensor, keys: tf.Tensor, point: tf.Tensor, stored: Stored
    ) -> tuple[tf.Tensor, Drawn]:
        """Draws row `step` of `C^-1 Z`, the noise of the step, bound to its point.

        Returns:
          The row, float32, shape [num_parameters], possibly followed by further
          numbers, which the caller must ignore; and the drawn step, for `take`.
        """
        steps = self.recent_steps(step)
        earlier = stored.points.sparse_read(tf.maximum(steps, 0))
        points = tf.where(steps == step, point, earlier)
        if self._is_bound:
            keys = self.generator.bound_key(keys, points)
        keys = tf.bitcast(keys, tf.uint64)
        noise, rows = self.generator.row(keys, stored.buffer, step, may_be_longer=True)
        return noise, Drawn(step, point, list(rows))


def _point(digest: tf.Tensor, step: tf.Tensor, stored: Stored) -> tf.Tensor:
    """Returns a step's point: a pseudorandom function of digest and previous point.

    If two histories of a run differ in one step, all their later points differ, too.
    If a point depended only on its own step, both histories could draw the same normals
    in a later step, although the correlated noise of that step also contains earlier
    normals, which differ.
    """
    words = tf.stack([stored.point_before(step), digest])
    chained = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[1],
        key=tf.bitcast(stored.chain_key, tf.uint64),
        counter=tf.bitcast(words, tf.uint64),
        alg=_PHILOX,
        dtype=tf.int64,
    )
    return tf.reshape(chained, [])


# XLA compiles this function to one pass over the numbers.
@shared_function(jit_compile=True, reduce_retracing=False)
def noisy_mean(
    total: tf.Tensor,
    noise: tf.Tensor,
    stddev: float,
    batch_size: float,
) -> tf.Tensor:
    """Returns the noisy mean, rounded to the grid of the noise."""
    # The spacing of the grid is a power of two, so dividing by it is exact in float32.
    grid = grid_of(stddev / batch_size)
    return tf.round((total + stddev * noise) / batch_size / grid) * grid
