"""A training program that can be restarted safely.

    outcome = asyncio.run(
        train_model(process, clients, private_dir="run/private", clients_per_round=20,
                    model_output_manager=..., train_metrics_manager=...)
    )

If the program was interrupted, call `train_model` again with the same arguments to
continue. The steps of a round are

    select -> ledger: started -> prepare, next -> ledger: finished, with the state
           -> release -> ledger: released

and each step begins only when all ledger entries before it are on disk. Therefore,
after a crash:

| the ledger's last entry | next step |
|---|---|
| `started` | the round is repeated, with the available devices of its cohort |
| `finished` | the round's model, which the state contains, is released, possibly again |
| `released` | the next round begins |

A round may be repeated, even with different data, because no result of the round is
released before the ledger contains it, and because the noise is bound to the sum. With
`interrupted_round="skip"`, the round is skipped instead: its clients' participations
are counted, and the unchanged model is released again if `release_every` requires a
release. A release may be repeated, but always with the same content.

TFF's own `tff.learning.programs.train_model` is not suitable, because it does not wait
until a state is saved, and releases the whole state, including the noise key.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.cohorts import Selected
from tf_bandmf_federated.plan_checks import cohort_size
from tf_bandmf_federated.rounds import Run
from tf_bandmf_federated.tff.learning import PrivateLearningProcess
from tf_bandmf_federated.tff.simulation import SimulatedClients


@dataclasses.dataclass(frozen=True)
class TrainingOutcome:
    """The result of a training program.

    Attributes:
      model_weights: the weights after the last round, with the plan's guarantee.
      measured: measured participation, including skipped rounds; an argument for
        `measured_guarantee` and `write_report`.
    """

    model_weights: tff.learning.models.ModelWeights
    measured: MeasuredParticipation


async def train_model(
    process: PrivateLearningProcess,
    clients: SimulatedClients,
    *,
    private_dir: str,
    clients_per_round: int | None = None,
    total_rounds: int | None = None,
    model_output_manager: tff.program.ReleaseManager | None = None,
    release_every: int = 1,
    train_metrics_manager: tff.program.ReleaseManager | None = None,
    interrupted_round: str = "replay",
) -> TrainingOutcome:
    """Trains for the plan's rounds, or continues an interrupted run.

    Formal guarantee: all values that `model_output_manager` receives, over all
    restarts, are jointly (epsilon, delta)-DP as the plan states, if `private_dir` stays
    private and complete. This holds because only one result of each round is released.
    The guarantee does not cover metrics.

    Args:
      process: a process from `build_fed_avg`.
      clients: simulated clients, made with the plan of `process`. Clients may join and
        leave between two calls; the ledger keeps the record of each name.
      private_dir: folder for the ledger, created with mode 0700. The ledger contains the
        noise key, so keep the folder secret. It is needed to continue a run.
      clients_per_round: number of clients to select for a round; by default the plan's
        `expected_batch_size`.
      total_rounds: number of rounds of the whole run, over all restarts; by default all
        rounds of the plan.
      model_output_manager: destination for the model's weights. The key of a release is
        the number of completed rounds. A release must replace an earlier release with
        the same key.
      release_every: a model is released after every `release_every` rounds, and after
        the last round. After a skipped round, the previous model is released again.
      train_metrics_manager: destination for the process's metrics, which include exact
        counts of clients. They are for the operator only, and NOT private.
      interrupted_round: what to do with an interrupted round: "replay" or "skip".

    Raises:
      BlockingIOError: if another program uses `private_dir`.
      TypeError, ValueError: if an argument is invalid, such as `total_rounds` below the
        number of rounds already begun; or if the file in `private_dir` is damaged, or
        belongs to another run, plan or model. Errors within a round are not caught;
        call `train_model` again to continue.
    """
    if clients.plan.fingerprint != process.plan.fingerprint:
        raise ValueError("clients must be made with process.plan, not another plan.")
    first = await tff.program.materialize_value(process.initialize())
    # The hyperparameters are among the settings in the ledger, which refuses a run with
    # other settings. TFF itself would silently use the hyperparameters in the restored
    # state.
    given = await tff.program.materialize_value(process.get_hparams(first))
    engine = _TffEngine(process, clients, first, tf.nest.map_structure(str, given))
    wanted = cohort_size(process.plan, clients_per_round)
    run = Run(
        engine=engine,
        cohorts=lambda ledger: clients.cohorts(ledger, wanted, run.num_rounds),
        private_dir=private_dir,
        clients_per_round=wanted,
        total_rounds=total_rounds,
        models=model_output_manager,
        release_every=release_every,
        metrics=train_metrics_manager,
        interrupted_round=interrupted_round,
    )
    done, measured = await run.finish()
    weights = await engine.weights(done.state)
    return TrainingOutcome(weights, measured)


class _TffEngine:
    """Runs rounds in TensorFlow Federated, as an implementation of `rounds.Engine`."""

    def __init__(
        self,
        process: PrivateLearningProcess,
        clients: SimulatedClients,
        first: Any,
        given: Any,
    ) -> None:
        self._process, self._clients = process, clients
        self.plan, self._first = process.plan, first
        self.settings = {**process.settings, "hyper_parameters": given}
        self.skip_round = process.skip_round
        self.note_rounds = process.note_rounds

    async def initial_state(self) -> Any:
        return self._first

    def no_metrics(self) -> Any:
        metrics_type = self._process.next.type_signature.result.metrics.member
        return tff.types.structure_from_tensor_type_tree(_zeros, metrics_type)

    async def run(self, state: Any, selected: Selected, point: str) -> tuple[Any, Any]:
        data = self._clients.tagged(selected, self._process.round_number(state))
        output = self._process.next(self._process.prepare(state, point), data)
        output = await tff.program.materialize_value(output)
        return output.state, output.metrics

    async def weights(self, state: Any) -> tff.learning.models.ModelWeights:
        weights = self._process.get_model_weights(state)
        return await tff.program.materialize_value(weights)


def _zeros(tensor_type: tff.TensorType) -> np.ndarray:
    """Returns an array of zeros of a TFF tensor type; unknown dimensions become 0."""
    return np.zeros([size or 0 for size in tensor_type.shape or ()], tensor_type.dtype)
