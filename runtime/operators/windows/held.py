"""The values of the slices that are closed, by user key, so that each row of state is read once and not per window.

Windows that follow each other share most slices. The user keys of rows are numbered, and the values of a slice are held
in one array per column of state, in the order of these numbers. A window is then merged from whole arrays. This is kept
in memory only, and other slices are read from the table again: after a restore, after a record has changed a slice, and
after keys that do not occur any longer were forgotten.

Only aggregates that are folded by compiled operations are held, and nothing while tables are larger than their memory.

Invariants
    - A held slice has the values of all its rows in the table; it has no values if the slice has no rows.

Pure.
Source: docs/decisions/0062-slices.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.functions.adding import INT64_MAX, largest
from holdfast.runtime.functions.contract import Slots, State
from holdfast.runtime.operators.aggregates.aggregate import Folding
from holdfast.runtime.operators.windows.merging import KEPT_MIN
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.records import TableRecords
from holdfast.state.tables.spec import Columns, TableSpec
from holdfast.state.tables.table import StateTable

BYTES_MAX = 256 << 20
"""Slices that would take more are not held."""
_MERGES: Mapping[Do, np.ufunc] = {
    Do.ADD_INT: np.add,
    Do.ADD_FLOAT: np.add,
    Do.MIN_INT: np.minimum,
    Do.MIN_UINT: np.minimum,
    Do.MAX_INT: np.maximum,
    Do.MAX_UINT: np.maximum,
    Do.MIN_FLOAT: np.fmin,
    Do.MIN_FLOAT32: np.fmin,
    Do.MAX_FLOAT: np.fmax,
    Do.MAX_FLOAT32: np.fmax,
}
"""Functions that merge two columns; a float without any value is NaN, which loses."""


class HeldSlice(NamedTuple):
    """One slice; arrays by the number of the key."""

    present: NDArray[np.bool_]
    columns: Columns
    largest: Mapping[str, int]
    """The largest absolute value of every sum of integers."""


class HeldSlices:
    """The closed slices of one operator's table.

    Args:
        folding: Folds the rows of the table.
    """

    def __init__(self, table: StateTable, folding: Folding) -> None:
        self._table, self._folding, self._loads = table, folding, table.loads
        self._merges: Mapping[str, Do] = folding.merges or {}
        self._spec = TableSpec(0, "keys of slices", table.spec.key.routed, ())
        self._able = folding.merges is not None
        self._defaults = {column.name: column.default for column in table.spec.columns}
        self._held: dict[int, HeldSlice] = {}
        self._keys = TableRecords(self._spec)

    @property
    def able(self) -> bool:
        """Return whether slices can be held now."""
        if self._table.limited or self._loads != self._table.loads:
            self._forget()
            self._loads = self._table.loads
        return self._able and not self._table.limited

    @property
    def ends(self) -> list[int]:
        """The ends of the slices that are held, in order."""
        return sorted(self._held)

    def take(self, end: int, slots: Slots) -> None:
        """Hold a slice, of which these are all rows."""
        numbers = self._keys.add(self._table.keys_at(slots).routed())
        present = np.zeros(len(self._keys), np.bool_)
        present[numbers] = True
        columns = self._folding.values_of(slots, numbers, present.size)
        sums = {name: largest(columns[name]) for name, do in self._merges.items() if do == Do.ADD_INT}
        self._held[end] = HeldSlice(present, columns, sums)

    def changed(self, ends: NDArray[np.int64]) -> None:
        """Note that records came for the slices with these ends; there is at least one."""
        if self._held and int(ends.min()) <= max(self._held):
            for end in np.unique(ends).tolist():
                self._held.pop(end, None)

    def merged(self, ends: Sequence[int]) -> tuple[Keys, list[State]] | None:
        """Return the window of slices that are held: its keys, and the states of every aggregate.

        Returns:
            None if a sum may not fit 64 bits.
        """
        slices = [self._held[end] for end in ends]
        for name in slices[0].largest:
            if sum(each.largest[name] for each in slices) > INT64_MAX:
                return None
        count = max(each.present.size for each in slices)
        present = np.zeros(count, np.bool_)
        for each in slices:
            present[: each.present.size] |= each.present
        key_numbers = np.flatnonzero(present)
        columns = {name: self._column(name, do, slices, count) for name, do in self._merges.items()}
        if key_numbers.size < count:
            columns = {name: column[key_numbers] for name, column in columns.items()}
        return self._keys.keys_at(key_numbers), self._folding.states_of(columns)

    def release(self, through: int) -> None:
        """Forget the slices that end at or before this time; forget all if they are large, or most keys were deleted.

        The next window then reads its slices again.
        """
        self._held = {end: held for end, held in self._held.items() if end > through}
        key_count = len(self._keys)
        if not self._held or key_count * len(self._held) * (1 + 8 * len(self._merges)) > BYTES_MAX:
            self._able = self._able and not self._held
            self._forget()
            return
        used = np.zeros(key_count, np.bool_)
        for each in self._held.values():
            used[: each.present.size] |= each.present
        left = int(np.count_nonzero(used))
        if key_count - left > max(KEPT_MIN, left):
            self._forget()

    def _column(self, name: str, do: Do, slices: Sequence[HeldSlice], count: int) -> NDArray[Any]:
        """Return one column of a window: its slices one after the other, as floats are also merged from the table."""
        first, *others = (np.asarray(each.columns[name]) for each in slices)
        result = np.full(count, self._defaults[name], first.dtype)
        result[: first.size] = first
        for values in others:
            part = result[: values.size]
            _MERGES[do](part, values, out=part)
        return result

    def _forget(self) -> None:
        self._held, self._keys = {}, TableRecords(self._spec)
