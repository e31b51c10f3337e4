"""A ledger's database, held against what this machine has seen of it.

Each transaction that writes is refused if the database has forgotten an entry; see
`tf_bandmf.ledger.witness`.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterator

from tf_bandmf.ledger import witness
from tf_bandmf.ledger.chain import Entry, canonical
from tf_bandmf.ledger.errors import DamagedLedgerError, LedgerError
from tf_bandmf.ledger.store import Store, Transaction

_FORMAT = "tf-bandmf ledger 1"


class WatchedStore(Store):
    """The database of one ledger.

    Args:
      url: as for `Store`.
      who: writes.
      create: False refuses a database that has no ledger.
      trust: accepts what contradicts the witness; an entry says so if `create`.

    Attributes:
      id: of the ledger, 32 hexadecimal digits.

    Raises:
      ValueError: if the URL is none of a database.
      ImportError: if the driver is missing.
      LedgerError: if the database cannot be used.
      DamagedLedgerError: if the newest entries are not those that this machine has seen.
    """

    def __init__(self, url: str, who: str, create: bool, trust: bool) -> None:
        super().__init__(url, create)
        with super().writing() if create else self.reading() as found:
            first = found.entry(0)
            if first is None:
                if not create:
                    raise LedgerError(f"There is no ledger at {self!r}.")
                body = {"format": _FORMAT, "id": uuid.uuid4().hex}
                first = found.append(who, "ledger", canonical(body))
            self.id = str(first.body["id"])
            problem = self._contradiction(found)
            if problem is not None and not trust:
                raise DamagedLedgerError(problem)
            if problem is not None and create:
                found.append(who, "trusted", canonical({"contradicted": problem}))
            is_trusted = problem is None or create
            newest = found.newest() if is_trusted else None
        if newest is not None:
            self._remember(newest)
            witness.remember(self._place_id, 0, self.id)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction that writes; this machine remembers its newest entry.

        Raises:
          DamagedLedgerError: if the database lacks what this machine has seen.
        """
        with super().writing() as found:
            problem = self._contradiction(found)
            if problem is not None:
                raise DamagedLedgerError(problem)
            yield found
            newest = found.newest()
        if newest is not None:
            self._remember(newest)

    @property
    def _place_id(self) -> str:
        return "at-" + hashlib.sha256(self.place.encode()).hexdigest()[:32]

    def _contradiction(self, found: Transaction) -> str | None:
        """What this machine has seen that the database does not have."""
        before = witness.remembered(self._place_id)
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
