"""Federated averaging with correlated noise and enforced b-min-separation, in TFF.

    process = build_fed_avg(model_fn, plan, client_optimizer_fn=..., clients_per_round=20)
    state = process.initialize()
    for _ in range(plan.num_steps):
        t = process.round_number(state)
        data = []
        for device in cohort:  # each records its participation in advance
            data.append(tag_dataset(batches, device.last_round, device.participations, t))
            device.last_round, device.participations = t, device.participations + 1
        output = process.next(state, data)
        state = output.state

`round_number(state)` is the round that `next` would run from a state. `skip_round`
skips a round that was begun and must not be repeated. Within one Python process, `next`
refuses to compute a second result for a round. The ledger of `train_model` also prevents
this across Python processes. A saved state contains the noise key.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf import Plan
from tf_bandmf.ledger import hooks
from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf_federated.ledger import draw
from tf_bandmf_federated.plan_checks import (
    check_horizon,
    check_plan,
    clients_per_round_of,
    statement_of,
)
from tf_bandmf_federated.tff.aggregators import admitting_process, num_parameters_of
from tf_bandmf_federated.tff.client_work import tagged_client_work
from tf_bandmf_federated.tff.state_noise import NoiseInState, number_of_inputs

# The templates from which TFF composes its own learning processes.
_TEMPLATES = tff.learning.templates

Model = Union[
    Callable[[], tff.learning.models.VariableModel],
    tff.learning.models.FunctionalModel,
]


class PrivateLearningProcess(tff.learning.templates.LearningProcess):
    """A `LearningProcess` with a plan, which computes each round at most once.

    Use `build_fed_avg` to build a process. The TFF computation `next` raises ValueError
    if this object has already computed a result for the round of the state. This check
    needs the state's values, so it does not happen while TFF traces `next`.

    Attributes:
      plan: plan of the run.
      settings: plain values that, together with the plan, identify the process. The
        ledger of a run stores them.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        plan: Plan,
        num_parameters: int,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(
            process.initialize,
            _NextOnce(process.next, self),
            process.get_model_weights,
            process.set_model_weights,
            get_hparams_fn=process.get_hparams,
            set_hparams_fn=process.set_hparams,
        )
        self.plan = plan
        self.num_parameters = num_parameters
        self.settings = dict(settings)
        # These (run, round) pairs already have a result.
        self._done: set[tuple[bytes, int]] = set()

    def statement(self) -> PrivacyStatement:
        """Returns the plan's privacy statement, with a device as the privacy unit."""
        return statement_of(self.plan)

    def round_number(self, state: Any) -> int:
        """Returns the round, from 0, that `next` would run from this state."""
        return int(_aggregator(state)["round"])

    def prepare(self, state: Any, inputs: str) -> Any:
        """Returns a copy of a state, from which the next round may be run repeatedly.

        With the same inputs, all runs of the round have the same result, bit for bit.
        This method is for programs, such as `train_model`, that record the start of
        each round.

        Args:
          state: state before the round.
          inputs: text that identifies the inputs of the round, such as digests of the
            cohort, the data and the model. The noise of the round is bound to this
            text.

        Raises:
          ValueError: if the plan has no further round.
        """
        check_horizon(self.plan, self.round_number(state))
        noise = _aggregator(state)["noise"]
        return _with_noise(
            state, collections.OrderedDict(noise, inputs=number_of_inputs(inputs))
        )

    def skip_round(self, state: Any, inputs: str = "") -> Any:
        """Skips a round, and returns the state after it; the model is unchanged.

        Use this method for a round that was begun and must not be repeated. The
        clients' participations in the round still count. The guarantee holds, because
        the releases are a subset of those that the plan permits.

        Args:
          state: state before the round.
          inputs: text that identifies the inputs of the interrupted round. The round's
            normal variates, which the noise of later rounds may use, are bound to this
            text, or to a random number if the text is empty.

        Raises:
          ValueError: if the plan has no further round.
        """
        current = self.round_number(state)
        check_horizon(self.plan, current)
        hooks.begin(self.plan, _name_of(_secret(state)))
        self._done.add((_secret(state), current))
        noise = NoiseInState(self.plan, self.num_parameters)
        after = noise.skip(_aggregator(state)["noise"], current, inputs or draw())
        return _with_noise(state, after, current + 1)

    def begin(self, state: Any) -> tuple[bytes, int] | None:
        """Checks that `next` may run a round; returns the run and the round, or None.

        If the plan is bound to a budget ledger, the first call for a run reserves the
        run's budget there.

        Returns:
          The run's digest key and the round number. After this call, the round counts
          as a round with a result. The method returns None with a test seed and after
          `prepare`, because a second result then does no harm. It also returns None if
          `state` is not a concrete state of this process, for example while TFF traces
          `next`.

        Raises:
          ValueError: if the round already has a result, and `prepare` was not called
            for it.
          LedgerError: if the plan's budget ledger rejects the run, or `state` does not
            identify the run.
        """
        try:
            noise, current = _aggregator(state)["noise"], self.round_number(state)
            secret, is_repeatable = _secret(state), int(noise["inputs"]) != 0
        except (TypeError, KeyError, ValueError):
            if hooks.is_needed(self.plan):
                raise LedgerError(
                    "process.next(...) needs a state that the same process returned."
                ) from None
            return None
        hooks.begin(self.plan, _name_of(secret))
        if self.plan.test_seed is not None or is_repeatable:
            return None
        use = (secret, current)
        if use in self._done:
            raise ValueError(
                f"Round {current} already has a result. A second result would spend more "
                f"than the plan permits. Use the state that process.next(...) returned."
            )
        self._done.add(use)
        return use

    def has_failed(self, use: tuple[bytes, int]) -> None:
        """Records that a round failed and has no result, so that it may be run again.

        Args:
          use: the run and the round, as returned by `begin`.
        """
        self._done.discard(use)

    def note_rounds(self, state: Any, rounds: int) -> None:
        """Reports the number of completed rounds to the plan's budget ledger, if any."""
        hooks.note_steps(self.plan, _name_of(_secret(state)), rounds)


