"""Appends batches of requests to the log, and finds the keys that are in it. For use by one thread.

All processes that append to one log share one tag (P17): each append moves it one beyond where its process has read it,
and is refused unless the tag grows. So it is refused if another process has appended meanwhile. Then its process reads
the appended rows, leaves out the requests whose keys it finds, and tries again. Only the log has the keys.

Invariants
    - A row is committed only if no row with its key was committed before it and less than a horizon ago.
    - After `Unavailable` the outcome of a batch is unknown. The next append settles it first (P4), and reads its keys.
    - Times of rows never decrease within a process, and never lie before those in the log that it has read.

Source: PROTOCOL P4, P17; docs/decisions/0085-webhooks.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.keys import digest_of
from holdfast.runtime.capture.requests import Accepted
from holdfast.runtime.sources.webhook.connector import AT, KEY, META, Receiving
from holdfast.storage.log.format import LogSegment, describe_column
from holdfast.storage.log.log import BEFORE_FIRST, LogReader, LogWriter, create_log, read_meta, wall_us
from holdfast.storage.log.partitioning import partition_rows

WRITER = "webhook"
"""The name of the tag."""
RACES_MAX = 100
"""How often in a row other processes may append first."""
READ_BYTES = 4 * 1024 * 1024
FIRST_LOOK_ROWS = 1_024
LOOK_GROWTH = 4
SKEW_US = 600_000_000
"""How far the clocks of two processes may differ: rows this much older than the horizon end the search for keys."""
_log = logging.getLogger("holdfast.capture")


class Seen(NamedTuple):
    """A key in the log."""

    key: bytes
    """Its digest."""
    at_us: int


class AppendResult(NamedTuple):
    """The end of an append; see Admission.committed."""

    at_us: int
    repeated: frozenset[bytes]
    seen: tuple[Seen, ...]


class _Staged(NamedTuple):
    """Rows that are in the store, and in no commit yet."""

    at_us: int
    segments: tuple[LogSegment, ...]
    rows: dict[int, int]
    """By partition."""


class Appending:
    """One log, as one process appends to it.

    Args:
        clock_us: Microseconds since 1970.
        pause: Waits between two attempts.

    Raises:
        ConfigError: the log exists with columns that do not fit, or is sealed.
        Damaged, Unavailable: the log cannot be read or created.
    """

    def __init__(
        self,
        store: ObjectStore,
        receiving: Receiving,
        clock_us: Callable[[], int] = wall_us,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._of, self._clock_us = store, receiving, clock_us
        _prepare(store, receiving)
        self._newest_us = 0
        self._writer = LogWriter(store, pause=pause, wall_us=self._now_us)
        _check_columns(self._writer.meta.schema, receiving)
        if self._writer.newest().sealed:
            raise _unfit(receiving, "is sealed", "name another log")
        self._tag = BEFORE_FIRST
        self._ends: dict[int, int] = {}
        """Before these offsets all keys are known, here or to the caller."""
        self._news: list[Seen] = []
        """Keys that other processes stored, and that no append has returned yet."""
        self._turn = 0

    def recover(self) -> Iterator[Seen]:
        """Return the keys that were stored within the horizon; to be read to its end before the first append."""
        reader = LogReader(self._store)
        self._note(reader)
        self._check_clock()
        since_us = self._now_us() - self._of.horizon_us
        for partition, end in reader.end_offsets().items():
            start = end if self._of.key is None else _first_since(reader, partition, since_us - SKEW_US)
            yield from (each for each in _keys(reader, partition, start, end) if each.at_us >= since_us)
            self._ends[partition] = end

    def age_us(self, at_us: int) -> int:
        """Return how long ago a row was stored, by the time that a row stored now would have; at least 0."""
        return max(0, self._now_us() - at_us)

    def append(self, batch: Sequence[Accepted]) -> AppendResult:
        """Append requests whose keys `recover` and earlier appends did not return, in one commit.

        Raises:
            Unavailable: the outcome is unknown.
            ConfigError: the log is sealed.
            Damaged: the log was deleted, or restored from a copy.
        """
        self._writer.settle()  # of an earlier append, not to be taken for this one
        fresh, stored_rows = list[Accepted](), None
        for _ in range(RACES_MAX):
            left = self._unknown(batch)
            if not left:
                return self._report(batch, left, self._now_us())
            if stored_rows is None or len(left) < len(fresh):  # otherwise the rows stay as they were staged
                fresh, stored_rows = left, self._stage(left)
            if self._commit(stored_rows):
                return self._report(batch, left, stored_rows.at_us)
            self._catch_up()
        raise Unavailable(
            f"other processes appended first {RACES_MAX} times in a row",
            not_done="the requests were not stored",
            next_step="run fewer processes for this log",
        )

    def _unknown(self, batch: Sequence[Accepted]) -> list[Accepted]:
        """Return the requests whose keys are not among the news."""
        known = {each.key for each in self._news}
        return [each for each in batch if each.key is None or digest_of(each.key) not in known]

    def _report(self, batch: Sequence[Accepted], stored: Sequence[Accepted], at_us: int) -> AppendResult:
        seen, self._news = tuple(self._news), []
        return AppendResult(at_us, frozenset(_digests(batch) - _digests(stored)), seen)

    def _stage(self, batch: Sequence[Accepted]) -> _Staged:
        at_us = self._now_us()
        parts = self._parts(batch, at_us)
        rows = {partition: part.num_rows for partition, part in parts.items()}
        return _Staged(at_us, self._writer.stage(parts), rows)

    def _commit(self, staged: _Staged) -> bool:
        """Commit; return False if another process did since this one last read the log."""
        if not self._writer.holds_tail() or not self._exists():
            raise Damaged(
                f"the log in {self._store!r} is missing or has changed: it was deleted, or restored from a copy, while "
                "requests were appended to it",
                not_done="the requests were not stored",
                next_step="restore the log as it was, and start the process again",
            )
        tag = Tag(Timeline(0), Epoch(self._tag.epoch + 1))
        try:
            first = self._writer.append_tagged({}, WRITER, tag, staged=staged.segments)
        except Unavailable:
            if (first := self._writer.settle()) is None:
                raise
        if first is None:
            return False
        self._tag = tag
        self._ends |= {partition: offset + staged.rows[partition] for partition, offset in first.items()}
        return True

    def _exists(self) -> bool:
        """Return whether the log is still the one that was opened. Asks the store only until the log has a commit."""
        return self._tag != BEFORE_FIRST or self._writer.stored_uuid() == self._writer.meta.uuid

    def _catch_up(self) -> None:
        """Read rows that other processes, or an append of unknown outcome, added; an error changes nothing here."""
        reader, new_keys = LogReader(self._store), list[Seen]()
        ends = reader.end_offsets()
        for partition, end in ends.items():
            start = end if self._of.key is None else self._ends.get(partition, 0)
            new_keys += _keys(reader, partition, start, end)
        self._note(reader)
        self._ends = ends
        since_us = self._now_us() - self._of.horizon_us
        self._news += [each for each in new_keys if each.at_us >= since_us]

    def _note(self, reader: LogReader) -> None:
        """Note the tag and the time of the newest commit, of which all rows are known."""
        self._tag = reader.newest().tag_of(WRITER) or BEFORE_FIRST
        self._newest_us = max(self._newest_us, reader.newest().at_us)

    def _check_clock(self) -> None:
        """Warn if the log is ahead of the clock: until that has caught up, all rows have one time."""
        if (ahead_us := self._newest_us - self._clock_us()) > SKEW_US:
            _log.warning(
                "the newest row of %s is %.1f h ahead of this machine's clock: set the clock, if it is behind; else a "
                "clock was ahead when the row was stored, and until then all rows get its time: name another log in "
                "into= to have their own",
                self._of.log,
                ahead_us / 3_600_000_000,
            )

    def _now_us(self) -> int:
        self._newest_us = max(self._newest_us, self._clock_us())
        return self._newest_us

    def _parts(self, batch: Sequence[Accepted], at_us: int) -> dict[int, pa.Table]:
        """Return the rows by partition: by the log's key, or all of a batch in one partition, the next in turn."""
        meta = self._writer.meta
        table = pa.Table.from_batches([each.row for each in batch]).combine_chunks()
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        columns[KEY] = pa.array([each.key for each in batch], pa.utf8())
        columns[AT] = pa.array([at_us] * len(batch), pa.int64()).cast(META.field(AT).type)
        rows = pa.Table.from_arrays(
            [columns.get(field.name, pa.nulls(len(batch), field.type)) for field in meta.schema], schema=meta.schema
        )
        if meta.key:
            return partition_rows(rows, meta.key, meta.partitions)
        self._turn += 1
        return {self._turn % meta.partitions: rows}


