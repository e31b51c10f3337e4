"""Aggregation for TFF: means of clipped updates, with correlated noise.

`CorrelatedNoiseFactory` is a drop-in `model_aggregator` for TFF's
`build_unweighted_fed_avg`. `admitting_process`, which `build_fed_avg` uses, also rejects
clients that the plan does not permit to take part. For a weighted mean, TFF passes each
client's weight to the aggregation process. A private mean must not be weighted, so
`admitting_process` receives the client's tags (see `tags`) in place of the weight.
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
    """Makes aggregation processes that return noisy means of clipped updates.

    The result of a round is `(sum + noise) / clients_per_round`. Here, `sum` is the sum
    of the clipped updates, and `noise` is `plan.noise_stddev * (C^-1 Z)[round]`, with
    the plan's strategy matrix C and a matrix Z of independent standard normal entries.

    Formal guarantee: the released results of at most `plan.num_steps` rounds have the
    plan's (epsilon, delta) guarantee, with all data of one client as the privacy unit,
    IF every client satisfies the plan's `MinSep` and takes part at most once in a
    round. The factory does not see which clients take part. Enforce both conditions
    elsewhere, or use `build_fed_avg`.

    The process's measurements are exact int32 counts of clients. They are for the
    operator, and the guarantee does not cover them.

    Args:
      plan: plan with `MinSep` participation, whose steps are rounds.
      clients_per_round: expected number of clients in a round, by which the noisy sum
        is divided; by default the plan's batch size.

    Raises:
      TypeError: if `plan` is not a plan.
      ValueError: if the plan is unsuitable, or another argument is out of range.
    """

    def __init__(self, plan: Plan, clients_per_round: float | None = None) -> None:
        check_plan(plan)
        if hooks.is_needed(plan):
            raise ValueError(
                "The plan is bound to a budget ledger, but CorrelatedNoiseFactory cannot "
                "reserve the run's budget there. Use build_fed_avg(...) instead."
            )
        self._plan = plan
        self._denominator = clients_per_round_of(plan, clients_per_round)

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the aggregation process for a structure of float32 tensors.

        Raises:
          TypeError: if a leaf is not float32 or its shape is not static.
        """
        size = num_parameters_of(value_type)

        @tff.tensorflow.computation(value_type, np.int64)
        def record_of(value, round_number):
            return bounded_record(value, self._plan.l2_norm_clip)

        return _process(self._plan, self._denominator, size, record_of)


def admitting_process(
    plan: Plan, denominator: float, value_type: tff.Type
) -> tff.templates.AggregationProcess:
    """Returns an aggregation process that admits clients only as the plan permits.

    The process is the same as that of `CorrelatedNoiseFactory`, with one exception: if
    a client takes part too early or too often, the client's update is replaced by exact
    zeros before the sum. The measurement `early_clients` counts these clients. Only the
    devices know their earlier participations, so they send `tags.DEVICE_TAGS` in place
    of weights.

    Args:
      plan: plan with `MinSep` participation. If it is bound to a budget ledger, the
        caller must reserve the run's budget there.
      denominator: the public constant by which the noisy sum is divided.
      value_type: type of an update, a structure of float32 tensors.

    Raises:
      TypeError: if a leaf is not float32 or its shape is not static.
    """
    participation, size = check_plan(plan), num_parameters_of(value_type)

    @tff.tensorflow.computation(value_type, tff.to_type(DEVICE_TAGS), np.int64)
    def record_of(value, tags, round_number):
        with tf.control_dependencies([check_round(tags, round_number)]):
            early = is_early(tags, round_number, participation)
        present = tags["round"] > NEVER
        finite = tags["weight"] > 0.0
        record, counts = bounded_record(
            value, plan.l2_norm_clip, finite, present & ~early
        )
        counts["early_clients"] = tf.cast(present & early, tf.int32)
        return record, counts

    return _process(plan, denominator, size, record_of)


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


def _process(
    plan: Plan, denominator: float, size: int, record_of: tff.Computation
) -> tff.templates.AggregationProcess:
    """Returns a process that adds up the clients' clipped updates, and adds noise.

    Args:
      plan: plan that determines the noise.
      denominator: the public constant by which the noisy sum is divided.
      size: number of floats in an update.
      record_of: computation that returns a client's clipped update, and indicators (0
        or 1) whose sums are the measurements. Its arguments are the update, the
        client's tags if it sends any, and the round.
    """
    *sent_types, _ = record_of.type_signature.parameter.children()
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

    @tff.tensorflow.computation(initial_state.type_signature.result)
    def round_of(state):
        return state["round"]

    @tff.tensorflow.computation(initial_state.type_signature.result, sent_types[0])
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

    at_clients = [tff.FederatedType(sent, tff.CLIENTS) for sent in sent_types]

    @tff.federated_computation([initialize.type_signature.result, *at_clients])
    def next_fn(arguments):
        state, *sent = arguments
        round_number = tff.federated_broadcast(tff.federated_map(round_of, state))
        records = tff.federated_map(record_of, (*sent, round_number))
        total, counts = tff.federated_sum(records)
        new_state, result = tff.federated_map(noised, (state, total))
        return tff.templates.MeasuredProcessOutput(new_state, result, counts)

    return tff.templates.AggregationProcess(initialize, next_fn)
