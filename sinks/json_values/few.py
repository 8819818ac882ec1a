"""Few rows as JSON objects, without a query engine, whose start costs as much as some hundred rows.

The texts are those that the query of `rows` gives, byte for byte. Columns and values whose text may differ are left to
it: `objects_of_few` then returns None.

Pure.
Source: docs/decisions/0134-small-batches-without-a-query.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

ROWS_MAX = 128
"""Rows up to which this is faster."""
_FLOATS = (1e-4, 1e15)
"""Between these, all writers of JSON agree on the text of a float: digits without an exponent."""
_TIMES_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Years 1 to 9999: four digits."""
_ENCODER = msgspec.json.Encoder()


def objects_of_few(columns: Mapping[str, pa.Array], per_us: int | None) -> list[bytes] | None:
    """Return a JSON object per row; None if a query has to make them.

    Args:
        per_us: Microseconds in a unit of time; None: times are text.
    """
    values = []
    for column in columns.values():
        if (of_column := _values(column, per_us)) is None:
            return None
        values.append(of_column)
    names = tuple(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return _ENCODER.encode_lines(rows).split(b"\n")[:-1]  # a line break in a text is escaped


def _values(column: pa.Array, per_us: int | None) -> list[Any] | None:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if column.null_count or not len(column):
        return None
    if kind in (pa.int64(), pa.float64()) or (pa.types.is_timestamp(kind) and (kind.unit, kind.tz) == ("us", "UTC")):
        first, data = column.offset, column.buffers()[1]
        numbers = np.frombuffer(data, np.float64 if kind == pa.float64() else np.int64, first + len(column))[first:]
        if kind == pa.int64():
            return [*numbers.tolist()]
        return _floats(numbers) if kind == pa.float64() else _times(numbers, per_us)
    return None


def _floats(numbers: Any) -> list[float] | None:
    sizes = np.abs(numbers[numbers != 0])
    return numbers.tolist() if not len(sizes) or (sizes.min() >= _FLOATS[0] and sizes.max() < _FLOATS[1]) else None


def _times(times_us: Any, per_us: int | None) -> list[Any] | None:
    if per_us is not None:
        return (times_us // per_us).tolist()  # type: ignore[no-any-return]
    if times_us.min() < _TIMES_US[0] or times_us.max() > _TIMES_US[1]:
        return None
    return [f"{text}Z" for text in np.datetime_as_string(times_us.view("datetime64[us]"), unit="us").tolist()]
