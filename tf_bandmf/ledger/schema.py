"""Tables, and how older ones become today's.

| table | rows |
|---|---|
| `schema_version` | one for each migration that was made |
| `entries` | the chain |
| `touched` | which entry holds the balance of an account, for finding the newest one |
| `plans` | configurations, by fingerprint |
| `head` | one row: number and digest of the newest entry |

Rows of `entries`, `touched` and `plans` are only added; triggers refuse anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()
schema_version = sa.Table(
    "schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("migrated_at", sa.String(20), nullable=False),
)
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.String(20), nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("dataset", sa.Text),
    sa.Column("run", sa.String(64)),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False, unique=True),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Index("entries_by_dataset", "dataset", "kind", "number"),
    sa.Index("entries_by_run", "run", "number"),
)
touched = sa.Table(
    "touched",
    metadata,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
)
plans = sa.Table(
    "plans",
    metadata,
    sa.Column("fingerprint", sa.String(64), primary_key=True),
    sa.Column("config", sa.Text, nullable=False),
)
head = sa.Table(
    "head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
_APPEND_ONLY = ("entries", "touched", "plans")


def _first(connection: sa.Connection) -> None:
    """Version 1: all tables, and triggers for those that only grow."""
    metadata.create_all(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION tf_bandmf_append_only() RETURNS trigger AS $$ "
            "BEGIN RAISE EXCEPTION 'the ledger only grows'; END $$ LANGUAGE plpgsql"
        )
    for table in _APPEND_ONLY:
        for what in ("UPDATE", "DELETE"):
            if connection.dialect.name == "postgresql":
                action = "EXECUTE FUNCTION tf_bandmf_append_only()"
            else:
                action = "BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END"
            connection.exec_driver_sql(
                f"CREATE TRIGGER no_{what.lower()}_of_{table} BEFORE {what} ON {table} "
                f"FOR EACH ROW {action}"
            )


# From version k to k + 1.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_first,)


def version_of(connection: sa.Connection) -> int:
    """The version of the tables that are there; 0 if there are none."""
    if not sa.inspect(connection).has_table("schema_version"):
        return 0
    found = connection.execute(sa.select(sa.func.max(schema_version.c.version)))
    return int(found.scalar() or 0)


def migrate(connection: sa.Connection, now: str) -> int:
    """Brings the tables to this version, within the caller's transaction.

    Returns:
      The version that was found.

    Raises:
      ValueError: if they are of a later version.
    """
    found = version_of(connection)
    if found > len(MIGRATIONS):
        raise ValueError(
            f"The ledger's tables have version {found}; this version of tf-bandmf knows "
            f"{len(MIGRATIONS)}. Use a newer one."
        )
    for version, migration in enumerate(MIGRATIONS[found:], start=found + 1):
        migration(connection)
        row: dict[str, Any] = {"version": version, "migrated_at": now}
        connection.execute(schema_version.insert().values(row))
    return found
