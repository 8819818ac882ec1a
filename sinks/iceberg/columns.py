"""Types that a column of an Iceberg table can have, and the rows of a file that a merge replaces.

Pure: values in, values out. Source: the Iceberg specification, "Primitive Types".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.sinks.lakehouse.columns import TableFormat

ICEBERG = TableFormat(
    name="Iceberg",
    table="an Iceberg table",
    wider={
        **{kind: pa.int32() for kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())},
        pa.uint32(): pa.int64(),
    },
    times_of_day=True,
    empties_nulls=True,
)
_RANGED = (pa.types.is_integer, pa.types.is_string, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_decimal)
Range = tuple[str, object, object]
"""A column of the key, its least and its greatest value."""


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table in the types that a sink writes; others stay as they are."""
    return pa.schema([pa.field(each.name, ICEBERG.stored_type(each.type) or each.type) for each in schema])


def ranges(rows: pa.Table, key: Sequence[str]) -> list[Range]:
    """Return between which values the keys of these rows lie, for columns whose statistics files keep."""
    key_ranges = []
    for name in key:
        column = rows.column(name)
        if any(fits(column.type) for fits in _RANGED):
            ends = pc.min_max(column).as_py()
            key_ranges.append((name, ends["min"], ends["max"]))
    return key_ranges


def replaced(found: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.Array | None:
    """Return which rows of a file have the key of one of these rows; None: none of them."""
    names = list(key)
    wanted = _frame(rows.select(names))
    at = _frame(found.select(names)).with_row_index("_at").join(wanted, on=names, how="semi").get_column("_at")
    if not len(at):
        return None
    mask = np.zeros(found.num_rows, np.bool_)
    mask[at.to_numpy()] = True
    return pa.array(mask)


def _frame(rows: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame
