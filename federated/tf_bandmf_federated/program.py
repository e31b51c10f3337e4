"""A training program whose restart is safe.

    outcome = asyncio.run(
        train_model(process, source, private_dir="run/private", clients_per_round=20,
                    model_output_manager=..., train_metrics_manager=...)
    )

Whatever ends the program, call it again with the same arguments. A round goes

    select -> ledger: started -> prepare, next -> ledger: result -> save state
           -> release -> ledger: released

and each arrow waits for the disk. So after a crash

| the ledger's last entry | and the state is of | what happens |
|---|---|---|
| `started` | this round | repeated, if cohort, data and state are the same |
| `result` | this round | repeated; the result must be the same |
| `result` | the next one | released once more, with the same content |
| `released` | the next one | the next round begins |

If anything is not the same, the round is skipped: its noise is spent, its clients count as
having taken part, the model stays, and the next round has noise of its own. The released
models are those of the uninterrupted run, or lack rounds that the ledger says were
skipped; nothing is released twice with different content. A state from an older backup is
brought forward in the same way.

TFF's `tff.learning.programs.train_model` does not do: it does not await that a state is
saved, and it releases the whole state, noise key included.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tf_bandmf.files import private as private_files
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.data_source import MinSepDataSource
from tf_bandmf_federated.digests import digest_of, digest_of_data
from tf_bandmf_federated.learning import PrivateLearningProcess
from tf_bandmf_federated.ledger import Ledger, RoundRecord, is_same
from tf_bandmf_federated.min_sep_iterator import MinSepIterator
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.program_state import PrivateProgramStateManager

_LEDGER, _KEY, _STATES = "ledger.jsonl", "noise.key", "states"
_RESTARTS = ("replay", "skip")


class ProgramState(NamedTuple):
    """What is saved after each round.

    Attributes:
      state: of the process.
      metrics: of the last round, for a release that a crash interrupted.
      data_iterator: which selects for the next round.
    """

    state: tff.learning.templates.LearningAlgorithmState
    metrics: Any
    data_iterator: MinSepIterator


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
        reading, or an interrupted round is skipped.
      private_dir: for the ledger, the noise key and the states; created with mode 0700.
        As secret as the key, and needed to go on.
      clients_per_round: to select; by default the plan's `expected_batch_size`.
      total_rounds: by default the plan's.
      model_output_manager: gets the model's weights; the key is the number of rounds
        done. It must replace what it got under the same key before.
      release_every: rounds from one model that is released to the next; the last one is
        always released.
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
    made_for = {
        "plan": process.plan.fingerprint,
        "num_parameters": process.num_parameters,
        "noise": process.noise_place,
    }
    with Ledger(os.path.join(private_dir, _LEDGER), made_for) as ledger:
        private_files.remove_unfinished(private_dir)
        states = program_state_manager or PrivateProgramStateManager(
            os.path.join(private_dir, _STATES)
        )
        _keep_key(process, os.path.join(private_dir, _KEY), is_new=not ledger.rounds)
        first = ProgramState(
            await tff.program.materialize_value(process.initialize()),
            _zeros_of(process.next.type_signature.result.metrics.member),
            data_source.iterator(),
        )
        program = _Program(
            process=process,
            ledger=ledger,
            states=states,
            clients_per_round=clients_per_round,
            releases=_Releases(
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
        return TrainingOutcome(
            model_weights=await tff.program.materialize_value(weights),
            measured=state.data_iterator.measured(),
            skipped_rounds=tuple(
                t for t, known in ledger.rounds.items() if known.skipped_because
            ),
        )


@dataclasses.dataclass(frozen=True)
class _Releases:
    """What leaves the program after a round; the same at each call."""

    process: PrivateLearningProcess
    models: tff.program.ReleaseManager | None
    metrics: tff.program.ReleaseManager | None
    every: int
    total_rounds: int

    async def release(self, state: ProgramState, rounds_done: int) -> None:
        if self.metrics is not None:
            await self.metrics.release(state.metrics, key=rounds_done)
        is_due = rounds_done % self.every == 0 or rounds_done == self.total_rounds
        if self.models is not None and is_due:
            weights = self.process.get_model_weights(state.state)
            weights = await tff.program.materialize_value(weights)
            await self.models.release(weights, key=rounds_done)


@dataclasses.dataclass(frozen=True)
class _Program:
    """The rounds of a run, between its ledger and its states."""

    process: PrivateLearningProcess
    ledger: Ledger
    states: tff.program.ProgramStateManager
    clients_per_round: int | None
    releases: _Releases
    may_replay: bool

    def round_number(self, state: ProgramState) -> int:
        return self.process.round_number(state.state)

    async def begin(self, first: ProgramState) -> ProgramState:
        """The latest state; what a crash left unreleased is released.

        Raises:
          ValueError: if state and ledger do not belong together.
        """
        state, version = await self.states.load_latest(first)
        rounds = self.ledger.rounds
        if state is None:
            if rounds:
                raise ValueError(
                    "The ledger says that rounds were begun, but no state of the run is "
                    "there: it cannot go on. A new run, in another directory, has a "
                    "privacy budget of its own, which adds to what this one spent."
                )
            self.ledger.initial(digest_of(first.state))
            await self.states.save(first, version=0)
            return first
        done = self.round_number(state)
        if not done == version == state.data_iterator.round_number:
            raise ValueError(
                f"The state of version {version} is at round {done} and its data at "
                f"round {state.data_iterator.round_number}: it was not saved by this "
                f"program."
            )
        if any(known.key_id != self._key_id(state) for known in rounds.values()):
            raise ValueError(
                "The ledger is of a run with another noise key. State and ledger must "
                "be of one run."
            )
        self._check_state(state, done)
        known = rounds.get(done - 1)
        if known and known.skipped_because is None and not known.is_released:
            await self.releases.release(state, done)
            self.ledger.released(done - 1)
        return state

    def _check_state(self, state: ProgramState, done: int) -> None:
        """Raises ValueError if it is not the state that the ledger expects."""
        known = self.ledger.rounds.get(done - 1)
        if known is not None and known.skipped_because is not None:
            return
        if known is not None:
            expected = known.result_digest
        else:
            # Without its ledger nothing says what a first state's noise was used for.
            expected = self.ledger.initial_digest if done == 0 else None
        if expected != digest_of(state.state):
            raise ValueError(
                f"The state after {done} rounds is not the one of which the ledger "
                f"tells: one of the two was replaced. Take both from one backup, or the "
                f"newest ledger and an older state of the run."
            )

    async def run_round(self, state: ProgramState) -> ProgramState:
        """One round, or one that is passed over."""
        number = self.round_number(state)
        known = self.ledger.rounds.get(number)
        if known is not None and known.skipped_because is not None:
            return await self._skip(state, known, known.skipped_because)
        if known is not None and not self.may_replay:
            return await self._skip(state, known, "interrupted")
        iterator = copy.deepcopy(state.data_iterator)
        data = iterator.select(self.clients_per_round)
        record = RoundRecord(
            round_number=number,
            key_id=self._key_id(state),
            cohort=iterator.cohort,
            cohort_digest=digest_of_data(data),
            state_digest=digest_of(state.state),
        )
        if known is not None and not is_same(known, record):
            return await self._skip(state, known, "another cohort, data or state")
        self.ledger.started(
            number,
            record.key_id,
            record.cohort,
            record.cohort_digest,
            record.state_digest,
        )
        prepared = self.process.prepare(state.state, replay=known is not None)
        output = await tff.program.materialize_value(self.process.next(prepared, data))
        result = digest_of(output.state)
        if known is not None and known.result_digest not in (None, result):
            return await self._skip(state, known, "another result")
        self.ledger.result(number, result)
        after = ProgramState(output.state, output.metrics, iterator)
        await self._save(after)
        await self.releases.release(after, number + 1)
        self.ledger.released(number)
        return after

    async def _skip(
        self, state: ProgramState, known: RoundRecord, reason: str
    ) -> ProgramState:
        if known.skipped_because is None:
            self.ledger.skipped(known.round_number, reason)
        iterator = copy.deepcopy(state.data_iterator)
        iterator.count_round(known.cohort)
        after = ProgramState(
            self.process.skip_round(state.state), state.metrics, iterator
        )
        await self._save(after)
        return after

    async def _save(self, state: ProgramState) -> None:
        await self.states.save(state, version=self.round_number(state))

    def _key_id(self, state: ProgramState) -> int:
        return self.process.key_id(state.state)


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


def _keep_key(process: PrivateLearningProcess, path: str, is_new: bool) -> None:
    """Gives the process the run's key, or keeps the process's for the run."""
    if process.host_noise is None or process.plan.test_seed is not None:
        return
    if os.path.exists(path):
        process.use_noise_key(NoiseKey(private_files.read(path)))
    elif is_new:
        private_files.write(path, process.host_noise.key.secret_bytes())
    else:
        raise ValueError(
            f"The ledger says that rounds were begun, but the noise key is not at "
            f"{path}: the run cannot go on with another one."
        )


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
