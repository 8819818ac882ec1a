"""Captures one table, until it is stopped: takes the lock, makes the snapshot, then follows the stream.

A session is everything from a connection to its loss. It takes all that it has to know from the log's tag, so after an
error the next session begins with nothing but the log, as after SIGKILL:

1. Take the lock of the log. It is for courtesy: the tag, not the lock, keeps two processes from appending twice.
2. Without a snapshot in the log: claim an attempt there, drop the slots of others, create a slot, append its snapshot.
3. Read the slot's stream from the tag on. Append, and then confirm, as `Following` decides.

The server's log is confirmed only after the append that it belongs to; so the slot is never before the tag.

Source: docs/design/0087-postgres-capture.md.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import psycopg

from holdfast.errors import HoldfastError, Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.postgres.following import Append, Effect, Following, Limits, Stage, Stop
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
from holdfast.runtime.capture.postgres.stream import WAIT_S, Replication, Stopped
from holdfast.runtime.capture.postgres.target import Overtaken, Target
from holdfast.runtime.sources.postgres.catalogue import Db, check_server, connected, described
from holdfast.runtime.sources.postgres.connector import Capturing
from holdfast.runtime.sources.postgres.table import SourceTable
from holdfast.storage.log.format import LogSegment

CONFIRM_EVERY_S = 5.0
"""How often the server hears from us at least; it gives a connection up after wal_sender_timeout, 60 s."""
LAG_EVERY_S = 10.0
LOCK_EVERY_S = 0.5
SLOT_WITHIN_S = 90.0
"""How long a connection that still reads the slot is waited for: longer than the server needs to notice its end."""
RETRIES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits between sessions that fail one after the other; the last one repeats."""
RETAINED_WARN_BYTES = 1024 * 1024 * 1024
"""How much log a server may keep for the slot before that is a warning."""
Report: TypeAlias = Callable[[dict[str, Any]], None]

_log = logging.getLogger("holdfast.capture")


class StopRequest:
    """A request to stop. A plain flag: a lock could be held already when a handler of a signal wants it."""

    def __init__(self) -> None:
        self._made = False

    def set(self) -> None:
        """Make the request."""
        self._made = True

    def is_set(self) -> bool:
        """Return whether it was made."""
        return self._made

    def wait(self, seconds: float) -> None:
        """Wait for some time, or until it is made."""
        until_s = time.monotonic() + seconds
        while not self.is_set() and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, WAIT_S))


@dataclass
class Counts:
    """What a process has appended."""

    records: int = 0
    appends: int = 0


