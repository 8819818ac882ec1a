"""Writes the rows of one partition that a compaction keeps: the newest row of every key, at its old offset.

The rows are read twice: from the newest to the oldest to find those that stay (newest.py), then in order to write
them. Small segments are merged into large ones; a large one that loses no row is named again instead of rewritten.
A log is read as a table in the same way, without writing (table.py).

Invariants
    - Only new objects are written, which no commit names yet.
    - A row stays if it is not void, is the newest of its key, and is not a tombstone below `tombstones_below`.
    - Memory is bounded by a few segments, KEYS_MAX keys and one bit per row.

Source: docs/decisions/0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.ports import ObjectStore
from holdfast.storage.log.changelog import deletes
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import CompactedSegment
from holdfast.storage.log.format import LogMeta, LogSegment, VoidRange
from holdfast.storage.log.keyhash import key_hashes
from holdfast.storage.log.newest import KEYS_MAX, Shown, newest_of_each_key, unpacked
from holdfast.storage.log.segment import (
    OFFSET,
    READ_ROWS_MAX,
    SEGMENT_BYTES_MAX,
    encode_segment,
    segment_hash,
    verified_batches,
)
from holdfast.storage.log.voids import void_ranges

Input: TypeAlias = LogSegment | CompactedSegment
GROUP_BYTES_MAX = 8 * 1024 * 1024
_Rows: TypeAlias = tuple[pa.RecordBatch, NDArray[np.int64]]


@dataclass(frozen=True)
class CompactionPart:
    """The part of one partition to compact."""

    partition: int
    inputs: tuple[Input, ...]
    """In order of their offsets."""
    voids: tuple[VoidRange, ...]
    """Void ranges of this partition."""
    tombstones_below: int
    """Tombstones at lower offsets are removed."""


def parts_of(commits: Commits, inputs: Iterable[Input], below: Sequence[int]) -> tuple[CompactionPart, ...]:
    """Return the parts of all partitions.

    Args:
        inputs: Segments; those of a partition in order.
        below: Per partition, the offset below which tombstones are removed.
    """
    inputs_by_partition: list[list[Input]] = [[] for _ in below]
    for segment in inputs:
        inputs_by_partition[segment.partition].append(segment)
    voids = void_ranges(commits)
    return tuple(
        CompactionPart(partition, tuple(some), tuple(v for v in voids if v.partition == partition), below[partition])
        for partition, some in enumerate(inputs_by_partition)
    )


@dataclass(frozen=True)
class Sizes:
    """How much to hold in memory and to put into one object."""

    keys_max: int = KEYS_MAX
    segment_bytes: int = SEGMENT_BYTES_MAX


def rewrite(
    store: ObjectStore,
    meta: LogMeta,
    part: CompactionPart,
    folder: str,
    put: Callable[[str, bytes], None],
    sizes: Sizes,
) -> list[CompactedSegment]:
    """Write the remaining rows of a partition below `folder`, and return the segments in order.

    Raises:
        Damaged: an input differs from what was written; with NotFound as its cause if it is missing.
        Unavailable: an object may or may not have been written.
    """
    output = _SegmentOutput(meta, part.partition, folder, put, sizes.segment_bytes)
    for group, marks in marked(store, meta, part, sizes):
        if (whole := _whole(group, marks, part.tombstones_below, sizes.segment_bytes)) is not None:
            output.keep(whole)
            continue
        for found in staying(store, meta, part, group, marks):
            output.add(found)
    output.flush()
    return output.segments


class PartitionRows(NamedTuple):
    """Some rows of a partition, in order."""

    rows: pa.RecordBatch
    offsets: NDArray[np.int64]
    tombstones: NDArray[np.bool_]
    stays: NDArray[np.bool_]
    """Whether a row is the newest of its key, and no tombstone that is to be removed."""


_Marks: TypeAlias = list[NDArray[np.uint8]]
"""Per piece of a group: which rows are the newest of their keys, from the last row to the first, as packed bits."""


def marked(
    store: ObjectStore, meta: LogMeta, part: CompactionPart, sizes: Sizes
) -> Iterator[tuple[list[Input], _Marks]]:
    """Yield the inputs in groups, in order, each with the marks of its rows. Raises as `rewrite`."""
    groups = _grouped(part.inputs, sizes.segment_bytes)
    pieces: dict[int, int] = {}

    def shown() -> Iterator[Shown]:
        for number in reversed(range(len(groups))):
            read = _rows_of(store, meta, groups[number])
            pieces[number] = len(read)
            for rows, offsets in reversed(read):
                counts = ~_inside(part.voids, offsets)
                yield Shown(key_hashes(rows, meta.key)[:, ::-1], counts[::-1])

    marks = newest_of_each_key(shown, sizes.keys_max)
    for number, group in enumerate(groups):
        yield group, [marks.pop() for _ in range(pieces[number])]


def staying(
    store: ObjectStore, meta: LogMeta, part: CompactionPart, group: Sequence[Input], marks: _Marks
) -> Iterator[PartitionRows]:
    """Yield the rows of a group, and which of them stay. Raises as `rewrite`."""
    for (rows, offsets), bits in zip(_rows_of(store, meta, group), marks, strict=True):
        dead = _tombstones(rows, meta)
        stays = unpacked(bits, rows.num_rows)[::-1] & ~(dead & (offsets < part.tombstones_below))
        yield PartitionRows(rows, offsets, dead, stays)


class _SegmentOutput:
    """Collects the rows that stay and writes a segment whenever there are enough."""

    def __init__(
        self, meta: LogMeta, partition: int, folder: str, put: Callable[[str, bytes], None], segment_bytes: int
    ) -> None:
        self._schema = meta.schema.append(OFFSET)
        self._partition, self._folder, self._put, self._segment_bytes = partition, folder, put, segment_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._tombstones = self._written = 0
        self._first_tombstone: int | None = None
        self.segments: list[CompactedSegment] = []

    def add(self, found: PartitionRows) -> None:
        """Add the rows that stay."""
        rows, offsets, dead, stays = found
        if not stays.any():
            return
        batch = pa.RecordBatch.from_arrays([*rows.columns, pa.array(offsets)], schema=self._schema)
        kept = batch if stays.all() else batch.filter(pa.array(stays))
        self._waiting.append(kept)
        self._bytes += kept.nbytes
        graves = offsets[dead & stays]
        self._tombstones += len(graves)
        if self._first_tombstone is None and len(graves):
            self._first_tombstone = int(graves[0])
        if self._bytes >= self._segment_bytes:
            self.flush()

    def keep(self, segment: CompactedSegment) -> None:
        """Name a segment again, unchanged."""
        self.flush()
        self.segments.append(segment)

    def flush(self) -> None:
        """Write the collected rows."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        data = encode_segment(table)
        path = f"{self._folder}/{self._partition}-{self._written}.arrow"
        self._put(path, data)
        offsets = table.column(table.num_columns - 1)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        self.segments.append(
            CompactedSegment(
                self._partition,
                first,
                last,
                len(table),
                self._tombstones,
                self._first_tombstone,
                path,
                len(data),
                segment_hash(data),
            )
        )
        self._waiting, self._bytes, self._tombstones, self._first_tombstone = [], 0, 0, None
        self._written += 1


