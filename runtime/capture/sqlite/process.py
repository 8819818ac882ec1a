"""Captures one table, until it is stopped: takes the lock, makes the snapshot, then follows the outbox.

A session (sessions.py) does this:

1. Take the lock of the table.
2. Without a snapshot in the log: claim an attempt there, install the triggers, read the rows as of one moment after
   that, with the newest change as the position, announce it, append the rows.
3. Announce the changes that were committed since, append them, remove them; again and again.

Source: docs/decisions/0103-sqlite-capture.md.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing

import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.capturer import Report
from holdfast.runtime.capture.sessions import CaptureStopped, Sessions, StopRequest
from holdfast.runtime.capture.sqlite import outbox
from holdfast.runtime.capture.sqlite.lock import Lock
from holdfast.runtime.capture.sqlite.outbox import ANOTHER, Differs, forgetting
from holdfast.runtime.capture.sqlite.triggers import listed, quoted
from holdfast.runtime.capture.target import CaptureTarget, Overtaken
from holdfast.runtime.sources.sqlite.catalogue import check_exists, described, opened
from holdfast.runtime.sources.sqlite.connector import SQLiteCapturing
from holdfast.runtime.sources.sqlite.table import WRITER, SqliteTable
from holdfast.storage.log.changelog import puts_and_deletes
from holdfast.storage.log.format import LogSegment
from holdfast.storage.log.log import LogReader, read_meta

POLL_S = 0.1
"""How often the outbox is looked at."""
PROGRESS_EVERY_S = 10.0


class Capture(Sessions):
    """One table and its log. See Sessions."""

    def __init__(
        self,
        of: SQLiteCapturing,
        store: ObjectStore,
        report: Report,
        stopping: StopRequest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, report, stopping, clock)
        self._of = of

    def _session(self) -> None:
        of = self._of
        check_exists(of.path)
        with closing(Lock(of.path, of.table)) as lock:
            self._take_lock(lock.try_take)
            file = _file_of(of.path)  # before it is opened: one that takes its place after that is noticed
            with opened(of.path, writable=True) as db:
                self._capture(db, file)

    def _capture(self, db: sqlite3.Connection, file: tuple[int, int]) -> None:
        table = self._table(db)
        target = CaptureTarget(self._store, self._of.log, table, self._of.partitions, WRITER)
        if target.position is None:
            self._take_snapshot(db, table, target)
        assert target.position is not None, "the snapshot is in"
        self._report({"event": "streaming", "position": target.position})
        self._worked = True
        try:
            self._follow(db, table, target, file)
        except Differs:
            raise self._unlike(target) from None

    def _table(self, db: sqlite3.Connection) -> SqliteTable:
        """Return the table: as it is, or if the log has a snapshot, as it was then."""
        if position_in(self._store) is None:
            table = described(db, self._of.table, self._of.schema)
            table.rows()
            return table
        if (found := outbox.registered(db, self._of.table)) is None:
            raise _differs(self._of, "the database knows nothing of the capture that the log has a snapshot of")
        return found.table(self._of.schema)

    def _take_snapshot(self, db: sqlite3.Connection, table: SqliteTable, target: CaptureTarget) -> None:
        """Claim an attempt, and append the rows of the table as of one moment."""
        target.claim()
        attempt = target.tag.timeline
        outbox.install(db, table, target.uuid, attempt)
        self._report({"event": "snapshot", "attempt": attempt})
        try:
            position, segments = self._staged_rows(db, table, target)
        except ConfigError as error:
            outbox.uninstall(db, table, target.uuid, attempt)
            raise ConfigError(
                error.what,
                not_done="nothing was captured, and what was added to the database was removed",
                next_step="correct the row, or give schema= with a type that holds the value, and start the process "
                "again",
            ) from error
        rows = sum(segment.rows for segment in segments)
        outbox.announce(db, table, target.uuid, attempt, position)
        target.append(segments, position)
        self.counts.records += rows
        self._report({"event": "captured", "rows": rows, "position": position})

    def _staged_rows(
        self, db: sqlite3.Connection, table: SqliteTable, target: CaptureTarget
    ) -> tuple[int, list[LogSegment]]:
        """Stage the rows of the table as of one moment; return the newest change as of then too."""
        segments = list[LogSegment]()
        db.execute("BEGIN")
        try:
            position = outbox.newest(db, table.name)  # the read that fixes the view of the transaction
            found = db.execute(f"SELECT {listed(table.names)} FROM main.{quoted(table.name)}")
            for piece in outbox.pieces(found):
                if self._stopping.is_set():
                    raise CaptureStopped
                segments += target.stage(_records(table, outbox.marked(table, piece, [False] * len(piece))))
        finally:
            if db.in_transaction:  # some errors end it
                db.execute("ROLLBACK")
        return position, segments

    def _follow(self, db: sqlite3.Connection, table: SqliteTable, target: CaptureTarget, file: tuple[int, int]) -> None:
        """Append the changes in the outbox until a stop. Raises: see Sessions.run; Differs, sqlite3.Error."""
        last_shape, progress_s = -1, self._clock()
        while not self._stopping.is_set():
            assert target.position is not None
            if _file_of(self._of.path) != file:
                raise Unavailable(
                    f"SQLite {self._of.path}: the file was replaced by another one",
                    not_done="changes after the last append were not captured yet",
                    next_step="no action needed: the capture looks at the new one",
                )
            shape: int = db.execute("PRAGMA schema_version").fetchone()[0]
            if shape == last_shape and outbox.is_idle(db, table.name, target.position):
                self._stopping.wait(POLL_S)
            else:
                last_shape = shape
                self._append(db, table, target)
            if self._clock() >= progress_s + PROGRESS_EVERY_S:
                progress_s = self._clock()
                self._note_progress(db, table, target.position)

    def _append(self, db: sqlite3.Connection, table: SqliteTable, target: CaptureTarget) -> None:
        """Remove the changes that the log has; append all that were committed since."""
        at = target.position
        assert at is not None
        announcement = outbox.advance(db, table, target.uuid, target.tag.timeline, at)
        if announcement.upto > at:
            staged = _staged(target, table, outbox.changes(db, table, at, announcement.upto))
            target.append(staged, announcement.upto)
            self._appended(sum(segment.rows for segment in staged))
        if announcement.problem is not None:
            raise announcement.problem

    def _note_progress(self, db: sqlite3.Connection, table: SqliteTable, position: int) -> None:
        behind = outbox.newest(db, table.name) - position
        self._report(
            {"event": "progress", "position": position, "records": self.counts.records, "behind_records": behind}
        )

    def _unlike(self, target: CaptureTarget) -> Exception:
        """Return why the database does not know the position of this process."""
        if position_in(self._store) != target.position:
            return Overtaken()
        return _differs(self._of, f"the log has all changes up to {target.position}, which the database does not know")


def position_in(store: ObjectStore) -> int | None:
    """Return the position up to which a log has all changes; None: it has no snapshot, or does not exist."""
    if read_meta(store) is None or (tag := LogReader(store).newest().tag_of(WRITER)) is None:
        return None
    return int(tag.epoch) or None


def _staged(target: CaptureTarget, table: SqliteTable, parts: Iterable[pa.Table]) -> list[LogSegment]:
    return [segment for part in parts for segment in target.stage(_records(table, part))]


def _records(table: SqliteTable, rows: pa.Table) -> pa.Table:
    """Return rows with a mark as records of the log."""
    mark = rows.num_columns - 1
    return puts_and_deletes(rows.remove_column(mark), rows.column(mark), table.key)


def _file_of(path: str) -> tuple[int, int]:
    """Return the identity of a file, which another file with its name does not have. Raises Unavailable."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise Unavailable(
            f"SQLite {path}: the file cannot be found ({error.strerror})",
            not_done="changes after the last append were not captured yet",
            next_step="restore the file; the capture continues where it was",
        ) from error
    return status.st_dev, status.st_ino


def _differs(of: SQLiteCapturing, how: str) -> ConfigError:
    return ConfigError(
        f"{of.where} and the log at {of.log} do not fit: {how}. One of both was restored from a copy, or created again",
        not_done="nothing was appended",
        next_step=f"restore the other one to the same moment; or {ANOTHER}{forgetting(of.table)} (if the database has "
        "that table)",
    )