class Capture:
    """One table and its log.

    Args:
        report: Called with an event: a dict with its kind as `event`.
    """

    def __init__(
        self,
        of: Capturing,
        store: ObjectStore,
        report: Report,
        stopping: StopRequest,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of, self._store, self._report, self._stopping = of, store, report, stopping
        self._limits, self._clock = limits or Limits(), clock
        self._worked = False
        """Whether a session has found all in order: after that, what is unreachable is waited for."""
        self._failures = 0
        self.counts = Counts()

    def run(self) -> None:
        """Capture until a stop.

        Raises:
            ConfigError: the table, the server or the log do not fit, or a change cannot be captured.
            Damaged: the log was deleted, or restored from a copy.
            Unavailable: server or log were unreachable from the beginning.
        """
        while not self._stopping.is_set():
            try:
                self._session()
            except Stopped:
                return
            except Overtaken:
                _log.warning("another process has appended to the log; starting again from where it is")
            except Unavailable as error:
                if not self._worked:
                    raise
                wait_s = RETRIES_S[min(self._failures, len(RETRIES_S) - 1)]
                self._failures += 1
                _log.warning("trying again in %.1f s: %s", wait_s, error.what)
                self._stopping.wait(wait_s)

    def _session(self) -> None:
        of = self._of
        with connected(of.dsn, of.password) as db:
            check_server(of.dsn, db)
            table = described(db, of.schema, of.table)
            self._take_lock(db, Target(self._store, of.log, table, of.partitions).uuid)
            table = described(db, of.schema, of.table)  # again, as the wait may have been long
            target = Target(self._store, of.log, table, of.partitions)
            publication = of.publication or publication_of(table)
            begun = target.lsn is not None
            ensure_publication(db, table, publication, create=of.publication is None, begun=begun)
            before = published(db, table, publication)
            ensure_publication(db, table, publication, create=False, begun=begun)  # as it is in `before`, or later
            check = partial(check_published, db, table, publication, before)
            prefix = slot_prefix(target.uuid, table)
            if target.lsn is None:
                self._take_snapshot(db, table, target, prefix)
            slot = f"{prefix}{target.tag.timeline}"
            assert target.lsn is not None, "the snapshot is in"
            self._wait_for_slot(db, slot, target.lsn)
            drop_others(db, prefix, slot)
            with self._replication() as stream:
                stream.start(slot, publication, target.lsn)
                self._report({"event": "streaming", "slot": slot, "position": lsn_text(target.lsn)})
                self._worked = True
                _Stream(self, db, stream, table, target, slot, check).run()

    @contextmanager
    def _replication(self) -> Iterator[Replication]:
        with (
            connected(self._of.dsn, self._of.password, replication="database") as db,
            closing(Replication(db, self._stopping.is_set)) as replication,
        ):
            yield replication

    def _take_lock(self, db: Db, log_uuid: str) -> None:
        waiting = False
        while not try_lock(db, lock_key(log_uuid)):
            if not waiting:
                self._report({"event": "waiting", "reason": "another process captures into this log"})
                waiting = self._worked = True
            self._pause()

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
                waiting = True  # the connection of a process that has just ended is gone a moment later
                self._pause()

    def _pause(self) -> None:
        self._stopping.wait(LOCK_EVERY_S)
        if self._stopping.is_set():
            raise Stopped

    def _take_snapshot(self, db: Db, table: SourceTable, target: Target, prefix: str) -> None:
        """Claim an attempt, create its slot, and append the rows that the slot will not send.

        An attempt that fails before its append drops its slot, for which the server would keep its log: a table that
        cannot be captured is perhaps never tried again.
        """
        target.claim()
        drop_others(db, prefix, None)
        lock_shape(db, table)
        if described(db, table.schema, table.name) != table:
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
            except (HoldfastError, Stopped):
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
        check: Called before each append, on what was received: raises if the publication may have left something out.
    """

    def __init__(
        self,
        capture: Capture,
        db: Db,
        stream: Replication,
        table: SourceTable,
        target: Target,
        slot: str,
        check: Callable[[], None],
    ) -> None:
        self._capture, self._db, self._stream, self._target, self._slot = capture, db, stream, target, slot
        self._check = check
        assert target.lsn is not None
        self._following = Following(table, target.lsn, capture._limits)
        self._staged: list[LogSegment] = []
        self._confirmed_s = self._lag_s = capture._clock()

    def run(self) -> None:
        """Append and confirm until a stop. Raises: see Capture.run; psycopg.Error."""
        stopping, clock, following = self._capture._stopping, self._capture._clock, self._following
        asked = False
        while not stopping.is_set():
            while (effect := following.due(_ms(clock()))) is not None:
                self._perform(effect)
            now_s = clock()
            if asked or now_s >= self._confirmed_s + CONFIRM_EVERY_S:
                self._confirm(now_s)
            if now_s >= self._lag_s + LAG_EVERY_S:
                self._note_lag(now_s)
            asked = False
            for received in self._stream.receive(self._wait_s(now_s)):
                following.take(received, _ms(clock()))
                asked = asked or (isinstance(received, KeepAlive) and received.asks)
        self._confirm(clock())

    def _wait_s(self, now_s: float) -> float:
        wake_ms = self._following.wake_ms()
        return CONFIRM_EVERY_S if wake_ms is None else max(0.0, wake_ms / 1_000 - now_s)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Stop(error):
                raise error
            case Stage(changes):
                self._staged += self._target.stage(changes.records())
            case Append(changes, lsn):
                self._check()
                self._staged += self._target.stage(changes.records())
                self._target.append(self._staged, lsn)
                self._following.appended(lsn)
                counts = self._capture.counts
                counts.records += sum(segment.rows for segment in self._staged)
                counts.appends += 1
                self._staged = []
                self._capture._failures = 0
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


def capture(of: Capturing, store: ObjectStore, report: Report) -> Counts:
    """Capture until SIGINT or SIGTERM; return what was appended. Raises: see Capture.run."""
    stopping = StopRequest()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        made = Capture(of, store, report, stopping)
        made.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return made.counts


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)