def _grouped(inputs: Sequence[Input], segment_bytes: int) -> list[list[Input]]:
    """Group small adjacent segments, so that each operation works on whole arrays."""
    groups: list[list[Input]] = []
    rows = size = 0
    alone = True
    for one in inputs:
        large = _is_large(one, segment_bytes)
        if alone or large or rows + one.rows > READ_ROWS_MAX or size + one.size > GROUP_BYTES_MAX:
            groups.append([])
            rows = size = 0
        groups[-1].append(one)
        rows, size, alone = rows + one.rows, size + one.size, large
    return groups


def _is_large(one: Input, segment_bytes: int) -> TypeGuard[CompactedSegment]:
    """Return whether a segment stays unchanged if it loses no row."""
    return isinstance(one, CompactedSegment) and one.size >= segment_bytes // 4


def _rows_of(store: ObjectStore, meta: LogMeta, group: Sequence[Input]) -> list[_Rows]:
    """Return the rows of a group with their offsets, in pieces of bounded length."""
    batches: list[pa.RecordBatch] = []
    for one in group:
        if isinstance(one, CompactedSegment):
            batches += verified_batches(store, meta.schema, one)
            continue
        at = one.base
        for batch in verified_batches(store, meta.schema, one):
            offsets = pa.array(np.arange(at, at + batch.num_rows))
            at += batch.num_rows
            columns = [*batch.columns, offsets]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=meta.schema.append(OFFSET)))
    if len(group) > 1:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=READ_ROWS_MAX)
    return [(_without_offsets(meta, batch), np.asarray(batch.columns[-1])) for batch in batches]


def _without_offsets(meta: LogMeta, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=meta.schema)


def _whole(
    group: Sequence[Input], marks: Sequence[NDArray[np.uint8]], tombstones_below: int, segment_bytes: int
) -> CompactedSegment | None:
    """Return the segment of a group if it stays unchanged: compacted before, large, and losing no row."""
    (one, *others) = group
    if others or not _is_large(one, segment_bytes):
        return None
    if one.has_tombstone_below(tombstones_below):
        return None
    return one if sum(int(np.bitwise_count(bits).sum()) for bits in marks) == one.rows else None


def _inside(voids: Sequence[VoidRange], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which offsets are in void ranges; the ranges are in order."""
    firsts = np.array([one.first for one in voids], np.int64)
    ends = np.array([one.end for one in voids], np.int64)
    at = np.searchsorted(firsts, offsets, side="right") - 1
    inside: NDArray[np.bool_] = at >= 0
    inside[inside] = offsets[inside] < ends[at[inside]]
    return inside


def _tombstones(rows: pa.RecordBatch, meta: LogMeta) -> NDArray[np.bool_]:
    """Return which rows are tombstones: the delete records of a changelog.

    In another log, all their columns except the key are null, and there are such columns.
    """
    if meta.changelog:
        return deletes(rows)
    others = [rows.column(name) for name in rows.schema.names if name not in meta.key]
    if not others or any(column.null_count == 0 for column in others):
        return np.zeros(rows.num_rows, bool)
    dead = np.ones(rows.num_rows, bool)
    for column in others:
        dead &= pc.is_null(column).to_numpy(zero_copy_only=False)
    return dead
