"""SQLite as a target: rows, tag and before-images in one transaction.

A delivery first loads its rows into a temporary table of its own connection, which locks nobody
out. Then one short transaction on the file moves the tag, writes the before-images of every key
it touches, and puts and deletes the rows set-wise. Several epochs of a writer that has fallen behind
are loaded into a table each, and applied in order by one transaction.

Several workers write to one file, so each waits briefly for the lock and then says Unavailable. The journal mode is
left as it is found: SQLite's default rollback journal. Write-ahead logging would be quicker, but several processes that
write and checkpoint one file can damage it in every version from 3.7.0 to 3.51.2, and Python brings its own.

After any failure the connection is dropped, which rolls back what it began; the next call opens
another. The file is never created here, only by `prepare`, and a file that was replaced under an
open connection is noticed before anything is written.

A table without a key gets before-images too: which rows a delivery added, by their rowids (see
added.py). What takes deliveries back is in repair.py.

With delivery="idempotent" every row carries its tag as well, and each key takes only what is newer
(see rows.py). Everything else is the same: one transaction, after the commit of the epoch.

Invariants
    - Moving the tag is the first statement of the delivery transaction; row count 1, or roll back.
    - A statement holds values as parameters only, and names only quoted.
    - `synchronous=EXTRA`: what was confirmed survives a power failure. FULL does not sync the folder after the journal
      is deleted; a journal that comes back would roll the delivery back.

Source: PROTOCOL P17, P21 (before-images), P24; sqlite.org/wal.html, "The WAL-Reset Bug".
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Tag, Timeline, Writer
from holdfast.sinks.contract import (
    DELETE,
    OP,
    PUT,
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    Fault,
    Outcome,
    already,
    no_fault,
)
from holdfast.sinks.owners import NEVER, Claim, check_continues
from holdfast.sinks.sql import tags
from holdfast.sinks.sql import values as sql_values
from holdfast.sinks.sqlite import owners as sqlite_owners
from holdfast.sinks.sqlite.added import add_rows
from holdfast.sinks.sqlite.file import (
    BUSY_TIMEOUT_MS,
    connect,
    json_object,
    listed,
    quoted,
    table_columns,
    translated,
)
from holdfast.sinks.sqlite.queue import begin, in_turn, read
from holdfast.sinks.sqlite.rows import TAG_COLUMN, RowTags, row_tag

INCOMING = "temp.holdfast_incoming"


class SQLiteTable(Protocol):
    """The table that a connection writes to; `hf.SQLite` is one."""

    @property
    def path(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def key(self) -> tuple[str, ...] | None: ...
    @property
    def where(self) -> str:
        """How messages name the target."""

    @property
    def tags_rows(self) -> bool:
        """Whether every row carries its tag."""

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept."""


