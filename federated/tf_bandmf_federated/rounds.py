"""The rounds of a run, from the ledger's first line to the last release: of any engine.

`tff.program` says what happens in which order, and what after a crash. An engine, such as
TensorFlow Federated or Flower, is what `Engine` asks for: it runs the round and knows no
ledger.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tf_bandmf import Plan
from tf_bandmf.files import private as private_files
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.cohorts import Cohorts, Selected
from tf_bandmf_federated.digests import digest_of
from tf_bandmf_federated.ledger import Ledger, RoundRecord, is_same
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.state_files import StateFiles

# No names that Flower puts into the bundle it sends to every node.
LEDGER_FILE, STATES_FOLDER = "ledger.sqlite3", "states"
_RESTARTS = ("replay", "skip")


class Engine(Protocol):
    """What runs a round. States are whatever it likes that `digest_of` can digest.

    Attributes:
      plan: what the run does.
      settings: what else makes it what it is, as plain values: the ledger keeps them.
    """

    plan: Plan
    settings: dict[str, Any]

    def keep_key(self, folder: str, is_new: bool) -> None:
        """Takes the noise key of a folder, or for a new run keeps its own there.

        Raises:
          ValueError: if the key of a run that began is missing or damaged.
        """

    def note_rounds(self, rounds: int) -> None:
        """Tells the ledger that the plan is bound to how many rounds were done."""

    async def initial_state(self) -> Any:
        """The state before round 0 of a new run."""

    def no_metrics(self) -> Any:
        """Metrics of a round without a result, in the structure of the others."""

    def round_number(self, state: Any) -> int:
        """The round, from 0, that comes next."""

    def key_id(self, state: Any) -> int:
        """A public number that tells the noise keys of runs apart."""

    def hyper_parameters(self, state: Any) -> Any:
        """What must be the same after a restart; for `digest_of`."""

    def data_digest(self, selected: Selected) -> str:
        """A digest of the selected devices' data, as far as they are known here."""

    async def run(self, state: Any, selected: Selected, inputs: str) -> tuple[Any, Any]:
        """The round with the selected devices: state after it, and metrics.

        Its noise is bound to the inputs: with equal ones, it is the same to the bit.
        """

    def skip_round(self, state: Any, inputs: str) -> Any:
        """The state after a round without a result, which was begun with these inputs.

        Later rounds may be computed from its normals: they are bound to the inputs, or
        all histories that skip the round would share them.
        """

    async def weights(self, state: Any) -> Any:
        """The model, as it is released; for `digest_of`."""


class Releasing(Protocol):
    """Where something leaves to, such as a `tff.program.ReleaseManager`."""

    async def release(self, value: Any, key: Any) -> None:
        """Replaces what left under the same key before."""


