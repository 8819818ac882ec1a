"""Rows as Python functions see them: instances of the stream's dataclass, or of `hf.Row` if it has none.

Columns become Python lists once per batch, and rows are made of these lists, without a lookup per row.

Invariants
    - Every call gets a new row: a function that changes its row affects no other function.
    - A datetime has the time zone `datetime.UTC`, regardless of the installed time zone libraries.

Pure.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Protocol

import pyarrow as pa

from holdfast.runtime.rows.nested.fields import FieldType
from holdfast.runtime.rows.schema import parts_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # Python's own has no default before 3.13

    T = TypeVar("T", default=Any)
    R = TypeVar("R", default=Any)

    class ArrowSchema(Protocol):
        """A pyarrow.Schema. PyArrow has no types, and Any in a union would hide the rows' type."""

        @property
        def names(self) -> list[str]:
            """The columns."""

else:
    from typing import TypeVar

    T, R = TypeVar("T"), TypeVar("R")
    ArrowSchema = pa.Schema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(tuple[Any, ...]):
    """An immutable row: `r.price` gives the column `price`. Equal to the tuple of its values.

    Column names never begin with an underscore, so the names here cannot hide a column.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def _asdict(self) -> dict[str, Any]:
        """Return the values by column name."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changed: Any) -> Row:
        """Return a row with some values changed."""
        if unknown := [name for name in changed if name not in self._fields]:
            raise AttributeError(f"the row has no column {unknown[0]!r}; it has {', '.join(self._fields)}")
        return type(self)(changed.get(name, value) for name, value in zip(self._fields, self, strict=True))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the row has no column {name!r}; it has {', '.join(self._fields)}")

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _row, (self._fields, tuple(self))


class RowsOf(Generic[T]):
    """Has rows that Python functions see as `T`; for type checkers."""

    __slots__ = ()


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these columns."""
    # Its getters are faster than properties. Keep the reference: the garbage collector clears an unreferenced class.
    getters = namedtuple("Getters", [f"c{at}" for at in range(len(names))])  # type: ignore[misc]
    columns = {name: vars(getters)[f"c{at}"] for at, name in enumerate(names)}
    return type("Row", (Row,), {"__slots__": (), "__module__": __name__, "_fields": names, **columns})


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_class(names)(values)


def misfit(row_type: type, names: Sequence[str]) -> str | None:
    """Return why the dataclass cannot be called with these columns; None if it can."""
    parameters = inspect.signature(row_type).parameters
    if left_out := [name for name in names if name not in parameters]:
        return f"{row_type.__qualname__} does not take {left_out[0]!r} when it is created"
    needed = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    if extra := [name for name in needed if name not in names]:
        return f"{row_type.__qualname__} cannot be created without {extra[0]!r}, which is not a column"
    return None


def unreadable(schema: pa.Schema) -> str | None:
    """Return which column has no exact Python value; None if all have one."""
    for field in schema:
        if (pa.types.is_timestamp(field.type) or pa.types.is_duration(field.type)) and field.type.unit == "ns":
            return f"column {field.name!r} is {field.type}, but Python's datetimes have no nanoseconds"
    return None


class RowMaker:
    """Makes rows from batches.

    Args:
        schema: The columns of every batch, in order.
        row_type: The dataclass of the stream; None gives `Row`.
    """

    def __init__(self, schema: pa.Schema, row_type: type | None) -> None:
        self._names = tuple(schema.names)
        self._make = _making(row_type, self._names)
        self._types = special_types(row_type)

    def rows(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Make the rows one by one; an error in a dataclass's own code is raised while iterating, at its row."""
        return self._make([self.values(name, batch.column(name)) for name in self._names])

    def values(self, name: str, column: pa.Array) -> list[Any]:
        """Return the values of one column as functions see them."""
        values = values_of(column)
        if (kind := self._types.get(name)) is None:
            return values
        return [None if value is None else kind.python(value) for value in values]


def _making(row_type: type | None, names: tuple[str, ...]) -> Callable[[list[list[Any]]], Iterator[Any]]:
    if row_type is None:
        kind = row_class(names)
        return lambda columns: map(kind, zip(*columns, strict=True))
    parameters = list(inspect.signature(row_type).parameters.values())[: len(names)]
    in_order = all(p.name == name and p.kind is p.POSITIONAL_OR_KEYWORD for p, name in zip(parameters, names))  # noqa: B905
    if in_order and len(parameters) == len(names):
        return lambda columns: map(row_type, *columns)

    def by_name(values: tuple[Any, ...]) -> Any:
        return row_type(**dict(zip(names, values, strict=True)))

    return lambda columns: map(by_name, zip(*columns, strict=True))


def special_types(row_type: type | None) -> dict[str, FieldType]:
    """Return the fields of a dataclass whose values in functions are not those of Arrow."""
    if row_type is None or not dataclasses.is_dataclass(row_type):
        return {}
    return {part.attribute: part.type for part in parts_of(row_type) if part.type.special}


def values_of(column: pa.Array) -> list[Any]:
    """Return the column as Python values; a map is a dict."""
    kind = column.type
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_float64(kind)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(kind) and kind.tz == "UTC" and kind.unit == "us":
        ticks = column.view(pa.int64())
        if column.null_count:
            return [None if at is None else _EPOCH + timedelta(microseconds=at) for at in ticks.to_pylist()]
        return [_EPOCH + timedelta(microseconds=at) for at in ticks.to_numpy().tolist()]
    if pa.types.is_nested(kind):
        return column.to_pylist(maps_as_pydicts="lossy")  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]
