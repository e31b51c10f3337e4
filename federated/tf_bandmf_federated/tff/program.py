"""A training program whose restart is safe.

    outcome = asyncio.run(
        train_model(process, clients, private_dir="run/private", clients_per_round=20,
                    model_output_manager=..., train_metrics_manager=...)
    )

Whatever ends the program, call it again with the same arguments. A round goes

    select -> ledger: started -> prepare, next -> ledger: result -> save state
           -> ledger: releasing -> release -> ledger: released

and each arrow waits for the disk. So after a crash

| the ledger's last entry | and the state is of | what happens |
|---|---|---|
| `started` | this round | repeated, if cohort, data and state are the same |
| `result` | this round | repeated; the result must be the same |
| `result` | the next one | released once more, with the same content |
| `released` | the next one | the next round begins |

If anything differs, the round is skipped: its noise is spent, its clients count as
having taken part, the model stays the same, and the next round has its own noise. If a
model is due after a skipped round, it is released as it is. Nothing is released twice
with different content: of two models for one round, the one that left first stays. A
state from an older backup is brought forward in the same way.

TFF's own `tff.learning.programs.train_model` is not suitable: it does not wait until a
state is saved, and it releases the whole state, including the noise key.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.cohorts import Selected
from tf_bandmf_federated.digests import digest_of_data
from tf_bandmf_federated.rounds import Run
from tf_bandmf_federated.tff.learning import PrivateLearningProcess
from tf_bandmf_federated.tff.simulation import SimulatedClients


@dataclasses.dataclass(frozen=True)
class TrainingOutcome:
    """What a training program did.

    Attributes:
      model_weights: the weights after the last round; private as the plan states.
      measured: separation and participations, for `measured_guarantee` and
        `write_report`. Clients of skipped rounds are counted.
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

    Formal guarantee: what `model_output_manager` gets, over all restarts, is (epsilon,
    delta)-DP as the plan states, if `private_dir` stays private and whole. It is an
    output of the plan's mechanism: one result of each round's noise is released.
    Metrics are outside the guarantee.

    Args:
      process: a process from `build_fed_avg`.
      clients: of the same plan. The data of a client must be the same at each reading,
        or an interrupted round is skipped. Clients may join and leave between two calls:
        a name keeps its record.
      private_dir: folder for the ledger, the noise key and the states; created with
        mode 0700. It is as secret as the key, and needed to continue.
      clients_per_round: number of clients to select; by default the plan's
        `expected_batch_size`.
      total_rounds: by default the plan's.
      model_output_manager: gets the model's weights; the key is the number of rounds
        done. It must replace an earlier entry with the same key.
      release_every: number of rounds from one released model to the next; the last
        model is always released. After a skipped round, the previous model is released
        again.
      train_metrics_manager: gets the process's metrics, with exact counts of clients:
        for the operator only, NOT private.
      interrupted_round: "replay" an interrupted round if nothing has changed, or always
        "skip" it.

    Raises:
      BlockingIOError: if another program uses `private_dir`.
      TypeError, ValueError: if an argument is wrong, such as `total_rounds` below the
        number of rounds begun; if the files of `private_dir` are damaged, belong to
        another run, plan or model, or some of them are missing. What a round raises is
        passed on: call again to continue.
    """
    _check_same_plan(process, clients)
    engine = _TffEngine(process, clients)
    wanted = clients_per_round or process.plan.expected_batch_size
    if wanted is None or wanted != int(wanted):
        raise ValueError(
            f"clients_per_round must say how many clients to select, found {wanted}, and "
            f"the plan's batch size does not."
        )
    run = Run(
        engine=engine,
        cohorts=lambda ledger: clients.cohorts(ledger, int(wanted)),
        private_dir=private_dir,
        clients_per_round=int(wanted),
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
    """TensorFlow Federated as an `Engine`: see `rounds`."""

    def __init__(
        self, process: PrivateLearningProcess, clients: SimulatedClients
    ) -> None:
        self._process, self._clients = process, clients
        self.plan, self.settings = process.plan, process.settings
        self.round_number = process.round_number
        self.key_id = process.key_id
        self.skip_round = process.skip_round
        self.note_rounds = process.note_rounds

    async def initial_state(self) -> Any:
        return await tff.program.materialize_value(self._process.initialize())

    def no_metrics(self) -> Any:
        metrics_type = self._process.next.type_signature.result.metrics.member
        return tff.types.structure_from_tensor_type_tree(_zeros, metrics_type)

    def keep_key(self, folder: str, is_new: bool) -> None:
        pass  # it is in the states

    def hyper_parameters(self, state: Any) -> Any:
        return self._process.get_hparams(state)

    def data_digest(self, selected: Selected) -> str:
        try:
            return digest_of_data(self._clients.datasets(selected.names))
        except KeyError:  # of a round that was begun with clients who left
            return "clients are missing"

    async def run(self, state: Any, selected: Selected, inputs: str) -> tuple[Any, Any]:
        data = self._clients.tagged(selected, self.round_number(state))
        output = self._process.next(self._process.prepare(state, inputs), data)
        output = await tff.program.materialize_value(output)
        return output.state, output.metrics

    async def weights(self, state: Any) -> tff.learning.models.ModelWeights:
        weights = self._process.get_model_weights(state)
        return await tff.program.materialize_value(weights)


def _check_same_plan(
    process: PrivateLearningProcess, clients: SimulatedClients
) -> None:
    """Raises unless they are a private process and data of its plan."""
    if not isinstance(process, PrivateLearningProcess):
        raise TypeError(
            f"process must be made by build_fed_avg, found {type(process).__name__}."
        )
    if not isinstance(clients, SimulatedClients):
        raise TypeError(
            f"clients must be SimulatedClients, found {type(clients).__name__}."
        )
    if clients.plan.fingerprint != process.plan.fingerprint:
        raise ValueError("process and clients must be of one plan.")


def _zeros(tensor_type: tff.TensorType) -> np.ndarray:
    """An array of a type."""
    return np.zeros([size or 0 for size in tensor_type.shape or ()], tensor_type.dtype)
