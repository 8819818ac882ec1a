"""One segment of the embedded log: an Arrow IPC file, uncompressed so that mapped files are read without a copy.

A segment holds the rows of one partition in record batches of READ_ROWS_MAX rows (the last may be shorter), which a
read returns as they are: cutting at batch boundaries keeps buffers aligned.

A segment that a compaction wrote has one more column, the last: the offset of each row. Offsets between rows may be
missing; a read then starts at the next row that exists.

Invariants
    - Size, hash and contents of a segment are verified once, when it is opened; nothing is read from one that fails.
      The hash detects changed bytes. Offsets, lengths and texts are validated too, since any process may append and
      a wrong Arrow offset would make the reader access foreign memory.
    - A read copies no column.

Source: Arrow IPC file format; xxh3 reads the page cache about ten times faster than a consumer can.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from holdfast.errors import Damaged, NotFound, Where
from holdfast.ports import ObjectStore
from holdfast.storage.log.compacted import CompactedSegment
from holdfast.storage.log.format import LogSegment, extends
from holdfast.storage.objects import read_buffer

READ_ROWS_MAX = 65_536
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
MAPPED_FROM_BYTES = 64 * 1024
"""Smaller segments are copied: a reader may hold thousands of them, and a process has 65,530 mappings at most."""
OFFSET = pa.field("_holdfast_offset", pa.int64(), nullable=False)
"""The last column of a segment that a compaction wrote. Readers find it by position, so users may use the name."""


@dataclass(frozen=True)
class SegmentPiece:
    """The rows that one read returns."""

    rows: pa.RecordBatch | None
    offsets: NDArray[np.int64] | None
    """The offset of each row; None: the rows end right before `following`."""
    following: int
    """The offset after the last row."""


def encode_segment(rows: pa.Table) -> bytes:
    """Return the rows as one Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as file:
        for batch in rows.combine_chunks().to_batches(max_chunksize=READ_ROWS_MAX):
            file.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def segment_hash(data: bytes | pa.Buffer) -> str:
    return xxhash.xxh3_64_hexdigest(data)


