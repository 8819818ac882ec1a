"""Rows of segments as the records of a topic, and back: one record per key, for people to read and to restore from.

    operator   its name
    key        operator number u16 | key group u16 | canonical key (row_bytes.py)
    epoch      the epoch that wrote it
    row_key    the key columns as JSON, for people
    row        the values as JSON, for people; bytes as hex, a float that is not a number as null
    layout     field ids and types of `value`, as JSON
    value      the values, packed (row_bytes.py)

A record that deletes has operator and key alone. A segment for a topic has no ranges: a range could not be compacted
with the rows that it erases, so rows that expire are deleted one by one (TableSpec.ranges).

Invariants
    - deltas_in(records_of(segment)) has the same rows, bit for bit.
    - The number in the key decides to which operator a record belongs: a name may be used again after its state was
      dropped.

Pure: no clock, thread or I/O. Source: docs/decisions/0055-changelog-topic.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Damaged
from holdfast.model import NO_EPOCH, Epoch
from holdfast.state.blocks import BlockReader, StateRows
from holdfast.state.changelog import Data, SegmentHeader, opened, unreadable_block
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import KeyType
from holdfast.state.row_bytes import PREFIX_BYTES, columns_of, row_keys, row_values
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.expiry import NOTHING
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec, column_of_type
from holdfast.state.tables.values import arrow, default_of

KEY = ("operator", "key")
RECORDS = pa.schema(
    [
        pa.field("operator", pa.string(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("epoch", pa.int64()),
        pa.field("row_key", pa.string()),
        pa.field("row", pa.string()),
        pa.field("layout", pa.string()),
        pa.field("value", pa.large_binary()),
    ]
)
DELETED = pa.field("deleted", pa.bool_(), nullable=False)
"""The last column of `records_of`: whether the record deletes."""


def records_of(data: Data, names: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment as records, in the order of operators and keys.

    Args:
        names: Operators by number; one that has left the code is named by its number.

    Raises:
        Damaged: the segment cannot be read.
    """
    segment = opened(data)
    for block in segment.blocks:
        try:
            reader = BlockReader(segment.file, block, (0, block.key_group_count))
            while (rows := reader.read()) is not None:
                yield _records(rows, block.operator, names.get(block.operator, f"{block.operator}"), segment.header)
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise unreadable_block(block, error) from error
        assert (reader.through == NOTHING).all(), "a segment for a topic has no ranges"


def deltas_in(
    records: pa.RecordBatch, specs: Mapping[int, TableSpec], key_groups: tuple[int, int], count: int, epoch: Epoch
) -> Iterator[OperatorDelta]:
    """Yield the rows that records hold of some operators and key groups.

    Args:
        records: With the mark of a changelog as their first column, each key once.
        specs: The present operators by number; records of others are left out.
        key_groups: Half-open range.
        count: Key groups of the job.
        epoch: The epoch of the deltas.

    Raises:
        Damaged: a record is not one that `records_of` makes.
    """
    deletions = np.asarray(records.column(0).to_numpy(zero_copy_only=False), np.bool_)
    operators, groups = places_of(records.column("key"), count)
    in_range = (groups >= key_groups[0]) & (groups < key_groups[1])
    for number in np.unique(operators[in_range]).tolist():
        if (spec := specs.get(number)) is None:
            continue
        mine = in_range & (operators == number)
        if (gone := np.flatnonzero(mine & deletions)).size:
            columns = {column.id: default_of(column, gone.size) for column in spec.columns}
            yield _delta(records, spec, gone, columns, count, epoch, puts=False)
        for layout, rows in _by_layout(records, np.flatnonzero(mine & ~deletions)):
            yield _delta(records, spec, rows, _values(records, spec, rows, layout), count, epoch, puts=True)


