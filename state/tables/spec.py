"""Describes the state of one operator, its key and typed columns, and the port from which a table loads it.

Invariants
    - Operator 0xFFFF is never a table: its keys in the cold store are markers.
    - Columns have a fixed width, so a row is a fixed number of bytes on disk and on the wire.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.slab import Rows

OPERATORS_END = 0xFFFF
RESERVED_NAMES = frozenset({"kg", "key", "kind", "end"})

Columns = dict[str, NDArray[Any]]
"""Values by column name, equally long."""


@dataclass(frozen=True)
class ColumnSpec:
    """One value column. An absent key reads as `default`.

    Args:
        id: Its name in segments, which it keeps if it is renamed; default: its name. See state/evolution.py.
        late: It was added after the operator's first checkpoint, so older segments may lack it.
        counter: Name of the column that counts its values; a row with none has the default here. Empty: no such column.
    """

    name: str
    dtype: np.dtype[Any]
    default: int | float | bool = 0
    id: str = ""
    late: bool = False
    counter: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.name)
        # NumPy's own object for the type: with an equal one, np.add.at is 30 times slower.
        object.__setattr__(self, "dtype", np.dtype(np.dtype(self.dtype).type))
        if self.dtype.kind not in "biuf" or self.name in RESERVED_NAMES:
            raise ConfigError(
                f"state column {self.name!r} of type {self.dtype} cannot be stored",
                not_done="no state was opened",
                next_step=f"use a boolean, integer or float column with a name other than {sorted(RESERVED_NAMES)}",
            )


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
    """

    operator: int
    name: str
    key: KeyType
    columns: tuple[ColumnSpec, ...]
    past: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert 0 <= self.operator < OPERATORS_END
        assert len({column.name for column in self.columns}) == len(self.columns)
        ids = {*self.past, *(column.id for column in self.columns)}
        assert len(ids) == len(self.past) + len(self.columns), "an id of a column was reused"

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return sum(column.dtype.itemsize for column in self.columns)


class Loader(Protocol):
    """Reads the rows of one operator that are in the cold store (state/cold.py)."""

    @property
    def complete(self) -> bool:
        """Return whether every row of the cold store is already in the table."""

    def fetch(self, keys: Keys) -> tuple[Rows, Columns]:
        """Return which of these keys have a row, and the rows."""

    def scan_for(self, keys: Keys) -> list[tuple[Keys, Columns]]:
        """Return whole key groups, if that is cheaper than fetching these keys; they are complete then."""

    def scan_rest(self) -> list[tuple[Keys, Columns]]:
        """Return all key groups that are not complete yet; they are complete then."""