class OpenSegment:
    """The rows of one segment, by offset."""

    def __init__(self, store: ObjectStore, schema: pa.Schema, segment: LogSegment | CompactedSegment) -> None:
        """Open and verify a segment. Raises Damaged."""
        self._batches = verified_batches(store, schema, segment)
        if isinstance(segment, CompactedSegment):
            self.base, self.end = segment.first, segment.last + 1
            self._offsets = _offsets_of(segment, self._batches)
            self._starts = [int(offsets[0]) for offsets in self._offsets]
        else:
            self.base, self.end = segment.base, segment.base + segment.rows
            self._offsets = []
            self._starts = list(accumulate((batch.num_rows for batch in self._batches), initial=segment.base))[:-1]

    def holds(self, offset: int) -> bool:
        """Return whether this segment holds the first row at or after this offset."""
        return self.base <= offset < self.end

    def from_the_end(self, rows: int) -> int:
        """Return the offset at which the last `rows` rows of a compacted segment begin."""
        return int(np.concatenate(self._offsets)[-rows])

    def read(self, offset: int, max_bytes: int) -> SegmentPiece:
        """Return rows from the offset on: at most max_bytes, but at least one row."""
        assert self.holds(offset)
        index = bisect_right(self._starts, offset) - 1
        skip = offset - self._starts[index]
        if self._offsets and (skip := int(np.searchsorted(self._offsets[index], offset))) == len(self._offsets[index]):
            index, skip = index + 1, 0
        batch = self._batches[index]
        rows = batch.num_rows - skip
        if batch.nbytes > max_bytes:
            rows = min(rows, max(1, max_bytes * batch.num_rows // batch.nbytes))
        part = batch if rows == batch.num_rows else batch.slice(skip, rows)
        if not self._offsets:
            return SegmentPiece(part, None, offset + rows)
        offsets = self._offsets[index][skip : skip + rows]
        following = int(offsets[-1]) + 1
        dense = following - int(offsets[0]) == rows
        columns = pa.RecordBatch.from_arrays(part.columns[:-1], schema=pa.schema(list(part.schema)[:-1]))
        return SegmentPiece(columns, None if dense else offsets, following)


def _offsets_of(segment: CompactedSegment, batches: list[pa.RecordBatch]) -> list[NDArray[np.int64]]:
    offsets = [np.asarray(batch.column(batch.num_columns - 1)) for batch in batches]
    every = np.concatenate(offsets)
    if every[0] != segment.first or every[-1] != segment.last or not (np.diff(every) > 0).all():
        raise _damaged(segment, "has offsets other than those in its commit")
    return offsets


def verified_batches(
    store: ObjectStore, schema: pa.Schema, segment: LogSegment | CompactedSegment
) -> list[pa.RecordBatch]:
    """Return all rows of a segment, with the column of offsets if it was compacted. Raises Damaged.

    Args:
        schema: The columns that the log has now; those that the segment lacks are null.
    """
    try:
        small = segment.size <= MAPPED_FROM_BYTES
        data = pa.py_buffer(store.get(segment.path)) if small else read_buffer(store, segment.path)
    except NotFound as error:
        raise _damaged(segment, "is missing") from error
    return verified_bytes(data, schema, segment)


def verified_bytes(data: pa.Buffer, schema: pa.Schema, segment: LogSegment | CompactedSegment) -> list[pa.RecordBatch]:
    """As `verified_batches`, of a segment that was read."""
    last = [OFFSET] if isinstance(segment, CompactedSegment) else []
    if data.size != segment.size:
        raise _damaged(segment, f"has {data.size} bytes instead of {segment.size}")
    if segment_hash(data) != segment.xxh3:
        raise _damaged(segment, "does not match its hash")
    try:
        file = pa.ipc.open_file(data)
        batches = [file.get_batch(index) for index in range(file.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise _damaged(segment, f"is not an Arrow IPC file: {error}") from error
    columns = len(schema)
    if last or not file.schema.equals(schema):
        found = list(file.schema)[: len(file.schema) - len(last)]
        if [*found, *last] != list(file.schema) or not extends(schema, pa.schema(found)):
            raise _damaged(segment, "has columns other than those of the log")
        columns = len(found)
    if sum(batch.num_rows for batch in batches) != segment.rows:
        raise _damaged(segment, f"does not hold {segment.rows} rows")
    try:
        for batch in batches:
            batch.validate(full=True)
    except pa.ArrowException as error:
        raise _damaged(segment, f"holds values that cannot be read: {error}") from error
    if columns < len(schema):
        return [widened(batch, pa.schema([*schema, *last]), columns) for batch in batches]
    return batches


def widened(batch: pa.RecordBatch, schema: pa.Schema, columns: int) -> pa.RecordBatch:
    """Return rows with all columns of a log that has grown since: nulls follow the first `columns` columns."""
    missing = len(schema) - batch.num_columns
    nulls = [pa.nulls(batch.num_rows, field.type) for field in list(schema)[columns : columns + missing]]
    return pa.RecordBatch.from_arrays([*batch.columns[:columns], *nulls, *batch.columns[columns:]], schema=schema)


def _damaged(segment: LogSegment | CompactedSegment, what: str) -> Damaged:
    if isinstance(segment, CompactedSegment):
        first, last = segment.first, segment.last
    else:
        first, last = segment.base, segment.base + segment.rows - 1
    return Damaged(
        f"segment {segment.path} {what}; it holds offsets {first} to {last} of partition {segment.partition}",
        not_done="no record of this segment was read",
        next_step="restore this object from a backup; or, to give up its records, read from the offset after it",
        where=Where(partition=segment.partition, offset=first),
    )
