"""Fields that hold several values: lists, dicts and nested dataclasses. See fields.py.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.rows.nested.fields import FieldType, Mask, Unfit, mask_of


@dataclass(frozen=True)
class NestedPart:
    """The element of a list, a key or value of a map, or a field of a struct.

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
            places = np.where(mask_of(column.is_null()), len(column), np.arange(len(column)))
            column = pa.concat_arrays([column, pa.array([self.default()], column.type)]).take(pa.array(places))
        return self.type.normal(column)

    def wrong(self, column: pa.Array, there: Mask | None = None) -> Mask | None:
        """Return which values are wrong, also those that are null and may not be.

        Args:
            there: Which ones are in a value that is not null; None: all.
        """
        wrong_mask = self.type.wrong(column)
        if not self.nullable and column.null_count:
            nulls = mask_of(column.is_null())
            nulls = nulls if there is None else nulls & there
            wrong_mask = nulls if wrong_mask is None else wrong_mask | nulls
        return wrong_mask if wrong_mask is not None and wrong_mask.any() else None

    def reason(self, value: Any, step: str) -> Unfit | None:
        """See FieldType.reason."""
        if value is None:
            return None if self.nullable else Unfit("is null", step)
        why = self.type.reason(value)
        return None if why is None else why.within(step)


class ListOf(FieldType):
    """Lists of values of one type."""

    special = limited = True

    def __init__(self, item: NestedPart) -> None:
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

    def __init__(self, item: NestedPart) -> None:
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

    def __init__(self, kind: type, parts: Sequence[NestedPart]) -> None:
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
        fields = {}
        for part in self._parts:
            name = part.name if part.name in value else part.attribute
            if name in value:
                fields[part.name] = part.plain(value[name], f".{part.attribute}")
            elif part.default is not None:
                fields[part.name] = part.default()
            else:
                fields[part.name] = part.plain(None, f".{part.attribute}")
        return fields

    def normal(self, column: pa.Array) -> pa.Array:
        """See FieldType.normal."""
        inner = column.flatten()
        made = [part.normal(each) for part, each in zip(self._parts, inner, strict=True)]
        if all(one is other for one, other in zip(made, inner, strict=True)):
            return column
        return pa.StructArray.from_arrays(made, fields=list(self.arrow), mask=_nulls(column))

    def wrong(self, column: pa.Array) -> Mask | None:
        """See FieldType.wrong."""
        there = mask_of(column.is_valid()) if column.null_count else None
        masks = [part.wrong(each, there) for part, each in zip(self._parts, column.flatten(), strict=True)]
        found = [mask for mask in masks if mask is not None]
        return np.logical_or.reduce(found) if found else None

    def reason(self, value: Any) -> Unfit | None:
        """See FieldType.reason."""
        return _first(part.reason(value[part.name], f".{part.attribute}") for part in self._parts)


def _shown(part: NestedPart) -> str:
    return part.type.shown + (" | None" if part.nullable else "")


def _pairs(value: Any) -> Any:
    """Return the entries of a map as Arrow gives it."""
    return value.items() if isinstance(value, Mapping) else value


def _first(reasons: Any) -> Unfit | None:
    return next((why for why in reasons if why is not None), None)


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
