"""Federated averaging with correlated noise and an enforced b-min-separation.

    process = build_fed_avg(model_fn, plan, client_optimizer_fn=..., clients_per_round=20)
    state = process.initialize()
    for _ in range(plan.num_steps):
        t = process.round_number(state)
        data = []
        for device in cohort:  # which records that it takes part, before it does
            data.append(tag_dataset(batches, device.last_round, device.participations, t))
            device.last_round, device.participations = t, device.participations + 1
        state = process.prepare(state)
        output = process.next(state, data)
        state = output.state

The round that a state runs next is `round_number(state)`. `prepare` puts the noise of
the round into the state where the host makes the noise (`noise_place == "host"`); it is
always right to call it. `skip_round` skips a round that was begun and must not be
repeated. `next` refuses a second result of a round as long as the process lives; the
ledger of `train_model` knows what other processes did. The table of `server_noise` says
what a saved state holds; do not save a state between `prepare` and `next`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf import Plan
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf_federated.aggregators import MinSepNoiseFactory, num_parameters_of
from tf_bandmf_federated.client_work import tagged_client_work
from tf_bandmf_federated.host_noise import HostNoise, find_aggregator, replace_noise
from tf_bandmf_federated.ledger import draw
from tf_bandmf_federated.noise_uses import NoiseUses
from tf_bandmf_federated.plan_checks import check_horizon
from tf_bandmf_federated.server_noise import (
    NoiseInState,
    choose_place,
    number_of_inputs,
)

# What TFF's own learning processes add up.
_TEMPLATES = tff.learning.templates

Model = Union[
    Callable[[], tff.learning.models.VariableModel],
    tff.learning.models.FunctionalModel,
]


class PrivateLearningProcess(tff.learning.templates.LearningProcess):
    """A `LearningProcess` that knows its plan and which round comes next.

    Build it with `build_fed_avg`. Its `next` is a computation of TFF. When it is called on
    values, it raises ValueError if the noise of the state's round was already used and not
    handed out again by `prepare(..., replay=True)`.

    Attributes:
      plan: what the run does.
      noise_place: "state" or "host".
      host_noise: object that makes the noise of "host", or None.
      settings: what else defines the process, as plain values: a run keeps them.
      uses: the rounds that were begun in this process.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        plan: Plan,
        num_parameters: int,
        host_noise: HostNoise | None,
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
        self.host_noise = host_noise
        self.settings = dict(settings)
        self.uses = NoiseUses() if host_noise is None else host_noise.uses

    @property
    def noise_place(self) -> str:
        return "state" if self.host_noise is None else "host"

    def statement(self) -> PrivacyStatement:
        """The plan's privacy statement, for devices instead of training examples."""
        return dataclasses.replace(
            self.plan.statement(
                unit="one device: all that it contributes in all rounds"
            ),
            output="noisy sums of the devices' clipped updates",
        )

    def round_number(self, state: Any) -> int:
        """The round, from 0, that `next` runs on this state."""
        return int(find_aggregator(state)["round"])

    def key_id(self, state: Any) -> int:
        """A public number, positive, that tells the noise keys of runs apart."""
        noise = find_aggregator(state)["noise"]
        if self.host_noise is not None:
            return self.host_noise.key_id(int(noise["run_id"]))
        keys = np.asarray(noise["digest_key"]).tobytes()
        digest = hashlib.sha256(b"key id" + keys).digest()
        return (int.from_bytes(digest[:8], "little") >> 1) | 1

    def prepare(self, state: Any, replay: bool = False, inputs: str = "") -> Any:
        """The state that `next` takes, once; see `HostNoise.prepare`.

        Args:
          state: before the round.
          replay: asserts that the round's first result was neither released nor kept.
          inputs: what the round starts from; its noise is bound to it, so that the
            round can be repeated bit for bit. If empty, the noise is bound to a number
            that is drawn.

        Raises:
          ValueError: past the plan's last round; if the round was already begun in this
            process and `replay` is False; if the state belongs to another key.
        """
        check_horizon(self.plan, self.round_number(state))
        if self.host_noise is not None:
            return self.host_noise.prepare(state, replay, inputs)
        if replay:
            self.uses.begin(self.key_id(state), self.round_number(state), replay)
        if not inputs:
            return state
        noise = find_aggregator(state)["noise"]
        number = number_of_inputs(inputs)
        return replace_noise(state, collections.OrderedDict(noise, inputs=number))

    def skip_round(self, state: Any, inputs: str = "") -> Any:
        """The state after a round whose result is discarded: the model is unchanged.

        For a round that was begun and must not be repeated with its noise. The clients'
        participations in it count. The guarantee holds: what is released is part of what
        the plan would release.

        Args:
          state: before the round.
          inputs: what the round was begun with; its normals, from which later rounds may
            be made, are bound to it. If empty, they are bound to a number that is drawn.

        Raises:
          ValueError: past the plan's last round.
        """
        current = self.round_number(state)
        check_horizon(self.plan, current)
        if self.host_noise is not None:
            return self.host_noise.skip(state, inputs)
        self.uses.pass_over(self.key_id(state), current)
        noise = NoiseInState(self.plan, self.num_parameters)
        after = noise.skip(find_aggregator(state)["noise"], current, inputs or draw())
        return replace_noise(state, after, current + 1)

    def use_of(self, state: Any) -> tuple[int, int] | None:
        """Run and round whose noise `next` would use; None if unknown.

        It is unknown while TFF traces, for references of its programs, for a test seed
        (whose noise is known anyway) and for anything but a state of this process.
        """
        if self.plan.test_seed is not None:
            return None
        try:
            aggregator = find_aggregator(state)
            current = int(aggregator["round"])
            if self.host_noise is None:
                return self.key_id(state), current
            noise = aggregator["noise"]
            # Noise that is not there is refused by the graph.
            is_ready = int(noise["ready_for"]) == current
            return (int(noise["run_id"]), current) if is_ready else None
        except (TypeError, KeyError, ValueError):
            return None


