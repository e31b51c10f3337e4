"""Schedules of the samplers whose randomness the accountant counts on.

Which examples a step uses is a pure function of a secret seed and the step, so that a run
continues after an interruption exactly as it would have gone on.
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.participation import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    FixedEpochOrder,
    Participation,
    Poisson,
    Shuffled,
)
from tf_bandmf.sampling.batches import BatchSchedule, FixedOrderSchedule
from tf_bandmf.sampling.random_bits import SEED_BYTES, marked, random_words, unmarked

# The step of random numbers that belong to the whole run.
_WHOLE_RUN = -1


class SampledSchedule(BatchSchedule):
    """A schedule with a secret seed.

    Formal guarantee: the examples of the steps are distributed as the participation says,
    independently of the data, if the seed is fresh from the operating system and secret.

    Args:
      participation, num_steps, plan_id, x, y, sample_weight, padded: as for
        `BatchSchedule`.
      seed: None for a fresh one; or `secret_seed()` of the interrupted run that is to be
        continued. Anyone who knows it can undo the amplification. (For tests: 32 bytes,
        which `Plan.batches` takes only if the plan has a test seed.)
    """

    # Whether all steps share random numbers: a fresh seed cannot continue a run.
    _spans_run: ClassVar[bool] = False

    def __init__(
        self,
        participation: Any,
        num_steps: int,
        plan_id: int,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        seed: bytes | None = None,
        padded: bool = False,
    ) -> None:
        total = participation.num_examples
        per_epoch = -(-total // participation.batch_size)
        super().__init__(
            participation, num_steps, per_epoch, plan_id, x, y, sample_weight, padded
        )
        if seed is not None and not isinstance(seed, bytes):
            raise ValueError(
                f"seed must be {SEED_BYTES} bytes, or None for a fresh one."
            )
        if seed is not None and len(seed) != SEED_BYTES:
            seed = unmarked(seed)
        self._may_continue = seed is not None
        self._seed = secrets.token_bytes(SEED_BYTES) if seed is None else seed

    def secret_seed(self) -> bytes:
        """The seed, for a private state file alone: 48 bytes, a mark included."""
        return marked(self._seed)

    def continuing(self, secret_seed: bytes | None) -> BatchSchedule:
        """The schedule of an interrupted run on these data, from its `secret_seed()`."""
        if secret_seed is None:
            raise ValueError(f"{type(self).__name__} needs its secret seed.")
        return type(self)(
            self.participation,
            self.num_steps,
            self.plan_id,
            self._examples,
            seed=secret_seed,
            padded=self._padded,
        )

    def _check_start(self, first_step: int) -> None:
        super()._check_start(first_step)
        if first_step and self._spans_run and not self._may_continue:
            raise ValueError(
                f"The examples of this run were put in their places before step 0, with "
                f"another seed than this schedule's: it cannot continue at step "
                f"{first_step}. Use the schedule object that began the run, or give its "
                f"secret_seed() as sampler_seed."
            )
        self._may_continue = True

    def _placement(self) -> bytes:
        # Independent steps may be drawn from any seed.
        return self._seed if self._spans_run else b""

    def _words(self, step: int, count: int) -> np.ndarray:
        return random_words(self._seed, step, count)

    def _indices(self, step: tf.Tensor) -> tf.Tensor:
        indices = tf.numpy_function(
            lambda step: self.example_indices(int(step)), [step], tf.int64
        )
        return tf.ensure_shape(indices, [None])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_steps={self.num_steps}, seed=<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A sampler's seed is secret: it is not pickled or copied.")


class CyclicPoissonSchedule(SampledSchedule):
    """Each example of part `step mod b` with probability q, independently."""

    participation: CyclicPoisson

    def example_indices(self, step: int) -> np.ndarray:
        self._check_step(step)
        parts = self.participation.num_parts
        part = np.arange(step % parts, self.participation.num_examples, parts)
        # batch_size * num_parts / num_examples of all 2^64 values, rounded down.
        numerator = self.participation.batch_size * parts << 64
        threshold = numerator // self.participation.num_examples
        if threshold >= 1 << 64:
            return part
        return part[self._words(step, part.size) < np.uint64(threshold)]


class CyclicFixedSizeSchedule(SampledSchedule):
    """B examples of part `step mod b`, uniformly without replacement."""

    participation: CyclicFixedSize

    def example_indices(self, step: int) -> np.ndarray:
        self._check_step(step)
        parts, size = self.participation.num_parts, self.participation.part_size
        # The examples with the smallest of independent random numbers.
        order = np.argsort(self._words(step, size), kind="stable")
        chosen = np.sort(order[: self.participation.batch_size])
        return step % parts + parts * chosen


class BallsInBinsSchedule(SampledSchedule):
    """Each example at the step of its bin, in every epoch."""

    _spans_run = True
    participation: BallsInBins

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        words = self._words(_WHOLE_RUN, self.participation.num_examples)
        bins = (words % np.uint64(self.participation.num_bins)).astype(np.int64)
        self._order = np.argsort(bins, kind="stable")
        counts = np.bincount(bins, minlength=self.participation.num_bins)
        self._ends = np.concatenate([[0], np.cumsum(counts)])

    def example_indices(self, step: int) -> np.ndarray:
        self._check_step(step)
        bin_ = step % self.participation.num_bins
        return self._order[self._ends[bin_] : self._ends[bin_ + 1]]


class ShuffledSchedule(SampledSchedule):
    """One random order of the examples, the same in every epoch."""

    _spans_run = True
    participation: Shuffled

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        words = self._words(_WHOLE_RUN, self.participation.num_examples)
        self._order = np.argsort(words, kind="stable")

    def example_indices(self, step: int) -> np.ndarray:
        self._check_step(step)
        position, steps = step % self.steps_per_epoch, self.steps_per_epoch
        total = self.participation.num_examples
        return self._order[position * total // steps : (position + 1) * total // steps]


_SCHEDULES: dict[type, Any] = {
    BallsInBins: BallsInBinsSchedule,
    CyclicFixedSize: CyclicFixedSizeSchedule,
    CyclicPoisson: CyclicPoissonSchedule,
    Poisson: CyclicPoissonSchedule,
    Shuffled: ShuffledSchedule,
}


def schedule_for(
    participation: Participation,
    num_steps: int,
    plan_id: int,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    seed: bytes | None = None,
    padded: bool = False,
) -> BatchSchedule:
    """The schedule that samples as the participation says; see `BatchSchedule`.

    Raises:
      TypeError: if the caller makes the batches under this participation.
      ValueError: if the data do not fit it, or a seed is given where none is used.
    """
    if isinstance(participation, FixedEpochOrder):
        if seed is not None:
            raise ValueError("A fixed epoch order has no secret seed.")
        return FixedOrderSchedule(participation, plan_id, x, y, sample_weight, padded)
    if type(participation) not in _SCHEDULES:
        raise TypeError(
            f"Under {type(participation).__name__} the caller makes the batches and "
            f"enforces the separation: it has no schedule."
        )
    schedule = _SCHEDULES[type(participation)]
    return schedule(
        participation, num_steps, plan_id, x, y, sample_weight, seed, padded
    )
