"""What a field of a dataclass holds: its values in Python, the column that they become, and which values fit.

| annotation | column | in a function |
|---|---|---|
| int, float, str, bool, bytes, datetime, date, time | int64, double, string, bool, binary, timestamp[us, UTC], date32, time64[us] | the same |
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

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
SHOWN_MAX = 12
"""Allowed values that a message names."""


class Unfit(Exception):
    """A value does not fit its field; the text says where in the value, and why."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why, self.path = why, path

    def of(self, column: str) -> str:
        """Return what is wrong with a value of a column."""
        return f"column {column!r}{f' at {self.path}' if self.path else ''} {self.why}"

    def within(self, step: str) -> Unfit:
        """Return the same about a value that holds this one."""
        return Unfit(self.why, step + self.path)


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
        if pa.types.is_timestamp(self.arrow) and self.arrow.tz is not None and value.utcoffset() is None:
            raise Unfit(f"is a datetime without a time zone: {value}")
        return value

    def normal(self, column: pa.Array) -> pa.Array:
        """Return a column that was read with one form for equal values, and with defaults for what is missing."""
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
        members: What functions see, by the value in Arrow.
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


@dataclasses.dataclass(frozen=True)
class Part:
    """What a list, a map or a field of a struct holds.

    Args:
        nullable: It may be null.
        name: In the data; only fields have one.
        attribute: In the dataclass.
        default: Returns the value of a field that is missing, as Arrow has it; None: it has no default.
    """

    type: FieldType
    nullable: bool
    name: str = ""
    attribute: str = ""
    default: Callable[[], Any] | None = None

    def python(self, value: Any) -> Any:
        """Return a value of Arrow, or null, as functions see it."""
        return None if value is None else self.type.python(value)

    def plain(self, value: Any, step: str) -> Any:
        """Return a value of a function as Arrow takes it. Raises Unfit."""
        if value is None:
            if not self.nullable:
                raise Unfit("is null", step)
            return None
        try:
            return self.type.plain(value)
        except Unfit as error:
            raise error.within(step) from None

    def normal(self, column: pa.Array) -> pa.Array:
        """See FieldType.normal."""
        if self.default is not None and not self.nullable and column.null_count:
            places = np.where(_mask(column.is_null()), len(column), np.arange(len(column)))
            column = pa.concat_arrays([column, pa.array([self.default()], column.type)]).take(pa.array(places))
        return self.type.normal(column)

    def wrong(self, column: pa.Array, there: Mask | None = None) -> Mask | None:
        """Return which values are wrong, also those that are null and may not be.

        Args:
            there: Which ones are in a value that is not null; None: all.
        """
        found = self.type.wrong(column)
        if not self.nullable and column.null_count:
            nulls = _mask(column.is_null())
            nulls = nulls if there is None else nulls & there
            found = nulls if found is None else found | nulls
        return found if found is not None and found.any() else None

    def reason(self, value: Any, step: str) -> Unfit | None:
        """See FieldType.reason."""
        if value is None:
            return None if self.nullable else Unfit("is null", step)
        why = self.type.reason(value)
        return None if why is None else why.within(step)


class ListOf(FieldType):
    """Lists of values of one type."""

    special = limited = True

    def __init__(self, item: Part) -> None:
        super().__init__(pa.list_(item.type.arrow), f"list[{_shown(item)}]")
        self._item = item

    def python(self, value: Any) -> Any:
        """See FieldType.python."""
        return [self._item.python(each) for each in value]

    def plain(self, value: Any) -> Any:
        """See FieldType.plain. Takes lists and tuples."""
        if not isinstance(value, list | tuple):
            raise Unfit(self._not(value))
        return [self._item.plain(each, f"[{place}]") for place, each in enumerate(value)]

    def normal(self, column: pa.Array) -> pa.Array:
        """See FieldType.normal."""
        inner = column.flatten()
        if (made := self._item.normal(inner)) is inner:
            return column
        return pa.ListArray.from_arrays(_offsets(pc.list_value_length(column)), made, mask=_nulls(column))

    def wrong(self, column: pa.Array) -> Mask | None:
        """See FieldType.wrong."""
        return _holders(len(column), pc.list_value_length(column), self._item.wrong(column.flatten()))

    def reason(self, value: Any) -> Unfit | None:
        """See FieldType.reason."""
        return _first(self._item.reason(each, f"[{place}]") for place, each in enumerate(value))