class _NextOnce(tff.framework.ConcreteComputation):
    """A process's `next`, which refuses noise that was used.

    Args:
      computation: what it calls.
      process: that knows which noise was used.
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
        states = [*arguments, *named.values()][:1]
        use = self._process.use_of(states[0]) if states else None
        if use is None:
            return super().__call__(*arguments, **named)
        uses = self._process.uses
        uses.take(*use, begins=self._process.host_noise is None)
        try:
            return super().__call__(*arguments, **named)
        except BaseException:  # the round has no result
            uses.give_back(*use)
            raise


def build_fed_avg(
    model_fn: Model,
    plan: Plan,
    client_optimizer_fn: tff.learning.optimizers.Optimizer,
    server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
    *,
    clients_per_round: float | None = None,
    noise: str = "auto",
    noise_key: NoiseKey | None = None,
    noise_dir: str | None = None,
    zeroing_norm: float | None = None,
    metrics_aggregator: Callable[..., Any] | None = None,
) -> PrivateLearningProcess:
    """Builds private federated averaging.

    A client trains on its data; the difference of the weights is clipped to the plan's
    norm on the client; the server adds `C^-1 Z` to the sum and divides by a constant. A
    client that comes before the plan's separation has passed, or too often, contributes
    exact zeros and is counted; so does a client whose update is not finite. Weights are
    uniform. Rounds without clients get noise, too.

    Formal guarantee: user-level (epsilon, delta)-DP as the plan states, zero-out
    adjacency of one client's whole data, for the model weights of all rounds and
    everything computed from them, if the clients' tags are true and no client comes
    twice in one round (`MinSepDataSource` ensures both). Metrics are outside the
    guarantee.

    Args:
      model_fn: as for `tff.learning.algorithms.build_unweighted_fed_avg`.
      plan: with `MinSep` participation; its steps are rounds.
      client_optimizer_fn: a TFF optimizer.
      server_optimizer_fn: a TFF optimizer; by default SGD with learning rate 1.
      clients_per_round: expected number of clients: the public denominator. By default
        the plan's batch size.
      noise: where the noise is made: "state", "host" or "auto" (by the size of the ring
        buffer); see `server_noise`.
      noise_key: key of an interrupted run whose noise the host makes; None for a fresh
        key.
      noise_dir: a folder for what the host's noise needs to continue after a restart:
        the key and the ring buffer. If it has them, the run continues with them. As
        secret as the key.
      zeroing_norm: updates with a larger norm contribute zero; None to clip them
        instead.
      metrics_aggregator: None for no training metrics. TFF's
        `tff.learning.metrics.sum_then_finalize` gives exact metrics WITHOUT noise: they
        are not private.

    Returns:
      A `tff.learning.templates.LearningProcess`. Elements of the clients' data are
      tagged: see `tag_dataset`.

    Raises:
      TypeError: if an argument is of the wrong type, or trainable weights are not float32.
      ValueError: if the plan does not fit: another participation, another batch size.
    """
    factory = MinSepNoiseFactory(plan, clients_per_round, noise, zeroing_norm)
    if server_optimizer_fn is None:
        server_optimizer_fn = tff.learning.optimizers.build_sgdm(learning_rate=1.0)
    initial_weights = _initial_weights(model_fn)
    weights_type = initial_weights.type_signature.result
    work = _client_work(
        model_fn, client_optimizer_fn, metrics_aggregator or _no_metrics
    )
    num_parameters = num_parameters_of(weights_type.trainable)
    place = choose_place(noise, plan, num_parameters)
    if place == "state" and (noise_key is not None or noise_dir is not None):
        raise ValueError(
            "noise_key and noise_dir are for noise made by the host; in TFF's state the "
            'key is part of the state. Leave them out, or give noise="host".'
        )
    process = _TEMPLATES.compose_learning_process(
        initial_weights,
        _TEMPLATES.build_broadcast_process(weights_type),
        tagged_client_work(work),
        factory.create(weights_type.trainable),
        _TEMPLATES.build_apply_optimizer_finalizer(server_optimizer_fn, weights_type),
    )
    host = HostNoise(plan, num_parameters, noise_key) if place == "host" else None
    if host is not None and noise_dir is not None:
        host.keep_in(noise_dir)
    settings = {
        "num_parameters": num_parameters,
        "weights": str(weights_type),
        "noise": place,
        "clients_per_round": factory.denominator,
        "zeroing_norm": zeroing_norm,
    }
    return PrivateLearningProcess(process, plan, num_parameters, host, settings)


def _initial_weights(model_fn: Model) -> tff.Computation:
    """As TFF's own `build_weighted_fed_avg`."""
    if isinstance(model_fn, tff.learning.models.FunctionalModel):
        trainable, non_trainable = model_fn.initial_weights

        @tff.tensorflow.computation()
        def functional_weights():
            return tff.learning.models.ModelWeights(
                tuple(tf.convert_to_tensor(w) for w in trainable),
                tuple(tf.convert_to_tensor(w) for w in non_trainable),
            )

        return functional_weights
    if not callable(model_fn):
        raise TypeError(
            f"model_fn must be a function without arguments that builds a "
            f"tff.learning.models.VariableModel, or a FunctionalModel; found "
            f"{type(model_fn).__name__}."
        )

    @tff.tensorflow.computation()
    def weights():
        model = model_fn()
        if not isinstance(model, tff.learning.models.VariableModel):
            raise TypeError(
                f"model_fn must return a tff.learning.models.VariableModel, found "
                f"{type(model).__name__}."
            )
        return tff.learning.models.ModelWeights.from_model(model)

    return weights


def _client_work(
    model_fn: Model,
    optimizer: tff.learning.optimizers.Optimizer,
    metrics_aggregator: Callable[..., Any],
) -> tff.learning.templates.ClientWorkProcess:
    build = functools.partial(_TEMPLATES.build_model_delta_client_work, model_fn)
    if isinstance(model_fn, tff.learning.models.FunctionalModel):
        work = _TEMPLATES.build_functional_model_delta_client_work
        build = functools.partial(work, model=model_fn)
    return build(
        optimizer=optimizer,
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        metrics_aggregator=metrics_aggregator,
    )


def _no_metrics(finalizers: Any) -> Callable[[Any], tff.Value]:
    """A metrics aggregator that releases nothing."""
    return lambda unfinalized: tff.federated_value(
        collections.OrderedDict(), tff.SERVER
    )
