"""Aggregation factories with bounded sums, correlated noise, and a public denominator.

`CorrelatedNoiseFactory` is a drop-in `model_aggregator` for TFF's
`build_unweighted_fed_avg`. `AdmittingFactory`, which `build_fed_avg` uses, also rejects
clients that the plan does not permit to take part. It gets the clients' tags where TFF
normally passes the clients' weights, because a private mean must not be weighted.
"""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf import Plan
from tf_bandmf.ledger import hooks
from tf_bandmf_federated.eligibility import NEVER
from tf_bandmf_federated.plan_checks import check_plan, clients_per_round_of
from tf_bandmf_federated.tff.state_noise import NoiseInState, check_fits
from tf_bandmf_federated.tff.tags import DEVICE_TAGS
from tf_bandmf_federated.tff.updates import (
    add_noise,
    bounded_record,
    check_round,
    flat,
    is_early,
)


class CorrelatedNoiseFactory(tff.aggregators.UnweightedAggregationFactory):
    """The noisy mean of clipped updates: `(sum + stddev * (C^-1 Z)[round]) / clients`.

    Formal guarantee: the released results of at most `plan.num_steps` rounds have the
    plan's (epsilon, delta) guarantee, with all data of one client as the privacy unit,
    IF every client satisfies the plan's `MinSep` and takes part at most once in a
    round. This factory does not see which clients take part; enforce the participation
    elsewhere, or use `build_fed_avg`.

    The measurements are int32 counts of clients, for the operator: they are exact, and
    the guarantee does not cover them.

    Args:
      plan: plan with `MinSep` participation, whose steps are rounds.
      clients_per_round: expected number of clients, the public denominator; by default
        the plan's batch size.

    Raises:
      TypeError: if `plan` is not a plan.
      ValueError: if the plan is unsuitable, or another argument is out of range.
    """

    def __init__(self, plan: Plan, clients_per_round: float | None = None) -> None:
        check_plan(plan)
        if hooks.is_needed(plan):
            raise ValueError(
                "The plan must not be bound to a ledger, because TFF's own process cannot "
                "reserve the run's budget there. Use build_fed_avg."
            )
        self._plan = plan
        self._denominator = clients_per_round_of(plan, clients_per_round)

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the aggregation process for a structure of float32 tensors.

        Raises:
          TypeError: if a leaf is not float32 or its shape is not static.
        """
        core = _Core(self._plan, self._denominator, value_type)

        @tff.tensorflow.computation(value_type)
        def record_of(value):
            return bounded_record(value, self._plan.l2_norm_clip)

        @tff.federated_computation(
            core.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
        )
        def next_fn(state, value):
            total = tff.federated_sum(tff.federated_map(record_of, value))
            return core.output(state, total)

        return tff.templates.AggregationProcess(core.initialize, next_fn)


class AdmittingFactory(tff.aggregators.WeightedAggregationFactory):
    """`CorrelatedNoiseFactory` that admits a client only if the plan's `MinSep` permits.

    If a client takes part too early or too often, its update is replaced by exact zeros
    on the client, before the sum. `early_clients` counts these clients. Only the
    devices know their earlier participations, so they send `tags.DEVICE_TAGS` in place
    of weights.

    Args:
      plan: plan with `MinSep` participation; the caller reserves its budget in a ledger.
      denominator: the public constant by which the noisy sum is divided.
    """

    def __init__(self, plan: Plan, denominator: float) -> None:
        self._participation = check_plan(plan)
        self._plan, self._denominator = plan, denominator

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Creates the aggregation process for tags and a structure of float32 tensors.

        Raises:
          TypeError: if a leaf is not float32.
        """
        core = _Core(self._plan, self._denominator, value_type)
        tags_type = tff.to_type(DEVICE_TAGS)

        @tff.tensorflow.computation(value_type, tags_type, np.int64)
        def record_of(value, tags, round_number):
            with tf.control_dependencies([check_round(tags, round_number)]):
                early = is_early(tags, round_number, self._participation)
            clip = self._plan.l2_norm_clip
            present = tags["round"] > NEVER
            finite = tags["weight"] > 0.0
            record, counts = bounded_record(value, clip, finite, present & ~early)
            counts["early_clients"] = tf.cast(present & early, tf.int32)
            return record, counts

        @tff.federated_computation(
            core.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(tags_type, tff.CLIENTS),
        )
        def next_fn(state, value, tags):
            round_number = tff.federated_broadcast(
                tff.federated_map(core.round_of, state)
            )
            records = tff.federated_map(record_of, (value, tags, round_number))
            return core.output(state, tff.federated_sum(records))

        return tff.templates.AggregationProcess(core.initialize, next_fn)


def num_parameters_of(value_type: tff.Type) -> int:
    """Returns d, the number of floats in a value of this type.

    Raises:
      TypeError: if a leaf is not float32 or its shape is not static.
    """
    if isinstance(value_type, tff.TensorType):
        shape = tf.TensorShape(value_type.shape)
        if value_type.dtype != np.float32 or not shape.is_fully_defined():
            raise TypeError(
                f"Updates must be float32 tensors with static shapes, found {value_type}."
            )
        return int(shape.num_elements())
    if isinstance(value_type, tff.StructType):
        return sum(num_parameters_of(child) for child in value_type.children())
    raise TypeError(f"Updates must be structures of tensors, found {value_type}.")


class _Core:
    """The TFF computations that the two factories of this module share."""

    def __init__(self, plan: Plan, denominator: float, value_type: tff.Type) -> None:
        size = num_parameters_of(value_type)
        check_fits(plan, size)
        noise = NoiseInState(plan, size)

        @tff.tensorflow.computation()
        def initial_state():
            return collections.OrderedDict(
                round=tf.constant(0, tf.int64),
                plan_id=tf.constant(plan.plan_id, tf.int64),
                noise=noise.initial_state(),
            )

        @tff.federated_computation()
        def initialize():
            return tff.federated_eval(initial_state, tff.SERVER)

        self.initialize = initialize
        state_type = initial_state.type_signature.result

        @tff.tensorflow.computation(state_type)
        def round_of(state):
            return state["round"]

        self.round_of = round_of

        @tff.tensorflow.computation(state_type, value_type)
        def noised(state, total):
            same_plan = tf.debugging.assert_equal(
                state["plan_id"],
                tf.constant(plan.plan_id, tf.int64),
                "The state belongs to another plan. Continue with that plan.",
            )
            with tf.control_dependencies([same_plan]):
                round_number = tf.identity(state["round"])
            row, new = noise.next(state["noise"], round_number, flat(total))
            result = add_noise(total, row, plan.noise_stddev, denominator)
            new_state = collections.OrderedDict(
                round=round_number + 1, plan_id=state["plan_id"], noise=new
            )
            return new_state, result

        self._noised = noised

    def output(
        self, state: tff.Value, total: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
        """Adds noise: maps state and (sum, counts) to state, noisy mean and counts."""
        new_state, result = tff.federated_map(self._noised, (state, total[0]))
        return tff.templates.MeasuredProcessOutput(new_state, result, total[1])
