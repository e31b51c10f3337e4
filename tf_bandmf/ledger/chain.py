"""The chain of a data set, in which each entry contains the previous entry's digest.

Changing, deleting, inserting or reordering entries breaks the chain. The digests are
computed without a key, so anyone with write access to the database can forge a new
chain. A forged chain, however, does not contain the digests that published statements
and exports cite.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tf_bandmf.ledger.balances import Balance, Budget
from tf_bandmf.ledger.errors import DamagedLedgerError
from tf_bandmf.ledger.releases import Dataset
from tf_bandmf.planning.composition import Release


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry in the chain of a data set.

    Attributes:
      dataset: the data set's name.
      number: index of the entry in the chain; the first entry has index 0.
      at: the time (UTC) at which the entry was written.
      who: author of the entry.
      kind: "dataset", "budget", "begun", "steps", "ended" or "spent".
      run: name of the run that the entry belongs to (a digest of its noise key), or None.
      text: the content, as canonical JSON.
      previous: digest of the previous entry.
      digest: SHA-256 of all other fields.
    """

    dataset: str
    number: int
    at: str
    who: str
    kind: str
    run: str | None
    text: str
    previous: str
    digest: str = ""

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The content of the entry, parsed from `text`."""
        return json.loads(self.text)

    def sealed(self) -> Entry:
        """Returns a copy of the entry whose `digest` is computed from all other fields."""
        content = {**dataclasses.asdict(self), "digest": ""}
        digest = hashlib.sha256(canonical(content).encode()).hexdigest()
        return dataclasses.replace(self, digest=digest)

    @property
    def name(self) -> str:
        """The name by which statements cite the entry."""
        return f"{self.number}-{self.digest[:16]}"


class Chain:
    """The entries of one data set that were read so far, and their privacy costs.

    Attributes:
      entries: the entries, in order.
      dataset: the data set, as described by the first entry.
      budget: the data set's current budget.
    """

    dataset: Dataset
    budget: Budget

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self._costs: dict[str, tuple[Release, ...]] = {}

    @property
    def digest(self) -> str:
        """The digest of the newest entry."""
        return self.entries[-1].digest if self.entries else ""

    def extend(self, entries: Iterable[Entry]) -> None:
        """Verifies the next entries of the chain, and appends them.

        Raises:
          DamagedLedgerError: if an entry does not follow the previous entry, or has a
            wrong digest.
        """
        for entry in entries:
            place = (len(self.entries), self.digest)
            if (entry.number, entry.previous) != place or entry.sealed() != entry:
                raise DamagedLedgerError(
                    f"Entry {len(self.entries)} of data set {self.name!r} was changed, "
                    f"removed, added or moved. Nothing was reserved. Restore a backup."
                )
            body = entry.body
            if not self.entries:
                fixed = body["unit"], body["adjacency"]
                self.dataset = Dataset(entry.dataset, entry.digest, *fixed)
            if "budget" in body:
                self.budget = Budget(**body["budget"])
            if "costs" in body:
                costs = tuple(Release.from_json(cost) for cost in body["costs"])
                self._costs[entry.run or entry.digest] = costs
            self.entries.append(entry)

    def of_run(self, run: str, kind: str) -> list[Entry]:
        """Returns the entries of one kind that belong to a run."""
        return [e for e in self.entries if e.run == run and e.kind == kind]

    def balance(self, changed: Mapping[str, tuple[Release, ...]] = {}) -> Balance:
        """Returns the balance: the budget, and the costs of all runs and releases.

        Args:
          changed: for each run whose recorded costs are to be replaced, the new costs.
        """
        costs = {**self._costs, **changed}
        return Balance(self.dataset, self.budget, tuple(costs.values()))


def canonical(value: Any) -> str:
    """Returns canonical JSON text: texts are equal if and only if the values are equal."""
    options: dict[str, Any] = {"sort_keys": True, "separators": (",", ":")}
    to_json = lambda release: release.to_json()  # noqa: E731
    return json.dumps(value, default=to_json, allow_nan=False, **options)
