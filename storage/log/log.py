"""The embedded log: a partitioned, append-only log of typed rows on any object store.

Writers add commits to one sequence by conditional create. Each commit names the new segments of all partitions, so an
append is atomic across partitions and any number of writers may append concurrently. Offsets are dense per partition
until a compaction leaves gaps (compaction.py).

Invariants
    - A row is in the log if and only if a commit names its segment; segments are written first.
    - An append takes effect exactly once or not at all; a writer settles an append with an unknown outcome before it
      does anything else (PROTOCOL P4).
    - Offsets are never reused and never move; no row follows a seal.
    - A tagged append takes effect only if the writer's tag grows (PROTOCOL P17).
    - No later reader reads rows that a rewind took back; a reader that has read them gets an error (see voids.py).

Layout: `meta.json`, `commits/<20 digits>.json`, `data/<partition>/<unique>.arrow`; see docs/formats.md.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from holdfast.errors import AlreadyExists, ConfigError, Damaged, Unavailable
from holdfast.model import NO_EPOCH, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.storage.log.changelog import misplaced_value, record_schema
from holdfast.storage.log.commits import Commits, refuse_remains
from holdfast.storage.log.compacted import Compaction
from holdfast.storage.log.format import (
    DATA_FOLDER,
    META_PATH,
    PARTITIONS_MAX,
    Commit,
    Draft,
    LogMeta,
    LogOwner,
    LogSegment,
    VoidRange,
    WriterTag,
    check_meta,
    commit_path,
    describe_column,
    encode_commit,
    encode_meta,
    placed,
)
from holdfast.storage.log.packer import pack
from holdfast.storage.log.packs import BLOCK
from holdfast.storage.log.reader import LogReader, existing_meta, read_meta, stored_meta
from holdfast.storage.log.segment import SEGMENT_BYTES_MAX, encode_segment, segment_hash
from holdfast.storage.log.turns import wait_s
from holdfast.storage.log.voids import TakeBack, drafted, moving

__all__ = ["BEFORE_FIRST", "LogReader", "LogWriter", "create_log", "read_meta"]

Rows: TypeAlias = pa.Table | pa.RecordBatch
SENDS_MAX = 4
"""How often a create with an unknown outcome is sent before the caller gets the error."""
CONFLICTS_MAX = 1_000
"""How many times in a row other writers may win; each of them makes progress."""
REQUESTS_OF_A_LOSS = 2
"""A create, and a read of the commit that was first."""
_FIRST_PAUSE_S = 0.1
BEFORE_FIRST = Tag(Timeline(-1), NO_EPOCH)
"""The tag of a writer that never wrote: before every other tag."""

_log = logging.getLogger("holdfast.storage")


def wall_us() -> int:
    """Return the microseconds since 1970, UTC; may jump."""
    return time.time_ns() // 1_000


def create_log(
    store: ObjectStore,
    schema: pa.Schema,
    partitions: int = 4,
    key: Sequence[str] | None = None,
    *,
    changelog: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> LogMeta:
    """Create an empty log.

    Args:
        schema: Its columns; those of the rows, if it is a changelog.

    Raises:
        ConfigError: a log exists already, or schema, partitions or key are invalid.
        Damaged: the folder holds commits of a log that has lost its `meta.json`.
        Unavailable: the outcome is unknown; create it again to find out.
    """
    columns = record_schema(schema, key or ()) if changelog else _plain(schema)
    meta = LogMeta(str(uuid.uuid4()), columns, partitions, tuple(key or ()), changelog=changelog)
    check_meta(meta)
    refuse_remains(store)
    if not _created(store, META_PATH, encode_meta(meta), pause):
        other_meta = existing_meta(store)
        if other_meta.uuid != meta.uuid:
            raise ConfigError(
                f"{store!r} already holds a log, created with {other_meta.partitions} partitions and the columns "
                + ", ".join(describe_column(column) for column in other_meta.schema),
                next_step="append to it, or choose another path",
            )
    return meta


class LogWriter:
    """Appends to a log. For use by one thread; any number of writers may share a log.

    Args:
        block: How many commits a pack holds if none of the log may be packed yet.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        block: int = BLOCK,
        pause: Callable[[float], None] = time.sleep,
        wall_us: Callable[[], int] = wall_us,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._pause, self._wall_us, self._clock = store, pause, wall_us, clock
        self._block, self._commits = block, Commits(store, existing_meta(store))
        self._doubt: tuple[Draft, Commit] | None = None

    @property
    def meta(self) -> LogMeta:
        """The log's description, with the columns and partitions that this writer knows."""
        return self._commits.meta

    def grow(self, columns: pa.Schema) -> pa.Schema:
        """Add columns, which are null in all existing rows; return all columns. Columns that exist already stay.

        Raises:
            ConfigError: a column may not be null, or exists with another type; or the log is sealed.
            Unavailable: the outcome is unknown; call it again.
        """
        for _ in range(CONFLICTS_MAX):
            self.settle()
            self._commits.catch_up()
            new = _added(self.meta.schema, columns)
            if not new:
                return self.meta.schema
            schema, tail = pa.schema([*self.meta.schema, *new]), self._commits.tail
            draft = Draft("grow", uuid.uuid4().hex, self._wall_us(), after=tail.sequence, schema=schema)
            if self._commit(draft) is not None:
                return schema
        raise _overtaken("no column was added")

    def widen(self, partitions: int) -> int:
        """Add empty partitions after the existing ones, up to this number; return how many there were.

        Rows stay where they are. A writer that does not know the new partitions continues writing to the others.

        Raises:
            ConfigError: the log has a key, more partitions already, or is sealed; or no log has this many.
            Unavailable: the outcome is unknown; call it again.
        """
        for _ in range(CONFLICTS_MAX):
            self.settle()
            self._commits.catch_up()
            before = self.meta.partitions
            _check_wider(self.meta, partitions, self._commits.tail.sealed)
            if before == partitions:
                return before
            draft = Draft("widen", uuid.uuid4().hex, self._wall_us(), partitions=partitions)
            if self._commit(draft) is not None:
                return before
        raise _overtaken("no partition was added")

    def append(self, rows: Mapping[int, Rows]) -> dict[int, int]:
        """Append rows to any number of partitions in one commit.

        Returns:
            The offset of the first new row of each partition that got rows.

        Raises:
            ConfigError: the rows do not fit the log, or it is sealed; nothing was appended.
            Unavailable: the outcome may be unknown. Call `settle`: it returns the offsets, or None if nothing was
                appended; append the same rows again only in that case.
        """
        self.settle()
        draft = self._draft(rows, None)
        return _first_offsets(self._commit(draft)) if draft.segments else {}

    def stage(self, rows: Mapping[int, Rows], name: str | None = None) -> tuple[LogSegment, ...]:
        """Write rows to the store without appending them; an append that is given them does, also in another process.

        Args:
            name: Begins the paths of the objects, below `data/`; None: they get their own names.

        Raises:
            ConfigError: the rows do not fit the log.
        """
        return self._segments(rows, name)

    def append_staged(self, staged: Iterable[LogSegment]) -> dict[int, int]:
        """Append rows that `stage` wrote, in one commit and in this order.

        Returns, raises: see `append`.
        """
        self.settle()
        draft = Draft("append", uuid.uuid4().hex, self._wall_us(), _stacked(staged))
        return _first_offsets(self._commit(draft)) if draft.segments else {}

    def append_tagged(
        self,
        rows: Mapping[int, Rows],
        writer: str,
        tag: Tag,
        *,
        follows: Mapping[str, Tag] | None = None,
        staged: Iterable[LogSegment] = (),
        owned: LogOwner | None = None,
        admit: Callable[[Commit], None] = lambda _tail: None,
    ) -> dict[int, int] | None:
        """Append rows and move the writer's tag atomically; return None and append nothing if the tag does not grow.

        Args:
            owned: The owner that takes the log over with this append.
            admit: Called with the commit that this one would follow; raises to refuse the append.
            follows: Append only if these writers have exactly these tags, `BEFORE_FIRST` if they never wrote. For rows
                that change the output to which these tags refer.
            staged: Rows that `stage` wrote; they come first.
        """
        self.settle()
        self._commits.catch_up()
        standing = tuple(WriterTag(name, at) for name, at in (follows or {}).items())
        admit(self._commits.tail)
        if not _grows(self._commits.tail, WriterTag(writer, tag), standing):
            return None
        draft = replace(self._draft(rows, WriterTag(writer, tag), standing), owned=owned, admit=admit)
        draft = replace(draft, segments=_stacked((*staged, *draft.segments)))
        commit = self._commit(draft)
        return None if commit is None else _first_offsets(commit)

    def tag_of(self, writer: str) -> Tag | None:
        """Return the newest tag of a writer, None if it never wrote."""
        self.settle()
        self._commits.catch_up()
        return self._commits.tail.tag_of(writer)

    def newest(self) -> Commit:
        """Return the newest commit."""
        self.settle()
        self._commits.catch_up()
        return self._commits.tail

    def stored_uuid(self) -> str | None:
        """Return the UUID of the log that is stored there now; None if there is none."""
        found = stored_meta(self._store)
        return None if found is None else found.uuid

    def holds_tail(self) -> bool:
        """Return whether the log still has the newest commit known here; False if it was restored from a backup."""
        return self._commits.holds_tail()

    def take_back(self, back: TakeBack) -> tuple[VoidRange, ...]:
        """Move the writers' tags and void their rows after the base epoch; do nothing if the tags have moved.

        Raises:
            ConfigError: the log is sealed, or compacted beyond the base epoch.
            Unavailable: the outcome is unknown; call it again.
        """
        for _ in range(CONFLICTS_MAX):
            self.settle()
            self._commits.catch_up()
            if not moving(self._commits.tail, back):
                return ()
            draft, ranges = drafted(self._commits, back, self._wall_us())
            if self._commit(draft) is not None:
                return ranges
        raise _overtaken("no row was removed")

    def compact(self, compaction: Compaction, built_on: tuple[int, int], owner: str) -> Commit | None:
        """Commit a compaction; return None and change nothing if another compaction or a rewind committed first.

        Raises:
            Unavailable: the outcome may be unknown.
        """
        self.settle()
        return self._commit(Draft("compact", owner, self._wall_us(), compaction=compaction, built_on=built_on))

    def seal(self) -> None:
        """End the log: nothing can be appended after this. Sealing a sealed log is not an error."""
        self.settle()
        self._commit(Draft("seal", uuid.uuid4().hex, self._wall_us()))

    def settle(self) -> dict[int, int] | None:
        """Settle an append whose outcome is unknown; return its offsets, None if there was none or it was refused."""
        if self._doubt is None:
            return None
        draft, sent = self._doubt
        commit = self._commit(draft, sent)
        return None if commit is None else _first_offsets(commit)

    def _draft(self, rows: Mapping[int, Rows], tag: WriterTag | None, follows: tuple[WriterTag, ...] = ()) -> Draft:
        """Write the segments and return a draft of the commit that will name them."""
        return Draft("append", uuid.uuid4().hex, self._wall_us(), self._segments(rows), tag, follows)

    def _segments(self, rows: Mapping[int, Rows], name: str | None = None) -> tuple[LogSegment, ...]:
        if any(partition >= self.meta.partitions for partition in rows):
            self._commits.catch_up()  # it may have been added
        tables = {partition: _fitting(self.meta, partition, part) for partition, part in sorted(rows.items())}
        segments: list[LogSegment] = []
        for partition, table in tables.items():
            start = 0
            while start < table.num_rows:
                count = min(table.num_rows, max(1, SEGMENT_BYTES_MAX * table.num_rows // max(1, table.nbytes)))
                piece = table.slice(start, count)
                data = encode_segment(piece)
                of_its_own = f"{partition}/{uuid.uuid4().hex}" if name is None else f"{name}-{partition}-{start}"
                path = f"{DATA_FOLDER}/{of_its_own}.arrow"
                self._store.put(path, data)
                segments.append(LogSegment(partition, start, piece.num_rows, path, len(data), segment_hash(data)))
                start += piece.num_rows
        return tuple(segments)

    def _commit(self, draft: Draft, sent: Commit | None = None) -> Commit | None:
        """Put the draft at the end of the log; None if the newest commit rules it out."""
        for loss_count in range(CONFLICTS_MAX):
            if sent is None:
                if not _admitted(self._store, self._commits.tail, draft):
                    return None
                sent = placed(draft, self._commits.tail, self._block)
            began = self._clock()
            if self._is_ours(draft, sent):
                self._pack(sent)
                return sent
            sent, request_s = None, (self._clock() - began) / REQUESTS_OF_A_LOSS
            self._pause(wait_s(self._commits.tail, draft.tag, draft.owner, loss_count, request_s))
            self._commits.catch_up()
        raise _overtaken("no row was appended")

    def _is_ours(self, draft: Draft, commit: Commit) -> bool:
        """Send the commit until its place is taken; return whether this commit took it."""
        self._doubt, data = (draft, commit), encode_commit(commit)
        created = _created(self._store, commit_path(commit.sequence), data, self._pause)
        if created and self._commits.packed(commit.sequence) is None:
            self._commits.adopt(commit.sequence, data)
            taken_by_us = True
        else:  # taken, perhaps before the commit with this sequence was packed and its object deleted
            taken_by_us = self._commits.at(commit.sequence).owner == draft.owner
            self._commits.step()
        self._doubt = None  # last: if the read fails, `settle` still finds the outcome of the commit
        return taken_by_us

    def _pack(self, commit: Commit) -> None:
        """Pack old commits, now and then. An error changes nothing for the append: a later commit tries again."""
        if commit.packs is None or commit.sequence % commit.packs.block:
            return
        try:
            pack(self._store, self._commits)
        except Unavailable:
            return
        except Damaged as error:
            _log.error("old commits of a log were not packed, and none was deleted: %s", error)


def _created(store: ObjectStore, path: str, data: bytes, pause: Callable[[float], None]) -> bool:
    """Send a create until the name is taken; False if it was taken already, perhaps by an earlier send of ours."""
    for attempt in range(SENDS_MAX):
        try:
            store.create(path, data)
            return True
        except AlreadyExists:
            return False
        except Unavailable:
            if attempt == SENDS_MAX - 1:
                raise
            pause(_FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _overtaken(not_done: str) -> Unavailable:
    return Unavailable(
        f"other writers committed first {CONFLICTS_MAX} times in a row",
        not_done=not_done,
        next_step="use fewer writers or larger appends",
    )


def _admitted(store: ObjectStore, tail: Commit, draft: Draft) -> bool:
    """Return whether the draft may follow the tail; False if it was made for an earlier one."""
    draft.admit(tail)
    if draft.tag is not None and not _grows(tail, draft.tag, draft.follows):
        return False
    if draft.kind == "grow" and draft.after != tail.sequence:
        return False  # Other columns may have been added.
    if draft.kind == "widen" and len(tail.ends) >= draft.partitions:
        return False
    if draft.kind == "void" and draft.after != tail.sequence:
        return False  # Made for an earlier tail: there may be more rows to take back now.
    if draft.kind == "compact":
        return (tail.compact, tail.void) == draft.built_on
    if not tail.sealed:
        return True
    if draft.kind == "seal":
        return False
    raise ConfigError(
        f"the log in {store!r} is sealed", not_done="no row was appended", next_step="append to another log"
    )


def _grows(tail: Commit, tag: WriterTag, follows: tuple[WriterTag, ...]) -> bool:
    stands = (tail.tag_of(tag.writer) or BEFORE_FIRST) < tag.tag
    return stands and all((tail.tag_of(each.writer) or BEFORE_FIRST) == each.tag for each in follows)


def _stacked(segments: Iterable[LogSegment]) -> tuple[LogSegment, ...]:
    """Return the segments of a draft, in this order: their bases count from its first row in each partition."""
    rows, draft_segments = Counter[int](), list[LogSegment]()
    for segment in segments:
        draft_segments.append(replace(segment, base=rows[segment.partition]))
        rows[segment.partition] += segment.rows
    return tuple(draft_segments)


def _first_offsets(commit: Commit | None) -> dict[int, int]:
    assert commit is not None, "an untagged append is never refused silently"
    first: dict[int, int] = {}
    for segment in commit.segments:
        first.setdefault(segment.partition, segment.base)
    return first


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type, column.nullable) for column in schema])


