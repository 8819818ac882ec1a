"""The keyed writes of one operator since the last epoch known to be committed: erased ranges and one row per key.

A barrier freezes a delta; sealed, it is the operator's part of the changelog segment. Values are
absolute, so writing a delta twice, or over a state that holds part of it, does no harm.

Invariants
    - Every key occurs once. A deleted key has default values.
    - The rows are newer than the ranges: a range erases rows from before the delta, never the delta's own rows.
    - Arrays are never modified; another thread may read them.

Pure: no clock, thread or I/O. Source: DESIGN section 5; PROTOCOL P8 (a range erases what it covers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.expiry import Through, can_expire, groups_in
from holdfast.state.tables.spec import Columns
from holdfast.state.tables.values import taken


class EpochChanges(Protocol):
    """One operator's writes in one epoch as sealing reads them: a delta, or records that a barrier froze."""

    @property
    def epoch(self) -> Epoch: ...
    @property
    def follows(self) -> Epoch: ...
    @property
    def operator(self) -> int: ...
    @property
    def key_group_count(self) -> int: ...
    @property
    def kind(self) -> KeyType: ...
    @property
    def through(self) -> Through | None: ...

    def __len__(self) -> int:
        """The number of rows in a segment: one per key and one per key group with a range."""

    def sorted_parts(self, rows_max: int) -> Iterator[tuple[NDArray[np.uint16], OperatorDelta]]:
        """Yield the rows in the order of (key group, canonical key), at most `rows_max` at a time, without the ranges.

        Returns:
            The key group of each row, and the rows with their columns under field ids.
        """

    def empty(self) -> OperatorDelta:
        """Return a delta without rows and ranges."""


@dataclass(frozen=True, eq=False)
class OperatorDelta:
    """One operator's writes in one epoch.

    Args:
        epoch: The epoch whose barrier froze it.
        follows: The completed epoch to which it applies.
        operator: Number of the operator.
        key_group_count: Key groups of the job.
        keys: One key per row.
        puts: bool, shape (n,): True = the key has these values, False = it was deleted.
        columns: The values by column name, shape (n,) each: NumPy arrays of plain columns, Arrow arrays of others.
        through: The ranges to erase before the rows are written (state/tables/expiry.py); None: none.
    """

    epoch: Epoch
    follows: Epoch
    operator: int
    key_group_count: int
    keys: Keys
    puts: NDArray[np.bool_]
    columns: Columns
    through: Through | None = None

    def __post_init__(self) -> None:
        assert self.follows < self.epoch
        if self.through is not None:
            assert can_expire(self.keys.type) and self.through.shape == (self.key_group_count,)
            self.through.setflags(write=False)
        for array in (self.puts, *self.columns.values()):
            assert len(array) == len(self.keys)
            if isinstance(array, np.ndarray):
                array.setflags(write=False)

    @property
    def kind(self) -> KeyType:
        """The type of the keys."""
        return self.keys.type

    def __len__(self) -> int:
        return len(self.keys) + groups_in(self.through).size

    def renamed(self, names: Mapping[str, str]) -> OperatorDelta:
        """Return the delta with other names of columns."""
        return replace(self, columns={names[name]: values for name, values in self.columns.items()})

    def sorted_parts(self, rows_max: int) -> Iterator[tuple[NDArray[np.uint16], OperatorDelta]]:
        """Yield key groups and rows in the order of a segment."""
        keys = self.keys
        for groups, rows in keys.order_in_parts(keys.key_groups(self.key_group_count), rows_max):
            yield groups, self.take(rows)

    def empty(self) -> OperatorDelta:
        """Return a delta without rows and ranges."""
        return self.take(np.empty(0, np.int64))

    def take(self, rows: NDArray[np.int64]) -> OperatorDelta:
        """Return the delta of these rows only, without the ranges."""
        columns = {name: taken(array, rows) for name, array in self.columns.items()}
        keys, puts = self.keys.take(rows), self.puts[rows]
        return OperatorDelta(self.epoch, self.follows, self.operator, self.key_group_count, keys, puts, columns)