class ProgramState(NamedTuple):
    """What is saved after each round.

    Attributes:
      state: of the engine.
      metrics: of the last round, for a release that a crash interrupted.
    """

    state: Any
    metrics: Any


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run is made of. It goes on where an interrupted one ended.

    Attributes:
      engine: runs its rounds.
      cohorts: makes what selects devices, for a run with this ledger.
      private_dir: for ledger, key and states; created with mode 0700.
      clients_per_round: to select.
      total_rounds: None for the plan's.
      models: gets the model's weights.
      release_every: rounds from one model to the next.
      metrics: gets the metrics, which are not private.
      interrupted_round: "replay" or "skip".
      after_round: gets the state after each round of this call, when all that is
        released after it was.
    """

    engine: Engine
    cohorts: Callable[[Ledger], Cohorts]
    private_dir: str
    clients_per_round: int
    total_rounds: int | None = None
    models: Releasing | None = None
    release_every: int = 1
    metrics: Releasing | None = None
    interrupted_round: str = "replay"
    after_round: Callable[[ProgramState], None] | None = None

    def __post_init__(self) -> None:
        positive_int("release_every", self.release_every)
        if self.interrupted_round not in _RESTARTS:
            raise ValueError(
                f"interrupted_round must be one of {_RESTARTS}, found "
                f"{self.interrupted_round!r}."
            )
        if self.total_rounds is not None:
            check_plan(
                self.engine.plan, positive_int("total_rounds", self.total_rounds)
            )

    @property
    def num_rounds(self) -> int:
        """Rounds of the whole run, over all restarts; a model is released at their end."""
        planned = self.engine.plan.num_steps
        return planned if self.total_rounds is None else self.total_rounds

    async def finish(self) -> tuple[ProgramState, MeasuredParticipation]:
        """Runs what is left.

        Returns:
          The state after the last round; separation and participations, in which clients
          of skipped rounds are counted.

        Raises:
          BlockingIOError: if another program works in `private_dir`.
          ValueError: if its files are damaged, missing, or of another run; if more
            rounds were begun than `total_rounds`. What a round raises is passed on.
        """
        total, folder, engine = self.num_rounds, self.private_dir, self.engine
        os.makedirs(folder, mode=0o700, exist_ok=True)
        made_for = {"plan": engine.plan.fingerprint, **engine.settings}
        with Ledger(os.path.join(folder, LEDGER_FILE), made_for) as ledger:
            private_files.remove_unfinished(folder)
            engine.keep_key(folder, is_new=not ledger.rounds)
            states = StateFiles(os.path.join(folder, STATES_FOLDER))
            rounds = _Rounds(self, ledger, states)
            if len(ledger.rounds) > total:
                raise ValueError(
                    f"The ledger says that {len(ledger.rounds)} rounds were begun, more "
                    f"than total_rounds = {total}: an older state would leave some out "
                    f"of what was measured. Give at least as many."
                )
            state = await rounds.begin()
            while (done := engine.round_number(state.state)) < total:
                state = await rounds.run_round(state)
                if self.after_round is not None:
                    self.after_round(state)
            engine.note_rounds(done)
            return state, ledger.measured(done)


class _Rounds:
    """The rounds of a run whose ledger is open."""

    def __init__(self, run: Run, ledger: Ledger, states: StateFiles) -> None:
        self.run, self.engine = run, run.engine
        self.ledger, self.states = ledger, states
        self._cohorts = run.cohorts(ledger)
        self._last_digest: list[Any] = []

    async def begin(self) -> ProgramState:
        """The latest state; what a crash left unreleased is released.

        Raises:
          ValueError: if state and ledger do not belong together.
        """
        initial = await self.engine.initial_state()
        first = ProgramState(initial, self.engine.no_metrics())
        state, version = self.states.load_latest(first)
        rounds = self.ledger.rounds
        if state is None:
            if rounds:
                raise ValueError(
                    "The ledger says that rounds were begun, but no state of the run is "
                    "there: it cannot go on. A new run, in another directory, has a "
                    "privacy budget of its own, which adds to what this one spent."
                )
            self.ledger.initial(digest_of(first.state))
            self.states.save(first, version=0)
            return first
        done = self.engine.round_number(state.state)
        if done != version:
            raise ValueError(
                f"The state of version {version} is at round {done}: it was not saved by "
                f"this program."
            )
        key_id = self.engine.key_id(state.state)
        if any(known.key_id != key_id for known in rounds.values()):
            raise ValueError(
                "The ledger is of a run with another noise key. State and ledger must "
                "be of one run."
            )
        self._check_state(state, done)
        self._check_hyper_parameters(first, state)
        known = rounds.get(done - 1)
        if known is not None and not known.is_released:
            await self._release(state)
        return state

    def _check_hyper_parameters(self, first: ProgramState, state: ProgramState) -> None:
        """Raises ValueError if the engine was built with others than the state's.

        TFF would go on with those of the state, without a word.
        """
        built, saved = (
            self.engine.hyper_parameters(one.state) for one in (first, state)
        )
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
        number = self.engine.round_number(state.state)
        known = self.ledger.rounds.get(number)
        if known is not None and known.skipped_because is not None:
            return await self._skip(state, known, known.skipped_because)
        if known is not None and self.run.interrupted_round == "skip":
            return await self._skip(state, known, "interrupted")
        if known is None:
            selected = self._cohorts.select(number, self.run.clients_per_round)
        else:
            names = self.ledger.cohort(number)
            selected = self._cohorts.select_again(number, names)
        record = RoundRecord(
            round_number=number,
            key_id=self.engine.key_id(state.state),
            cohort_digest=digest_of(
                [list(selected.names), self.engine.data_digest(selected)]
            ),
            state_digest=self._digest_of(state),
        )
        if known is not None and not is_same(known, record):
            return await self._skip(state, known, "other data or another state")
        self.ledger.started(
            number,
            record.key_id,
            selected.names,
            record.cohort_digest,
            record.state_digest,
        )
        after = ProgramState(
            *await self.engine.run(state.state, selected, self._inputs(number))
        )
        result = self._digest_of(after)
        if known is not None and known.result_digest not in (None, result):
            return await self._skip(state, known, "another result")
        self.ledger.result(number, result)
        return await self._kept(after)

    async def _skip(
        self, state: ProgramState, known: RoundRecord, reason: str
    ) -> ProgramState:
        if known.skipped_because is None:
            self.ledger.skipped(known.round_number, reason)
        inputs = self._inputs(known.round_number)
        skipped = self.engine.skip_round(state.state, inputs)
        return await self._kept(ProgramState(skipped, self.engine.no_metrics()))

    def _inputs(self, number: int) -> str:
        """What a round was begun with, which its noise is bound to."""
        known = self.ledger.rounds[number]
        return f"{known.cohort_digest} {known.state_digest} {known.drawn}"

    def _digest_of(self, state: ProgramState) -> str:
        """A digest of the engine's state; the last one is kept for the next round."""
        if not self._last_digest or self._last_digest[0] is not state.state:
            self._last_digest[:] = [state.state, digest_of(state.state)]
        return self._last_digest[1]

    async def _kept(self, after: ProgramState) -> ProgramState:
        """The state after a round, when it is saved, and released what is due."""
        self.states.save(after, version=self.engine.round_number(after.state))
        await self._release(after)
        return after

    async def _release(self, state: ProgramState) -> None:
        """Releases what is due after the round before this state's; again, if need be.

        After a skipped round the model as it stood before is released, without metrics.
        Another model than the one that has left, in part maybe, stays here.
        """
        rounds_done = self.engine.round_number(state.state)
        known = self.ledger.rounds[rounds_done - 1]
        if self.run.metrics is not None and known.skipped_because is None:
            await self.run.metrics.release(state.metrics, key=rounds_done)
        is_last = rounds_done == self.run.num_rounds
        is_due = is_last or rounds_done % self.run.release_every == 0
        if self.run.models is not None and is_due:
            weights = await self.engine.weights(state.state)
            digest = digest_of(weights)
            if known.release_digest is None:
                self.ledger.releasing(rounds_done - 1, digest)
            if known.release_digest in (None, digest):
                await self.run.models.release(weights, key=rounds_done)
        self.ledger.released(rounds_done - 1)
