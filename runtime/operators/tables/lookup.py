"""Common parts of both kinds of look-ups: their plan, keys and rows of results.

Pure.
Source: docs/decisions/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.operators.contract import MAIN, OP_FIELD, Description, KeyedStep, Needed
from holdfast.runtime.operators.differences import READ_UNCHANGED, Found, compare_kept, compare_keys
from holdfast.runtime.operators.joins.rows import KEPT, Slots
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.rows.kept_columns import from_state, kept_column, to_state
from holdfast.runtime.time.windows import TIME
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import Columns, ColumnSpec
from holdfast.state.tables.table import StateTable

ROWS, TABLE = 0, 1
"""The inputs of a look-up, by port: the rows that ask, and the table."""


@dataclass(frozen=True)
class Lookup(KeyedStep):
    """Add to each row of a stream the columns of the table's row with its key."""

    operator: str
    keys: tuple[str, ...]
    """Columns of the stream."""
    table_keys: tuple[str, ...]
    """Columns of the table, in the same order; they are its key."""
    how: str
    names: tuple[tuple[str, str], ...]
    """The columns of the table besides its key, and their names in the result."""

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys if port == ROWS else self.table_keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        main, late = needed.get(MAIN, frozenset()), needed.get(LATE, frozenset())
        if port == TABLE:
            read_columns = frozenset(column for column, shown in self.names if shown in main)
        else:
            read_columns = (main - {shown for _, shown in self.names}) | late
        more = self.also_reads(port)
        return tuple(
            dict.fromkeys((*self.keyed_by(port), *more, *(name for name in given.names if name in read_columns)))
        )

    def depends_on_order(self) -> tuple[str, ...]:
        return ("what the table holds when a record arrives",)

    def also_reads(self, port: int) -> tuple[str, ...]:
        """Return columns that it reads whatever is needed after it."""
        return ()

    def made_from(self, name: str) -> str | None:
        return None if name in {shown for _, shown in self.names} else name

    def identity(self, column: Description) -> dict[str, Any]:
        asked_by, key = ([column(name, port) for name in self.keyed_by(port)] for port in (ROWS, TABLE))
        kept = [column(name, TABLE) for name in column.names(TABLE) if name not in {*self.table_keys, OP_FIELD.name}]
        times = [KEPT + each["column"] for each in kept if each["type"] == str(TIME)]
        return {"keeps": self.keeps, "key": key, "asked_by": asked_by, "how": self.how, "rows": kept, "times": times}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        compare_keys(found, before["asked_by"], now["asked_by"])
        compare_kept(found, "column of the table", before["rows"], now["rows"])
        if before["how"] != now["how"]:
            found.allow(f"was how={before['how']!r} and now is how={now['how']!r}", READ_UNCHANGED)


def kept_fields(given: pa.Schema, keys: Sequence[str]) -> list[ColumnSpec]:
    """Return the state columns that keep a table's row, without its key and the mark of deletes."""
    kept = [kept_column(f, KEPT + f.name) for f in given if f.name not in keys and f.name != OP_FIELD.name]
    columns = [column for column in kept if column is not None]
    assert len(columns) == len(kept), "the look-up was not checked"
    return columns


def key_columns(batch: pa.RecordBatch, names: Sequence[str], kind: KeyType) -> list[pa.Array]:
    """Return the key columns of a batch in the types that the state has."""
    arrays = [batch.column(name) for name in names]
    return [a if a.type == t else a.cast(t) for a, t in zip(arrays, kind.types[: len(arrays)], strict=True)]


def null_keys(batch: pa.RecordBatch, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have a null in a key column; they match nothing."""
    nulls = np.zeros(batch.num_rows, bool)
    for name in names:
        if (column := batch.column(name)).null_count:
            nulls |= column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def last_of(slots: Slots) -> NDArray[np.intp]:
    """Return the number of the last row of each slot, in the order of the rows."""
    _, back = np.unique(slots[::-1], return_index=True)
    return np.sort(slots.size - 1 - back)


def state_of(batch: pa.RecordBatch, columns: Sequence[ColumnSpec]) -> Columns:
    """Return the rows of a batch as the state keeps them."""
    return {c.name: to_state(batch.column(c.name.removeprefix(KEPT)), c) for c in columns}


class Results:
    """Makes rows of the result, with the columns that are needed."""

    def __init__(self, step: Lookup, schema: pa.Schema, needed: frozenset[str]) -> None:
        self._schema = pa.schema([field for field in schema if field.name in needed])
        self._found = {shown: KEPT + name for name, shown in step.names if shown in needed}

    def of(self, batch: pa.RecordBatch, table: StateTable, slots: Slots) -> pa.RecordBatch:
        """Return rows with the columns of the table's rows in these slots; nulls where the slot is -1."""
        matching_rows = np.flatnonzero(slots >= 0)
        table_columns = table.read_columns(list(self._found.values()), slots[matching_rows])
        places = None
        if matching_rows.size < slots.size:
            numbers = np.zeros(slots.size, np.int64)
            numbers[matching_rows] = np.arange(matching_rows.size)
            places = pa.array(numbers, mask=slots < 0)
        arrays = []
        for field in self._schema:
            name = self._found.get(field.name)
            array = batch.column(field.name) if name is None else from_state(table_columns[name], field.type)
            arrays.append(array if name is None or places is None else array.take(places))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
