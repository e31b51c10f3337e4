"""The rounds of a training program, between its ledger and its states.

See `program` for the order of things, and for what happens after a crash.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tf_bandmf_federated.digests import digest_of, digest_of_data
from tf_bandmf_federated.learning import PrivateLearningProcess
from tf_bandmf_federated.ledger import Ledger, RoundRecord, is_same
from tf_bandmf_federated.min_sep_iterator import MinSepIterator


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
class Releases:
    """What leaves the program after a round.

    Attributes:
      process: of the run.
      models: gets the weights, or None.
      metrics: gets the metrics of rounds that have a result, or None.
      every: rounds from one model that is released to the next.
      total_rounds: after which a model is always released.
    """

    process: PrivateLearningProcess
    models: tff.program.ReleaseManager | None
    metrics: tff.program.ReleaseManager | None
    every: int
    total_rounds: int

    async def release(self, state: ProgramState, ledger: Ledger) -> None:
        """Releases what is due after the round before this state's; again, if need be.

        After a skipped round the model as it stood before is released, without metrics.
        Another model than the one that has left, in part maybe, stays here.
        """
        rounds_done = self.process.round_number(state.state)
        known = ledger.rounds[rounds_done - 1]
        if self.metrics is not None and known.skipped_because is None:
            await self.metrics.release(state.metrics, key=rounds_done)
        is_due = rounds_done % self.every == 0 or rounds_done == self.total_rounds
        if self.models is not None and is_due:
            weights = self.process.get_model_weights(state.state)
            weights = await tff.program.materialize_value(weights)
            digest = digest_of(weights)
            if known.release_digest is None:
                ledger.releasing(rounds_done - 1, digest)
            if known.release_digest in (None, digest):
                await self.models.release(weights, key=rounds_done)
        ledger.released(rounds_done - 1)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The rounds of a run.

    Attributes:
      process: of the run.
      ledger: open.
      states: where they are saved.
      clients_per_round: to select, or None for the plan's.
      releases: what leaves.
      may_replay: whether an interrupted round may be repeated.
    """

    process: PrivateLearningProcess
    ledger: Ledger
    states: tff.program.ProgramStateManager
    clients_per_round: int | None
    releases: Releases
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
            self._tell_noise(first)
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
        self._check_hyper_parameters(first, state)
        self._tell_noise(state)
        known = rounds.get(done - 1)
        if known is not None and not known.is_released:
            await self.releases.release(state, self.ledger)
        return state

    def _tell_noise(self, state: ProgramState) -> None:
        """The ledger knows which rounds' noise was used: it is written ahead."""
        host = self.process.host_noise
        if host is not None:
            host.know(state.state, max(self.ledger.rounds, default=-1))

    def _check_hyper_parameters(self, first: ProgramState, state: ProgramState) -> None:
        """Raises ValueError if the process was built with others than the state's.

        TFF goes on with those of the state, without a word.
        """
        built, saved = (self.process.get_hparams(one.state) for one in (first, state))
        if digest_of(built) != digest_of(saved):
            raise ValueError(
                f"The run has the hyper-parameters {saved}, but the process was built "
                f"with {built}. Build it with those of the run."
            )

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
        await self.releases.release(after, self.ledger)
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
        await self.releases.release(after, self.ledger)
        return after

    async def _save(self, state: ProgramState) -> None:
        await self.states.save(state, version=self.round_number(state))

    def _key_id(self, state: ProgramState) -> int:
        return self.process.key_id(state.state)