class _NextOnce(tff.framework.ConcreteComputation):
    """A computation `next` that refuses to compute a second result for a round.

    Args:
      computation: TFF's computation `next`, which does the work.
      process: the process that records which rounds have a result.
    """

    def __init__(
        self, computation: tff.Computation, process: PrivateLearningProcess
    ) -> None:
        super().__init__(
            computation_proto=tff.framework.ConcreteComputation.get_proto(computation),
            context_stack=tff.framework.get_context_stack(),
            annotated_type=computation.type_signature,
        )
        self._process = process

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        use = self._process.begin(next(iter([*arguments, *named.values()]), None))
        try:
            return super().__call__(*arguments, **named)
        except BaseException:
            if use is not None:
                self._process.has_failed(use)
            raise


def _aggregator(state: Any) -> Any:
    """Returns the aggregator's state within a process state.

    Raises:
      TypeError: if `state` lacks an aggregator's state, whose entries include "round"
        and "noise".
    """
    aggregator = getattr(state, "aggregator", None)
    if isinstance(aggregator, Mapping) and {"noise", "round"} <= set(aggregator):
        return aggregator
    raise TypeError(
        f"state must come from a process made by build_fed_avg, but found an object of "
        f"class {type(state).__name__}."
    )


def _secret(state: Any) -> bytes:
    """Returns the digest key, a secret that all states of a run share."""
    return np.asarray(_aggregator(state)["noise"]["digest_key"]).tobytes()


def _name_of(secret: bytes) -> str:
    """Returns the name that a run with this digest key has in a budget ledger."""
    return hooks.name_of(NoiseKey(hashlib.sha256(secret).digest()))


def _with_noise(state: Any, noise: Any, round_number: int | None = None) -> Any:
    """Returns a copy of a state with new `noise` and, if given, `round_number`."""
    changed = collections.OrderedDict(_aggregator(state), noise=noise)
    if round_number is not None:
        changed["round"] = np.int64(round_number)
    return state._replace(aggregator=changed)


