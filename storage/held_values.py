"""The values that a column of each type may hold, in Python functions, in windows and in every target.

| type | values |
|---|---|
| timestamp, of any unit, with a zone or without | the years 1 to 9999, in UTC |
| date | the years 1 to 9999 |
| time of day | from midnight to below 24 hours |
| duration | what `datetime.timedelta` holds: below 1,000,000,000 days in either direction |
| list, struct, map, dictionary | what their parts may hold |
| all others | all that Arrow has |

Arrow's own range is wider: a date has 32 bits of days. Python's `datetime`, and so most libraries of targets, end at
these years. A value outside is refused where it enters a job: by a source, an expression, or a function's result.

Pure.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError

Mask = NDArray[np.bool_]
_SECONDS = (-62_135_596_800, 253_402_300_799)
"""The first and the last second of the years 1 to 9999."""
_DAYS = (-719_162, 2_932_896)
_DAY_S = 86_400
_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TIMEDELTA_S = timedelta.max.days * _DAY_S
_INT64 = np.iinfo(np.int64)
SHOWN_MAX = 300
YEARS = "lies outside the years 1 to 9999"


def unheld(column: pa.Array) -> Mask | None:
    """Return which values the column may not hold; None if it may hold all, which is cheap to check."""
    kind = column.type
    if (bounds := bounds_of(kind)) is not None:
        return _outside(column, bounds)
    if pa.types.is_dictionary(kind):
        return unheld(column.dictionary_decode()) if may_be_unheld(kind.value_type) else None
    if not may_be_unheld(kind):
        return None
    if pa.types.is_struct(kind):
        return _any(unheld(part) for part in column.flatten())
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        column = pa.ListArray.from_arrays(column.offsets, entries)
    if (found := unheld(column.flatten())) is None:
        return None
    mask = np.zeros(len(column), bool)
    mask[column.value_parent_indices().to_numpy()[found]] = True
    return mask


def first_unheld(batch: pa.RecordBatch) -> tuple[int, str] | None:
    """Return a row and a column of a value that may not be held; None if there is none."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if (found := unheld(column)) is not None:
            return int(found.argmax()), name
    return None


def check_held(where: str, batch: pa.RecordBatch) -> None:
    """Refuse rows for a target with a value that their column may not hold. Raises ConfigError."""
    if (found := first_unheld(batch)) is None:
        return
    row, name = found
    raise ConfigError(
        f"{where}: {why(name, batch.column(name)[row])}; the row is {row_shown(batch, row)}",
        not_done="the rows were not written",
        next_step="check how the value is computed (seconds taken for microseconds?), or drop such rows with "
        ".filter(...) before the sink",
    )


def why(name: str, value: pa.Scalar) -> str:
    """Return why a value is refused."""
    range_ = "is out of the range of its type" if _has_no_years(value.type) else YEARS
    return f"column {name!r} has the value {shown(value)}, which {range_}"


def shown(value: pa.Scalar) -> str:
    """Return any value as text, also one that Python has no object for."""
    try:
        plain = value.as_py()
        return (str(plain) if isinstance(plain, date | time | timedelta | Decimal) else repr(plain))[:SHOWN_MAX]
    except (OverflowError, ValueError, TypeError):
        pass
    unit = {"s": "s", "ms": "ms", "us": "us", "ns": "ns"}.get(getattr(value.type, "unit", ""), "days")
    number = getattr(value, "value", None)
    since = "" if pa.types.is_time(value.type) or pa.types.is_duration(value.type) else " since 1970"
    return f"{number:,} {unit}{since}" if isinstance(number, int) else f"of type {value.type}"


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as values of Python; a value that Python has no object for, as text."""
    columns = [_plain(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist(maps_as_pydicts="lossy"))
    except (OverflowError, ValueError):
        return [_plain_value(value) for value in column]


def _plain_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        return shown(value)


def row_shown(batch: pa.RecordBatch, row: int) -> str:
    """Return a row as text of bounded length."""
    cells = [f"{name}={shown(column[row])}" for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return ", ".join(cells)[:SHOWN_MAX]


def bounds_of(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the least and the greatest value of a type of time, as the number that Arrow stores; None for others."""
    if pa.types.is_timestamp(kind):
        per = _PER_S[kind.unit]
        return max(_SECONDS[0] * per, int(_INT64.min)), min(_SECONDS[1] * per + per - 1, int(_INT64.max))
    if pa.types.is_date32(kind):
        return _DAYS
    if pa.types.is_date64(kind):
        return _DAYS[0] * _DAY_S * 1_000, (_DAYS[1] + 1) * _DAY_S * 1_000 - 1
    if pa.types.is_time(kind):
        return 0, _DAY_S * _PER_S[kind.unit] - 1
    if pa.types.is_duration(kind):
        most = _TIMEDELTA_S * _PER_S[kind.unit]
        return max(-most, int(_INT64.min)), min(most, int(_INT64.max))
    return None


def _outside(column: pa.Array, bounds: tuple[int, int]) -> Mask | None:
    width = np.int32 if column.type.bit_width == 32 else np.int64
    buffer = column.buffers()[1]
    if not len(column) or buffer is None:
        return None
    numbers: NDArray[np.int64] = np.frombuffer(buffer, width, len(column), column.offset * np.dtype(width).itemsize)
    if bounds[0] <= numbers.min() and numbers.max() <= bounds[1]:
        return None
    found: Mask = (numbers < bounds[0]) | (numbers > bounds[1])
    if column.null_count:  # the numbers of nulls are arbitrary
        found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found if found.any() else None


def may_be_unheld(kind: pa.DataType) -> bool:
    """Return whether Arrow has values of a type that a column may not hold."""
    if pa.types.is_dictionary(kind):
        return may_be_unheld(kind.value_type)
    if pa.types.is_struct(kind):
        return any(may_be_unheld(field.type) for field in kind)
    if pa.types.is_map(kind):
        return may_be_unheld(kind.key_type) or may_be_unheld(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return may_be_unheld(kind.value_type)
    return bounds_of(kind) is not None


def _any(masks: Any) -> Mask | None:
    found = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(found) if found else None


def _has_no_years(kind: pa.DataType) -> bool:
    return not (pa.types.is_timestamp(kind) or pa.types.is_date(kind))
