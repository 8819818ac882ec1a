"""Reads an embedded log: rows by offset, without those that a rewind took back or a compaction removed.

Invariants
    - Reads from an offset on return every remaining row once, in order.
    - Offsets of rows never change; there may be gaps between rows.
    - An object that is missing because the log was compacted meanwhile is not damage: the reader refreshes (P7).

Source: DESIGN section 13 (hf.Log); PROTOCOL P7; voids.py, compacted.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, Damaged, NotFound, Where
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import get_at_most
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import (
    META_BYTES_MAX,
    META_PATH,
    Commit,
    LogMeta,
    LogSegment,
    VoidRange,
    WriterTag,
    decode_meta,
)
from holdfast.storage.log.segment import OpenSegment, SegmentPiece
from holdfast.storage.log.voids import Passage, taken_back_since

LOOK_BACK_EVERY = 64
"""A reader that finds nothing new checks at every 64th refresh whether its last commit still exists."""


class CommitOrigin(NamedTuple):
    """A commit that was in the log when an offset was read; no other history of the log contains it."""

    sequence: int
    """0: nothing was read."""
    xxh3: str


class _SegmentOrigin(NamedTuple):
    """A segment's offsets, and the commit that holds it."""

    first: int
    end: int
    origin: CommitOrigin


class Fetched(NamedTuple):
    """Rows that were read ahead; they count as read once they are taken."""

    piece: SegmentPiece
    placed: _SegmentOrigin | None
    """Their segment and commit; None: there are no rows."""
    known: object
    """Which rows were known to be taken back; see Passage."""


def read_meta(store: ObjectStore) -> LogMeta | None:
    """Return the log's current description, None if there is no log. Raises Damaged, Unavailable."""
    meta = stored_meta(store)
    return None if meta is None else Commits(store, meta).meta


def stored_meta(store: ObjectStore) -> LogMeta | None:
    """Return the log's description as of its creation, None if there is no log. Raises Damaged, Unavailable."""
    try:
        return decode_meta(get_at_most(store, META_PATH, META_BYTES_MAX))
    except NotFound:
        return None


def existing_meta(store: ObjectStore) -> LogMeta:
    """Return the log's description as of its creation; `Commits` knows the columns and partitions that it has now.

    Raises ConfigError if there is none, Damaged, Unavailable.
    """
    if (meta := stored_meta(store)) is None:
        raise ConfigError(
            f"there is no log in {store!r}",
            next_step='create it: holdfast log create PATH --schema "name:type,..." --partitions N',
        )
    return meta


