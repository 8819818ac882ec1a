"""Turns rows into Parquet files of about one size, one after the other in each folder.

Invariants
    - The rows of a file are in the order in which they came.
    - Rows and encoded files in memory take about MEMORY_BYTES_MAX: beyond it the largest file is finished early.

Pure: no clock, thread or I/O. Source: docs/decisions/0083-files-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_BYTES = 32 << 20
"""How many bytes of rows a row group has."""
MEMORY_BYTES_MAX = 512 << 20


@dataclass(frozen=True)
class FinishedFile:
    """A whole file, for one folder."""

    folder: str
    rows: int
    data: bytes


def empty_file(schema: pa.Schema) -> bytes:
    """Return a file without rows."""
    out = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), out)
    return bytes(out.getvalue())


def is_empty(data: bytes) -> bool:
    """Return whether the bytes are a file without rows."""
    try:
        return int(pq.read_metadata(pa.BufferReader(data)).num_rows) == 0
    except (pa.ArrowException, OSError):  # not a Parquet file
        return False


@dataclass
class _File:
    rows: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    out: Any = field(default_factory=pa.BufferOutputStream)
    writer: Any = None

    @property
    def size(self) -> int:
        return self.waiting_bytes + int(self.out.tell())


class Rolling:
    """The files of one delivery.

    Args:
        schema: The columns of the files.
        file_bytes: A file is finished when it has this many encoded bytes.
    """

    def __init__(self, schema: pa.Schema, file_bytes: int, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._schema, self._file_bytes, self._memory_max = schema, file_bytes, memory_bytes_max
        self._open: dict[str, _File] = {}
        self._bytes = 0

    def add(self, folder: str, batch: pa.RecordBatch) -> Iterator[FinishedFile]:
        """Take rows of a folder; yield the files that are finished with them."""
        if not batch.num_rows:
            return
        rows = batch.select(self._schema.names).cast(self._schema)
        file = self._open.setdefault(folder, _File())
        before = file.size
        file.rows += rows.num_rows
        file.waiting.append(rows)
        file.waiting_bytes += rows.nbytes
        if file.waiting_bytes >= min(GROUP_BYTES, self._file_bytes):
            self._encode(file)
        self._bytes += file.size - before
        if file.out.tell() >= self._file_bytes:
            yield self._finished(folder)
        while self._bytes > self._memory_max:
            yield self._finished(max(self._open, key=lambda each: self._open[each].size))

    def rest(self) -> Iterator[FinishedFile]:
        """Yield the files that are still open, by folder."""
        for folder in sorted(self._open):
            yield self._finished(folder)

    def _encode(self, file: _File) -> None:
        """Write the rows that wait as a row group."""
        if file.writer is None:
            file.writer = pq.ParquetWriter(file.out, self._schema)
        file.writer.write_table(pa.Table.from_batches(file.waiting))
        file.waiting, file.waiting_bytes = [], 0

    def _finished(self, folder: str) -> FinishedFile:
        file = self._open.pop(folder)
        self._bytes -= file.size
        if file.waiting:
            self._encode(file)
        file.writer.close()
        return FinishedFile(folder, file.rows, bytes(file.out.getvalue()))
