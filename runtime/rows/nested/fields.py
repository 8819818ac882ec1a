"""Types of the fields of a dataclass: their values in Python, the column that they become, and which values fit.

| annotation | column | in a function |
|---|---|---|
| int, float, str, bool, bytes | int64, double, string, bool, binary | the same |
| datetime, date, time | timestamp[us, UTC], date32, time64[us] | the same |
| Annotated[Decimal, pa.decimal128(p, s)] | decimal128(p, s) | Decimal |
| an Enum of texts or integers | string, int64: the value of the member | the member |
| UUID | string: 36 characters, lower case | UUID |
| Literal of texts, integers, booleans or bytes | that of its values | the value |
| list[T] | list<item: T> | list |
| dict[str, T] | map<string, T> | dict |
| a dataclass | struct, one field per field | an instance |

Columns inside lists, maps and structs may hold nulls for Arrow, since expressions and targets do not keep that they may
not. Which of them may be null is checked here, with the values.

Invariants
    - `wrong` finds exactly the values for which `reason` has a reason.
    - python(plain(value)) == value for every value that fits.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.runtime.wire.uuids import UUID

Mask = NDArray[np.bool_]
_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
SHOWN_MAX = 12
"""Allowed values that a message names."""


class Unfit(Exception):
    """A value does not fit its field; the text names the place in the value, and the reason."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why, self.path = why, path

    def of(self, column: str) -> str:
        """Return the fault of a value of a column."""
        return f"column {column!r}{f' at {self.path}' if self.path else ''} {self.why}"

    def within(self, step: str) -> Unfit:
        """Return the same about a value that holds this one."""
        return Unfit(self.why, step + self.path)


def refuse_zone(kind: pa.DataType, value: Any) -> None:
    """Refuse a time that has no time zone where its column has one, or one where it has none. Raises Unfit."""
    if isinstance(value, datetime) and pa.types.is_timestamp(kind) and kind.tz is not None:
        if value.utcoffset() is None:
            raise Unfit(f"is a datetime without a time zone: {value}")
    elif isinstance(value, time) and value.tzinfo is not None:
        raise Unfit(f"is a time of day with a time zone, which no column holds: {value}")


class FieldType:
    """Values that are the same in Python and in Arrow.

    Args:
        arrow: The type of the column.
        shown: How messages name the annotation.
    """

    special = False
    """Whether functions see other objects than Arrow gives."""
    limited = False
    """Whether the column can hold values that the field may not have."""

    def __init__(self, arrow: pa.DataType, shown: str) -> None:
        self.arrow, self.shown = arrow, shown

    def python(self, value: Any) -> Any:
        """Return a value of Arrow, which is not null, as functions see it."""
        return value

    def plain(self, value: Any) -> Any:
        """Return a value of a function as Arrow takes it. Raises Unfit."""
        if not takes(self.arrow, type(value)):
            raise Unfit(self._not(value))
        refuse_zone(self.arrow, value)
        return value

    def normal(self, column: pa.Array) -> pa.Array:
        """Return a column that was read with one form for equal values, and with defaults for missing values."""
        return column

    def wrong(self, column: pa.Array) -> Mask | None:
        """Return which values of a normal column the field may not have; None if it may have all."""
        return None

    def reason(self, value: Any) -> Unfit | None:
        """Return why one value of Arrow, which is not null, is wrong; None if it is not."""
        return None

    def _not(self, value: Any) -> str:
        return f"takes {self.shown}, not {type(value).__name__} {value!r:.80}"


