"""The table of participations in the ledger's database: who took part when."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Sequence

import numpy as np

from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.eligibility import NEVER

TABLE = """
CREATE TABLE participations (
    device TEXT NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)
) WITHOUT ROWID;
"""
_RECORDS = """
SELECT
    (SELECT max(round) FROM participations WHERE device = value AND round < ?1),
    (SELECT count(*) FROM participations WHERE device = value AND round < ?1)
FROM json_each(?2)
"""


@dataclasses.dataclass
class Counts:
    """Counts of all participations up to a round.

    Attributes:
      clients: different devices.
      participations: of all of them.
      smallest_gap: of two rounds of one device; None if none came twice.
      most: participations of one device.
      checksum: of the rows of `participations`, a number of 64 bits.
    """

    clients: int = 0
    participations: int = 0
    smallest_gap: int | None = None
    most: int = 0
    checksum: int = 0

    def add(self, device: str, round_number: int, last: int, count: int) -> None:
        """One more, of a device with this record before it."""
        self.clients += count == 0
        self.participations += 1
        if count:
            gap = round_number - last
            known = gap if self.smallest_gap is None else self.smallest_gap
            self.smallest_gap = min(gap, known)
        self.most = max(self.most, count + 1)
        row = hashlib.blake2b(f"{round_number} {device}".encode(), digest_size=8)
        self.checksum += int.from_bytes(row.digest(), "little")
        self.checksum %= 1 << 64

    def measured(self, num_rounds: int) -> MeasuredParticipation:
        """As the accounting wants it."""
        return MeasuredParticipation(
            num_rounds=num_rounds,
            num_clients=self.clients,
            min_separation=self.smallest_gap,
            max_participations=self.most,
            num_participations=self.participations,
        )


def records(
    database: sqlite3.Connection, names: Sequence[str], round_number: int
) -> np.ndarray:
    """What devices did in the rounds before one.

    Returns:
      int64, shape [names, 2]: last round, `NEVER` for none, and participations.
    """
    rows = database.execute(_RECORDS, [round_number, json.dumps(list(names))])
    found = [(NEVER if last is None else last, count) for last, count in rows]
    return np.array(found, np.int64).reshape(-1, 2)


def added(
    database: sqlite3.Connection, before: Counts, cohort: Sequence[str], number: int
) -> Counts:
    """The counts after a round of these devices."""
    counts = dataclasses.replace(before)
    for name, record in zip(cohort, records(database, cohort, number).tolist()):
        counts.add(name, number, *record)
    return counts


def counted(database: sqlite3.Connection) -> Counts:
    """The counts of all rows that are there."""
    counts, before, count, last = Counts(), None, 0, NEVER
    query = "SELECT device, round FROM participations ORDER BY device, round"
    for device, number in database.execute(query):
        if device != before:
            before, count, last = device, 0, NEVER
        counts.add(device, number, last, count)
        count, last = count + 1, number
    return counts
