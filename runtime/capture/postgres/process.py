"""Captures one table, until it is stopped: takes the lock, makes the snapshot, then follows the stream.

A session (sessions.py) does this:

1. Take the lock of the log. It is for courtesy: the tag, not the lock, keeps two processes from appending twice.
2. Without a snapshot in the log: claim an attempt there, drop the slots of others, create a slot, append its snapshot.
3. Read the slot's stream from the tag on. Append, and then confirm, as `Following` decides.

The server's log is confirmed only after the append that it belongs to; so the slot is never before the tag.

Source: docs/decisions/0087-postgres-capture.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import psycopg

from holdfast.errors import HoldfastError, Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.capturer import Report
from holdfast.runtime.capture.postgres.following import Append, CaptureLimits, Effect, Following, StageChanges, Stop
from holdfast.runtime.capture.postgres.messages import KeepAlive, lsn_text
from holdfast.runtime.capture.postgres.slots import (
    SlotInUse,
    check_published,
    check_slot,
    drop_others,
    ensure_publication,
    lag_of,
    lock_key,
    publication_of,
    published,
    slot_prefix,
    try_lock,
)
from holdfast.runtime.capture.postgres.snapshot import create_slot, lock_shape, stage_rows
from holdfast.runtime.capture.postgres.stream import Replication
from holdfast.runtime.capture.sessions import CaptureStopped, Sessions, StopRequest
from holdfast.runtime.capture.target import CaptureTarget
from holdfast.runtime.sources.postgres.catalogue import (
    Db,
    check_key,
    check_readable,
    check_server,
    connected,
    described,
    primary_key,
)
from holdfast.runtime.sources.postgres.connector import Capturing
from holdfast.runtime.sources.postgres.table import WRITER, SourceTable
from holdfast.storage.log.format import LogSegment

CONFIRM_EVERY_S = 5.0
"""How often the server hears from us at least; it gives a connection up after wal_sender_timeout, 60 s."""
LAG_EVERY_S = 10.0
SLOT_WITHIN_S = 90.0
"""How long a connection that still reads the slot is waited for: longer than the server needs to notice its end."""
RETAINED_WARN_BYTES = 1024 * 1024 * 1024
"""How much log a server may keep for the slot before that is a warning."""

_log = logging.getLogger("holdfast.capture")


class PostgresCapture(Sessions):
    """One table and its log. See Sessions."""

    def __init__(
        self,
        of: Capturing,
        store: ObjectStore,
        report: Report,
        stopping: StopRequest,
        limits: CaptureLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, report, stopping, clock)
        self._of, self._limits = of, limits or CaptureLimits()

    def _session(self) -> None:
        of = self._of
        with connected(of.dsn, of.password) as db:
            check_server(of.dsn, db)
            table = described(db, of.schema, of.table, of.columns)
            key = lock_key(CaptureTarget(self._store, of.log, table, of.partitions, WRITER).uuid)
            self._take_lock(partial(try_lock, db, key))
            key_before = primary_key(db, table.oid)
            table = described(db, of.schema, of.table, of.columns)  # again, as the wait may have been long
            target = CaptureTarget(self._store, of.log, table, of.partitions, WRITER)
            publication = of.publication or publication_of(table)
            has_snapshot = target.position is not None
            if not has_snapshot:
                check_readable(db, table)
            ensure_publication(db, table, publication, create=of.publication is None, begun=has_snapshot)
            before = published(db, table, publication)
            ensure_publication(
                db, table, publication, create=False, begun=has_snapshot
            )  # as it is in `before`, or later

            def check() -> None:
                check_published(db, table, publication, before)
                check_key(db, table, key_before)

            prefix = slot_prefix(target.uuid, table)
            if target.position is None:
                self._take_snapshot(db, table, target, prefix)
            slot = f"{prefix}{target.tag.timeline}"
            assert target.position is not None, "the snapshot is in"
            self._wait_for_slot(db, slot, target.position)
            drop_others(db, prefix, slot)
            with self._replication() as stream:
                stream.start(slot, publication, target.position)
                self._report({"event": "streaming", "slot": slot, "position": lsn_text(target.position)})
                self._worked = True
                _Stream(self, db, stream, table, target, slot, check).run()

    @contextmanager
    def _replication(self) -> Iterator[Replication]:
        with (
            connected(self._of.dsn, self._of.password, replication="database") as db,
            closing(Replication(db, self._stopping.is_set)) as replication,
        ):
            yield replication

    def _wait_for_slot(self, db: Db, slot: str, at: int) -> None:
        """Check the slot; wait for a connection that reads it. Raises: see check_slot; Stopped."""
        until_s, waiting = self._clock() + SLOT_WITHIN_S, False
        while True:
            try:
                return check_slot(db, slot, at)
            except SlotInUse as error:
                if self._clock() >= until_s:
                    raise
                if waiting:
                    self._report({"event": "waiting", "reason": error.what})
                waiting = True  # the connection of a process that has just ended closes a moment later
                self._pause()

    def _take_snapshot(self, db: Db, table: SourceTable, target: CaptureTarget, prefix: str) -> None:
        """Claim an attempt, create its slot, and append the rows that the slot will not send.

        An attempt that fails before its append drops its slot, for which the server would keep its log: a table that
        cannot be captured is perhaps never tried again.
        """
        target.claim()
        drop_others(db, prefix, None)
        lock_shape(db, table)
        if described(db, table.schema, table.name, self._of.columns) != table:
            raise Unavailable(
                f"{table.where} was changed just now",
                not_done="no snapshot was taken",
                next_step="start the capture again",
            )
        slot = f"{prefix}{target.tag.timeline}"
        self._report({"event": "snapshot", "slot": slot})
        with self._replication() as replication:
            at, snapshot = create_slot(replication, slot)
            try:
                with connected(self._of.dsn, self._of.password) as reading:
                    segments, rows = stage_rows(reading, table, snapshot, target, self._stopping.is_set)
            except (HoldfastError, CaptureStopped):
                with suppress(psycopg.Error):  # then the next start drops it
                    drop_others(db, prefix, None)
                raise
        target.append(segments, at)
        db.execute("COMMIT")
        self.counts.records += rows
        self._report({"event": "captured", "rows": rows, "position": lsn_text(at)})


class _Stream:
    """The stream of a session.

    Args:
        check: Called before each append, on the received changes: raises if the publication may have left something
            out, or two rows may have had one key.
    """

    def __init__(
        self,
        capture: PostgresCapture,
        db: Db,
        stream: Replication,
        table: SourceTable,
        target: CaptureTarget,
        slot: str,
        check: Callable[[], None],
    ) -> None:
        self._capture, self._db, self._stream, self._target, self._slot = capture, db, stream, target, slot
        self._check = check
        assert target.position is not None
        self._following = Following(table, target.position, capture._limits)
        self._staged: list[LogSegment] = []
        self._confirmed_s = self._lag_s = capture._clock()

    def run(self) -> None:
        """Append and confirm until a stop. Raises: see PostgresCapture.run; psycopg.Error."""
        stopping, clock, following = self._capture._stopping, self._capture._clock, self._following
        reply_due = False
        while not stopping.is_set():
            while (effect := following.due(_ms(clock()))) is not None:
                self._perform(effect)
            now_s = clock()
            if reply_due or now_s >= self._confirmed_s + CONFIRM_EVERY_S:
                self._confirm(now_s)
            if now_s >= self._lag_s + LAG_EVERY_S:
                self._note_lag(now_s)
            reply_due = False
            for received in self._stream.receive(self._wait_s(now_s)):
                following.take(received, _ms(clock()))
                reply_due = reply_due or (isinstance(received, KeepAlive) and received.asks)
        self._confirm(clock())

    def _wait_s(self, now_s: float) -> float:
        wake_ms = self._following.wake_ms()
        return CONFIRM_EVERY_S if wake_ms is None else max(0.0, wake_ms / 1_000 - now_s)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Stop(error):
                raise error
            case StageChanges(changes):
                self._staged += self._target.stage(changes.records())
            case Append(changes, lsn):
                self._check()
                self._staged += self._target.stage(changes.records())
                self._target.append(self._staged, lsn)
                self._following.appended(lsn)
                self._capture._appended(sum(segment.rows for segment in self._staged))
                self._staged = []
                self._confirm(self._capture._clock())

    def _confirm(self, now_s: float) -> None:
        self._stream.confirm(self._following.confirmed)
        self._confirmed_s = now_s

    def _note_lag(self, now_s: float) -> None:
        """Report how far the slot is behind; warn if the server keeps much for it."""
        self._lag_s = now_s
        if (lag := lag_of(self._db, self._slot)) is None:
            return
        self._capture._report(
            {
                "event": "progress",
                "position": lsn_text(self._following.confirmed),
                "records": self._capture.counts.records,
                "behind_bytes": lag.behind_bytes,
                "retained_bytes": lag.retained_bytes,
            }
        )
        if lag.retained_bytes >= RETAINED_WARN_BYTES:
            _log.warning(
                "the server keeps %.1f GiB of its log for the slot %s: check that the log of the capture is written "
                "fast enough, and that no transaction of the server is open for hours",
                lag.retained_bytes / RETAINED_WARN_BYTES,
                self._slot,
            )


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)
