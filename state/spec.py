"""What the state of one operator looks like: its key and its typed columns.

Invariants
    - Operator 0xFFFF is never a table: its keys in the cold store are markers.
    - Columns have a fixed width, so a row is a fixed number of bytes on disk and on the wire.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import ConfigError
from holdfast.state.keys import KeyType

OPERATORS_END = 0xFFFF
RESERVED_NAMES = frozenset({"kg", "key", "kind", "end"})


@dataclass(frozen=True)
class ColumnSpec:
    """One value column. An absent key reads as `default`."""

    name: str
    dtype: np.dtype[Any]
    default: int | float | bool = 0

    def __post_init__(self) -> None:
        # The very object that NumPy keeps for the type: with an equal one np.add.at is 30 times slower.
        object.__setattr__(self, "dtype", np.dtype(np.dtype(self.dtype).type))
        if self.dtype.kind not in "biuf" or self.name in RESERVED_NAMES:
            raise ConfigError(
                f"state column {self.name!r} of type {self.dtype} cannot be kept",
                not_done="no state was opened",
                next_step=f"use a boolean, integer or float column not named one of {sorted(RESERVED_NAMES)}",
            )


@dataclass(frozen=True)
class TableSpec:
    """The state of one operator.

    Args:
        operator: Number of the operator, 0 to OPERATORS_END - 1; part of every stored key.
        name: The operator's name, for messages.
        key: Its key type.
        columns: Its value columns; may be empty (a set of keys).
    """

    operator: int
    name: str
    key: KeyType
    columns: tuple[ColumnSpec, ...]

    def __post_init__(self) -> None:
        assert 0 <= self.operator < OPERATORS_END
        assert len({column.name for column in self.columns}) == len(self.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return sum(column.dtype.itemsize for column in self.columns)
