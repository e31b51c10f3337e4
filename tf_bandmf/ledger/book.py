"""The ledger, which decides whether a data set has enough privacy budget for a run.

    ledger = tf_bandmf.Ledger("sqlite:///privacy.db")
    ledger.add_dataset("patients-2026", unit="one patient", epsilon=8, delta=1e-6)
    plan = ledger.bind(tf_bandmf.plan(..., unit="one patient"), "patients-2026")

Making a plan reserves no budget, because not every plan is run. A run *begins* with its
first step: it reserves the whole cost of its plan, or the ledger refuses the run.
The name of a run is a digest of its noise key. A resumed run has the same name and
reserves nothing more; a second run of the same plan reserves the cost again. The whole
reservation is counted as spent until `Ledger.end` is called, even if the run's process
has died.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
from typing import Any

from tf_bandmf.accounting.guarantee import fill
from tf_bandmf.ledger.balances import Balance, Budget
from tf_bandmf.ledger.chain import Chain, Entry
from tf_bandmf.ledger.errors import BudgetExceededError, LedgerError
from tf_bandmf.ledger.releases import described, of_plan
from tf_bandmf.ledger.store import Store
from tf_bandmf.planning import account as accounts
from tf_bandmf.planning.composition import Release
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import ONE_EXAMPLE, check_line, check_unit
from tf_bandmf.strategies import registry

# The ledgers that this process has opened, by their URLs.
_OPEN: dict[str, Ledger] = {}


class Ledger:
    """A database of data sets, their privacy budgets, runs, and other releases.

    Formal guarantee: if every use of a data set is recorded in the ledger, then all
    runs and releases that the ledger admitted are jointly (epsilon, delta)-DP, or
    rho-zCDP, with the parameters of the budget and for the data set's privacy unit and
    adjacency. If the budget is (epsilon, delta), the privacy parameters of a release must
    not depend on the results of earlier releases; if it is a rho, they may.

    The ledger contains no secrets: no key, no data, no password. Each process that
    trains opens the ledger; several processes, and with PostgreSQL also several
    machines, may write concurrently.

    Args:
      url: "sqlite:///privacy.db" for a file, which is created if it does not exist, or
        "postgresql://user@host/database".
      who: the author of new entries; by default the names of the user and the machine.
      create: what to do if there is no ledger at the URL: True to create it, False to
        raise an error.

    Raises:
      ValueError: if the URL has another form.
      ImportError: if SQLAlchemy or the database driver is missing.
      LedgerError: if the database cannot be used.
    """

    def __init__(
        self, url: str, *, who: str | None = None, create: bool = True
    ) -> None:
        user = f"{os.environ.get('USER', 'unknown')}@{socket.gethostname()}"
        self._who = check_line("who", user if who is None else who)
        self._store = Store(url, create)
        _OPEN[repr(self._store)] = self

    def add_dataset(
        self,
        name: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        unit: str = ONE_EXAMPLE,
        adjacency: str = "zero-out",
    ) -> Balance:
        """Adds a data set with its budget, unless it already exists.

        Args:
          name: name of the data set. Other methods expect it as the argument `dataset`.
          epsilon: epsilon of the budget; requires delta.
          delta: delta of the budget; requires epsilon.
          rho: zCDP rho, instead of epsilon and delta.
          unit: the privacy unit that the budget protects; plans must have the same
            unit.
          adjacency: "zero-out", which also covers add-or-remove, or "replace-one".

        Returns:
          The balance of the data set.

        Raises:
          ValueError: if an argument is invalid, or the data set already exists with a
            different unit, adjacency or budget.
        """
        check_unit(unit)
        if adjacency not in ("zero-out", "replace-one"):
            raise ValueError("adjacency must be 'zero-out' or 'replace-one'.")
        name, budget = check_line("name", name), vars(Budget(epsilon, delta, rho))
        body = {"unit": unit, "adjacency": adjacency, "budget": budget}
        with self._store.transaction(writes=True) as tables:
            if name not in tables.ids():
                # The nonce ensures that data sets with equal settings have different
                # ids.
                body["nonce"] = secrets.token_hex(16)
                tables.append(Chain(name), self._who, "dataset", body)
            else:
                chain = tables.chain(name)
                there = {key: chain.entries[0].body[key] for key in body}
                there["budget"] = vars(chain.budget)
                if there != body:
                    raise ValueError(
                        f"Data set {name!r} already exists, with {there}, not {body}. "
                        f"Use another name. To change only the budget: set_budget(...)."
                    )
        return self.balance(name)

    def set_budget(
        self,
        dataset: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
    ) -> Balance:
        """Changes the budget of a data set.

        The new budget limits past and future releases together.

        Args:
          dataset: name of the data set.
          epsilon: epsilon of the budget; requires delta.
          delta: delta of the budget; requires epsilon.
          rho: zCDP rho, instead of epsilon and delta.

        Returns:
          The balance under the new budget.

        Raises:
          ValueError: if an argument is invalid.
          LedgerError: if there is no such data set.
        """
        budget = Budget(epsilon, delta, rho)
        with self._store.transaction(writes=True) as tables:
            chain = tables.chain(dataset)
            if chain.budget != budget:
                tables.append(chain, self._who, "budget", {"budget": vars(budget)})
        return self.balance(dataset)

    # The methods below record what runs and other releases spend.

    def bind(self, plan: Plan, dataset: str) -> Plan:
        """Returns a copy of a plan whose runs reserve their cost from a data set's budget.

        A run reserves its cost before its first step; this method reserves nothing. Use
        the returned plan: a run of the original plan would be refused at its first step.

        Args:
          plan: the plan.
          dataset: name of the data set that runs of the plan use.

        Raises:
          BudgetExceededError: if the remaining budget would not suffice for a run of the
            plan.
          ValueError: if the plan's privacy unit is not that of the data set, or if the
            plan has a test seed.
          LedgerError: if the data set is unknown.
        """
        balance = self.balance(dataset)
        cost = of_plan(plan, balance.dataset)
        _refuse_more(balance, cost, what=_named(plan, "A run of this plan"))
        return accounts.bind(plan, accounts.Account(dataset, balance.dataset.id))

    def begin(self, plan: Plan, run: str) -> Entry:
        """Reserves the cost of a run, which may begin once this method returns.

        Args:
          plan: plan of the run, bound to this ledger.
          run: name of the run, a digest of its noise key: 64 hexadecimal digits. A
            second call with the same name reserves nothing more.

        Returns:
          The ledger's entry for the run. Privacy statements cite the entry's name.

        Raises:
          BudgetExceededError: if the run would spend more than the remaining budget.
          LedgerError: if the run has ended, or the plan is not bound to this ledger.
        """
        if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{64}", run):
            raise ValueError(f"run=... must be 64 hexadecimal digits, found {run!r}.")
        account = plan.account
        with self._store.transaction(writes=True) as tables:
            if account is None or tables.ids().get(account.dataset) != account.id:
                raise LedgerError("The plan is not bound to this ledger. Call bind().")
            chain = tables.chain(account.dataset)
            for first in chain.of_run(run, "begun"):
                _check_same(first, plan)
                if chain.of_run(run, "ended"):
                    raise LedgerError(f"Run {run[:12]} has ended. Start a new run.")
                return first
            cost = of_plan(plan, chain.dataset)
            _refuse_more(chain.balance(), cost, what=_named(plan, f"Run {run[:12]}"))
            told = ("fingerprint", "num_steps", "epsilon", "delta")
            body = {"mechanism": registry.specification(plan.strategy), "costs": [cost]}
            body |= {name: getattr(plan, name) for name in told}
            return tables.append(chain, self._who, "begun", body, run)

    def note_steps(self, run: str, steps: int) -> Entry:
        """Records the number of steps that a run has taken so far; costs no budget."""
        with self._store.transaction(writes=True) as tables:
            chain = tables.chain(tables.dataset_of(run))
            return tables.append(chain, self._who, "steps", {"steps": int(steps)}, run)

    def end(self, run: str, *, plan: Plan, steps: int, reason: str) -> Entry:
        """Ends a run permanently, and returns unused budget to the data set.

        The run is then charged only for the steps that it took; see
        `Plan.epsilon_after`. It keeps the cost of its whole plan if the accounting
        needs a simulation, or if the charge for those steps would be higher.

        WARNING: use this only if the number of steps does not depend on private data,
        for example after a crash or at a deadline. If a run was stopped because of its
        model's performance, it has spent the whole cost of its plan.

        Args:
          run: name of the run, as for `begin`.
          plan: plan of the run.
          steps: number of steps that the run took, including steps whose results were
            lost.
          reason: reason why the run ended, in one line. The caller asserts that the
            reason does not depend on private data.

        Raises:
          LedgerError: if the run has not begun, or if it began with a different plan.
          ValueError: if the ledger has already recorded more than `steps` steps.
        """
        reason = check_line("reason", reason)
        with self._store.transaction(writes=True) as tables:
            chain = tables.chain(tables.dataset_of(run))
            for last in chain.of_run(run, "ended"):
                return last
            _check_same(chain.of_run(run, "begun")[0], plan)
            noted = [entry.body["steps"] for entry in chain.of_run(run, "steps")]
            if steps < max(noted, default=0):
                raise ValueError(f"steps must be >= {max(noted)}, but found {steps}.")
            costs = [of_plan(plan, chain.dataset, taken) for taken in (steps, None)]
            cost = min(costs, key=lambda one: chain.balance({run: (one,)}).spent)
            body = {"steps": steps, "reason": reason, "costs": [cost]}
            return tables.append(chain, self._who, "ended", body, run)

    def spend(self, dataset: str, what: Any, *, about: str) -> Entry:
        """Records a release other than a run of a bound plan, if the budget suffices.

        Use this for private statistics, normalization, metrics, hyperparameter tuning,
        runs of other libraries, and releases from before the ledger existed.

        Args:
          dataset: name of the data set.
          what: the cost of the release: the result of `tuning_cost` or `compose`, a
            `Guarantee`, a `Plan` that was run without being bound, a
            `tf_bandmf.Release`, a dp-accounting event, or a pair (epsilon, delta) for
            the data set's adjacency.
          about: description of the release, in one line.

        Raises:
          BudgetExceededError: if the release would spend more than the remaining budget.
            It must then not be published.
          TypeError: if `what` has a type that is not listed above.
        """
        about = check_line("about", about)
        with self._store.transaction(writes=True) as tables:
            chain = tables.chain(dataset)
            cost = described(what, chain.dataset)
            _refuse_more(chain.balance(), *cost, what=repr(about))
            total = sum(release.epsilon or 0.0 for release in cost)
            body = {"about": about, "epsilon": total, "costs": cost}
            return tables.append(chain, self._who, "spent", body)

    # The methods below read the ledger without adding entries.

    def balance(self, dataset: str) -> Balance:
        """Returns the balance of a data set: its budget and the cost of its releases.

        Args:
          dataset: name of the data set.
        """
        with self._store.transaction(writes=False) as tables:
            return tables.chain(dataset).balance()

    def balances(self) -> list[Balance]:
        """Returns the balances of all data sets."""
        with self._store.transaction(writes=False) as tables:
            return [tables.chain(name).balance() for name in tables.ids()]

    def fits(self, dataset: str, *, delta: float | None = None) -> float:
        """Returns the maximum epsilon of an unamplified run that fits the budget.

        Args:
          dataset: name of the data set.
          delta: delta of the run; by default the delta of the budget, or 1e-6 if the
            budget is a rho.

        Returns:
          Epsilon, or 0 if no run fits.
        """
        return self.balance(dataset).fits(delta)

    def history(
        self, *, dataset: str | None = None, run: str | None = None
    ) -> list[Entry]:
        """Verifies the chains of data sets, and returns their entries in order.

        Args:
          dataset: name of a data set, or None for all data sets.
          run: name of a run, or the first digits of the name; None for all entries.
        """
        with self._store.transaction(writes=False) as tables:
            names = tables.ids() if dataset is None else [dataset]
            entries = [e for name in names for e in tables.chain(name, True).entries]
        return [e for e in entries if run is None or (e.run or "").startswith(run)]

    def verify(self, *cited: str) -> list[str]:
        """Checks the ledger, and returns one sentence for each problem that it found.

        Args:
          *cited: names of entries that published statements or exports cite, and that
            must therefore exist.
        """
        problems, entries = [], list[Entry]()
        with self._store.transaction(writes=True) as tables:
            for name in tables.ids():
                try:
                    entries += tables.chain(name, anew=True).entries
                except LedgerError as error:
                    problems.append(str(error))
        settled = {e.run: e.body["steps"] for e in entries if e.kind == "ended"}
        problems += [
            f"Run {e.run} took {e.body['steps']} steps: it continued after it was ended."
            for e in entries
            if e.kind == "steps" and e.body["steps"] > settled.get(e.run, math.inf)
        ]
        missing = set(cited) - {entry.name for entry in entries}
        return problems + [f"There is no entry {name}." for name in sorted(missing)]


def opened(account: accounts.Account) -> Ledger:
    """Returns the open ledger that contains the account's data set.

    Raises:
      LedgerError: if this process has not opened such a ledger.
    """
    refusal = None
    for ledger in reversed(_OPEN.values()):
        try:
            with ledger._store.transaction(writes=False) as tables:
                if account.id in tables.ids().values():
                    return ledger
        except LedgerError as error:
            refusal = error
    raise LedgerError(
        f"The ledger with {account} is not open in this process, so it cannot reserve "
        f"the run's cost. Open the ledger first: ledger = tf_bandmf.Ledger(url)."
    ) from refusal


def _refuse_more(balance: Balance, *cost: Release, what: str) -> None:
    """Raises BudgetExceededError if a release would exceed the budget.

    The error message says what would fit.

    Args:
      balance: the balance before the release.
      *cost: the cost of the release.
      what: name of the release in the error message.
    """
    more = balance.with_more(*cost)
    if not more.is_over:
        return
    fits, budget = balance.fits(cost[0].delta or None), balance.budget
    releases = [release for cost in more.costs for release in cost]
    deltas = math.fsum(one.delta for one in releases if one.zcdp(False) is None)
    allowed, reason = budget.delta or 0.0, ""
    if more.spent == math.inf and deltas >= allowed:
        reason = (
            f"The deltas of releases without a rho add up to {deltas:g} of {allowed:g}. "
            f"Pass plans instead of their guarantees, a rho, or smaller deltas. "
        )
    raise BudgetExceededError(
        f"{what} would exceed the budget of {balance.dataset.name!r} ({budget}): "
        f"{fill('{:.4g up}', balance.spent)} of {budget.whole:g} is spent or reserved by "
        f"{balance.runs} earlier run(s). {reason}A run without amplification would fit "
        f"with epsilon <= {fits:g}.",
        fits,
    )


def _named(plan: Plan, run: str) -> str:
    """Returns the words that name a run in an error message.

    If the plan's epsilon is an estimate, the words also say that the run's cost is
    computed without amplification.
    """
    return f"{run} (an estimate, unamplified)" if plan.kind == "estimate" else run


def _check_same(first: Entry, plan: Plan) -> None:
    if first.body["fingerprint"] != plan.fingerprint:
        raise LedgerError(f"Run {first.run} began with another plan. Pass that plan.")
