"""One segment of the embedded log: an Arrow IPC file, uncompressed, so that a mapped one is read without a copy.

A segment holds the rows of one partition in record batches of READ_ROWS_MAX rows (the last may be shorter), which is
also what a read returns: cutting at batch borders keeps buffers aligned.

Invariants
    - Size and hash of a segment are verified once, when it is opened; nothing is read from one that fails.
    - A read copies no column.

Source: Arrow IPC file format; xxh3 reads the page cache about ten times faster than a consumer can.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import pyarrow as pa
import xxhash

from holdfast.errors import Damaged, NotFound, Where
from holdfast.ports import ObjectStore
from holdfast.storage.logformat import LogSegment
from holdfast.storage.objects import read_buffer

READ_ROWS_MAX = 65_536
SEGMENT_BYTES_MAX = 64 * 1024 * 1024


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

    def __init__(self, store: ObjectStore, schema: pa.Schema, segment: LogSegment) -> None:
        """Open and verify a segment. Raises Damaged."""
        self.base, self.end = segment.base, segment.base + segment.rows
        self._batches = _verified_batches(store, schema, segment)
        self._starts = list(accumulate((batch.num_rows for batch in self._batches), initial=segment.base))[:-1]

    def holds(self, offset: int) -> bool:
        return self.base <= offset < self.end

    def read(self, offset: int, max_bytes: int) -> pa.RecordBatch:
        """Return rows from the offset on: at most max_bytes, but at least one row."""
        assert self.holds(offset)
        index = bisect_right(self._starts, offset) - 1
        batch, skip = self._batches[index], offset - self._starts[index]
        rows = batch.num_rows - skip
        if batch.nbytes > max_bytes:
            rows = min(rows, max(1, max_bytes * batch.num_rows // batch.nbytes))
        return batch if rows == batch.num_rows else batch.slice(skip, rows)


def _verified_batches(store: ObjectStore, schema: pa.Schema, segment: LogSegment) -> list[pa.RecordBatch]:
    try:
        data = read_buffer(store, segment.path)
    except NotFound as error:
        raise _damaged(segment, "is missing") from error
    if data.size != segment.size:
        raise _damaged(segment, f"has {data.size} bytes instead of {segment.size}")
    if segment_hash(data) != segment.xxh3:
        raise _damaged(segment, "does not match its hash")
    try:
        file = pa.ipc.open_file(data)
        batches = [file.get_batch(index) for index in range(file.num_record_batches)]
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(segment, f"is no Arrow IPC file: {error}") from error
    if not file.schema.equals(schema):
        raise _damaged(segment, "has other columns than the log")
    if sum(batch.num_rows for batch in batches) != segment.rows:
        raise _damaged(segment, f"does not hold {segment.rows} rows")
    return batches


def _damaged(segment: LogSegment, what: str) -> Damaged:
    return Damaged(
        f"segment {segment.path} {what}; it holds offsets {segment.base} to {segment.base + segment.rows - 1} "
        f"of partition {segment.partition}",
        not_done="no record of this segment was read",
        next_step="restore this object from a backup, or read on from the offset after it if its records may be lost",
        where=Where(partition=segment.partition, offset=segment.base),
    )
