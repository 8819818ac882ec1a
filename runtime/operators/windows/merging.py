"""Merges rows of state with aggregates by their keys: the slices of a window, sessions that became one.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.operators.aggregates.aggregate import Folding
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.records import TableRecords
from holdfast.state.tables.spec import Columns, TableSpec
from holdfast.state.tables.table import StateTable

KEPT_MIN = 1 << 14
"""So many keys without a row in a merge are kept for the next one; more if fewer than those with a row."""


def merged(folding: Folding, owners: Owners, rows: Slots) -> Iterator[tuple[list[pa.Array], list[pa.Array]]]:
    """Yield the key columns and the result columns, one row per user key, whatever times are in the keys of the rows.

    All keys come together, unless functions of the user are called: then as many as a turn should ask for.

    Raises:
        JobFailed: a merged sum does not fit, or a function of the user failed.
    """
    groups, keys = owners.of(rows)
    if len(keys) <= folding.at_once(merged=True):
        yield keys.type.decode(keys), folding.results_of(folding.combined(rows, groups, len(keys)))
        return
    order = np.argsort(groups, kind="stable")
    bounds, first = np.searchsorted(groups[order], np.arange(len(keys) + 1)), 0
    while first < len(keys):
        end = min(first + folding.at_once(merged=True), len(keys))
        members = order[bounds[first] : bounds[end]]
        states = folding.combined(rows[members], groups[members] - first, end - first)
        part = keys.take(np.arange(first, end))
        yield part.type.decode(part), folding.results_of(states)
        first = end


def merged_states(folding: Folding, keys: Keys, rows: Slots) -> tuple[Keys, Columns]:
    """Return rows merged by other keys, one for each row: the distinct keys, and the columns of their states.

    Raises:
        JobFailed: a merged sum does not fit.
    """
    groups, found = grouped(keys)
    return found, folding.stored(folding.combined(rows, groups, len(found)))


class Grouped(NamedTuple):
    """The distinct keys of a batch, and the number of every key among them."""

    numbers: Slots
    keys: Keys


class Owners:
    """Numbers the user keys of rows of a table, and looks up the key of each row once.

    Windows that follow each other have most rows in common. So the numbers of keys, and the number of each slot's key,
    are kept until slots of the table may get other keys. Nothing is kept while tables are larger than memory.

    Args:
        lasting: Whether numbers are kept. Otherwise they follow the order of the rows alone.
    """

    def __init__(self, table: StateTable, lasting: bool = True) -> None:
        self._table, self._drops, self._lasting = table, -1, lasting
        self._spec = TableSpec(0, "keys of rows", table.spec.key.routed, ())
        self._keys = TableRecords(self._spec)
        self._numbers = np.empty(0, np.int32)
        """By slot, the number of the row's key; -1 if it is unknown."""

    def of(self, rows: Slots) -> Grouped:
        """Number the distinct user keys of rows."""
        table = self._table
        if table.limited or not self._lasting:
            self._forget()
            return grouped(table.keys_at(rows).routed())
        if self._drops != table.drops:
            self._forget()
        more = int(rows.max(initial=-1)) + 1 - self._numbers.size
        if more > 0:
            unknown = np.full(max(more, self._numbers.size // 2), -1, np.int32)
            self._numbers = np.concatenate([self._numbers, unknown])
        numbers = self._numbers[rows].astype(np.int64)
        new = np.flatnonzero(numbers < 0)
        if new.size:
            numbers[new] = self._keys.add(table.keys_at(rows[new]).routed())
            self._numbers[rows[new]] = numbers[new]
        return self._dense(numbers)

    def _dense(self, numbers: Slots) -> Grouped:
        """Return the numbers among the keys that occur; forget all keys if too many do not."""
        key_count, key_numbers = len(self._keys), np.flatnonzero(np.bincount(numbers, minlength=len(self._keys)))
        keys = self._keys.keys_at(key_numbers)
        if key_numbers.size < key_count:
            place = np.empty(key_count, np.int64)
            place[key_numbers] = np.arange(key_numbers.size)
            numbers = place[numbers]
        if key_count - key_numbers.size > max(KEPT_MIN, key_numbers.size):
            self._forget()
        return Grouped(numbers, keys)

    def _forget(self) -> None:
        self._drops = self._table.drops
        if len(self._keys):
            self._keys, self._numbers = TableRecords(self._spec), np.empty(0, np.int32)


def grouped(keys: Keys) -> Grouped:
    """Number the distinct keys of a batch that is not empty."""
    numbers = TableRecords(TableSpec(0, "keys of a batch", keys.type, ())).add(keys)
    first = np.empty(int(numbers.max()) + 1, np.int64)
    first[numbers[::-1]] = np.arange(numbers.size)[::-1]  # of several, the last one assigned stays
    return Grouped(numbers, keys.take(first))