def _digests(batch: Sequence[Accepted]) -> set[bytes]:
    return {digest_of(each.key) for each in batch if each.key is not None}


def _prepare(store: ObjectStore, of: Receiving) -> None:
    """Create the log if it is missing; add columns that it lacks, as those of a log that was created by hand."""
    if (meta := read_meta(store)) is None:
        _check_key(of.columns, of.partition_key)
        try:
            meta = create_log(store, of.columns, of.partitions, of.partition_key)
        except ConfigError:  # another process may have been first
            if (meta := read_meta(store)) is None:
                raise
    if meta.changelog:
        raise _unfit(of, "is a changelog", "give the webhook a log of its own")
    if of.partition_key and set(of.partition_key) != set(meta.key):
        raise _unfit(of, f"is partitioned by {list(meta.key) or 'no key'}", "correct key of hf.Log, or leave it out")
    _check_key(meta.schema, meta.key)
    if any(name not in meta.schema.names for name in of.columns.names):
        LogWriter(store).grow(of.columns)


def _check_key(schema: pa.Schema, key: Sequence[str]) -> None:
    """Refuse a key of the log whose columns are missing, or of a type that chooses no partition."""
    if key:
        partition_rows(schema.empty_table(), key, 1)


def _check_columns(log: pa.Schema, of: Receiving) -> None:
    """Refuse a log whose columns some accepted request would not fit."""
    for field in log:
        name = field.name
        if name in of.columns.names:
            wanted = of.columns.field(name)
            if wanted.type != field.type or (wanted.nullable and not field.nullable):
                has, needs = describe_column(field), describe_column(wanted)
                raise _unfit(of, f"has the column {has}, the schema {needs}", "correct the schema, or name another log")
        elif not field.nullable:
            raise _unfit(of, f"has the column {name!r}, which needs a value", "add it to the schema of hf.Webhook")