def build_fed_avg(
    model_fn: Model,
    plan: Plan,
    client_optimizer_fn: tff.learning.optimizers.Optimizer,
    server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
    *,
    clients_per_round: float | None = None,
    metrics_aggregator: Callable[..., Any] | None = None,
) -> PrivateLearningProcess:
    """Builds a process for federated averaging with correlated noise.

    A client trains on its data, and clips its update, the change of the weights, to the
    plan's clip norm. The server adds up the updates with uniform weights, adds noise,
    and divides by a constant. The noise is `plan.noise_stddev * (C^-1 Z)[round]`, with
    the plan's strategy matrix C and a matrix Z of independent standard normal entries.
    Rounds without clients also get noise. If a client takes part too early or too
    often, or if its update is not finite, its update is replaced by exact zeros, and
    the client is counted in the metrics.

    Formal guarantee: the model weights of all rounds, and everything computed from
    them, are (epsilon, delta)-DP as the plan states, if the clients' tags are truthful
    and no client takes part twice in one round (`train_model` ensures both). The
    privacy unit is all data of one client, with zero-out adjacency. Metrics are outside
    the guarantee.

    Args:
      model_fn: function that returns a new `VariableModel`, or a `FunctionalModel`.
      plan: plan with `MinSep` participation, whose steps are rounds.
      client_optimizer_fn: a TFF optimizer.
      server_optimizer_fn: a TFF optimizer; by default SGD with learning rate 1.
      clients_per_round: expected number of clients in a round, by which the noisy sum
        is divided; by default the plan's batch size.
      metrics_aggregator: aggregator of the training metrics; None to release no
        training metrics. `tff.learning.metrics.sum_then_finalize` gives exact metrics
        WITHOUT noise, which are not private.

    Returns:
      A `tff.learning.templates.LearningProcess`. The clients' data sets must be tagged
      by `tag_dataset`.

    Raises:
      TypeError: if an argument is of the wrong type, or trainable weights are not float32.
      ValueError: if the plan is unsuitable: its participation is not `MinSep`, its
        batch size is not `clients_per_round`, or its ring buffer is too large for TFF's
        state.
    """
    check_plan(plan)
    denominator = clients_per_round_of(plan, clients_per_round)
    if server_optimizer_fn is None:
        server_optimizer_fn = tff.learning.optimizers.build_sgdm(learning_rate=1.0)
    initial_weights = _initial_weights(model_fn)
    weights_type = initial_weights.type_signature.result
    work = _client_work(
        model_fn, client_optimizer_fn, metrics_aggregator or _no_metrics
    )
    num_parameters = num_parameters_of(weights_type.trainable)
    process = _TEMPLATES.compose_learning_process(
        initial_weights,
        _TEMPLATES.build_broadcast_process(weights_type),
        tagged_client_work(work),
        admitting_process(plan, denominator, weights_type.trainable),
        _TEMPLATES.build_apply_optimizer_finalizer(server_optimizer_fn, weights_type),
    )
    settings = {
        "num_parameters": num_parameters,
        "weights": str(weights_type),
        "clients_per_round": denominator,
    }
    return PrivateLearningProcess(process, plan, num_parameters, settings)


def _initial_weights(model_fn: Model) -> tff.Computation:
    """Returns a computation that makes initial weights as TFF's own processes do."""

    @tff.tensorflow.computation()
    def weights():
        if isinstance(model_fn, tff.learning.models.FunctionalModel):
            parts = [map(tf.convert_to_tensor, w) for w in model_fn.initial_weights]
            return tff.learning.models.ModelWeights(*map(tuple, parts))
        return tff.learning.models.ModelWeights.from_model(model_fn())

    return weights


def _client_work(
    model_fn: Model,
    optimizer: tff.learning.optimizers.Optimizer,
    metrics_aggregator: Callable[..., Any],
) -> tff.learning.templates.ClientWorkProcess:
    build, argument = _TEMPLATES.build_model_delta_client_work, "model_fn"
    if isinstance(model_fn, tff.learning.models.FunctionalModel):
        build, argument = _TEMPLATES.build_functional_model_delta_client_work, "model"
    return build(
        **{argument: model_fn},
        optimizer=optimizer,
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        metrics_aggregator=metrics_aggregator,
        # TFF's default loop uses `reduce`, whose function TensorFlow prepares again for
        # each client.
        loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )


def _no_metrics(finalizers: Any) -> Callable[[Any], tff.Value]:
    """Returns a metrics aggregator that releases nothing."""
    return lambda unfinalized: tff.federated_value(
        collections.OrderedDict(), tff.SERVER
    )
