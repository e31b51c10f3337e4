"""The database of a ledger, with two tables, and one writer at a time per data set.

| table | rows |
|---|---|
| `datasets` | for each data set: name, id, and the number and digest of its newest entry |
| `runs` | all entries, a chain for each data set; rows are never changed or deleted |

In SQLite, a write transaction starts with `BEGIN IMMEDIATE`, so other writers wait
before they read. In PostgreSQL, a write transaction locks the row of the data set. In
addition, `(dataset, previous)` is unique: even if locking fails, two entries cannot
both follow the same entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import threading
from collections.abc import Iterator
from typing import Any

from tf_bandmf.ledger.chain import Chain, Entry, canonical
from tf_bandmf.ledger.errors import DamagedLedgerError, LedgerError

try:
    import sqlalchemy as sa
except ImportError as _error:
    raise ImportError(
        'A ledger needs SQLAlchemy. Run: pip install "tf-bandmf[ledger]"'
    ) from _error

_metadata = sa.MetaData()
_datasets = sa.Table(
    "datasets",
    _metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
)
_runs = sa.Table(
    "runs",
    _metadata,
    sa.Column("dataset", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    *(sa.Column(n, sa.Text, nullable=False) for n in ("at", "who", "kind", "text")),
    sa.Column("run", sa.Text, index=True),
    sa.Column("previous", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.UniqueConstraint("dataset", "previous"),
)
_FUNCTION = (
    "CREATE FUNCTION ledger_only_grows() RETURNS trigger AS $$ "
    "BEGIN RAISE EXCEPTION 'ledger entries are permanent'; END $$ LANGUAGE plpgsql"
)
_RAISE = "BEGIN SELECT RAISE(ABORT, 'ledger entries are permanent'); END"


class Store:
    """The database of a ledger.

    Args:
      url: "sqlite:///file.db" (a relative path; for an absolute path, use four slashes),
        or "postgresql://user@host/database".
      create: True to create the file and the tables if they do not exist.

    Raises:
      ValueError: if the URL has another form.
      ImportError: if the PostgreSQL driver is missing.
      LedgerError: if the database contains no ledger, and either contains other tables
        or `create` is False.
    """

    def __init__(self, url: str, create: bool) -> None:
        self.url = _checked(url)
        self._path = self.url.database if self.url.drivername == "sqlite" else None
        self._chains: dict[str, Chain] = {}
        self._lock = threading.RLock()
        # TensorFlow Federated requires SQLAlchemy 1.4. With future=True, version 1.4
        # works like version 2.
        waits = {} if self._path is None else {"connect_args": {"timeout": 120.0}}
        self._engine = sa.create_engine(
            self.url, poolclass=sa.pool.NullPool, future=True, **waits
        )
        if self._path is not None:
            sa.event.listen(self._engine, "connect", _without_implicit_transactions)
            sa.event.listen(self._engine, "begin", _begin)
            if create and not os.path.exists(self._path):
                # With mode 0600, only the owner can read or write the file. The owner
                # may change the mode later.
                os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        with self.transaction(writes=create) as tables:
            tables.refuse_others(create)

    @contextlib.contextmanager
    def transaction(self, writes: bool) -> Iterator[Transaction]:
        """A context manager for a transaction.

        All writes of the `with` block are stored when the block ends. Until then, other
        threads of the process cannot begin a transaction.

        Raises:
          LedgerError: if the database cannot be used.
        """
        if self._path is not None and not os.path.exists(self._path):
            raise LedgerError(f"There is no ledger at {self._path}. Check the path.")
        engine = self._engine.execution_options(tf_bandmf_writes=writes)
        try:
            with self._lock, engine.begin() as connection:
                yield Transaction(connection, self._chains, writes)
        except BaseException as error:
            # The chains may contain entries that the database has rolled back.
            self._chains.clear()
            if not isinstance(error, sa.exc.DBAPIError):
                raise
            raise LedgerError(
                f"Ledger {self!r} could not be used ({error.orig}). Nothing was reserved."
            ) from error

    def __repr__(self) -> str:
        return self.url.render_as_string(hide_password=True)


@dataclasses.dataclass(frozen=True)
class Transaction:
    """A database transaction: all of its writes take effect, or none of them.

    Attributes:
      connection: database connection within a transaction.
      chains: the entries that this process has already verified, by data set.
      writes: True to lock each data set from its first read to the end of the
        transaction.
    """

    connection: sa.Connection
    chains: dict[str, Chain]
    writes: bool

    def refuse_others(self, create: bool) -> None:
        """Checks that the database is a ledger; creates the tables if it is empty.

        Raises:
          LedgerError: if the database contains no ledger, and either contains other
            tables or `create` is False.
        """
        run, dialect = self.connection.exec_driver_sql, self.connection.dialect.name
        if create and dialect == "postgresql":
            # This lock lets only one process at a time create the tables.
            run("SELECT pg_advisory_xact_lock(20261127)")
        names = set(sa.inspect(self.connection).get_table_names())
        if {"datasets", "runs"} <= names:
            return
        if names or not create:
            raise LedgerError(
                f"The database contains no ledger (tables found: {len(names)}). Check the "
                f"URL. To create a ledger, call Ledger(url) with an empty database."
            )
        _metadata.create_all(self.connection)
        action = _RAISE
        if dialect == "postgresql":
            run(_FUNCTION)
            action = "EXECUTE FUNCTION ledger_only_grows()"
        for verb in ("update", "delete"):
            trigger = f"CREATE TRIGGER no_{verb}_of_runs BEFORE {verb} ON runs"
            run(f"{trigger} FOR EACH ROW {action}")

    def ids(self) -> dict[str, str]:
        """Returns a dictionary that maps the names of all data sets to their ids."""
        query = sa.select(_datasets).order_by(_datasets.c.name)
        return {row.name: row.id for row in self.connection.execute(query)}

    def dataset_of(self, run: str) -> str:
        """Returns the name of the data set that a run uses.

        Raises:
          LedgerError: if there is no such run.
        """
        query = sa.select(_runs.c.dataset).where(_runs.c.run == run).limit(1)
        name = self.connection.execute(query).scalar()
        if name is None:
            raise LedgerError(f"Run {run[:12]} is not in the ledger: it has not begun.")
        return str(name)

    def chain(self, name: str, anew: bool = False) -> Chain:
        """Reads, verifies and returns the entries of a data set.

        Args:
          name: name of the data set.
          anew: True to read and verify all entries; False to read and verify only
            entries that this process has not verified yet.

        Raises:
          LedgerError: if there is no such data set.
          DamagedLedgerError: if entries were changed, or are missing.
        """
        query = sa.select(_datasets).where(_datasets.c.name == name)
        # PostgreSQL locks this row. SQLite has already locked the whole database.
        query = query.with_for_update() if self.writes else query
        head = self.connection.execute(query).first()
        if head is None:
            raise LedgerError(f"Found no data set {name!r}, only {list(self.ids())}.")
        if anew or name not in self.chains:
            self.chains[name] = Chain(name)
        chain, number = self.chains[name], _runs.c.number
        newer = (_runs.c.dataset == name) & (number >= len(chain.entries))
        if not self.writes:  # Ignore entries that were written after `head` was read.
            newer &= number <= head.number
        query = sa.select(_runs).where(newer)
        rows = self.connection.execute(query.order_by(number))
        chain.extend(Entry(**row._mapping) for row in rows)
        if (head.number, head.digest) != (len(chain.entries) - 1, chain.digest):
            raise DamagedLedgerError(
                f"Entries of data set {name!r} up to {head.number}-{head.digest[:16]} are "
                f"missing or changed in the ledger. Restore a backup of the database."
            )
        return chain

    def append(
        self, chain: Chain, who: str, kind: str, body: Any, run: str | None = None
    ) -> Entry:
        """Writes the next entry of a data set, and returns it."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        number, said = len(chain.entries), (now, who, kind, run, canonical(body))
        entry = Entry(chain.name, number, *said, chain.digest).sealed()
        self.connection.execute(_runs.insert().values(dataclasses.asdict(entry)))
        change: Any = _datasets.update().where(_datasets.c.name == chain.name)
        if number == 0:
            change = _datasets.insert().values(name=chain.name, id=entry.digest)
        self.connection.execute(change.values(number=number, digest=entry.digest))
        chain.extend([entry])
        return entry


def _checked(url: str) -> sa.engine.URL:
    """Parses the URL, which must refer to an SQLite file or a PostgreSQL database."""
    try:
        parsed = sa.engine.make_url(url)
    except sa.exc.ArgumentError:
        # `url` may contain a password, so the error message must not show it.
        parsed = sa.engine.URL.create("something else")
    name = parsed.get_backend_name()
    if name == "postgresql" and parsed.database:
        return parsed.set(drivername="postgresql+psycopg")
    # In-memory databases are rejected, because they are lost when the process ends.
    if name == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite", query={})
    raise ValueError(
        f'A ledger\'s URL must have the form "sqlite:///privacy.db" or '
        f'"postgresql://user@host/database", but found a URL of type {name!r}.'
    )


def _without_implicit_transactions(connection: Any, _: Any) -> None:
    # Turn off the implicit transactions of Python's sqlite3: they start at the first
    # write, but the reads before it must be in the transaction, too.
    connection.isolation_level = None
    # With this setting, committed reservations survive a power failure.
    connection.execute("PRAGMA synchronous = EXTRA")


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("tf_bandmf_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
