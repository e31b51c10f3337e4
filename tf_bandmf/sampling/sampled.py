"""Schedules of the samplers whose randomness the accountant counts on.

Which examples a step uses is a pure function of a secret seed and the step, so that a run
continues after an interruption exactly as it would have gone on.
"""

from __future__ import annotations

import secrets
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenBytes
from tf_bandmf.participation import Participation
from tf_bandmf.sampling.batches import (
    BatchSchedule,
    FixedOrderSchedule,
    indices_in_graph,
)
from tf_bandmf.sampling.random_bits import SEED_BYTES, marked, random_words, unmarked


class SampledSchedule(BatchSchedule):
    """A schedule with a secret seed.

    Formal guarantee: the examples of the steps are distributed as the participation says,
    independently of the data, if the seed is fresh from the operating system and secret.

    Args:
      participation, num_steps, plan_id, x, y, sample_weight, padded: as for
        `BatchSchedule`.
      seed: outside of Keras, whose runs have one each (`join`): None for a fresh one, or
        `secret_seed()` of the interrupted loop that is to be continued. Anyone who knows
        it can undo the amplification. (For tests: 32 bytes, which `Plan.batches` takes
        only if the plan has a test seed.)
    """

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
        seed = None if seed is None else HiddenBytes(seed)
        if seed is not None and len(seed) != SEED_BYTES:
            seed = unmarked(seed)
        self._may_continue = seed is not None
        self._draw_from(secrets.token_bytes(SEED_BYTES) if seed is None else seed)

    def example_indices(self, step: int) -> np.ndarray:
        self._check_step(step)
        return self._sampler.example_indices(step)

    def secret_seed(self) -> bytes:
        """The seed, for a private file alone: 48 bytes, a mark included."""
        return marked(self._seed)

    def join(self, seed: bytes) -> BatchSchedule:
        if seed != self._seed:
            self._draw_from(seed)
        self._may_continue = True
        _ = self.schedule_id  # the data are hashed once, for this object and the copy
        # Another run may join this object meanwhile.
        return self._changed()

    def _draw_from(self, seed: bytes) -> None:
        self._seed = seed = HiddenBytes(seed)
        self._sampler = self.participation.sampler(
            lambda step, count: random_words(seed, step, count)
        )
        for name in ("schedule_id", "_draw_base"):
            vars(self).pop(name, None)

    def _check_start(self, first_step: int) -> None:
        super()._check_start(first_step)
        if first_step and self._sampler.spans_run and not self._may_continue:
            raise ValueError(
                f"The examples of this run were put in their places before step 0, with "
                f"another seed than this schedule's: it cannot continue at step "
                f"{first_step}. In Keras, draw the run's batches: "
                f"model.begin_run(batches).dataset(step). Elsewhere, use the schedule "
                f"object that began, or give its secret_seed() as sampler_seed."
            )
        self._may_continue = True

    def _secret_bytes(self) -> bytes:
        return self._seed

    def _indices(self, step: tf.Tensor) -> tf.Tensor:
        return indices_in_graph(self, step)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A sampler's seed is secret: it is not pickled or copied.")


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
    if participation.has_secret_sampler:
        return SampledSchedule(
            participation, num_steps, plan_id, x, y, sample_weight, seed, padded
        )
    if seed is not None:
        raise ValueError("A fixed epoch order has no secret seed.")
    if not participation.has_schedule:
        raise TypeError(
            f"Under {type(participation).__name__} the caller makes the batches and "
            f"enforces the separation: it has no schedule."
        )
    return FixedOrderSchedule(
        participation, num_steps, plan_id, x, y, sample_weight, padded
    )