class Chosen(FieldType):
    """Values out of a set: an Enum, whose members functions see, or a Literal.

    Args:
        members: The values that functions see, by the value in Arrow.
        kind: The Enum; None for a Literal.
    """

    limited = True

    def __init__(self, arrow: pa.DataType, shown: str, members: Mapping[Any, Any], kind: type[Enum] | None) -> None:
        super().__init__(arrow, shown)
        self._members, self._kind = dict(members), kind
        self.special = kind is not None
        self._plain = type(next(iter(self._members)))
        self._values = pa.array(list(self._members), arrow)

    def python(self, value: Any) -> Any:
        """See FieldType.python."""
        return self._members[value]

    def plain(self, value: Any) -> Any:
        """See FieldType.plain. Takes the member of an Enum, or its value."""
        if self._kind is not None and isinstance(value, self._kind):
            return value.value
        if type(value) is not self._plain:
            raise Unfit(self._not(value))
        if value not in self._members:
            raise self._outside(value)
        return value

    def wrong(self, column: pa.Array) -> Mask | None:
        """See FieldType.wrong."""
        known = pc.is_in(column, self._values, skip_nulls=True)
        return _true(pc.and_(pc.invert(known), column.is_valid()))

    def reason(self, value: Any) -> Unfit | None:
        """See FieldType.reason."""
        return None if value in self._members else self._outside(value)

    def _outside(self, value: Any) -> Unfit:
        names = [repr(each) for each in self._members]
        more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
        of = "" if self._kind is None else f" of {self.shown}"
        return Unfit(f"is {value!r:.80}, which is none of the values{of}: {', '.join(names[:SHOWN_MAX])}{more}")


class Uuid(FieldType):
    """UUIDs, whose text is kept in lower case: both cases mean the same one."""

    special = limited = True

    def __init__(self) -> None:
        super().__init__(pa.string(), "UUID")

    def python(self, value: Any) -> Any:
        """See FieldType.python."""
        return UUID(value)

    def plain(self, value: Any) -> Any:
        """See FieldType.plain. Takes a UUID, or its text."""
        if isinstance(value, UUID):
            return str(value)
        if not isinstance(value, str):
            raise Unfit(self._not(value))
        if (why := self.reason(value)) is not None:
            raise why
        return value.lower()

    def normal(self, column: pa.Array) -> pa.Array:
        """See FieldType.normal."""
        return pc.utf8_lower(column) if pc.any(pc.match_substring_regex(column, "[A-F]")).as_py() else column

    def wrong(self, column: pa.Array) -> Mask | None:
        """See FieldType.wrong."""
        return _true(pc.invert(pc.match_substring_regex(column, _UUID)))

    def reason(self, value: Any) -> Unfit | None:
        """See FieldType.reason."""
        fits = pc.match_substring_regex(pa.scalar(value, pa.string()), _UUID).as_py()
        return None if fits else Unfit(f"is {value!r:.80}, which is no UUID of the form 8-4-4-4-12")


def takes(wanted: pa.DataType, kind: type) -> bool:
    """Return whether a column takes values of a Python type; pyarrow checks column types not listed here."""
    if pa.types.is_integer(wanted):
        return issubclass(kind, Integral) and not issubclass(kind, bool)
    if pa.types.is_floating(wanted):
        return issubclass(kind, Real) and not issubclass(kind, bool)
    if pa.types.is_boolean(wanted):
        return issubclass(kind, bool | np.bool_)
    if pa.types.is_string(wanted) or pa.types.is_large_string(wanted):
        return issubclass(kind, str)
    if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted):
        return issubclass(kind, bytes | bytearray | memoryview)
    if pa.types.is_timestamp(wanted):
        return issubclass(kind, datetime)
    if pa.types.is_date(wanted):
        return issubclass(kind, date) and not issubclass(kind, datetime)
    if pa.types.is_time(wanted):
        return issubclass(kind, time)
    if pa.types.is_decimal(wanted):
        return issubclass(kind, Decimal | int) and not issubclass(kind, bool)
    return True


def mask_of(values: pa.Array) -> Mask:
    """Return booleans without nulls as a mask."""
    mask: Mask = values.to_numpy(zero_copy_only=False)
    return mask


def _true(values: pa.Array) -> Mask | None:
    """Return which values are true, as a mask; None if none is."""
    return mask_of(pc.fill_null(values, False)) if pc.any(values).as_py() else None
