"""The table of participations in the ledger's database: who took part when."""

from __future__ import annotations

TABLE = """
CREATE TABLE participations (
    device TEXT NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)
) WITHOUT ROWID;
"""
# Last round, or `NEVER`, and number of participations of each name, before a round.
RECORDS = """
SELECT
    (SELECT ifnull(max(round), -1) FROM participations WHERE device = value AND round < ?1),
    (SELECT count(*) FROM participations WHERE device = value AND round < ?1)
FROM json_each(?2)
"""
# Whether the rows are those of the cohorts that the entries have.
IS_WHOLE = """
WITH begun AS (
    SELECT value, json_extract(entry, '$.round') FROM entries, json_each(names))
SELECT NOT EXISTS (SELECT * FROM begun EXCEPT SELECT * FROM participations)
    AND NOT EXISTS (SELECT * FROM participations EXCEPT SELECT * FROM begun)
"""
