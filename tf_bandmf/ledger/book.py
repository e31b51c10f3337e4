"""An organisation's ledger: what was planned, run and released on its data sets.

    ledger = tf_bandmf.Ledger("sqlite:///privacy.db")
    ledger.add_dataset("patients-2026", unit="one patient", epsilon=8, delta=1e-6)
    plan = ledger.bind(tf_bandmf.plan(..., unit="one patient"), "patients-2026")

Everything that trains with such a plan reserves its cost in the ledger before its first
step, or is refused.
"""

from __future__ import annotations

import dataclasses
import datetime
import getpass
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf.files import configs
from tf_bandmf.ledger import (
    datasets,
    releases,
    reservations,
    states,
    unbound,
    verification,
)
from tf_bandmf.ledger.budgets import budget_from
from tf_bandmf.ledger.chain import Entry, canonical
from tf_bandmf.ledger.costs import ADJACENCIES
from tf_bandmf.ledger.datasets import Dataset
from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.ledger.states import AccountState
from tf_bandmf.ledger.watched import WatchedStore
from tf_bandmf.planning.account import Account
from tf_bandmf.planning.statement import ONE_EXAMPLE, check_unit

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

_OPEN: dict[str, Ledger] = {}
_GUARD = threading.Lock()


class Ledger:
    """Data sets, budgets, plans, runs and releases, in a database.

    Formal guarantee: all runs and releases that one period's account of a data set
    admitted are together (epsilon, delta)-DP, or rho-zCDP, as its budget says, for the
    data set's unit and adjacency, if all uses of the data are in it, and if the privacy
    parameters of runs do not depend on results of earlier ones; a budget in rho also
    holds if they do. Periods compose.

    It contains no secrets: no key, no data, no password. Each process that trains opens
    the ledger; several processes, and with PostgreSQL several machines, may write at
    once.

    Args:
      url: "sqlite:///privacy.db" for a file, which is created if it does not exist, or
        "postgresql://user@host/database".
      who: who writes; by default the user's name and machine.
      create: whether to create a ledger if there is none; if False, this is refused.
      trust: whether to accept a database that contradicts what this machine has seen,
        as after restoring a backup; an entry says so, and the machine then remembers
        its state. With `create=False`, only for looking at it.

    Attributes:
      id: the ledger's id, 32 hexadecimal digits.

    Raises:
      ValueError: if the URL is of neither kind.
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
        self._who = _user() if who is None else _one_line("who", who)
        self._store = WatchedStore(url, self._who, create, trust)
        self.id = self._store.id
        with _GUARD:
            _OPEN[self.id] = self

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
        period: str = "always",
        begins: str | datetime.date | None = None,
        ends: str | datetime.date | None = None,
    ) -> None:
        """Adds a data set, with a budget; repeating the call changes nothing.

        Args:
          name: its name, by which plans are bound to it.
          unit: whose presence the budget hides; plans must have the same.
          adjacency: "zero-out" (or add-or-remove), or "replace-one".
          version: version of the data, or a digest of them.
          epsilon: see `set_budget`; without epsilon and rho, it has no budget yet.
          delta: see `set_budget`, also for the following arguments.
          rho: rho of zCDP.
          period: name of the period.
          begins: the first moment.
          ends: the moment after the last.

        Raises:
          ValueError: if an argument is invalid, or the data set exists with another
            unit, adjacency, version or budget.
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
            budget = budget_from(epsilon, delta, rho, period, begins, ends)
        with self._store.writing() as found:
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
                datasets.first_budget(found, self._who, name, budget)

    def set_budget(
        self,
        dataset: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        period: str = "always",
        begins: str | datetime.date | None = None,
        ends: str | datetime.date | None = None,
    ) -> None:
        """Sets or changes the budget of a data set for a period.

        WARNING: what several periods spend adds up: a yearly budget that is renewed is
        a new budget each year.

        Args:
          dataset: its name.
          epsilon: epsilon of the budget, together with delta.
          delta: delta of the budget, together with epsilon.
          rho: rho of zCDP, instead of epsilon and delta.
          period: its name, such as "2026".
          begins: a date, which means midnight UTC, or a moment; None for no limit.
          ends: likewise; the moment itself is not part of the period.

        Raises:
          ValueError: if an argument is invalid, or the periods of two budgets overlap.
          LedgerError: if there is no such data set.
        """
        budget = budget_from(epsilon, delta, rho, period, begins, ends)
        with self._store.writing() as found:
            datasets.set_budget(found, self._who, dataset, budget)

    def add_partitions(
        self, dataset: str, names: Sequence[str], *, disjoint_by: str
    ) -> None:
        """Declares disjoint parts of a data set: no unit has data in two.

        Runs on different parts compose in parallel: each unit pays only for runs on its
        own part.

        Args:
          dataset: its name.
          names: names of the parts; parts that are already known stay unchanged.
          disjoint_by: why no unit is in two, one line: "the week in which a record was
            made", if the unit is one record. The ledger takes the caller's word.

        Raises:
          ValueError: if a name or the reason is not a text of one line; or if the data
            set already has parts for another reason, in which a unit also has data.
        """
        names = [names] if isinstance(names, str) else list(names)
        names = [_one_line("names", name) for name in names]
        reason = _one_line("disjoint_by", disjoint_by)
        with self._store.writing() as found:
            known = datasets.find(found, dataset)
            new = [n for n in dict.fromkeys(names) if n not in known.partitions]
            others = sorted({*known.disjoint_by} - {reason})
            if new and others:
                raise ValueError(
                    f"The parts of {dataset!r} are disjoint by {others[0]!r}, found "
                    f"{reason!r}: a unit would have data in two of them, and be charged "
                    f"for one. Divide a data set in one way, with one reason."
                )
            if new:
                body = {"names": new, "disjoint_by": reason}
                found.append(self._who, "partitions", canonical(body), dataset)

    # Plans and runs.

    def bind(self, plan: Plan, dataset: str | Sequence[str]) -> Plan:
        """Binds a plan to a budget: its runs reserve their cost before the first step.

        Nothing is reserved yet. Use the plan that is returned: a run of the one that was
        given is refused at its first step.

        Args:
          plan: plan of the runs to come.
          dataset: a name; or a name and names of partitions, if only their data are
            used.

        Raises:
          BudgetExceededError: if a run of it would not fit now.
          ValueError: if the plan has another unit, or a test seed.
          LedgerError: if the data set is unknown, or has no budget now.
        """
        with self._store.writing() as found:
            name, *partitions = [dataset] if isinstance(dataset, str) else dataset
            names = datasets.find(found, name).check_partitions(partitions)
            bound = dataclasses.replace(plan, account=Account(self.id, name, names))
            assert bound.account is not None
            reservations.bind(found, self._who, bound, bound.account)
        unbound.note_bound(plan)
        return bound

    def begin(self, plan: Plan, run: str) -> Entry:
        """Reserves the cost of a run; the run may begin once this returns.

        Args:
          plan: a plan that is bound to this ledger.
          run: identifies the run, 64 hexadecimal digits: a digest of the noise key.
            Repeating it for the same run reserves nothing new.

        Returns:
          The entry, named in statements.

        Raises:
          BudgetExceededError: if it would spend more than is left.
          LedgerError: if the run has ended, or the plan is not bound to this ledger.
        """
        if plan.account is None or plan.account.ledger != self.id:
            raise LedgerError(
                "The plan is not bound to this ledger: see ledger.bind(plan, dataset)."
            )
        config = configs.dumps(plan.to_config())
        with self._store.writing() as found:
            return reservations.begin(found, self._who, plan, run, config)

    def note_steps(self, run: str, steps: int) -> Entry:
        """Records how many steps a run has taken so far; spends nothing."""
        with self._store.writing() as found:
            return reservations.note_steps(found, self._who, run, steps)

    def end(
        self,
        run: str,
        *,
        plan: Plan | None = None,
        steps: int | None = None,
        reason: str | None = None,
    ) -> Entry:
        """Ends a run, which then cannot continue.

        With all arguments, it gives back what the steps not taken would have cost, by
        `Plan.epsilon_after`.

        WARNING: use this only if the number of steps does not depend on private data:
        an accident, a clock, a deadline. A run that was stopped because of its model
        has spent its whole plan.

        Args:
          run: its name.
          plan: plan of the run.
          steps: number of steps taken, including lost ones; 0 if there were none.
          reason: why it ended, one line; the caller asserts that it did not depend on
            data.

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
        with self._store.writing() as found:
            return reservations.end(found, self._who, plan, run, steps, reason)

    def spend(
        self,
        dataset: str,
        what: Any,
        *,
        about: str,
        partitions: str | Sequence[str] = (),
    ) -> Entry:
        """Records a release that is not a run of a bound plan, if it fits.

        Use it for private statistics, normalization, metrics, the trials of a tuner,
        runs of other libraries, and what was spent before the ledger existed.

        Args:
          dataset: its name.
          what: a `tf_bandmf.TuningCost`, a `Guarantee`, a `Plan` that was run unbound,
            a joint guarantee from `compose`, a release made elsewhere as `compose`
            takes it (`ApproximateDP`, `ZeroConcentratedDP`, `AccountedEvent`), an event
            of dp-accounting, or (epsilon, delta) for the data set's adjacency.
          about: what was released, one line.
          partitions: partitions whose data it used; none for all data.

        Raises:
          BudgetExceededError: if it would spend more than is left: do not release it.
          TypeError: if `what` is none of these.
        """
        about = _one_line("about", about)
        with self._store.writing() as found:
            known = datasets.find(found, dataset)
            cost, body = releases.described(what, known)
            body = {"about": about, **body}
            return reservations.spend(
                found, self._who, known, partitions, cost, body, repr(about)
            )

    def release(self, run: str, *, digest: str, to: str) -> Entry:
        """Records that a model of a run was given to somebody; spends nothing.

        Args:
          run: its name.
          digest: digest of the model, such as the SHA-256 of its file.
          to: to whom, or where, one line.
        """
        body = {"digest": _one_line("digest", digest), "to": _one_line("to", to)}
        with self._store.writing() as found:
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
            return states.spent(found, datasets.find(found, dataset), period)

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
          partitions: partitions whose data it would use; none for all data.
        """
        with self._store.reading() as found:
            known = datasets.find(found, dataset)
            return states.room(found, known, delta, partitions)

    def history(
        self, dataset: str | None = None, run: str | None = None
    ) -> list[Entry]:
        """Entries in order: all, those of a data set, or those of a run."""
        with self._store.reading() as found:
            return list(found.entries(dataset=dataset, run=run))

    def kept_plan(self, fingerprint: str) -> dict[str, Any] | None:
        """The configuration of a plan that a run used, for `Plan.from_config`."""
        with self._store.reading() as found:
            text = found.plan_config(fingerprint)
        return None if text is None else configs.loads(text)

    def verify(self, *known: str) -> verification.Verification:
        """Checks the whole chain, all sums, and what this machine has seen.

        Args:
          *known: names of entries, from statements, exports or earlier calls.
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
    """The ledger with this id, if this process has opened it.

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


__all__ = ["Ledger", "opened"]