class SQLiteTarget:
    """One writer's connection to the file. See contract.Target."""

    def __init__(
        self, sink: SQLiteTable, job_uuid: str, writer: Writer, fault: Fault = no_fault, claim: Claim | None = None
    ) -> None:
        self._sink, self._job, self._writer, self._fault, self._claim = sink, job_uuid, writer, fault, claim
        self._where = f"{sink.where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._columns: tuple[str, ...] = ()
        self._loadable: set[str] = set()
        """The temporary tables of the connection."""

    def delivered(self) -> Tag | None:
        """See Target.delivered."""
        with self._session() as db:
            return self._look(db)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        """See Target.deliver."""
        return self.deliver_together([EpochOutput(tag, batches)], known)

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        """See MergingTarget.deliver_together."""
        first, last = epochs[0].tag, epochs[-1].tag
        with self._session() as db:
            standing = self._look(db)
            if standing is not None and standing >= first:
                return already(self._where, first, standing)
            rows = [self._load(db, _incoming(n), epoch.batches) for n, epoch in enumerate(epochs)]
            self._fault("before_begin")
            begin(db, self._sink.path, BUSY_TIMEOUT_MS)
            if not self._moved(db, first, last, known):
                db.execute("ROLLBACK")
                return self._refused(db, first, known)
            self._take_over(db)
            self._fault("after_tag")
            for n, epoch in enumerate(epochs):
                if n:
                    self._fault("between_epochs")
                if rows[n]:
                    self._apply(db, _incoming(n), epoch.tag)
            self._fault("before_commit")
            db.execute("COMMIT")
            self._fault("after_commit")
            for n in range(len(epochs)):
                db.execute(f"DELETE FROM {_incoming(n)}")
            return Delivered(sum(rows))

    def forget(self, through: Tag) -> None:
        """See Target.forget."""
        with self._session() as db:
            begin(db, self._sink.path, BUSY_TIMEOUT_MS)
            self._check_owner(db)
            db.execute(tags.note_horizon(), tags.tag_row(self._job, self._writer, through))
            db.execute(tags.forget(), tags.tag_row(self._job, self._writer, through))
            if self._sink.tags_rows:
                self._row_tags(INCOMING).forget(db, through)
            db.execute("COMMIT")

    def close(self) -> None:
        """See Target.close."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection; whatever is raised meanwhile drops it, and so rolls back."""
        try:
            with translated(self._where):
                yield self._connection()
        except BaseException:
            self.close()
            raise

    def _connection(self) -> sqlite3.Connection:
        try:
            status = os.stat(self._sink.path)
        except OSError as error:
            raise ConfigError(
                f"{self._where}: the file is not there ({error.strerror}); it was, when the job was started",
                not_done="nothing was delivered to it",
                next_step="bring the file back; if the worker runs on another host, the path must be shared storage",
            ) from error
        if self._db is not None and self._file != (status.st_dev, status.st_ino):
            self.close()  # Replaced under us: writing on would go to the unlinked file.
            raise Unavailable(
                f"{self._where}: the file was replaced while it was open",
                not_done="nothing was written to either",
                next_step="nothing: the tag in the new file decides what is delivered next",
            )
        if self._db is None:
            self._db = in_turn(self._sink.path, lambda: connect(self._sink.path, "rw"))
            self._file = status.st_dev, status.st_ino
            self._loadable = set()
            self._create_incoming(self._db, INCOMING)
        return self._db

    def _create_incoming(self, db: sqlite3.Connection, incoming: str) -> None:
        tag_column = TAG_COLUMN if self._sink.tags_rows else None
        found = [column for column in table_columns(db, self._sink.table) if column[0] != tag_column]
        if not found:
            raise ConfigError(
                f"{self._where}: the table is not there; it was, when the job was started",
                not_done="nothing was delivered to it",
                next_step="start the job again to have it created, or bring the table back",
            )
        self._columns = tuple(name for name, _, _ in found)
        columns = [f"{quoted(name)} {declared}" for name, declared, _ in found] + [f"{OP} INTEGER NOT NULL"]
        if self._sink.key is None:
            db.execute(f"CREATE TABLE {incoming} ({', '.join(columns)})")
        else:
            columns.append(f"PRIMARY KEY ({listed(self._sink.key)})")
            db.execute(f"CREATE TABLE {incoming} ({', '.join(columns)}) WITHOUT ROWID")
        self._loadable.add(incoming)

    def _look(self, db: sqlite3.Connection) -> Tag | None:
        """Compare the owner and read the tag, before anything is loaded or written."""

        def look() -> Tag | None:
            self._check_owner(db)
            return self._compared(db)

        return read(db, self._sink.path, BUSY_TIMEOUT_MS, look)

    def _standing(self, db: sqlite3.Connection) -> Tag | None:
        row = db.execute(tags.read_tag(), tags.writer_row(self._job, self._writer)).fetchone()
        return None if row is None else Tag(Timeline(row[0]), Epoch(row[1]))

    def _compared(self, db: sqlite3.Connection) -> Tag | None:
        """Return the standing tag, if it is one of this history. Raises Fenced."""
        standing = self._standing(db)
        if self._claim is not None:
            held = sqlite_owners.held(db, self._job, self._writer.sink)
            self._claim.check_stands(self._where, held, standing)
        return standing

    def _check_owner(self, db: sqlite3.Connection) -> None:
        sqlite_owners.check(db, self._where, self._job, self._writer.sink, self._claim)

    def _take_over(self, db: sqlite3.Connection) -> None:
        sqlite_owners.take_over(db, self._where, self._job, self._writer.sink, self._claim)

    def _moved(self, db: sqlite3.Connection, first: Tag, last: Tag, known: Tag | None) -> bool:
        """Move the tag to the last, if it stands where the writer knows it, or else below the first."""
        row: tuple[str | int, ...] = tags.tag_row(self._job, self._writer, last)
        if known is None:
            return db.execute(tags.advance_over(), (*row, first.timeline, first.epoch)).rowcount == 1
        if known == NEVER:
            return db.execute(tags.advance_first(), row).rowcount == 1
        assert known < first
        ours = tags.writer_row(self._job, self._writer)
        row = (last.timeline, last.epoch, *ours, known.timeline, known.epoch)
        return db.execute(tags.advance_from(), row).rowcount == 1

    def _row_tags(self, incoming: str) -> RowTags:
        return RowTags(self._sink.table, self._sink.key or (), incoming, self._job, self._writer)

    def _refused(self, db: sqlite3.Connection, tag: Tag, known: Tag | None) -> AlreadyDelivered:
        self._check_owner(db)
        standing = self._compared(db)
        if standing is None or standing < tag:
            if known is not None:
                check_continues(self._where, standing, known)
            raise Unavailable(
                f"{self._where}: the tag did not move and yet stands at {standing}; another process removed it",
                not_done="nothing was delivered",
                next_step="nothing: delivery reads the tag and tries again",
            )
        return already(self._where, tag, standing)

    def _load(self, db: sqlite3.Connection, incoming: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Fill a temporary table; in a keyed one the last row of a key replaces the others."""
        rows = 0
        verb = "INSERT" if self._sink.key is None else "INSERT OR REPLACE"
        into = f"{verb} INTO {incoming} ({listed(self._columns)}, {OP}) VALUES ({'?, ' * len(self._columns)}?)"
        if incoming not in self._loadable:
            self._create_incoming(db, incoming)
        db.execute("BEGIN")
        db.execute(f"DELETE FROM {incoming}")
        for batch in batches:
            assert set(sql_values.columns_of(batch.schema)) == set(self._columns), "the batch has other columns"
            self._sink.accept(batch)
            if OP not in batch.schema.names:
                batch = batch.append_column(OP, pa.repeat(pa.scalar(PUT, pa.int8()), batch.num_rows))
            db.executemany(into, sql_values.rows_of(batch, (*self._columns, OP)))
            rows += batch.num_rows
        db.execute("COMMIT")
        return rows

    def _apply(self, db: sqlite3.Connection, incoming: str, tag: Tag) -> None:
        table, columns, key = quoted(self._sink.table), listed(self._columns), self._sink.key
        if key is None:
            add_rows(db, self._sink.table, self._columns, incoming, tags.tag_row(self._job, self._writer, tag))
            return
        if self._sink.tags_rows:
            self._row_tags(incoming).leave_out_older(db, tag)
            self._row_tags(incoming).bury(db, tag)
        self._record_before(db, incoming, tag, key)
        deleted = f"SELECT {listed(key)} FROM {incoming} WHERE {OP} = {DELETE}"
        db.execute(f"DELETE FROM main.{table} WHERE ({listed(key)}) IN ({deleted})")
        values = [quoted(name) for name in self._columns if name not in key]
        given: tuple[str, ...] = ()
        into, from_ = columns, columns
        if self._sink.tags_rows:
            values, given = [*values, TAG_COLUMN], (row_tag(self._job, tag),)
            into, from_ = f"{columns}, {TAG_COLUMN}", f"{columns}, ?"
        replace = f"DO UPDATE SET {', '.join(f'{v} = excluded.{v}' for v in values)}" if values else "DO NOTHING"
        db.execute(
            f"INSERT INTO main.{table} ({into}) SELECT {from_} FROM {incoming} WHERE {OP} = {PUT} "
            f"ORDER BY {listed(key)} ON CONFLICT ({listed(key)}) {replace}",
            given,
        )

    def _record_before(self, db: sqlite3.Connection, incoming: str, tag: Tag, key: tuple[str, ...]) -> None:
        """Write one before-image per key of the delivery, in key order; NULL where there was no row."""
        before = json_object("t", (name for name in self._columns if name not in key))
        same = " AND ".join(f"t.{quoted(name)} = i.{quoted(name)}" for name in key)
        order = ", ".join(f"i.{quoted(name)}" for name in key)
        db.execute(
            f"INSERT INTO {tags.UNDO} ({tags.UNDO_COLUMNS}) "
            f"SELECT ?, ?, ?, ?, ?, row_number() OVER (ORDER BY {order}) - 1, {json_object('i', key)}, "
            f"CASE WHEN t.{quoted(key[0])} IS NULL THEN NULL ELSE {before} END "
            f"FROM {incoming} i LEFT JOIN main.{quoted(self._sink.table)} t ON {same} ORDER BY {order}",
            tags.tag_row(self._job, self._writer, tag),
        )


def _incoming(n: int) -> str:
    """Return the temporary table for the n-th of the epochs that are delivered together."""
    return INCOMING if n == 0 else f"{INCOMING}_{n}"