class MapOf(FieldType):
    """Dicts from text to values of one type."""

    special = limited = True

    def __init__(self, item: Part) -> None:
        super().__init__(pa.map_(pa.string(), item.type.arrow), f"dict[str, {_shown(item)}]")
        self._item = item

    def python(self, value: Any) -> Any:
        """See FieldType.python."""
        return {key: self._item.python(each) for key, each in _pairs(value)}

    def plain(self, value: Any) -> Any:
        """See FieldType.plain."""
        if not isinstance(value, Mapping):
            raise Unfit(self._not(value))
        if (key := next((each for each in value if not isinstance(each, str)), None)) is not None:
            raise Unfit(f"takes text as keys, not {type(key).__name__} {key!r:.80}")
        return [(key, self._item.plain(each, f"[{key!r:.40}]")) for key, each in value.items()]

    def normal(self, column: pa.Array) -> pa.Array:
        """See FieldType.normal."""
        sizes, keys, items = self._taken(column)
        if (made := self._item.normal(items)) is items:
            return column
        return pa.MapArray.from_arrays(_offsets(sizes), keys, made, mask=_nulls(column))

    def wrong(self, column: pa.Array) -> Mask | None:
        """See FieldType.wrong."""
        sizes, _, items = self._taken(column)
        return _holders(len(column), sizes, self._item.wrong(items))

    def reason(self, value: Any) -> Unfit | None:
        """See FieldType.reason."""
        return _first(self._item.reason(each, f"[{key!r:.40}]") for key, each in _pairs(value))

    def _taken(self, column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return the sizes of the maps, and the keys and items of those that are not null."""
        entries = column.cast(pa.list_(pa.struct([("key", pa.string()), ("value", self._item.type.arrow)])))
        inner = entries.flatten()
        keys, items = inner.flatten()
        return pc.list_value_length(entries), keys, items


class Nested(FieldType):
    """Instances of a dataclass."""

    special = limited = True

    def __init__(self, kind: type, parts: Sequence[Part]) -> None:
        arrow = pa.struct([pa.field(part.name, part.type.arrow) for part in parts])
        super().__init__(arrow, kind.__qualname__)
        self._kind, self._parts = kind, tuple(parts)
        self._names = {name for part in parts for name in (part.name, part.attribute)}

    def python(self, value: Any) -> Any:
        """See FieldType.python."""
        return self._kind(**{part.attribute: part.python(value[part.name]) for part in self._parts})

    def plain(self, value: Any) -> Any:
        """See FieldType.plain. Takes an instance, or a mapping."""
        if isinstance(value, Mapping):
            return self._of_mapping(value)
        if not isinstance(value, self._kind):
            raise Unfit(self._not(value))
        return {part.name: part.plain(getattr(value, part.attribute), f".{part.attribute}") for part in self._parts}

    def _of_mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        if (unknown := next((name for name in value if name not in self._names), None)) is not None:
            raise Unfit(f"has the field {unknown!r}, which {self.shown} does not have")
        found = {}
        for part in self._parts:
            name = part.name if part.name in value else part.attribute
            if name in value:
                found[part.name] = part.plain(value[name], f".{part.attribute}")
            elif part.default is not None:
                found[part.name] = part.default()
            else:
                found[part.name] = part.plain(None, f".{part.attribute}")
        return found

    def normal(self, column: pa.Array) -> pa.Array:
        """See FieldType.normal."""
        inner = column.flatten()
        made = [part.normal(each) for part, each in zip(self._parts, inner, strict=True)]
        if all(one is other for one, other in zip(made, inner, strict=True)):
            return column
        return pa.StructArray.from_arrays(made, fields=list(self.arrow), mask=_nulls(column))

    def wrong(self, column: pa.Array) -> Mask | None:
        """See FieldType.wrong."""
        there = _mask(column.is_valid()) if column.null_count else None
        masks = [part.wrong(each, there) for part, each in zip(self._parts, column.flatten(), strict=True)]
        found = [mask for mask in masks if mask is not None]
        return np.logical_or.reduce(found) if found else None

    def reason(self, value: Any) -> Unfit | None:
        """See FieldType.reason."""
        return _first(part.reason(value[part.name], f".{part.attribute}") for part in self._parts)


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


def _shown(part: Part) -> str:
    return part.type.shown + (" | None" if part.nullable else "")


def _pairs(value: Any) -> Any:
    """Return the entries of a map as Arrow gives it."""
    return value.items() if isinstance(value, Mapping) else value


def _first(reasons: Any) -> Unfit | None:
    return next((why for why in reasons if why is not None), None)


def _mask(values: pa.Array) -> Mask:
    mask: Mask = values.to_numpy(zero_copy_only=False)
    return mask


def _true(values: pa.Array) -> Mask | None:
    """Return which values are true, as a mask; None if none is."""
    return _mask(pc.fill_null(values, False)) if pc.any(values).as_py() else None


def _nulls(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _offsets(sizes: pa.Array) -> pa.Array:
    """Return where lists of these sizes begin, one after the other."""
    counts = np.asarray(pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False), np.int64)
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _holders(count: int, sizes: pa.Array, found: Mask | None) -> Mask | None:
    """Return which lists of these sizes hold one of the values that were found."""
    if found is None:
        return None
    counts = np.asarray(pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False), np.int64)
    mask = np.zeros(count, bool)
    mask[np.repeat(np.arange(count), counts)[found]] = True
    return mask
