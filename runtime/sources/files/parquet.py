"""Reads a Parquet file by row groups, and only the columns of the job.

A column that the file does not have is taken from its folder, `region=eu/`, if that holds it.

Times of the old type INT96 may lie outside of what nanoseconds hold, 1677 to 2262, so they are read as microseconds.

A position is the number of a row. One batch is decoded at a time; what a read leaves of it is kept for the next one.

Source: docs/decisions/0080-files-source.md, 0083-files-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.runtime.sources.files.contents import Contents, FilePiece, WrongFile
from holdfast.storage.folders import ReadFile

_WRONG = (pa.ArrowException, OSError, ValueError)
"""The errors of pyarrow for a damaged file; a file that cannot be read raises Unavailable, which is none of them."""
_ROWS_MAX = 65_536
_UUID = pa.uuid()


class ParquetContents(Contents):
    """An open Parquet file.

    Args:
        schema: The columns that are read.
        held: Values of the folders that the file is in, for columns that it does not have.

    Raises:
        WrongFile: it is no Parquet file, or lacks a column, or has one of another type.
    """

    def __init__(self, file: ReadFile, schema: pa.Schema, held: Mapping[str, pa.Scalar] = MappingProxyType({})) -> None:
        self._schema = schema
        try:
            whole = pa.PythonFile(file, mode="r")
            self._file: Any = pq.ParquetFile(whole, coerce_int96_timestamp_unit="us")  # else they wrap in silence
            file_schema = self._file.schema_arrow
            groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
        except _WRONG as error:
            raise WrongFile(f"it cannot be read as Parquet: {_first_line(error)}") from error
        self._held = {name: value for name, value in held.items() if name not in file_schema.names}
        self._read = pa.schema([field for field in schema if field.name not in self._held])
        _check(self._read, file_schema)
        _check_int96(self._read, self._file.schema)
        self._firsts = [0, *accumulate(group.num_rows for group in groups)]
        size = sum(group.total_byte_size for group in groups)
        self._row_bytes = max(1, size // max(1, self.rows))
        self._at = 0
        self._rest: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self._firsts[-1])

    def read(self, at: int, bytes_max: int) -> FilePiece:
        try:
            batch = self._following(at, bytes_max)
            rows = self._fitted(batch.slice(0, _rows_within(batch, bytes_max)), at)
        except _WRONG as error:
            raise WrongFile(f"row {at + 1} or a later one cannot be read: {_first_line(error)}") from error
        self._at = at + rows.num_rows
        self._rest = batch.slice(rows.num_rows) if rows.num_rows < batch.num_rows else None
        return FilePiece(rows, None, self._at)

    def _following(self, at: int, bytes_max: int) -> pa.RecordBatch:
        """Return decoded rows from a position on."""
        if at != self._at:
            self._rest, self._batches = None, iter(())
        if self._rest is not None:
            return self._rest
        if (batch := next(self._batches, None)) is not None:
            return batch
        group = max(number for number, first in enumerate(self._firsts[:-1]) if first <= at)
        size = max(1, min(_ROWS_MAX, bytes_max // self._row_bytes))
        self._batches = self._file.iter_batches(size, row_groups=[group], columns=self._read.names, use_threads=False)
        batch_start = self._firsts[group]
        for batch in self._batches:
            if batch_start + batch.num_rows > at:
                return batch.slice(at - batch_start)
            batch_start += batch.num_rows
        raise WrongFile(f"its row group {group} has fewer rows than its footer says")

    def _fitted(self, batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            if field.name in self._held:
                columns.append(pa.repeat(self._held[field.name], batch.num_rows))
                continue
            try:
                column = _cast(batch.column(field.name), field.type)
                column.validate(full=True)  # text that is not UTF-8, for one
                columns.append(column)
            except pa.ArrowInvalid as error:
                rows = f"rows {at + 1:,} to {at + batch.num_rows:,}"
                raise WrongFile(f"column {field.name!r} in {rows}: {_first_line(error)}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _check(schema: pa.Schema, found: pa.Schema) -> None:
    """Refuse a file without a column of the schema, or with one of another type. Raises WrongFile."""
    for field in schema:
        there = found.get_all_field_indices(field.name)
        if len(there) != 1:
            has = f"it has {', '.join(found.names)}" if not there else "it is there twice"
            raise WrongFile(
                f"column {field.name!r} is missing: {has}" if not there else f"column {field.name!r}: {has}"
            )
        kind = found.field(there[0]).type
        if not _widens(kind, field.type):
            raise WrongFile(f"column {field.name!r} is {kind}, but the job reads {field.type}")


def _check_int96(schema: pa.Schema, found: Any) -> None:
    """Refuse to read times of INT96 as nanoseconds, which only hold those of 1677 to 2262. Raises WrongFile."""
    for column in (found.column(place) for place in range(len(found))):
        if column.physical_type == "INT96" and column.path in schema.names:
            kind = schema.field(column.path).type
            if kind.unit == "ns":
                raise WrongFile(f"column {column.path!r} is INT96, which is read as timestamp[us], not as {kind}")


def _widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a type are read as another: a wider one, or another layout or unit of the same."""
    kinds = pa.types
    if kinds.is_dictionary(found):
        return _widens(found.value_type, wanted)
    if found == _UUID:
        return bool(kinds.is_string(wanted))
    if kinds.is_nested(found) and kinds.is_nested(wanted):
        return _parts_widen(found, wanted)
    if kinds.is_time(found) and kinds.is_time(wanted):
        return True  # a cast that loses digits refuses the rows
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    if kinds.is_integer(found) and kinds.is_integer(wanted):
        signed = kinds.is_signed_integer(found) == kinds.is_signed_integer(wanted)
        return bool(found.bit_width < wanted.bit_width or (signed and found.bit_width == wanted.bit_width)) and (
            signed or kinds.is_signed_integer(wanted)
        )
    if kinds.is_floating(found) and kinds.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    texts, blobs = (kinds.is_string, kinds.is_large_string), (kinds.is_binary, kinds.is_large_binary)
    for same in (texts, blobs):
        if any(each(found) for each in same) and any(each(wanted) for each in same):
            return True
    return bool(found.equals(wanted))


def _parts_widen(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether lists, maps and structs are read as others; a struct may have more fields, in any order."""
    kinds = pa.types
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        has = {field.name: field.type for field in found}
        return all(field.name in has and _widens(has[field.name], field.type) for field in wanted)
    if kinds.is_map(found) and kinds.is_map(wanted):
        return _widens(found.key_type, wanted.key_type) and _widens(found.item_type, wanted.item_type)
    lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    if any(each(found) for each in lists) and any(each(wanted) for each in lists):
        return _widens(found.value_type, wanted.value_type)
    return bool(found.equals(wanted))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as another type, which it widens to."""
    if column.type == _UUID:
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], kind)
    if pa.types.is_struct(kind) and column.type != kind:
        given = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
        inner = [_cast(given[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(column.type) and column.type.value_type != kind.value_type:
        inner = _cast(column.flatten(), kind.value_type)
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=column.is_null())
    return column.cast(kind)


def _rows_within(batch: pa.RecordBatch, bytes_max: int) -> int:
    """Return how many rows from the first on take at most so many bytes, at least one."""
    rows: int = batch.num_rows
    while rows > 1 and (size := batch.slice(0, rows).nbytes) > bytes_max:
        rows = max(1, min(rows - 1, rows * bytes_max // size))
    return rows


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
