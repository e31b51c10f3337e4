"""Batch schedules: all batches of a run, each with the number of its step."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenBytes
from tf_bandmf.sampling import identity
from tf_bandmf.sampling.examples import Examples, pad
from tf_bandmf.sampling.samplers import SEED_BYTES, OrderSampler, Sampler, random_words

if TYPE_CHECKING:
    from tf_bandmf.participation import Participation

# Keys of a batch, in addition to its contents. The training step reads `step` and
# `plan_id` to reject all batches except those that the accountant analyzed.
STEP, PLAN_ID, SCHEDULE_ID = "step", "plan_id", "schedule_id"
# Only padded batches have this key: the number of examples that are not padding.
NUM_EXAMPLES = "num_examples"
# The maximum probability that some batch of a run exceeds the padded size.
_OVERFLOW = 1e-12
# Only batches that are split among replicas have this key: the index of the part of the
# batch, and the number of parts.
PART = "part"


class IndexBatch(NamedTuple):
    """The indices of the examples that one step uses.

    Attributes:
      step: step of the run.
      indices: int64, shape [N].
    """

    step: int
    indices: np.ndarray


def is_scheduled_batch(data: Any) -> bool:
    """Returns True if `data` is a batch of a `BatchSchedule`."""
    return isinstance(data, dict) and {STEP, PLAN_ID, SCHEDULE_ID} <= set(data)


class BatchSchedule:
    """All batches of one run, from the first step to the last.

    A batch is a dictionary of `x`, `y` and `sample_weight` (if they exist), the `step`
    for which the batch is meant, the `plan_id` of the plan, a `schedule_id` (a hash of
    the plan, the data and the sampler's seed), and a `fingerprint` of all other
    entries, so that a private step can reject a changed batch. All batches of a run
    must have the same `schedule_id`. The batch size may vary from step to step, down to
    0, and is not static, so a training step is traced once. For static shapes (XLA
    compiles a program for each shape), `padded` batches have a constant size.

    One schedule is used for all epochs and restarts of a run: from any step on,
    `dataset(first_step)` and `indices(first_step)` return the batches of the
    uninterrupted run. If the sample is secret, it belongs to one run, and its seed is
    derived from the run's key: `join` returns the run's schedule. In Keras, `fit` and
    `begin_run` do this. A schedule that has not joined a run has a fresh secret seed,
    and can be used for one run only.

    Formal guarantee: if the key is fresh from the operating system and secret, the examples
    of the steps have the participation's distribution, independently of the data.

    Args:
      participation: the participation that the accountant analyzes; it must have a
        schedule.
      num_steps: n, the number of steps.
      plan_id: identifier of the plan, int64.
      examples: the examples, as many as the participation has.
      padded: True to give every batch `padded_batch_size` rows. Surplus rows are zeros with
        sample weight 0; `num_examples` counts the real rows.

    Attributes:
      steps_per_epoch: number of steps per pass over the data, exact or on average.
      labels: class numbers of the examples that were inspected; empty if not known.
      ranges: declared ranges of inputs and targets; see `sampling.changes.Ranges`.

    Raises:
      ValueError: if the number of examples differs from that in the participation.
    """

    def __init__(
        self,
        participation: Participation,
        num_steps: int,
        plan_id: int,
        examples: Examples,
        padded: bool = False,
        seed: bytes | None = None,
    ) -> None:
        participation.validate_num_steps(num_steps)
        self.participation, self.num_steps = participation, num_steps
        self.plan_id, self._padded, self._examples = plan_id, padded, examples
        self.steps_per_epoch = participation.steps_per_epoch
        count = participation.num_examples  # type: ignore[attr-defined]
        if examples.num_examples != count:
            raise ValueError(
                f"The plan is for {count} examples, but the data set has "
                f"{examples.num_examples} (with users=, each user is one example). Make a "
                f"plan with num_examples={examples.num_examples}."
            )
        self._is_fresh = seed is None and participation.has_secret_sampler
        size = SEED_BYTES if self._is_fresh else 0
        self._seed = HiddenBytes(seed or secrets.token_bytes(size))
        if examples.source.in_order and participation.has_secret_sampler:
            raise ValueError(
                f"A data set is read in its own order, but the plan's sampling, "
                f"{participation.sampling!r}, needs examples in a random order. Make a "
                f"plan with sampling='fixed-order'. Or write the data set to files once, "
                f"and pass arrays from np.load(path, mmap_mode='r'), or "
                f"tf_bandmf.sampling.TFRecordExamples(files, parse), to plan.batches."
            )
        self.labels, self.ranges = examples.labels, examples.ranges

    def __repr__(self) -> str:
        # Keras quotes this text in its error message if a schedule is passed to the
        # `fit` of a non-private model.
        kind = type(self.participation).__name__
        return (
            f"<{type(self).__name__} of {self.num_steps} steps ({kind}), for fit of a "
            f"model that tf_bandmf.keras.make_private made private>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("Do not pickle or copy a BatchSchedule: its seed is secret.")

    @functools.cached_property
    def padded_batch_size(self) -> int:
        """A size that no batch of a run exceeds, except with probability <= 1e-12.

        This size is independent of the sample, and so reveals nothing about it.
        """
        return self.participation.largest_batch_size(self.num_steps, _OVERFLOW)

    @functools.cached_property
    def _sampler(self) -> Sampler:
        if self._examples.source.in_order:
            order = np.arange(self._examples.num_examples, dtype=np.int64)
            return OrderSampler(order, self.steps_per_epoch)
        return self.participation.sampler(functools.partial(random_words, self._seed))

    def example_indices(self, step: int) -> np.ndarray:
        """Returns the indices of a step's examples, int64, shape [batch size]."""
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step must be in [0, {self.num_steps}), found {step}.")
        return self._sampler.example_indices(int(step))

    @functools.cached_property
    def schedule_id(self) -> int:
        """A 63-bit hash of plan, data and sampler seed, which is constant in a run."""
        parts = str(self.plan_id).encode(), self._seed, self._examples.digest
        digest = hashlib.blake2b(HiddenBytes(b"".join(parts)), digest_size=8)
        return int.from_bytes(digest.digest(), "little") >> 1

    @functools.cached_property
    def _draw_base(self) -> np.ndarray:
        """The seed of all random choices other than sampling, int64, shape [2].

        Such choices are the random numbers of `map`, and which rows of a user are used.
        """
        plan, person = str(self.plan_id).encode(), b"tf-bandmf draws"
        digest = hashlib.blake2b(plan, digest_size=16, key=self._seed, person=person)
        return np.frombuffer(digest.digest(), np.int64)

    def dataset(
        self,
        first_step: int = 0,
        parts: Sequence[int] | None = None,
        num_parts: int = 1,
    ) -> tf.data.Dataset:
        """Returns the batches from `first_step` to the end of the run, in order.

        All random choices (the random numbers of `map`, and the choice of a user's
        rows) are functions of the run's seed, the step and the example, so they are the
        same after a restart.

        Args:
          first_step: first step of the run.
          parts: None for whole batches, or indices of parts: only these parts of each
            batch are returned, in this order. Each example of a batch is in exactly one
            part; parts may differ in size, and may be empty.
          num_parts: number of parts of each batch, one for each replica.

        Raises:
          ValueError: if the schedule cannot start at this step: the step does not
            exist, or the run drew its earlier steps from another seed.
        """
        self._check_start(first_step)
        examples = self._examples
        ids = {
            PLAN_ID: tf.constant(self.plan_id, tf.int64),
            SCHEDULE_ID: tf.constant(self.schedule_id, tf.int64),
        }
        count = 1 if parts is None else len(parts)

        # AutoGraph conversion would take longer than building the rest of the pipeline.
        @tf.autograph.experimental.do_not_convert
        def batch(place: tf.Tensor) -> dict[str, Any]:
            step, number = place, tf.constant(0)
            if parts is not None:
                step, number = place // count, tf.gather(parts, place % count)
            drawn = [step, number, num_parts]
            indices, size = tf.numpy_function(self._part, drawn, [tf.int64, tf.int64])
            indices.set_shape([None])
            content = examples.drawn(indices, step, self._draw_base)
            if self._padded:
                whole = self.padded_batch_size
                static = None if whole % num_parts else whole // num_parts
                content = pad(content, size, static)
                content[NUM_EXAMPLES] = tf.size(indices)
            if parts is not None:
                content[PART] = tf.stack([number, num_parts])
            return identity.with_fingerprint({**content, **ids, STEP: step})

        identity.remember(self.schedule_id, examples.source.records, examples.remarks)
        # Making two batches in parallel saves time only if the rows are changed (by
        # `map`, for example), because rows are read for one batch at a time. A data set
        # that is read in its own order does not permit parallel batches.
        parallel = 2 if examples.changes and not examples.source.in_order else None
        # This pipeline gains nothing from autotuning, and stopping the autotuner takes
        # up to a second.
        options = tf.data.Options()
        options.autotune.enabled = False
        # This pipeline has nothing to fuse, and searching for fusions would slow down
        # the start.
        options.experimental_optimization.apply_default_optimizations = False
        places = [step * count for step in (first_step, self.num_steps)]
        return (
            tf.data.Dataset.range(*places)
            .map(batch, parallel, deterministic=True if parallel else None)
            .prefetch(2 * count)
            .with_options(options)
        )

    def _part(
        self, step: int, number: int, num_parts: int
    ) -> tuple[np.ndarray, np.int64]:
        """Returns the example indices of one part of a batch, and this part's padded size.

        Args:
          step: step of the run.
          number: index of the part.
          num_parts: number of parts of the batch.
        """
        indices = self.example_indices(step)
        size = self.padded_batch_size if self._padded else indices.size
        if indices.size > size:
            raise ValueError(
                f"A batch has more than {size} examples, the padded size of all batches. "
                f"The batch is not cut, because the plan's epsilon would not hold for "
                f"cut batches. Call plan.batches(...) with padded=False."
            )
        first = size * int(number) // int(num_parts)
        end = size * int(number + 1) // int(num_parts)
        return indices[first:end], np.int64(end - first)

    def indices(self, first_step: int = 0) -> Iterator[IndexBatch]:
        """Yields the example indices of each step, for custom loops that fetch examples.

        Raises:
          ValueError: if the schedule cannot start at `first_step`.
        """
        self._check_start(first_step)
        for step in range(first_step, self.num_steps):
            yield IndexBatch(step, self.example_indices(step))

    def _check_start(self, first_step: int) -> None:
        """Raises ValueError if this schedule cannot start at `first_step`.

        This is so if the step does not exist, or if the run drew its earlier steps from
        another seed.
        """
        if not 0 <= first_step <= self.num_steps:
            raise ValueError(
                f"first_step must be in [0, {self.num_steps}], found {first_step}."
            )
        if first_step and self._is_fresh and self._sampler.spans_run:
            raise ValueError(
                f"These batches cannot continue a run at step {first_step}, because "
                f"plan.batches drew a new seed, and the run's earlier batches came from "
                f"another seed. In Keras, use model.begin_run(batches).dataset(step). "
                f"Elsewhere, keep the run's NoiseKey as key, and use "
                f"plan.batches(x, y).join(key.sampler_seed())."
            )
        self._is_fresh = False

    def join(self, seed: bytes) -> BatchSchedule:
        """Returns this schedule for one run, with samples derived from the run's key.

        Args:
          seed: the run's `NoiseKey.sampler_seed()`; ignored if the sampler has no
            secrets.

        Raises:
          TypeError: if the seed does not come from a `NoiseKey`, because whoever chose
            the seed would know the sample.
        """
        if not self._seed:
            return self
        if not isinstance(seed, HiddenBytes):
            raise TypeError(
                f"join(seed) needs the secret seed of a noise key, found "
                f"{type(seed).__name__}. Pass NoiseKey.from_operating_system()"
                f".sampler_seed(), or in tests NoiseKey.for_testing(0).sampler_seed()."
            )
        return self._with(self._examples, seed)

    def with_class_weight(self, class_weight: Mapping[int, float]) -> BatchSchedule:
        """Returns the same batches, with example losses multiplied by class weights.

        Args:
          class_weight: dictionary from class numbers to weights, finite and >= 0; see
            `sampling.changes.ClassWeights`.

        Returns:
          A separate schedule. A run that started with other weights cannot continue
          with it.

        Raises:
          ValueError: if weights or targets do not have the form that `ClassWeights`
            requires.
        """
        seed = None if self._is_fresh else self._seed
        return self._with(self._examples.weighted(class_weight), seed)

    def _with(self, examples: Examples, seed: bytes | None) -> BatchSchedule:
        run = self.participation, self.num_steps, self.plan_id
        return BatchSchedule(*run, examples, self._padded, seed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.dataset())

    def __len__(self) -> int:
        return self.num_steps