class LogReader:
    """Reads a log up to the commit that the last `refresh` found. For use by one thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._commits = Commits(store, existing_meta(store))
        self._opened: dict[int, OpenSegment] = {}
        self._sequence: dict[int, int] = {}
        self._placed: dict[int, _SegmentOrigin] = {}
        """By partition: where the rows are that were taken last."""
        self._held: dict[int, _SegmentOrigin] = {}
        """By partition: where the opened segment is."""
        self._fruitless = 0
        self._passage = Passage(self._commits, repr(store))

    @property
    def meta(self) -> LogMeta:
        """The log's description, with the columns and partitions as of the last `refresh`."""
        return self._commits.meta

    def refresh(self) -> bool:
        """Read new commits and return whether there were any; costs one request if there are none.

        Raises:
            Damaged: rows that this reader has read were taken back, or this is no longer the log that was read.
        """
        tail = self._commits.tail
        before, layout_before = (
            CommitOrigin(tail.sequence, self._commits.hash_of(tail.sequence)),
            (tail.compact, tail.grown),
        )
        try:
            news = self._commits.refresh()
        except Damaged:
            self._check_still(before)
            raise
        self._fruitless = 0 if news else self._fruitless + 1
        if news or self._fruitless % LOOK_BACK_EVERY == 0:
            self._check_still(before)
        if (self._commits.tail.compact, self._commits.tail.grown) != layout_before:
            self._opened.clear()  # They may hold removed rows, or lack columns.
        self._passage.refreshed()
        return news

    def known_origin(self, partition: int, offset: int) -> CommitOrigin | None:
        """Return `origin` if it is known without a read: for the rows that were taken last. Another thread may read."""
        placed = self._placed.get(partition)
        if placed is None or not placed.first < offset <= placed.end:
            return None
        return placed.origin if self._commits.tail.void <= placed.origin.sequence else None

    def origin(self, partition: int, offset: int) -> CommitOrigin:
        """Return a commit that distinguishes the records before this offset from every other history of the log.

        It is the first commit that reaches the offset, or a later one that took rows back, since reads skip those.

        Raises:
            Damaged: the offset is beyond the end.
        """
        if offset == 0:
            return CommitOrigin(0, "")
        if (known := self.known_origin(partition, offset)) is not None:
            return known
        self._check_inside(partition, offset - 1, self.end_offset(partition))
        sequence = self._commits.reaching(partition, offset)
        found = CommitOrigin(sequence, self._commits.hash_of(sequence))
        void = self._commits.tail.void
        return found if void <= found.sequence else CommitOrigin(void, self._commits.hash_of(void))

    def changed(self, uuid: str, origin: CommitOrigin, read: tuple[int, int] | None = None) -> str | None:
        """Return why the log is not the one with this UUID and this commit; None if it is. Reads the store.

        Args:
            read: A partition and the offset before which its rows were read, as of this commit: the result then also
                reports rows among them that were taken back since.
        """
        if (meta := stored_meta(self._store)) is None:
            return f"the log in {self._store!r} no longer exists"
        if meta.uuid != uuid:
            return f"{self._store!r} holds another log, {meta.uuid}; the log that was read is {uuid}"
        if self._commits.is_still(*origin):
            return None if read is None else self._lost(Commits(self._store, meta), origin, *read)
        if (tail := Commits(self._store, meta).tail.sequence) < origin.sequence:
            return (
                f"the log in {self._store!r} ends at commit {tail}, but was read up to commit {origin.sequence}: "
                "it was restored from an older copy"
            )
        return (
            f"the log in {self._store!r} was read up to commit {origin.sequence}, and its commit {origin.sequence} "
            "has changed since: the log was restored from an older copy and appended to"
        )

    def _lost(self, commits: Commits, origin: CommitOrigin, partition: int, offset: int) -> str | None:
        for one in taken_back_since(commits, origin.sequence):
            if one.partition == partition and one.first < offset:
                return (
                    f"the rows from offset {one.first} to before {one.end} of partition {partition} of the log in "
                    f"{self._store!r} were read, and a rewind of the job that wrote them took them back"
                )
        return None

    @property
    def sealed(self) -> bool:
        return self._commits.tail.sealed

    def newest(self) -> Commit:
        """Return the newest commit."""
        return self._commits.tail

    def tags(self) -> tuple[WriterTag, ...]:
        """Return the newest tag of every writer that made tagged appends."""
        return self._commits.tail.tags

    def end_offsets(self) -> dict[int, int]:
        """Return the offset of the next row to be appended, per partition."""
        return dict(enumerate(self._commits.tail.ends))

    def end_offset(self, partition: int) -> int:
        """Return the offset of the next row to be appended to the partition; 0 if it is not known to exist yet."""
        return self._commits.tail.end_of(partition)

    def rows(self, partition: int) -> int:
        """Return how many rows the partition has."""
        return self._passage.rows(partition, self.end_offset(partition))

    def begin(self, partition: int, offset: int) -> int:
        """Return where to start reading if a user asks for this offset: before the void range that holds it."""
        return self._passage.begin(partition, offset)

    def last_position(self, partition: int) -> int:
        """Return the offset of a reader that has read everything: the end, or the start of a final void range."""
        return self._passage.back(partition, self.end_offset(partition))

    def position_after(self, partition: int, offset: int, rows: int) -> int:
        """Return the position of a reader that has read at most `rows` rows from this position on.

        It is beyond the offset unless no row follows; offsets that a compaction left without a row count as rows.
        """
        assert rows > 0
        end = self.last_position(partition)
        return offset if end <= offset else self._passage.beyond(partition, offset, rows, end)

    def taken_back_since(self, sequence: int) -> tuple[VoidRange, ...]:
        """Return the offsets whose rows commits after this one took back, as of the last `refresh`."""
        return taken_back_since(self._commits, sequence)

    def before_the_end(self, partition: int, rows: int) -> int:
        """Return an offset that `rows` rows follow, or the first offset if there are fewer; pass it to `begin`."""
        while True:
            left, position = self._commits.left, self.last_position(partition)
            floor = 0 if left is None else left.end(partition)
            position, more = self._passage.before(partition, position, rows, floor)
            if left is None or more == 0:
                return position
            location = left.from_the_end(partition, more)
            if location is None:
                return 0
            compaction_sequence = self._commits.tail.compact
            try:
                return OpenSegment(self._store, self.meta.schema, location[0]).from_the_end(location[1])
            except Damaged as error:
                self._look_again(error, compaction_sequence)

    def retention_start(self, partition: int) -> int:
        """Return the lowest offset that can be read; a compaction leaves gaps but never moves the beginning."""
        assert partition >= 0
        return 0

    def whole_from(self, partition: int) -> int:
        """Return the lowest offset from which no row was compacted away."""
        left = self._commits.left
        return 0 if left is None else left.whole_from(partition, self._passage.void(partition))

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Read rows in order, without copying: at most 65,536 rows and max_bytes bytes, but at least one row.

        Returns:
            The rows and the offset after the last; None and the same offset at the end. Where rows were taken back or
            compacted away, there are fewer rows than offsets; `read_placed` returns their offsets.

        Raises:
            Damaged: a segment or commit differs from what was written, the offset is beyond the end, or rows before it
                were taken back after they had been read.
        """
        batch, _, following = self.read_placed(partition, offset, max_bytes)
        return batch, following

    def read_placed(
        self, partition: int, offset: int, max_bytes: int
    ) -> tuple[pa.RecordBatch | None, NDArray[np.int64] | None, int]:
        """Read as `read` does, and return the offset of every row; None if they end right before the next offset."""
        while not self.take(partition, offset, fetched := self.fetch(partition, offset, max_bytes)):
            pass  # a compaction made it refresh, and rows had been taken back
        return fetched.piece.rows, fetched.piece.offsets, fetched.piece.following

    def fetch(self, partition: int, offset: int, max_bytes: int) -> Fetched:
        """Read ahead, as `read_placed` reads; the rows count as read only once they are taken."""
        known = self._passage.known
        piece = self._piece(partition, offset, max_bytes, self._passage.onward)
        return Fetched(piece, None if piece.rows is None else self._held.get(partition), known)

    def take(self, partition: int, offset: int, fetched: Fetched) -> bool:
        """Note that rows which were read ahead from this offset count as read. Another thread may read meanwhile.

        Returns:
            False: rows were taken back since, perhaps these; nothing was noted, and they have to be fetched again.

        Raises:
            Damaged: the rows before the offset were taken back after they had been read.
        """
        if not self._passage.take(partition, offset, fetched.piece.following, fetched.known):
            return False
        if fetched.placed is not None:
            self._placed[partition] = fetched.placed
        return True

    def read_stored(
        self, partition: int, offset: int, max_bytes: int
    ) -> tuple[pa.RecordBatch | None, NDArray[np.int64] | None, int]:
        """Read as `read_placed` does, including rows that were taken back, for callers that need the stored history."""
        piece = self._piece(partition, offset, max_bytes, self._passage.behind_gap)
        return piece.rows, piece.offsets, piece.following

    def _piece(self, partition: int, offset: int, max_bytes: int, onward: Callable[[int, int], int]) -> SegmentPiece:
        while True:
            if (at := onward(partition, offset)) != offset and at == self.end_offset(partition):
                return SegmentPiece(None, None, offset)
            compaction_sequence = self._commits.tail.compact
            try:
                return self._read_at(partition, at, max_bytes)
            except Damaged as error:
                self._look_again(error, compaction_sequence)

    def _read_at(self, partition: int, offset: int, max_bytes: int) -> SegmentPiece:
        segment = self._opened.get(partition)
        if segment is None or not segment.holds(offset):
            end = self.end_offset(partition)
            if offset == end:
                return SegmentPiece(None, None, offset)
            self._check_inside(partition, offset, end)
            segment = self._open(partition, offset)
        return segment.read(offset, max_bytes)

    def close(self) -> None:
        """Release mapped segments; batches that were read stay valid."""
        self._opened.clear()

    def _look_again(self, error: Damaged, compacted: int) -> None:
        """Look for a compaction that explains the missing object; raise the error if there is none (P7)."""
        if not isinstance(error.__cause__, NotFound):
            raise error
        self.refresh()
        if self._commits.tail.compact == compacted:
            raise error

    def _open(self, partition: int, offset: int) -> OpenSegment:
        sequence, segment = self._commits.find(partition, offset, self._sequence.get(partition, 0))
        open_segment = OpenSegment(self._store, self.meta.schema, segment)
        self._sequence[partition], self._opened[partition] = sequence - 1, open_segment
        first = segment.base if isinstance(segment, LogSegment) else segment.first
        end = segment.base + segment.rows if isinstance(segment, LogSegment) else segment.last + 1
        self._held[partition] = _SegmentOrigin(first, end, CommitOrigin(sequence, self._commits.hash_of(sequence)))
        return open_segment

    def _check_still(self, known: CommitOrigin) -> None:
        if not self._commits.is_still(*known):
            raise Damaged(
                f"commit {known.sequence} of the log in {self._store!r}, the last one that was read, is missing or "
                "has changed: the log was deleted, or restored from a copy, while it was read",
                not_done="nothing more was read",
                next_step="restore the log as it was; a job that reads it reports more when you run it again",
            )

    def _check_inside(self, partition: int, offset: int, end: int) -> None:
        if not 0 <= offset < end:
            raise Damaged(
                f"offset {offset} is out of range: partition {partition} of the log in {self._store!r} ends at {end}",
                not_done="nothing was read",
                next_step="check that this is the log that was read before, and that it was not restored from a backup",
                where=Where(partition=partition, offset=offset),
            )
