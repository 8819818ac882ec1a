"""The rows that a compaction left in a log: the record that lists them, and where to find them.

A commit of kind `compact` replaces the rows of all commits up to `through` by the rows of its own segments. Offsets do
not change: every row of such a segment carries the offset at which it was appended, so there are gaps between rows.
The record is complete: the newest one alone describes the remaining rows, and older ones no longer apply.

Invariants
    - Segments are in order of partition and offset, and do not overlap.
    - `since` is in order of `through` and ends with the record's own; dropping an entry only keeps tombstones longer.
    - Objects of commits up to `swept` are deleted.

Pure: no clock, random or I/O.
Source: PROTOCOL P3, P7; docs/decisions/0014-log-compaction.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.storage.paths import is_object_in

SINCE_MAX = 64
COMPACTED_FOLDER = "compacted"


@dataclass(frozen=True)
class CompactedSegment:
    """The remaining rows of a range of one partition, in one object; its last column holds their offsets."""

    partition: int
    first: int
    """Offset of the first row."""
    last: int
    """Offset of the last row."""
    rows: int
    tombstones: int
    first_tombstone: int | None
    """Offset of the first tombstone; None: there is none."""
    path: str
    size: int
    xxh3: str

    def has_tombstone_below(self, offset: int) -> bool:
        """Return whether there is a tombstone at a lower offset."""
        return self.first_tombstone is not None and self.first_tombstone < offset


@dataclass(frozen=True)
class Covered:
    """When the commits up to a sequence were first compacted."""

    through: int
    at_us: int


@dataclass(frozen=True)
class Compaction:
    """The content of a commit of kind `compact`."""

    through: int
    """Rows of commits up to this one are in `segments`, or nowhere."""
    swept: int
    """Objects of commits up to this one were deleted before this record was made."""
    since: tuple[Covered, ...]
    segments: tuple[CompactedSegment, ...]


NEVER = Compaction(0, 0, (), ())
"""The record that applies before the first compaction."""


class Left:
    """The rows that the newest compaction left, by partition and offset.

    Args:
        compaction: The record.
        ends: End offsets of the partitions as of the commit `through`.
    """

    def __init__(self, compaction: Compaction, ends: tuple[int, ...]) -> None:
        self.through, self._ends = compaction.through, ends
        self._segments: dict[int, list[CompactedSegment]] = {}
        for segment in compaction.segments:
            self._segments.setdefault(segment.partition, []).append(segment)

    def end(self, partition: int) -> int:
        """Return the end of the compacted offsets; a row below it is in these segments or was compacted away."""
        return self._ends[partition]

    def at_or_after(self, partition: int, offset: int) -> CompactedSegment | None:
        """Return the segment with the first row at or after an offset, None if none is left below `end`."""
        segments = self._segments.get(partition, [])
        place = bisect_left(segments, offset, key=lambda one: one.last)
        return segments[place] if place < len(segments) else None

    def rows(self, partition: int) -> int:
        """Return how many rows remain."""
        return sum(segment.rows for segment in self._segments.get(partition, []))

    def stop(self, partition: int) -> int:
        """Return the offset after the last remaining row, 0 if none remains."""
        segments = self._segments.get(partition)
        return segments[-1].last + 1 if segments else 0

    def from_the_end(self, partition: int, rows: int) -> tuple[CompactedSegment, int] | None:
        """Return the segment in which the last `rows` rows begin, and how many of them it has; None: fewer remain."""
        for segment in reversed(self._segments.get(partition, [])):
            if rows <= segment.rows:
                return segment, rows
            rows -= segment.rows
        return None

    def whole_from(self, partition: int, void: Sequence[tuple[int, int]]) -> int:
        """Return the lowest offset from which no row is missing.

        Args:
            void: First offset and end of every range of the partition that a rewind took back, in order. Rows in
                these ranges do not count as missing.
        """
        whole = _before_void(self.end(partition), void)
        for segment in reversed(self._segments.get(partition, [])):
            end = segment.last + 1
            gaps = sum(max(0, min(last, end) - max(first, segment.first)) for first, last in void)
            if end != whole or segment.rows + gaps != end - segment.first:
                break
            whole = _before_void(segment.first, void)
        return whole


def _before_void(offset: int, void: Sequence[tuple[int, int]]) -> int:
    """Return the offset; if it is in a void range or at the end of one, return the beginning of the range."""
    for first, end in reversed(void):
        if first < offset <= end:
            offset = first
    return offset


def problem_of(compaction: Compaction, sequence: int, ends: Sequence[int]) -> str | None:
    """Return why a record cannot be valid; None if it can."""
    if not 0 <= compaction.swept <= compaction.through < sequence:
        return "replaces commits that do not precede it"
    next_offsets = [0] * len(ends)
    for segment in compaction.segments:
        if not 0 <= segment.partition < len(ends):
            return f"names partitions that a log of {len(ends)} does not have"
        if not next_offsets[segment.partition] <= segment.first <= segment.last < ends[segment.partition]:
            return f"has compacted segments that overlap or lie outside partition {segment.partition}"
        if not 1 <= segment.rows <= segment.last - segment.first + 1:
            return f"has a compacted segment of {segment.rows} rows in fewer offsets"
        if not is_object_in(COMPACTED_FOLDER, segment.path):
            return f"names a path that is not below {COMPACTED_FOLDER}/"
        next_offsets[segment.partition] = segment.last + 1
    return None


def due(since: Sequence[Covered], before_us: int) -> int:
    """Return the last sequence whose commits were first compacted at this time or earlier; 0: there is none."""
    return max((covered.through for covered in since if covered.at_us <= before_us), default=0)


def covered_with(since: tuple[Covered, ...], now: Covered, due_through: int) -> tuple[Covered, ...]:
    """Return the entries with one more, without those that are redundant or exceed SINCE_MAX."""
    if since and since[-1].through == now.through:
        entries = list(since)
    else:
        entries = [*since, now]
    entries = [covered for covered in entries if covered.through >= due_through]
    while len(entries) > SINCE_MAX:
        entries = [*entries[1:-1:2], entries[-1]]
    return tuple(entries)
