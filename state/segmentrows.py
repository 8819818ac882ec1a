"""The rows of a segment as record batches: one per key, and one per range.

    kg u16 | key int64 or canonical bytes | kind u8 | end (of a range) | values under field ids, which may be null

Invariants
    - A range is one row per key group, before the rows of its key group, which are newer.

Pure: arrays in, arrays out. Format: changelog.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.tables.expiry import NOTHING, RANGE_FIRST, Through, last_of, range_end
from holdfast.state.tables.spec import Columns
from holdfast.state.tables.values import arrow, void_of

PUT, DELETE, RANGE = 1, 2, 3
"""Values of the column `kind`."""
FIXED_COLUMNS = 4
"""The columns before the values: `kg`, `key`, `kind`, `end`."""


def batch_of(groups: NDArray[np.uint16], keys: pa.Array, puts: NDArray[np.bool_], columns: Columns) -> pa.RecordBatch:
    """Return rows as segments hold them.

    Args:
        groups: The key group of each row, shape (n,).
        keys: The key of each row: int64 if its type is injective, else canonical bytes (large_binary).
        puts: False: the key was deleted.
        columns: The values by field id, shape (n,) each.
    """
    kinds = np.uint8(DELETE) - puts.view(np.uint8) * np.uint8(DELETE - PUT)
    fixed = {"kg": pa.array(groups), "key": keys, "kind": pa.array(kinds), "end": pa.nulls(len(keys), keys.type)}
    return pa.record_batch(fixed | {name: arrow(values) for name, values in columns.items()})


def with_ranges(batches: Iterable[pa.RecordBatch], through: Through, empty: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows, and one row per range before the rows of its key group.

    Args:
        batches: In order.
        through: The ranges. Those of a key group may be added until its first row is yielded.
        empty: A batch without rows.
    """
    next_group = 0
    for batch in batches:
        end = int(batch.column("kg")[-1].as_py()) + 1
        yield _with_ranges(batch, through, next_group, end)
        next_group = max(next_group, end)
    if (through[next_group:] != NOTHING).any():
        yield _with_ranges(empty, through, next_group, through.size)


def _with_ranges(batch: pa.RecordBatch, through: Through, first: int, end: int) -> pa.RecordBatch:
    """Insert the ranges of the key groups [first, end) before the rows of their key group."""
    groups = first + np.flatnonzero(through[first:end] != NOTHING)
    if not groups.size:
        return batch
    count, binary = groups.size, pa.large_binary()
    ranges: dict[str, Any] = {
        "kg": pa.array(groups.astype(np.uint16)),
        "key": pa.array([RANGE_FIRST] * count, binary),
        "kind": pa.array(np.full(count, RANGE, np.uint8)),
        "end": pa.array([range_end(last) for last in through[groups].tolist()], binary),
    }
    ranges |= {name: void_of(batch.column(name), count) for name in batch.schema.names[FIXED_COLUMNS:]}
    rows = pa.concat_batches([pa.record_batch(ranges), batch])
    return rows.take(pa.array(np.argsort(rows.column("kg").to_numpy(), kind="stable")))


def ranges_in(batch: pa.RecordBatch, key_group_count: int) -> Through:
    """Return the ranges in rows that have nothing else."""
    through = np.full(key_group_count, NOTHING)
    ends = [last_of(end) for end in batch.column("end").to_pylist()]
    through[batch.column("kg").to_numpy()] = ends
    return through
