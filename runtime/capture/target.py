"""The log that the changes of a table are captured into.

The tag of its one writer describes its contents: the timeline is the number of the attempt at a snapshot, and the epoch
is the position of the database up to which it has all changes. Epoch 0 means that the attempt has begun. Each append
names the tag that its process has read and is refused if the log has another one (P17). So only one of two processes
appends from a position, and a process that was overtaken appends nothing. An append whose reply was lost is found when
the tag is read again.

Invariants
    - The rows of a snapshot become visible in one commit, with its position; before it, the log has no rows.
    - An attempt that another one has followed can never be appended.

Source: PROTOCOL P4, P17; docs/decisions/0087-postgres-capture.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import NO_EPOCH, Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.sources.captured import TableShape
from holdfast.storage.log.changelog import record_schema
from holdfast.storage.log.format import LogMeta, LogSegment, describe_column
from holdfast.storage.log.log import BEFORE_FIRST, LogWriter, create_log, read_meta
from holdfast.storage.log.partitioning import partition_rows


class Overtaken(Exception):
    """Another process has appended since this one has read the tag, or an append of unknown outcome took effect."""


class CaptureTarget:
    """One log, as one process appends to it.

    Args:
        path: How messages name the log.
        writer: The name of the tag.
        pause: Waits between two attempts.

    Raises:
        ConfigError: the log exists with columns or a key that do not fit, or is sealed.
        Damaged, Unavailable: the log cannot be read or created.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        table: TableShape,
        partitions: int,
        writer: str,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._meta = _prepared(store, path, table, partitions)
        self._store, self._path, self._writer = store, path, LogWriter(store, pause=pause)
        self._name = writer
        if self._writer.newest().sealed:
            raise _unfit(path, "is sealed")
        self.tag = self._writer.tag_of(writer) or BEFORE_FIRST

    @property
    def uuid(self) -> str:
        """The UUID that distinguishes this log from all others."""
        return self._meta.uuid

    @property
    def position(self) -> int | None:
        """The position up to which the log has all changes; None: it has no snapshot yet."""
        return None if self.tag.epoch == NO_EPOCH else self.tag.epoch

    def claim(self) -> None:
        """Begin an attempt at a snapshot; no earlier one can be appended after that.

        Raises:
            Overtaken: another process was faster.
            Unavailable: the outcome is unknown.
        """
        assert self.position is None, "the log has a snapshot"
        self._append((), Tag(Timeline(max(0, self.tag.timeline) + 1), NO_EPOCH))

    def stage(self, records: pa.Table) -> tuple[LogSegment, ...]:
        """Write records to the store; they are in the log once an append names them. Raises Unavailable."""
        if not records.num_rows:
            return ()
        parts = partition_rows(records, self._meta.key, self._meta.partitions)
        return self._writer.stage(parts)

    def append(self, staged: Iterable[LogSegment], position: int) -> None:
        """Append staged records in one commit, and note the position up to which the log has all changes then.

        Raises:
            Overtaken: another process has appended; nothing was.
            Unavailable: the outcome is unknown; the tag of another target shows it.
            ConfigError: the log is sealed.
            Damaged: the log was deleted, or restored from a copy.
        """
        assert self.tag.timeline >= 1, "an attempt was claimed"
        self._append(staged, Tag(self.tag.timeline, Epoch(position)))

    def _append(self, staged: Iterable[LogSegment], tag: Tag) -> None:
        assert tag > self.tag, "tags grow"
        if not self._writer.holds_tail():
            raise Damaged(
                f"the newest commit of the log in {self._store!r} is missing or has changed: the log was deleted, or "
                "restored from a copy, while changes were appended to it",
                not_done="the changes were not appended",
                next_step="restore the log and start the process again; the database keeps the missing changes",
            )
        try:
            offsets = self._writer.append_tagged({}, self._name, tag, follows={self._name: self.tag}, staged=staged)
        except Unavailable:
            if (offsets := self._writer.settle()) is None:
                raise
        if offsets is None:
            raise Overtaken
        self.tag = tag


def _prepared(store: ObjectStore, path: str, table: TableShape, partitions: int) -> LogMeta:
    """Create the log if it is missing; return its description."""
    rows = table.rows()
    if (meta := read_meta(store)) is None:
        try:
            meta = create_log(store, rows, partitions, table.key, changelog=True)
        except ConfigError:  # another process may have been first
            if (meta := read_meta(store)) is None:
                raise
    if not meta.changelog or set(meta.key) != set(table.key):
        raise _unfit(path, f"is not a changelog with the key {', '.join(table.key)}")
    wanted = record_schema(rows, meta.key)
    if wanted != meta.schema:
        has, needs = (", ".join(map(describe_column, list(each)[1:])) for each in (meta.schema, wanted))
        raise _unfit(path, f"has the columns {has}; {table.where} has {needs}")
    return meta


def _unfit(path: str, what: str) -> ConfigError:
    return ConfigError(
        f"the log at {path} cannot take the changes: it {what}",
        not_done="nothing was captured",
        next_step="name another log, which gets a new snapshot of the table",
    )
