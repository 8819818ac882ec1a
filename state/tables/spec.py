"""Describes the state of one operator, its key and typed columns, and the port from which a table loads it.

A column is *plain* (a NumPy type, never null), nullable, or of variable width (text, bytes). Outside a table, the
values of a plain column are a NumPy array and those of any other an Arrow array.

Invariants
    - Operator 0xFFFF is never a table: earlier versions kept markers under it.
    - A table of plain columns has rows of a fixed number of bytes on disk and on the wire.

Pure: no clock, thread or I/O. Source: docs/decisions/0040-values-of-any-width.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.state.keys.batch import KeyType

OPERATORS_END = 0xFFFF
RESERVED_NAMES = frozenset({"kg", "key", "kind", "end"})
VALUE_BYTES_MAX = 64 << 20
"""Larger values and keys are refused."""

Values = Any
"""The values of one column: a NumPy array if the column is plain, else an Arrow array of ColumnSpec.arrow."""
Columns = dict[str, Values]
"""Values by column name, equally long."""
_VARYING = {
    pa.utf8(): pa.large_utf8(),
    pa.large_utf8(): pa.large_utf8(),
    pa.binary(): pa.large_binary(),
    pa.large_binary(): pa.large_binary(),
}
_NULLABLE = "?"


@dataclass(frozen=True)
class ColumnSpec:
    """One value column. An absent key reads as `default`; as null or as empty, if the column is not plain.

    Args:
        dtype: A NumPy type, or Arrow's utf8, large_utf8, binary, large_binary; the narrow ones become large ones.
        id: Its name in segments, which it keeps if it is renamed; default: its name. See state/evolution.py.
        late: It was added after the operator's first checkpoint, so older segments may lack it.
        counter: Name of the column that counts its values; a row with none has the default here. Empty: no such column.
        nullable: Its values may be null.
    """

    name: str
    dtype: np.dtype[Any] | pa.DataType
    default: int | float | bool | str | bytes | None = 0
    id: str = ""
    late: bool = False
    counter: str = ""
    nullable: bool = False

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.name)
        if isinstance(self.dtype, pa.DataType):
            object.__setattr__(self, "dtype", _VARYING.get(self.dtype, self.dtype))
            is_storable = self.dtype in _VARYING
        else:
            # NumPy's own object for the type: with an equal one, np.add.at is 30 times slower.
            object.__setattr__(self, "dtype", np.dtype(np.dtype(self.dtype).type))
            is_storable = self.dtype.kind in "biuf"
        if not is_storable or self.name in RESERVED_NAMES:
            raise ConfigError(
                f"state column {self.name!r} of type {self.dtype} cannot be stored",
                not_done="no state was opened",
                next_step="use a boolean, integer, float, text or binary column with a name other than "
                f"{sorted(RESERVED_NAMES)}",
            )
        if not self.plain:
            assert not self.counter and not self.default, "only plain columns have a counter and a default of their own"
            empty = "" if self.dtype == pa.large_utf8() else b""
            object.__setattr__(self, "default", None if self.nullable else empty)

    @property
    def varying(self) -> bool:
        """Return whether its values have a variable width."""
        return isinstance(self.dtype, pa.DataType)

    @property
    def plain(self) -> bool:
        """Return whether its values are a NumPy array: of fixed width and never null."""
        return not (self.nullable or self.varying)

    @property
    def arrow(self) -> pa.DataType:
        """Its type in Arrow arrays."""
        return self.dtype if self.varying else pa.from_numpy_dtype(self.dtype)

    @property
    def type_name(self) -> str:
        """Its type as manifests and declarations record it: int64, int64?, large_string, large_binary?."""
        name = str(self.dtype) if self.varying else np.dtype(self.dtype).name
        return f"{name}{_NULLABLE if self.nullable else ''}"


def column_of_type(name: str, type_name: str) -> ColumnSpec:
    """Return a column of a recorded type."""
    kind = type_name.removesuffix(_NULLABLE)
    varying = {str(large): large for large in _VARYING.values()}
    return ColumnSpec(name, varying[kind] if kind in varying else np.dtype(kind), nullable=kind != type_name)


@dataclass(frozen=True)
class TableSpec:
    """The state of one operator.

    Args:
        operator: Number of the operator, 0 to OPERATORS_END - 1; part of every stored key.
        name: The operator's name, for messages.
        key: Its key type.
        columns: Its value columns; may be empty (a set of keys).
        past: Ids of columns that were removed; their values in older segments are left out.
        orders: Ordered indexes to keep in memory: BY_KEY, or columns of times (state/tables/ordered.py).
        ranges: Rows that expire are erased by ranges; else each is deleted, as records of a topic need it.
    """

    operator: int
    name: str
    key: KeyType
    columns: tuple[ColumnSpec, ...]
    past: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    ranges: bool = True

    def __post_init__(self) -> None:
        assert 0 <= self.operator < OPERATORS_END
        assert len({column.name for column in self.columns}) == len(self.columns)
        ids = {*self.past, *(column.id for column in self.columns)}
        assert len(ids) == len(self.past) + len(self.columns), "an id of a column was reused"

    @cached_property
    def plain(self) -> bool:
        """Return whether every column is plain."""
        return all(column.plain for column in self.columns)

    def column(self, name: str) -> ColumnSpec:
        """Return the column of this name."""
        return next(column for column in self.columns if column.name == name)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row's values, without those of variable width."""
        return sum(8 if column.varying else np.dtype(column.dtype).itemsize for column in self.columns)