def _fitting(meta: LogMeta, partition: int, rows: Rows) -> pa.Table:
    """Return the rows with exactly the log's schema."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    problem = None
    if not 0 <= partition < meta.partitions:
        problem = f"there is no partition {partition}: the log has {meta.partitions} partitions, counted from 0"
    elif not meta.fits(table.schema):
        problem = (
            f"the log has the columns {', '.join(map(describe_column, meta.schema))}; "
            f"the rows have {', '.join(map(describe_column, table.schema))}"
        )
    else:
        for column in list(meta.schema)[: table.num_columns]:
            if not column.nullable and table.column(column.name).null_count:
                problem = f"column {column.name!r} holds a null, but the log does not allow nulls in it"
        if meta.changelog and problem is None:
            problem = misplaced_value(table, meta.key)
    if problem:
        raise ConfigError(problem, not_done="no row was appended", next_step="correct the rows and append them again")
    return pa.Table.from_arrays(table.columns, schema=pa.schema(list(meta.schema)[: table.num_columns]))


def _check_wider(meta: LogMeta, partitions: int, sealed: bool) -> None:
    """Raise ConfigError unless the log may have this many partitions."""
    problem, next_step = None, f"give a number from {meta.partitions} to {PARTITIONS_MAX}"
    if meta.key:
        problem = f"the log is partitioned by {', '.join(meta.key)}: with more partitions, equal keys would be in two"
        next_step = "create another log with more partitions, and let a job copy the rows: hf.Log(...) to hf.Log(...)"
    elif partitions < meta.partitions:
        problem = f"the log has {meta.partitions} partitions, and a partition is never removed"
    elif partitions > PARTITIONS_MAX:
        problem = f"{partitions} partitions were requested, but a log has at most {PARTITIONS_MAX}"
    elif sealed and partitions > meta.partitions:
        problem, next_step = "the log is sealed", "create another log with more partitions"
    if problem:
        raise ConfigError(problem, not_done="no partition was added", next_step=next_step)


def _added(schema: pa.Schema, columns: pa.Schema) -> list[pa.Field]:
    """Return the columns that the log does not have yet. Raises ConfigError if they cannot be added."""
    new = [column for column in _plain(columns) if column.name not in schema.names]
    problem = None
    if other := [c for c in columns if c.name in schema.names and schema.field(c.name).type != c.type]:
        problem = f"the log already has the column {other[0].name!r}, with the type {schema.field(other[0].name).type}"
    elif strict := [column.name for column in new if not column.nullable]:
        problem = f"column {strict[0]!r} may not be null, but the existing rows of the log have no value for it"
    elif not new and not columns.names:
        problem = "no column was given"
    elif len(set(columns.names)) < len(columns.names) or any(pa.types.is_dictionary(c.type) for c in new):
        problem = "a column was given twice, or is dictionary-encoded"
    if problem:
        raise ConfigError(problem, not_done="no column was added", next_step="add columns that may be null: name:type?")
    return new
