"""A writer's connection to its table, and the temporary tables into which it loads rows before a transaction.

The connection is opened when it is needed. After any failure it is dropped, which rolls back its transaction; the next
call opens another. The place of the table is never created here, only by `prepare`. A place that was replaced under an
open connection is noticed before anything is written.

Invariants
    - Rows are loaded before the write transaction begins: loading locks nothing but the connection's own tables.
    - A transaction that an exception leaves open is rolled back: no call finds a transaction of an earlier one.

Pure: no clock, thread or I/O of its own. PROTOCOL P17, P24.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.sinks.contract.target import OP, PUT
from holdfast.sinks.sql import moved
from holdfast.sinks.sql.dialect import Column, Connection, Missing, TemporaryTable, translated
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.table import DatabaseTable, SqlTable, stored
from holdfast.sinks.sql.values import Value, columns_of, rows_of

INCOMING = "holdfast_incoming"


class WriterConnection:
    """One writer's connection.

    Args:
        where: How messages name the target and the writer.
    """

    def __init__(self, sink: SqlTable, where: str) -> None:
        self._sink, self._where = sink, where
        self.db: Connection | None = None
        self._place: Hashable = None
        self._stored: DatabaseTable | None = None
        self._incoming: dict[int, TemporaryTable] = {}

    @property
    def table(self) -> DatabaseTable:
        """The table, as it was when the connection was opened."""
        assert self._stored is not None, "read inside a session only"
        return self._stored

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Lend the connection; any exception meanwhile drops it, which rolls back uncommitted changes."""
        try:
            with translated(self._sink.dialect, self._where):
                yield Session(self._sink.dialect, self._opened())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection, if there is one."""
        if self.db is not None:
            self.db.close()
            self.db = None

    def incoming(self, n: int = 0) -> TemporaryTable:
        """Return the temporary table for the n-th of the epochs that are delivered together."""
        if n not in self._incoming:
            assert self.db is not None
            table, dialect = self.table, self._sink.dialect
            name = dialect.temporary(INCOMING if n == 0 else f"{INCOMING}_{n}")
            columns = (*table.columns, Column(OP, "INTEGER"))
            made = TemporaryTable(name, columns, self._sink.key or ())
            dialect.create_temporary(self.db, made)
            self._incoming[n] = made
        return self._incoming[n]

    def load(self, s: Session, to: TemporaryTable, batches: Iterable[pa.RecordBatch]) -> int:
        """Fill a temporary table; return the number of rows given. In a keyed table the last row of a key stays."""
        count, names = 0, [column.name for column in to.columns]

        def rows(batch: pa.RecordBatch) -> Iterable[tuple[Value, ...]]:
            nonlocal count
            assert set(columns_of(batch.schema)) == set(self.table.names), "the batch has other columns"
            self._sink.accept(batch)
            if OP not in batch.schema.names:
                batch = batch.append_column(OP, pa.repeat(pa.scalar(PUT, pa.int8()), batch.num_rows))
            count += batch.num_rows
            return rows_of(batch, names)

        s.dialect.begin_read(s.db)
        s.dialect.clear(s.db, to)
        s.dialect.load(s.db, to, chain.from_iterable(map(rows, batches)))
        s.commit()
        return count

    def _opened(self) -> Connection:
        place = self._identity()
        if self.db is not None and self._place != place:
            self.close()  # Further writes would go to the replaced file.
            raise Unavailable(
                f"{self._where}: the {self._sink.dialect.place} was replaced while it was open",
                not_done="nothing was written to either",
                next_step="no action needed: the tag in the new "
                f"{self._sink.dialect.place} decides which epoch is delivered next",
            )
        if self.db is None:
            self.db = self._sink.dialect.connect("deliver")
            self._place, self._incoming = place, {}
            s = Session(self._sink.dialect, self.db)
            moved.upgrade(s)
            self._stored = self._found(s)
            self.incoming()
        return self.db

    def _identity(self) -> Hashable:
        try:
            return self._sink.dialect.identity()
        except Missing as missing:
            raise ConfigError(
                f"{self._where}: {missing.what}; it existed when the job was started",
                not_done="nothing was delivered to it",
                next_step=missing.next_step,
            ) from missing

    def _found(self, s: Session) -> DatabaseTable:
        table = stored(s, self._sink)
        if table is None:
            raise ConfigError(
                f"{self._where}: the table is missing; it existed when the job was started",
                not_done="nothing was delivered to it",
                next_step="restore the table, or restart the job, which recreates it",
            )
        return table
