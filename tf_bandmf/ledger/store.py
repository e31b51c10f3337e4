"""The database: one writer at a time, and every write is a whole entry or nothing.

SQLite begins a write with `BEGIN IMMEDIATE`, so that others wait before they read;
PostgreSQL takes an advisory lock for the transaction. Besides, `entries.previous` is
unique: two entries after the same one cannot both be there, whatever else goes wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from tf_bandmf.ledger import times
from tf_bandmf.ledger.balances import NOTHING_SPENT, Balance
from tf_bandmf.ledger.chain import BEFORE_FIRST, Entry
from tf_bandmf.ledger.errors import DamagedLedgerError, LedgerError

try:
    import sqlalchemy as sa

    from tf_bandmf.ledger import schema
except ImportError as _error:
    raise ImportError(
        'A ledger needs SQLAlchemy: pip install "tf-bandmf[ledger]" (for PostgreSQL '
        '"tf-bandmf[ledger-postgresql]").'
    ) from _error

# The number of the advisory lock: "tfbandmf".
_LOCK = 0x746662616E646D66
_WAIT_SECONDS = 120.0
# By which the clocks of those who write may differ.
_CLOCK_SECONDS = 300.0


class Store:
    """Where a ledger is kept.

    Args:
      url: "sqlite:///file.db" (a path, relative; four slashes for an absolute one), or
        "postgresql://user@host/database".
      create: makes what is not there, and brings older tables up to date.

    Raises:
      ValueError: if the URL is none of these.
      ImportError: if the driver is missing.
      LedgerError: if there is no ledger, and none is to be made.
    """

    def __init__(self, url: str, create: bool = True) -> None:
        self.url = _checked(url)
        self.place = self._place()
        self._engine = self._connected(create)
        if create:
            self._migrate()
        else:
            self._refuse_none()

    def _place(self) -> str:
        """What the witness knows the database by: without name and password."""
        if self.is_sqlite:
            return f"sqlite:{os.path.realpath(self.url.database or '')}"
        where = self.url.host or self.url.query.get("host", "")
        return f"postgresql:{where}:{self.url.port}:{self.url.database}"

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file."""
        return self.url.get_backend_name() == "sqlite"

    def _connected(self, create: bool) -> sa.Engine:
        # SQLAlchemy 1.4, which TensorFlow Federated has, works like 2 then.
        options: dict[str, Any] = {"poolclass": sa.pool.NullPool, "future": True}
        if self.is_sqlite:
            path = self.url.database or ""
            if create:
                # Only the owner reads it, unless he says otherwise.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            elif not os.path.exists(path):
                raise LedgerError(f"There is no ledger at {path}.")
            options["connect_args"] = {"timeout": _WAIT_SECONDS}
        try:
            engine = sa.create_engine(self.url, **options)
        except ImportError as error:
            raise ImportError(
                f"The driver of PostgreSQL is missing ({error}): "
                f'pip install "tf-bandmf[ledger-postgresql]".'
            ) from error
        if self.is_sqlite:
            sa.event.listen(engine, "connect", _without_implicit_transactions)
            sa.event.listen(engine, "begin", _begin)
        return engine

    def _migrate(self) -> None:
        with self._transaction(writes=True) as connection:
            try:
                schema.migrate(connection, times.now())
            except ValueError as error:
                raise LedgerError(str(error)) from error

    def _refuse_none(self) -> None:
        with self._transaction(writes=False) as connection:
            if schema.version_of(connection) != len(schema.MIGRATIONS):
                raise LedgerError(
                    f"There is no ledger of this version at {self!r}. Open it once with "
                    f"tf_bandmf.Ledger(url), which makes or migrates it."
                )

    @contextlib.contextmanager
    def _transaction(self, writes: bool) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as plain:
                connection = plain.execution_options(tf_bandmf_writes=writes)
                with connection.begin():
                    if writes and not self.is_sqlite:
                        connection.exec_driver_sql(
                            f"SELECT pg_advisory_xact_lock({_LOCK})"
                        )
                    yield connection
        except sa.exc.IntegrityError as error:
            raise LedgerError(
                f"The ledger at {self!r} refused an entry ({error.orig}): another one was "
                f"there first. Nothing was written; try again."
            ) from error
        except sa.exc.DBAPIError as error:
            raise LedgerError(
                f"The ledger at {self!r} could not be {'written' if writes else 'read'} "
                f"({error.orig}). Nothing was reserved."
            ) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction: what is appended in it is there when it ends, or nothing is."""
        with self._transaction(writes=True) as connection:
            yield Transaction(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """One transaction that only reads."""
        with self._transaction(writes=False) as connection:
            yield Transaction(connection)

    def __repr__(self) -> str:
        return self.url.render_as_string(hide_password=True)


class Transaction:
    """Reads and appends entries, within one transaction of the database."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def newest(self) -> Entry | None:
        """The newest entry; None if there is none.

        Raises:
          DamagedLedgerError: if it was changed, or later ones are missing.
        """
        order = schema.entries.c.number.desc()
        found = self._first(sa.select(schema.entries).order_by(order).limit(1))
        here = None if found is None else (found.number, found.digest)
        if here != self.head() or not (found is None or found.is_intact):
            raise DamagedLedgerError(
                "The newest entry of the ledger is not the one that was written last: "
                "entries were changed or removed. Nothing is reserved from it; "
                "tf-bandmf budget verify says which. Restore the database."
            )
        return found

    def head(self) -> tuple[int, str] | None:
        """Number and digest of what was written last."""
        noted = self._connection.execute(sa.select(schema.head)).first()
        return None if noted is None else (noted.number, noted.digest)

    def entry(self, number: int) -> Entry | None:
        """By number."""
        return self._first(
            sa.select(schema.entries).where(schema.entries.c.number == number)
        )

    def _first(self, query: sa.Select[Any]) -> Entry | None:
        row = self._connection.execute(query).first()
        return None if row is None else Entry(**row._mapping)

    def entries(
        self,
        dataset: str | None = None,
        kind: str | None = None,
        run: str | None = None,
        since: int = 0,
    ) -> Iterator[Entry]:
        """Entries in their order."""
        columns = schema.entries.c
        query = sa.select(schema.entries).where(columns.number >= since)
        for column, value in (
            (columns.dataset, dataset),
            (columns.kind, kind),
            (columns.run, run),
        ):
            if value is not None:
                query = query.where(column == value)
        found = self._connection.execute(query.order_by(columns.number))
        return (Entry(**row._mapping) for row in found)

    def balance(self, account: str) -> Balance:
        """What was spent from an account.

        Raises:
          DamagedLedgerError: if the entry that says so was changed.
        """
        newest = sa.func.max(schema.touched.c.number)
        number = self._connection.execute(
            sa.select(newest).where(schema.touched.c.account == account)
        ).scalar()
        if number is None:
            return NOTHING_SPENT
        found = self.entry(int(number))
        if found is None or not found.is_intact:
            raise DamagedLedgerError(
                f"Entry {number} of the ledger was changed or removed: what was spent is "
                f"not known. Restore the database."
            )
        return Balance.from_json(found.body["accounts"][account])

    def touched(self) -> set[tuple[str, int]]:
        """All of the index of accounts."""
        return {
            (row.account, row.number)
            for row in self._connection.execute(sa.select(schema.touched))
        }

    def append(
        self,
        who: str,
        kind: str,
        text: str,
        dataset: str | None = None,
        run: str | None = None,
        accounts: tuple[str, ...] = (),
    ) -> Entry:
        """Writes an entry after the newest one.

        Raises:
          LedgerError: if the clock is behind that of who wrote the newest one.
        """
        before = self.newest()
        at = self._not_before(before)
        entry = Entry(
            number=0 if before is None else before.number + 1,
            at=at,
            who=who,
            kind=kind,
            dataset=dataset,
            run=run,
            text=text,
            previous=BEFORE_FIRST if before is None else before.digest,
        ).sealed()
        connection = self._connection
        row = {name: getattr(entry, name) for name in schema.entries.c.keys()}
        connection.execute(schema.entries.insert().values(row))
        for account in accounts:
            values = {"account": account, "number": entry.number}
            connection.execute(schema.touched.insert().values(values))
        values = {"number": entry.number, "digest": entry.digest}
        if before is None:
            connection.execute(schema.head.insert().values(id=1, **values))
        else:
            connection.execute(schema.head.update().values(**values))
        return entry

    def moment(self) -> str:
        """What an entry that is written now will say; not before the newest one.

        Raises:
          LedgerError: as `append`.
        """
        return self._not_before(self.newest())

    def _not_before(self, newest: Entry | None) -> str:
        at = self._now()
        if newest is None:
            return at
        late = (times.parsed(newest.at) - times.parsed(at)).total_seconds()
        if late > _CLOCK_SECONDS:
            raise LedgerError(
                f"The clock says {at}, and the newest entry of the ledger is of "
                f"{newest.at}: a clock is wrong. Periods are told apart by it: set it "
                f"first."
            )
        return max(at, newest.at)

    def _now(self) -> str:
        """By the clock of the server, or of this machine for a file."""
        if self._connection.dialect.name != "postgresql":
            return times.now()
        found = self._connection.execute(sa.select(sa.func.now())).scalar()
        assert found is not None
        return times.written(found)

    def keep_plan(self, fingerprint: str, config: str) -> None:
        """Keeps the configuration of a plan, once."""
        if self.plan_config(fingerprint) is None:
            row = {"fingerprint": fingerprint, "config": config}
            self._connection.execute(schema.plans.insert().values(row))

    def plan_config(self, fingerprint: str) -> str | None:
        """The configuration of a plan, or None."""
        query = sa.select(schema.plans.c.config).where(
            schema.plans.c.fingerprint == fingerprint
        )
        return self._connection.execute(query).scalar()


def _checked(url: str) -> sa.engine.URL:
    """A URL that names a file of SQLite or a database of PostgreSQL."""
    advice = (
        '"sqlite:///privacy.db" (a file) or "postgresql://user@host/database", found '
    )
    try:
        if not isinstance(url, str):
            raise TypeError
        found = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, TypeError):
        # It may have a password.
        raise ValueError(f"A ledger's URL must be {advice}something else.") from None
    name = found.get_backend_name()
    if name == "sqlite":
        if not found.database or found.database == ":memory:" or found.query:
            raise ValueError(
                f"A ledger's URL must be {advice}{url!r}: what is in memory is lost with "
                f"the process."
            )
        return found.set(drivername="sqlite")
    if name != "postgresql" or not found.database:
        raise ValueError(f"A ledger's URL must be {advice}{name!r}.")
    return found.set(drivername="postgresql+psycopg")


def _without_implicit_transactions(connection: Any, _: Any) -> None:
    # Python's module would begin by itself, and too late.
    connection.isolation_level = None
    cursor = connection.cursor()
    # After a loss of power, too, what was reserved is there.
    cursor.execute("PRAGMA synchronous = EXTRA")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("tf_bandmf_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
