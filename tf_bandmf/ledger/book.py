"""The ledger of an organisation: what was planned, run and released on its data sets.

    ledger = tf_bandmf.Ledger("sqlite:///privacy.db")
    ledger.add_dataset("patients-2026", unit="one patient", epsilon=8, delta=1e-6)
    plan = tf_bandmf.plan(..., unit="one patient", ledger=ledger, dataset="patients-2026")

Everything that trains with such a plan reserves its cost in the ledger before its first
step, or is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import getpass
import hashlib
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf.files import configs
from tf_bandmf.ledger import (
    datasets,
    filters,
    releases,
    reservations,
    times,
    verification,
    witness,
)
from tf_bandmf.ledger.budgets import Budget, Spent
from tf_bandmf.ledger.chain import Entry, canonical
from tf_bandmf.ledger.costs import ADJACENCIES
from tf_bandmf.ledger.datasets import ALL_DATA, Dataset
from tf_bandmf.ledger.errors import DamagedLedgerError, LedgerError
from tf_bandmf.ledger.store import Store, Transaction
from tf_bandmf.planning.account import Account
from tf_bandmf.planning.statement import ONE_EXAMPLE, check_unit

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

_FORMAT = "tf-bandmf ledger 1"
_OPEN: dict[str, Ledger] = {}
_GUARD = threading.Lock()


@dataclasses.dataclass(frozen=True)
class AccountState:
    """What was spent of one budget.

    Attributes:
      dataset, period, partition: whose; the partition is "" for data in none.
      budget: of the period.
      spent: of it, reserved or settled.
      runs: how many.
      risk: probability that one of the simulated bounds does not hold.
    """

    dataset: str
    period: str
    partition: str
    budget: Budget
    spent: Spent
    runs: int
    risk: float


class Ledger:
    """Data sets, budgets, plans, runs and releases, in a database.

    Formal guarantee: all runs and releases that one period's account of a data set let
    begin are together (epsilon, delta)-DP, or rho-zCDP, as its budget says, for the data
    set's unit and adjacency, if all uses of the data are in it: under `adaptive=True`
    whatever was chosen adaptively; else if the privacy parameters of runs do not depend on
    results of earlier ones (`ledger.filters`, `ledger.bounds`). Periods compose.

    Nothing secret is in it: no key, no data, no password. A ledger is opened by each
    process that trains; processes, and machines with PostgreSQL, may write at once.

    Args:
      url: "sqlite:///privacy.db" for a file, which is made if it is not there, or
        "postgresql://user@host/database".
      who: writes; by default the user's name and machine.
      create: False refuses a database that has no ledger.
      trust: accepts a database that contradicts what this machine has seen, as after
        a restored backup; an entry says so, and the machine remembers what it has then.
        With `create=False` only to look at it.

    Attributes:
      id: of the ledger, 32 hexadecimal digits.

    Raises:
      ValueError: if the URL is neither.
      ImportError: if SQLAlchemy or the driver is missing.
      LedgerError: if the database cannot be used.
      DamagedLedgerError: if the newest entries are not those that this machine has seen.
    """

    def __init__(
        self,
        url: str,
        *,
        who: str | None = None,
        create: bool = True,
        trust: bool = False,
    ) -> None:
        self._store = Store(url, create)
        self._who = _user() if who is None else _one_line("who", who)
        self._doubt: str | None = None
        with self._store.writing() if create else self._store.reading() as found:
            first = found.entry(0)
            if first is None:
                if not create:
                    raise LedgerError(f"There is no ledger at {self!r}.")
                body = {"format": _FORMAT, "id": uuid.uuid4().hex}
                first = found.append(self._who, "ledger", canonical(body))
            self.id = str(first.body["id"])
            problem = self._contradiction(found)
            if problem is not None and not trust:
                raise DamagedLedgerError(problem)
            if problem is not None and create:
                found.append(self._who, "trusted", canonical({"contradicted": problem}))
            is_trusted = problem is None or create
            newest = found.newest() if is_trusted else None
        if newest is not None:
            self._remember(newest)
            witness.remember(self._place, 0, self.id)
        with _GUARD:
            _OPEN[self.id] = self

    @property
    def _place(self) -> str:
        return "at-" + hashlib.sha256(self._store.place.encode()).hexdigest()[:32]

    def _contradiction(self, found: Transaction) -> str | None:
        """What this machine has seen that the database does not have."""
        before = witness.remembered(self._place)
        if before is not None and before[1] != self.id:
            return (
                f"Another ledger was at {self!r}: what was spent there is not known here. "
                f"Restore it; Ledger(url, trust=True) begins with this one."
            )
        seen = witness.remembered(self.id)
        if seen is None:
            return None
        entry = found.entry(seen[0])
        if entry is not None and entry.digest == seen[1]:
            return None
        return (
            f"The ledger at {self!r} lacks entry {seen[0]}, which this machine saw: the "
            f"database was replaced by an older one or a copy, or entries were changed. "
            f"Restore it; Ledger(url, trust=True) goes on without, and says so."
        )

    def _remember(self, newest: Entry) -> None:
        witness.remember(self.id, newest.number, newest.digest)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Transaction]:
        with self._store.writing() as found:
            problem = self._contradiction(found)
            if problem is not None:
                raise DamagedLedgerError(problem)
            yield found
            newest = found.newest()
        if newest is not None:
            self._remember(newest)

    # Data sets and budgets.

    def add_dataset(
        self,
        name: str,
        *,
        unit: str = ONE_EXAMPLE,
        adjacency: str = "zero-out",
        version: str | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        adaptive: bool = False,
        shares: Mapping[str, float] | None = None,
        period: str = "always",
        begins: str | datetime.date | None = None,
        ends: str | datetime.date | None = None,
    ) -> None:
        """Adds a data set, with a budget; the same call once more changes nothing.

        Args:
          name: by which plans are bound to it.
          unit: whose presence the budget hides; plans must have the same.
          adjacency: "zero-out" (or add-or-remove), or "replace-one".
          version: of the data, or a digest of them.
          epsilon: see `set_budget`; without epsilon and rho it has no budget yet.
          delta: likewise, as all that follows.
          rho: of zCDP.
          adaptive: whether plans may depend on earlier results.
          shares: of the filters.
          period: the budget's name.
          begins: the first moment.
          ends: the moment after the last.

        Raises:
          ValueError: if an argument is invalid, or the data set is there with another
            unit, adjacency or version.
        """
        check_unit(unit)
        if adjacency not in ADJACENCIES:
            raise ValueError(
                f"adjacency must be one of {', '.join(ADJACENCIES)}, found {adjacency!r}."
            )
        body = {
            "unit": unit,
            "adjacency": adjacency,
            "version": None if version is None else _one_line("version", version),
        }
        budget = None
        if epsilon is not None or rho is not None:
            budget = _budget(
                epsilon, delta, rho, adaptive, shares, period, begins, ends
            )
        with self._writing() as found:
            name = _one_line("name", name)
            known = next(found.entries(dataset=name, kind="dataset"), None)
            if known is None:
                found.append(self._who, "dataset", canonical(body), name)
            elif known.body != body:
                raise ValueError(
                    f"The data set {name!r} is in the ledger with {known.body}, found "
                    f"{body}. Give other data another name."
                )
            if budget is not None:
                self._append_budget(found, name, budget)

    def set_budget(
        self,
        dataset: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        adaptive: bool = False,
        shares: Mapping[str, float] | None = None,
        period: str = "always",
        begins: str | datetime.date | None = None,
        ends: str | datetime.date | None = None,
    ) -> None:
        """Gives a data set a budget for a period, or changes it.

        WARNING: what several periods spend adds up: a budget for a year that is renewed is
        one for each year.

        Args:
          dataset: its name.
          epsilon: the budget, together with delta; or
          delta: likewise.
          rho: that of zCDP.
          adaptive: whether noise, sampling or numbers of steps of later runs may depend
            on results of earlier ones.
          shares: with `adaptive`: what each filter gets of delta, such as
            `{"gaussian": 1.0}` where all runs are without amplification.
          period: its name, such as "2026".
          begins: a date, midnight UTC, or a moment; None: no limit.
          ends: likewise; it is not part of the period.

        Raises:
          ValueError: if an argument is invalid, or the periods of two budgets overlap.
          LedgerError: if there is no such data set.
        """
        budget = _budget(epsilon, delta, rho, adaptive, shares, period, begins, ends)
        with self._writing() as found:
            self._append_budget(found, dataset, budget)

    def _append_budget(self, found: Transaction, name: str, budget: Budget) -> None:
        known = datasets.find(found, name)
        if budget in known.budgets:
            return
        for other in known.budgets:
            if other.period != budget.period and other.overlaps(budget):
                raise ValueError(
                    f"Periods of a data set must not overlap: a run spends from one. "
                    f"Found {budget.describe()} and {other.describe()}."
                )
        found.append(self._who, "budget", canonical(budget.to_json()), name)

    def add_partitions(
        self, dataset: str, names: Sequence[str], *, disjoint_by: str
    ) -> None:
        """Declares parts of a data set of which no unit has data in two.

        Runs on different ones compose in parallel: each unit pays for those on its own.

        Args:
          dataset: its name.
          names: of the parts; those that are known are left as they are.
          disjoint_by: why no unit is in two, one line: "the week in which a record was
            made", where the unit is one record. The caller's word.

        Raises:
          ValueError: if a name or the reason is no text of one line.
        """
        names = [names] if isinstance(names, str) else list(names)
        names = [_one_line("names", name) for name in names]
        reason = _one_line("disjoint_by", disjoint_by)
        with self._writing() as found:
            known = datasets.find(found, dataset).partitions
            new = [name for name in dict.fromkeys(names) if name not in known]
            if new:
                body = {"names": new, "disjoint_by": reason}
                found.append(self._who, "partitions", canonical(body), dataset)

    # Plans and runs.

    def bind(self, plan: Plan, dataset: str | Sequence[str]) -> Plan:
        """The plan, bound to a budget; `tf_bandmf.plan(ledger=...)` calls it.

        Nothing is reserved: a run reserves when it begins.

        Args:
          plan: of runs to come.
          dataset: a name; or a name and those of partitions, whose data alone are used.

        Raises:
          BudgetExceededError: if a run of it would not fit now.
          ValueError: if the plan's unit is another one, or it has a test seed.
          LedgerError: if the data set is not known, or has no budget now.
        """
        with self._writing() as found:
            name, *partitions = [dataset] if isinstance(dataset, str) else dataset
            names = datasets.find(found, name).check_partitions(partitions)
            bound = dataclasses.replace(plan, account=Account(self.id, name, names))
            assert bound.account is not None
            reservations.bind(found, self._who, bound, bound.account)
        return bound

    def begin(self, plan: Plan, run: str) -> Entry:
        """Reserves what a run of a plan costs; the run may begin after it returns.

        Args:
          plan: bound to this ledger.
          run: what tells runs apart, 64 hexadecimal digits: a digest of the noise key.
            The same run again reserves nothing anew.

        Returns:
          The entry, which statements name.

        Raises:
          BudgetExceededError: if it would spend more than is left.
          LedgerError: if the run has ended, or the plan is not bound to this ledger.
        """
        if plan.account is None or plan.account.ledger != self.id:
            raise LedgerError(
                "The plan is not bound to this ledger: plan with ledger= and dataset=."
            )
        config = configs.dumps(plan.to_config())
        with self._writing() as found:
            return reservations.begin(found, self._who, plan, run, config)

    def note_steps(self, run: str, steps: int) -> Entry:
        """Writes down how many steps a run has taken so far; spends nothing."""
        with self._writing() as found:
            return reservations.note_steps(found, self._who, run, steps)

    def end(
        self,
        run: str,
        *,
        plan: Plan | None = None,
        steps: int | None = None,
        reason: str | None = None,
    ) -> Entry:
        """Ends a run, which cannot go on then.

        With all arguments it gives back what the steps that were not taken would have
        cost, by `Plan.epsilon_after`.

        WARNING: only where the number of steps does not depend on private data: an
        accident, a clock, a deadline. A run that was stopped because of what its model
        was like has spent all of its plan.

        Args:
          run: its name.
          plan: of the run.
          steps: that were taken, lost ones included; 0 if none was.
          reason: why it ended, one line; the caller's word that no data had a part in it.

        Raises:
          LedgerError: if the run has not begun, or was begun with another plan.
          ValueError: if the ledger knows that it took more steps.
        """
        given = [plan is not None, steps is not None, reason is not None]
        if any(given) and not all(given):
            raise ValueError(
                "Give plan, steps and reason to have back what was not used, or none of "
                "them: the run then keeps all that it reserved."
            )
        if reason is not None:
            reason = _one_line("reason", reason)
        with self._writing() as found:
            return reservations.end(found, self._who, plan, run, steps, reason)

    def spend(
        self,
        dataset: str,
        what: Any,
        *,
        about: str,
        partitions: str | Sequence[str] = (),
    ) -> Entry:
        """Writes down a release that is no run of a bound plan, if it fits.

        Private statistics, normalization, metrics, the trials of a tuner, runs of other
        libraries, and what was spent before there was a ledger.

        Args:
          dataset: its name.
          what: a `tf_bandmf.TuningCost`, a `Guarantee`, a `Plan` that was run unbound, a
            joint guarantee by `compose`, a release made elsewhere as `compose` takes it
            (`ApproximateDP`, `ZeroConcentratedDP`, `AccountedEvent`), an event of
            dp-accounting, or (epsilon, delta) for the data set's adjacency.
          about: what was released, one line.
          partitions: whose data it used; none for all data.

        Raises:
          BudgetExceededError: if it would spend more than is left: do not release it.
          TypeError: if `what` is none of these.
        """
        about = _one_line("about", about)
        with self._writing() as found:
            known = datasets.find(found, dataset)
            cost, body = releases.described(what, known)
            body = {"about": about, **body}
            return reservations.spend(
                found, self._who, known, partitions, cost, body, repr(about)
            )

    def release(self, run: str, *, digest: str, to: str) -> Entry:
        """Writes down that a model of a run was given to somebody; spends nothing.

        Args:
          run: its name.
          digest: of the model, such as the SHA-256 of its file.
          to: whom, or where, one line.
        """
        body = {"digest": _one_line("digest", digest), "to": _one_line("to", to)}
        with self._writing() as found:
            first = next(found.entries(run=run, kind="begun"), None)
            if first is None:
                raise LedgerError(f"The ledger knows no run {run[:12]}.")
            return found.append(
                self._who, "released", canonical(body), first.dataset, run
            )

    # What is there.

    def datasets(self) -> list[Dataset]:
        """All data sets."""
        with self._store.reading() as found:
            return [datasets.find(found, name) for name in datasets.names_of(found)]

    def spent(self, dataset: str, period: str | None = None) -> list[AccountState]:
        """What was spent of each budget of a data set, and of each partition's data.

        Args:
          dataset: its name.
          period: None for all.
        """
        with self._store.reading() as found:
            known = datasets.find(found, dataset)
            budgets = known.budgets if period is None else [known.budget_of(period)]
            return [
                AccountState(
                    dataset,
                    budget.period,
                    partition,
                    budget,
                    budget.spent(balance),
                    balance.runs,
                    releases.risk_of(balance),
                )
                for budget in budgets
                for partition, balance in known.balances(found, budget.period).items()
            ]

    def odometer(self, dataset: str, period: str | None = None) -> float:
        """A bound on the loss so far that holds at all moments at once, at the delta.

        However adaptively runs were chosen; see `filters.odometer_epsilon`. Infinite if a
        release without zCDP is among them.

        Args:
          dataset: its name.
          period: None for the present one.
        """
        with self._store.reading() as found:
            known = datasets.find(found, dataset)
            budget = (
                known.budget_at(found.moment())
                if period is None
                else known.budget_of(period)
            )
            balances = known.balances(found, budget.period).values()
            return max(releases.odometer(budget, balance) for balance in balances)

    def fits(
        self,
        dataset: str,
        *,
        delta: float | None = None,
        partitions: str | Sequence[str] = (),
    ) -> float:
        """The largest epsilon of a run without amplification that fits now; 0 if none.

        Args:
          dataset: its name.
          delta: of that run; by default the budget's.
          partitions: whose data it would use; none for all data.
        """
        with self._store.reading() as found:
            known = datasets.find(found, dataset)
            names = known.check_partitions(partitions)
            budget = known.budget_at(found.moment())
            balances = known.balances(found, budget.period)
            return budget.room(
                [balances[name] for name in names or balances],
                delta,
                adjacency=known.neighbors,
            )

    def history(
        self, dataset: str | None = None, run: str | None = None
    ) -> list[Entry]:
        """Entries in their order: all, those of a data set, or those of a run."""
        with self._store.reading() as found:
            return list(found.entries(dataset=dataset, run=run))

    def kept_plan(self, fingerprint: str) -> dict[str, Any] | None:
        """The configuration of a plan of which a run began, for `Plan.from_config`."""
        with self._store.reading() as found:
            text = found.plan_config(fingerprint)
        return None if text is None else configs.loads(text)

    def verify(self, *known: str) -> verification.Verification:
        """Checks the whole chain, all sums, and what this machine has seen.

        Args:
          *known: names of entries, as statements, exports and earlier calls have them.
        """
        with self._store.reading() as found:
            return verification.verify(found, self.id, known)

    def overspent(self) -> list[str]:
        """Accounts that have spent more than their budget, one sentence each."""
        with self._store.reading() as found:
            return verification.overspent(found)

    def __repr__(self) -> str:
        return f"Ledger({self._store!r})"


def opened(ledger_id: str) -> Ledger:
    """The ledger with this id, which the process has opened.

    Raises:
      LedgerError: if it has not.
    """
    found = _OPEN.get(ledger_id)
    if found is None:
        raise LedgerError(
            f"The plan is bound to the ledger {ledger_id[:12]}, which is not open in this "
            f"process: no run of it begins without its reservation. Open it first: "
            f"ledger = tf_bandmf.Ledger(url)."
        )
    return found


def _budget(
    epsilon: float | None,
    delta: float | None,
    rho: float | None,
    adaptive: bool,
    shares: Mapping[str, float] | None,
    period: str,
    begins: str | datetime.date | None,
    ends: str | datetime.date | None,
) -> Budget:
    if shares is not None and not adaptive:
        raise ValueError("shares are of adaptive budgets: give adaptive=True, too.")
    return Budget(
        period,
        times.normalized("begins", begins),
        times.normalized("ends", ends),
        None if epsilon is None else float(epsilon),
        None if delta is None else float(delta),
        None if rho is None else float(rho),
        bool(adaptive),
        dict(filters.SHARES if shares is None else shares),
    )


def _one_line(name: str, text: Any) -> str:
    is_line = isinstance(text, str) and len(text.strip().splitlines()) == 1
    if not is_line or len(text) > 1000:
        raise ValueError(f"{name} must be a text of one line, found {text!r}.")
    return text.strip()


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


__all__ = ["ALL_DATA", "AccountState", "Ledger", "opened"]
