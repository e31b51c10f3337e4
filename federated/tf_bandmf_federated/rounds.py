"""Runs all rounds of a run, from the first ledger entry to the last release.

`tf_bandmf_federated.tff.training` describes the order of the steps, and the recovery
after a crash. An `Engine` computes each round, without access to the ledger. There is
one engine for TensorFlow Federated, and one for Flower.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tf_bandmf import Plan
from tf_bandmf.accounting.checks import check_word, whole_number
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.cohorts import Cohorts, Selected
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.plan_checks import check_plan

# Flower sends an app's files to all nodes, but not files with this suffix.
LEDGER_FILE = "ledger.sqlite3"
_RESTARTS = ("replay", "skip")


class Engine(Protocol):
    """Computes the rounds of a run, each from the state after the previous round.

    A state is a nested structure of arrays and numbers.

    Attributes:
      plan: plan of the run.
      settings: plain values that, together with the plan, identify the run. The ledger
        stores them.
    """

    plan: Plan
    settings: dict[str, Any]

    def note_rounds(self, state: Any, rounds: int) -> None:
        """Reports the number of completed rounds to the plan's budget ledger, if any."""

    async def initial_state(self) -> Any:
        """Returns the state before round 0 of a new run."""

    def no_metrics(self) -> Any:
        """Returns the metrics of a round without a result."""

    async def run(self, state: Any, selected: Selected, point: str) -> tuple[Any, Any]:
        """Runs a round with the selected devices; returns the new state and metrics.

        The noise is bound to `point`, a digest of the ledger at the start of the round,
        so a round that is repeated with the same `point` and sum has the same result.
        """

    def skip_round(self, state: Any, point: str) -> Any:
        """Skips a round that was begun, and returns the state after the round.

        The noise of later rounds may use the normal variates of the skipped round.
        Therefore these variates are bound to `point`, the digest of the ledger at the
        start of the round. Otherwise all copies of the run that skip the round would
        share the variates.
        """

    async def weights(self, state: Any) -> Any:
        """Returns the model's weights, in the form in which they are released."""


class Releasing(Protocol):
    """A destination for released values, such as a `tff.program.ReleaseManager`."""

    async def release(self, value: Any, key: Any) -> None:
        """Releases a value, replacing any earlier value with the same key."""


class ProgramState(NamedTuple):
    """The state that is saved in the ledger after each round.

    Attributes:
      state: the engine's state.
      metrics: metrics of the last round, saved in case a crash interrupts their
        release.
    """

    state: Any
    metrics: Any


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that can be resumed after an interruption.

    Attributes:
      engine: engine that runs the rounds.
      cohorts: function that maps the run's ledger to a `Cohorts`, which selects devices.
      private_dir: folder for the ledger; created with mode 0700.
      clients_per_round: number of devices to select for a round.
      total_rounds: number of rounds of the whole run; None for all rounds of the plan.
      models: destination for the model's weights; None to release no models.
      release_every: a model is released after every `release_every` rounds, and after
        the last round.
      metrics: destination for the metrics, which are not private; None to release none.
      interrupted_round: what to do with an interrupted round: "replay" or "skip".
      after_round: function that is called with the new state after each round, when its
        releases are complete.
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
        whole_number("release_every", self.release_every)
        check_word("interrupted_round", self.interrupted_round, _RESTARTS)
        if self.total_rounds is not None:
            check_plan(
                self.engine.plan, whole_number("total_rounds", self.total_rounds)
            )

    @property
    def num_rounds(self) -> int:
        """The number of rounds of the whole run, over all restarts."""
        return self.total_rounds or self.engine.plan.num_steps

    async def finish(self) -> tuple[ProgramState, MeasuredParticipation]:
        """Runs all rounds, or the remaining rounds of an interrupted run.

        Returns:
          The state after the last round; and the measured participation, which includes
          skipped rounds.

        Raises:
          BlockingIOError: if another program uses `private_dir`.
          ValueError: if the ledger is damaged or belongs to another run, or if more than
            `total_rounds` rounds have begun. Errors within a round are not caught.
        """
        total, engine = self.num_rounds, self.engine
        os.makedirs(self.private_dir, mode=0o700, exist_ok=True)
        made_for = {"plan": engine.plan.fingerprint, **engine.settings}
        with Ledger(os.path.join(self.private_dir, LEDGER_FILE), made_for) as ledger:
            if len(ledger.rounds) > total:
                raise ValueError(
                    f"total_rounds (in Flower: num_rounds) must be at least the number "
                    f"of rounds in the ledger ({len(ledger.rounds)}), found {total}."
                )
            cohorts = self.cohorts(ledger)
            state = await self._begin(ledger)
            left = range(ledger.expected[1], total)
            for number in left:
                state = await self._run_round(ledger, cohorts, state, number)
                if self.after_round is not None:
                    self.after_round(state)
            if left:
                engine.note_rounds(state.state, total)
            return state, ledger.measured(total)

    async def _begin(self, ledger: Ledger) -> ProgramState:
        """Returns the newest state, after completing its release if necessary."""
        state = ProgramState(
            await self.engine.initial_state(), self.engine.no_metrics()
        )
        if ledger.expected == ("finished", -1):
            ledger.finished(-1, state)
        else:
            state = ledger.state(state)
        if ledger.expected[0] == "released":
            await self._release(ledger, state)
        return state

    async def _run_round(
        self, ledger: Ledger, cohorts: Cohorts, state: ProgramState, number: int
    ) -> ProgramState:
        """Runs a round, or skips an interrupted round; returns the new state."""
        engine, record = self.engine, ledger.interrupted
        if record is not None and self.interrupted_round == "skip":
            reason = "interrupted"
            skipped = engine.skip_round(state.state, record.point)
            after = ProgramState(skipped, engine.no_metrics())
        else:
            reason = None
            if record is None:
                selected = cohorts.select(number, self.clients_per_round)
                record = ledger.started(number, selected.names)
            else:
                selected = cohorts.select_again(number, ledger.cohort(number))
            result = await engine.run(state.state, selected, record.point)
            after = ProgramState(*result)
        ledger.finished(number, after, reason)
        await self._release(ledger, after)
        return after

    async def _release(self, ledger: Ledger, state: ProgramState) -> None:
        """Releases the model and the metrics of the newest round.

        After a crash, this method may repeat a release that was already complete. After
        a skipped round, it releases the unchanged model, but no metrics.
        """
        _, number = ledger.expected
        done = number + 1
        is_due = done == self.num_rounds or done % self.release_every == 0
        was_skipped = done and ledger.rounds[number].skipped_because is not None
        if done and self.metrics is not None and not was_skipped:
            await self.metrics.release(state.metrics, key=done)
        if done and self.models is not None and is_due:
            await self.models.release(await self.engine.weights(state.state), key=done)
        ledger.released(number)
