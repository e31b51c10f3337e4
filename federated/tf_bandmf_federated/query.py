"""The noise as a query of TensorFlow Privacy.

    query = CorrelatedNoiseSumQuery(plan, record_specs)
    mean = tensorflow_privacy.NormalizedQuery(query, clients_per_round)
    aggregator = tff.aggregators.DifferentiallyPrivateFactory(mean)

The aggregator is a drop-in `model_aggregator` of `build_unweighted_fed_avg`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tf_bandmf import Plan
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.records import (
    add_noise,
    bounded_record,
    check_zeroing_norm,
    flat,
)
from tf_bandmf_federated.server_noise import NoiseInState, State


class CorrelatedNoiseSumQuery(tfp.SumAggregationDPQuery):
    """Sum of clipped records plus `stddev * (C^-1 Z)[round]`.

    Formal guarantee: as `CorrelatedNoiseFactory`, for the sums. The query does not see
    who takes part.

    The event of a round is `UnsupportedDpEvent`: the guarantee is one for the whole run,
    `plan.guarantee`, not composed of rounds.

    WARNING: the global state holds the keys of all rounds and the ring buffer. Whoever
    reads a program state can remove the noise.

    Args:
      plan: with `MinSep` participation.
      record_specs: nested structure of `tf.TensorSpec`, float32, static shapes.
      zeroing_norm: records of a larger norm become zero; None: they are clipped.

    Raises:
      TypeError: if this is not a plan or a spec is not float32 with a static shape.
      ValueError: if the plan does not fit or zeroing_norm is not above its clip norm.
    """

    class GlobalState(NamedTuple):
        """Round, int64, and the state of `NoiseInState`. Secret."""

        round: Any
        step_keys: Any
        digest_key: Any
        buffer: Any

    def __init__(
        self, plan: Plan, record_specs: Any, zeroing_norm: float | None = None
    ) -> None:
        check_plan(plan)
        check_zeroing_norm(zeroing_norm, plan.l2_norm_clip)
        for spec in tf.nest.flatten(record_specs):
            if spec.dtype != tf.float32 or not spec.shape.is_fully_defined():
                raise TypeError(
                    f"Records must be float32 tensors of static shape, found {spec}."
                )
        self._plan = plan
        self._specs = record_specs
        self._zeroing_norm = zeroing_norm
        sizes = [s.shape.num_elements() for s in tf.nest.flatten(record_specs)]
        self._noise = NoiseInState(plan, sum(sizes))

    def initial_global_state(self) -> GlobalState:
        """A fresh key from the operating system, at every run of the graph."""
        return self.GlobalState(tf.constant(0, tf.int64), **self._noise.initial_state())

    def derive_sample_params(self, global_state: GlobalState) -> tf.Tensor:
        """The clip norm. Clients get nothing of the state."""
        return tf.constant(self._plan.l2_norm_clip, tf.float32)

    def initial_sample_state(self, template: Any = None) -> Any:
        """Zeros like the records."""
        return tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), self._specs
        )

    def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
        """Clips; records that are not finite or too large become zero."""
        return bounded_record(record, self._plan.l2_norm_clip, self._zeroing_norm)[0]

    def get_noised_result(
        self, sample_state: Any, global_state: GlobalState
    ) -> tuple[Any, GlobalState, dp_accounting.DpEvent]:
        """The noisy sum.

        Raises:
          InvalidArgumentError: at run time, past the plan's last round.
        """
        kept = State(
            step_keys=global_state.step_keys,
            digest_key=global_state.digest_key,
            buffer=global_state.buffer,
        )
        row, new = self._noise.next(kept, global_state.round, flat(sample_state))
        result = add_noise(sample_state, row, self._plan.noise_stddev, 1.0)
        new_state = self.GlobalState(global_state.round + 1, **new)
        return result, new_state, dp_accounting.UnsupportedDpEvent()