def places_of(keys: pa.Array, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operator number and the key group of every record.

    Raises:
        Damaged: a key is none of a record, or of another number of key groups.
    """
    data, starts, lengths = codec.bytes_of(keys)
    if (lengths <= PREFIX_BYTES).any():
        raise _damaged("a key is too short")
    heads = data[starts[:, None] + np.arange(PREFIX_BYTES)].view(">u2").reshape(-1, 2).astype(np.int64)
    operators, groups = heads[:, 0], heads[:, 1]
    if (groups >= count).any():
        raise _damaged(f"a record is of key group {int(groups.max())}, but the job has {count}")
    return operators, groups


def _records(rows: StateRows, number: int, name: str, header: SegmentHeader) -> pa.RecordBatch:
    keys, count = rows.as_keys(), len(rows)
    spec = _packed(rows.kind, rows.columns)
    layout = json.dumps([[column.id, column.type_name] for column in spec.columns], separators=(",", ":"))
    json_columns = {"row_key": dict(zip(rows.kind.names, rows.key_columns(), strict=True)), "row": rows.columns}
    columns: dict[str, Any] = {
        "operator": pa.array([name] * count, pa.string()),
        "key": pa.array(row_keys(number, keys, rows.groups), pa.large_binary()),
        "epoch": pa.array(np.full(count, header.epoch)),
        **{column: _json(values, count) for column, values in json_columns.items()},
        "layout": pa.array([layout] * count, pa.string()),
        "value": pa.array(row_values(spec, rows.columns, count), pa.large_binary()),
        DELETED.name: pa.array(~rows.puts),
    }
    return pa.RecordBatch.from_pydict(columns, schema=RECORDS.append(DELETED))


def _json(columns: Mapping[str, Any], count: int) -> pa.Array:
    """Return one JSON object per row."""
    if not columns:
        return pa.array(["{}"] * count, pa.string())
    frame = pl.from_arrow(pa.table({name: arrow(values) for name, values in columns.items()}))
    assert isinstance(frame, pl.DataFrame)
    text = frame.with_columns(pl.col(pl.Binary).bin.encode("hex")).select(pl.struct(pl.all()).struct.json_encode())
    return text.to_series().to_arrow().cast(pa.string())


def _packed(key: KeyType, columns: Columns) -> TableSpec:
    """Return the declaration by which to pack values as a segment holds them."""
    return TableSpec(0, "", key, tuple(_column(name, values) for name, values in columns.items()))


def _column(name: str, values: Any) -> ColumnSpec:
    if isinstance(values, np.ndarray):
        return ColumnSpec(name, values.dtype)
    kind = values.type
    varying = not pa.types.is_primitive(kind)
    return ColumnSpec(name, kind if varying else np.dtype(kind.to_pandas_dtype()), nullable=True)


def _values(records: pa.RecordBatch, spec: TableSpec, rows: NDArray[np.int64], layout: str) -> Columns:
    encoded_rows = records.column("value").take(pa.array(rows))
    if encoded_rows.null_count:
        raise _damaged("a record that puts has no value")
    try:
        return columns_of(_unpacked(spec, layout), encoded_rows.to_pylist())
    except Damaged as error:
        raise _damaged(f"a value is not what its layout says, {layout}") from error


def _unpacked(spec: TableSpec, layout: str) -> TableSpec:
    """Return the declaration by which these values were packed."""
    try:
        columns = tuple(column_of_type(name, kind) for name, kind in json.loads(layout))
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(f"its layout is {layout!r}") from error
    return TableSpec(spec.operator, spec.name, spec.key, columns)


def _by_layout(records: pa.RecordBatch, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield rows by the layout of their values."""
    if not rows.size:
        return
    layouts = records.column("layout").take(pa.array(rows))
    if layouts.null_count:
        raise _damaged("a record has no layout")
    found = pc.dictionary_encode(layouts)
    numbers = np.asarray(found.indices.to_numpy(zero_copy_only=False))
    for number, layout in enumerate(found.dictionary.to_pylist()):
        yield layout, rows[numbers == number]


def _delta(
    records: pa.RecordBatch,
    spec: TableSpec,
    rows: NDArray[np.int64],
    columns: Columns,
    count: int,
    epoch: Epoch,
    *,
    puts: bool,
) -> OperatorDelta:
    canonical = codec.without_first(records.column("key").take(pa.array(rows)), PREFIX_BYTES)
    keys = spec.key.from_canonical(canonical)
    return OperatorDelta(epoch, NO_EPOCH, spec.operator, count, keys, np.full(rows.size, puts), columns)


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"a record of the changelog's topic cannot be read: {why}",
        not_done="none of it was restored",
        next_step="restore the topic from a backup; to read its records: holdfast log read PATH",
    )
