"""The table of participations in the ledger's database: who took part when."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Hashable, Sequence

import numpy as np

from tf_bandmf_federated.accounting import Counts

TABLE = """
CREATE TABLE participations (
    device TEXT NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)
) WITHOUT ROWID;
"""
# Last round, or `NEVER`, and number of participations of each name, before a round.
_RECORDS = """
SELECT
    (SELECT ifnull(max(round), -1) FROM participations WHERE device = value AND round < ?1),
    (SELECT count(*) FROM participations WHERE device = value AND round < ?1)
FROM json_each(?2)
"""
# Each participation, with the same of its device before it.
_HISTORIES = """
SELECT device, round, lag(round, 1, -1) OVER earlier, row_number() OVER earlier - 1
FROM participations WINDOW earlier AS (PARTITION BY device ORDER BY round)
"""


@dataclasses.dataclass
class SealedCounts(Counts):
    """Counts, and what tells that rows of the table were changed.

    Attributes:
      checksum: of the rows of `participations`, a number of 64 bits.
    """

    checksum: int = 0

    def add(self, device: Hashable, round_number: int, last: int, count: int) -> None:
        super().add(device, round_number, last, count)
        row = hashlib.blake2b(f"{round_number} {device}".encode(), digest_size=8)
        self.checksum += int.from_bytes(row.digest(), "little")
        self.checksum %= 1 << 64


def records(
    database: sqlite3.Connection, names: Sequence[str], round_number: int
) -> np.ndarray:
    """What devices did in the rounds before one.

    Returns:
      int64, shape [names, 2]: last round, `NEVER` for none, and participations.
    """
    rows = database.execute(_RECORDS, [round_number, json.dumps(list(names))])
    return np.array(rows.fetchall(), np.int64).reshape(-1, 2)


def added(
    database: sqlite3.Connection,
    before: SealedCounts,
    cohort: Sequence[str],
    number: int,
) -> SealedCounts:
    """The counts after a round of these devices."""
    counts = dataclasses.replace(before)
    for name, record in zip(cohort, records(database, cohort, number).tolist()):
        counts.add(name, number, *record)
    return counts


def counted(database: sqlite3.Connection) -> SealedCounts:
    """The counts of all rows that are there."""
    counts = SealedCounts()
    for row in database.execute(_HISTORIES):
        counts.add(*row)
    return counts
