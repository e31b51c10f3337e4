"""A run of any engine, from the ledger's first line to the last release.

`program` (TensorFlow Federated) and `flower` call it; it says nothing about how a round is
carried out.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from tf_bandmf.files import private as private_files
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.cohorts import Cohorts
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.rounds import Engine, ProgramState, Releasing, Rounds
from tf_bandmf_federated.state_files import StateFiles

# No names that Flower puts into the bundle it sends to every node.
LEDGER_FILE, STATES_FOLDER = "ledger.sqlite3", "states"
_RESTARTS = ("replay", "skip")


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
            states = StateFiles(os.path.join(folder, STATES_FOLDER))
            engine.keep_key(folder, is_new=not ledger.rounds)
            first = ProgramState(await engine.initial_state(), engine.no_metrics())
            program = Rounds(self, ledger, states)
            if len(ledger.rounds) > total:
                raise ValueError(
                    f"The ledger says that {len(ledger.rounds)} rounds were begun, more "
                    f"than total_rounds = {total}: an older state would leave some out "
                    f"of what was measured. Give at least as many."
                )
            state = await program.begin(first)
            del first  # of a large model
            while program.round_number(state) < total:
                state = await program.run_round(state)
                if self.after_round is not None:
                    self.after_round(state)
            engine.note_rounds(program.round_number(state))
            skipped = tuple(
                t for t, known in ledger.rounds.items() if known.skipped_because
            )
            measured = dataclasses.replace(
                ledger.measured(program.round_number(state)), skipped_rounds=skipped
            )
            return state, measured
