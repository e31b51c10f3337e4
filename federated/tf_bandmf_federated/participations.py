"""The table of participations in the ledger's database: who took part when."""

from __future__ import annotations

TABLE = """\
CREATE TABLE participations (
    device TEXT NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)
) WITHOUT ROWID"""
# Last round, or `NEVER`, and number of participations of each name, before a round.
RECORDS = """
SELECT
    (SELECT ifnull(max(round), -1) FROM participations WHERE device = value AND round < ?1),
    (SELECT count(*) FROM participations WHERE device = value AND round < ?1)
FROM json_each(?2)
"""
# Whether the rows are those of the cohorts that the entries have: as many, and each is
# found. CROSS JOIN keeps this order, in which the table's key is used.
IS_WHOLE = """
SELECT count(*) = (SELECT count(*) FROM participations)
    AND count(*) = (SELECT count(*) FROM entries, json_each(names))
FROM entries CROSS JOIN json_each(names) CROSS JOIN participations
    ON device = value AND round = json_extract(entry, '$.round')
"""