def _unfit(of: Receiving, what: str, next_step: str) -> ConfigError:
    return ConfigError(
        f"the log at {of.log} cannot take the requests: it {what}", not_done="nothing was received", next_step=next_step
    )


def _first_since(reader: LogReader, partition: int, since_us: int) -> int:
    """Return an offset before which all rows are older; from the end, in growing steps."""
    rows = FIRST_LOOK_ROWS
    while True:
        start = reader.begin(partition, reader.before_the_end(partition, rows))
        first, _ = reader.read(partition, start, 1)
        if first is None or start <= reader.retention_start(partition):
            return start
        at = first.column(AT)[0].value if AT in first.schema.names else None
        if at is not None and at < since_us:
            return start
        rows *= LOOK_GROWTH


def _keys(reader: LogReader, partition: int, start: int, end: int) -> Iterable[Seen]:
    """Return the keys from one offset to before another; rows that other programs appended may have none."""
    offset = start
    while offset < end:
        batch, offset = reader.read(partition, offset, READ_BYTES)
        if batch is None:
            return
        if KEY not in batch.schema.names:
            continue
        for key, at_us in zip(
            batch.column(KEY).to_pylist(), batch.column(AT).cast(pa.int64()).to_pylist(), strict=True
        ):
            if key is not None and at_us is not None:
                yield Seen(digest_of(key), at_us)
