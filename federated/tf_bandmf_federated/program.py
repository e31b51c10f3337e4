"""A training program whose restart is safe.

    outcome = asyncio.run(
        train_model(process, source, private_dir="run/private", clients_per_round=20,
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

If anything is not the same, the round is skipped: its noise is spent, its clients count as
having taken part, the model stays, and the next round has noise of its own. Where a model
is due after a skipped round, it is released as it stands. Nothing is released twice with
different content: of two models for one round the one that left first stays. A state from
an older backup is brought forward in the same way.

TFF's `tff.learning.programs.train_model` does not do: it does not await that a state is
saved, and it releases the whole state, noise key included.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tf_bandmf.files import private as private_files
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.data_source import MinSepDataSource
from tf_bandmf_federated.host_noise import KEY_FILE
from tf_bandmf_federated.learning import PrivateLearningProcess
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.program_rounds import ProgramState, Releases, Rounds
from tf_bandmf_federated.program_state import PrivateProgramStateManager

_LEDGER, _STATES = "ledger.jsonl", "states"
_RESTARTS = ("replay", "skip")


@dataclasses.dataclass(frozen=True)
class TrainingOutcome:
    """What a training program did.

    Attributes:
      model_weights: after the last round; private as the plan states.
      measured: separation and participations, for `measured_guarantee` and
        `write_report`. Clients of skipped rounds are counted.
      skipped_rounds: whose results were thrown away after a restart.
    """

    model_weights: tff.learning.models.ModelWeights
    measured: MeasuredParticipation
    skipped_rounds: tuple[int, ...]


async def train_model(
    process: PrivateLearningProcess,
    data_source: MinSepDataSource,
    *,
    private_dir: str,
    clients_per_round: int | None = None,
    total_rounds: int | None = None,
    model_output_manager: tff.program.ReleaseManager | None = None,
    release_every: int = 1,
    train_metrics_manager: tff.program.ReleaseManager | None = None,
    program_state_manager: tff.program.ProgramStateManager | None = None,
    interrupted_round: str = "replay",
) -> TrainingOutcome:
    """Trains for the plan's rounds, or goes on with a run that was interrupted.

    Formal guarantee: what `model_output_manager` gets, over all restarts, is
    (epsilon, delta)-DP as the plan states, if `private_dir` stays private and whole. It
    is an output of the plan's mechanism: of each round's noise one result is released.
    Metrics are outside of it.

    Args:
      process: by `build_fed_avg`.
      data_source: of the same plan. The data of a client must be the same at each
        reading, or an interrupted round is skipped. Clients may join and leave between
        two calls: a name keeps its record.
      private_dir: for the ledger, the noise key and the states; created with mode 0700.
        As secret as the key, and needed to go on.
      clients_per_round: to select; by default the plan's `expected_batch_size`.
      total_rounds: by default the plan's.
      model_output_manager: gets the model's weights; the key is the number of rounds
        done. It must replace what it got under the same key before.
      release_every: rounds from one model that is released to the next; the last one is
        always released. After a skipped round it is the one before, again.
      train_metrics_manager: gets the process's metrics, with exact counts of clients:
        for the operator, NOT private.
      program_state_manager: by default a `PrivateProgramStateManager` in `private_dir`.
        Another one must have saved when `save` returns.
      interrupted_round: "replay" an interrupted round if all is as it was, or always
        "skip" it.

    Raises:
      BlockingIOError: if another program works in `private_dir`.
      TypeError, ValueError: if an argument is wrong, as `total_rounds` below the number
        of rounds that were begun; if the files of `private_dir` are
        damaged or of another run, plan or model, or some of them are missing. What a
        round raises is passed on: call again to go on.
    """
    total_rounds = _checked_rounds(process, data_source, total_rounds)
    positive_int("release_every", release_every)
    if interrupted_round not in _RESTARTS:
        raise ValueError(
            f"interrupted_round must be one of {_RESTARTS}, found "
            f"{interrupted_round!r}."
        )
    os.makedirs(private_dir, mode=0o700, exist_ok=True)
    made_for = {"plan": process.plan.fingerprint, **process.settings}
    with Ledger(os.path.join(private_dir, _LEDGER), made_for) as ledger:
        private_files.remove_unfinished(private_dir)
        states = program_state_manager or PrivateProgramStateManager(
            os.path.join(private_dir, _STATES)
        )
        _keep_noise(process, private_dir, is_new=not ledger.rounds)
        first = ProgramState(
            await tff.program.materialize_value(process.initialize()),
            _zeros_of(process.next.type_signature.result.metrics.member),
            data_source.iterator(),
        )
        program = Rounds(
            process=process,
            ledger=ledger,
            states=states,
            clients_per_round=clients_per_round,
            releases=Releases(
                process,
                model_output_manager,
                train_metrics_manager,
                release_every,
                total_rounds,
            ),
            may_replay=interrupted_round == "replay",
        )
        if len(ledger.rounds) > total_rounds:
            raise ValueError(
                f"The ledger says that {len(ledger.rounds)} rounds were begun, more "
                f"than total_rounds = {total_rounds}: an older state would leave some "
                f"out of what was measured. Give at least as many."
            )
        state = await program.begin(first)
        while program.round_number(state) < total_rounds:
            state = await program.run_round(state)
        weights = process.get_model_weights(state.state)
        skipped = tuple(
            t for t, known in ledger.rounds.items() if known.skipped_because
        )
        return TrainingOutcome(
            model_weights=await tff.program.materialize_value(weights),
            measured=dataclasses.replace(
                state.data_iterator.measured(), skipped_rounds=skipped
            ),
            skipped_rounds=skipped,
        )


def _checked_rounds(
    process: PrivateLearningProcess,
    data_source: MinSepDataSource,
    total_rounds: int | None,
) -> int:
    """The rounds to train for, of a process and data of one plan."""
    if not isinstance(process, PrivateLearningProcess):
        raise TypeError(
            f"process must be made by build_fed_avg, found {type(process).__name__}."
        )
    if not isinstance(data_source, MinSepDataSource):
        raise TypeError(
            f"data_source must be a MinSepDataSource, which knows who took part and "
            f"selects the same again after a restart; found "
            f"{type(data_source).__name__}."
        )
    plan = process.plan
    if data_source.plan.fingerprint != plan.fingerprint:
        raise ValueError("process and data_source must be of one plan.")
    if total_rounds is None:
        return plan.num_steps
    check_plan(plan, positive_int("total_rounds", total_rounds))
    return total_rounds


def _keep_noise(process: PrivateLearningProcess, folder: str, is_new: bool) -> None:
    """Gives the process the run's key, or keeps the process's for the run."""
    if process.host_noise is None:
        return
    path = os.path.join(folder, KEY_FILE)
    has_key = process.plan.test_seed is not None or os.path.exists(path)
    if not (is_new or has_key):
        raise ValueError(
            f"The ledger says that rounds were begun, but the noise key is not at "
            f"{path}: the run cannot go on with another one."
        )
    process.host_noise.keep_in(folder)


def _zeros_of(value_type: tff.Type) -> Any:
    """A value of a type, in dictionaries and lists."""
    if isinstance(value_type, tff.TensorType):
        shape = [size or 0 for size in value_type.shape or ()]
        return np.zeros(shape, value_type.dtype)
    if isinstance(value_type, tff.StructType):
        items = tff.structure.to_elements(value_type)
        if items and items[0][0] is None:
            return [_zeros_of(item) for _, item in items]
        return collections.OrderedDict((n, _zeros_of(item)) for n, item in items)
    raise TypeError(f"Metrics must be structures of tensors, found {value_type}.")
