"""Rows below each group of a table: an aggregate needs them besides sums per group, so that values can be taken back.

A part of a group is a table whose key is that of the group and a suffix, with sums of integers: how often a value
occurs, or a digit of a number. Every value of a row becomes some entries; its weight adds them, or takes them back. A
row whose sums are all 0 leaves the state at the barrier.

Invariants
    - A row is in the state at a barrier if and only if one of its sums is not 0.
    - A change costs as much as the entries of its value, however many rows a group has.
    - No sum wraps.

Pure.
Source: docs/decisions/0096-values-below-groups.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.aggregation import BoundAggregation, bound
from holdfast.runtime.functions.contract import Kind
from holdfast.runtime.functions.named import sum as sum_of
from holdfast.runtime.operators.aggregates.aggregate import Folding, value_columns
from holdfast.runtime.operators.contract import TableDraft
from holdfast.runtime.operators.joins.rows import Slots
from holdfast.state.collections.rows import OrderedRows, drop_absent
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.ordered import BY_KEY
from holdfast.state.tables.table import StateTable

Counts = NDArray[np.int64]


class Entries(NamedTuple):
    """Amounts that values add to the rows below their groups."""

    values: Slots
    """Which value each entry belongs to."""
    suffix: Sequence[pa.Array]
    """The row of each entry."""
    sums: Sequence[Counts]
    """The amount that each entry adds, per column of the part."""


@dataclass(frozen=True)
class Part(ABC):
    """One table below the groups."""

    name: str
    """That of the first aggregate that needs it."""
    type: pa.DataType
    """That of the values."""

    columns: ClassVar[tuple[str, ...]]
    """The sums of a row."""

    @property
    @abstractmethod
    def suffix(self) -> tuple[pa.DataType, ...]:
        """The types of the columns that distinguish the rows of a group, and order them."""

    @abstractmethod
    def entries(self, values: pa.Array) -> Entries:
        """Return the entries that values add; none of the values is null."""

    @abstractmethod
    def results(self, kind: Kind, rows: OrderedRows, groups: Keys, seen: Counts) -> pa.Array:
        """Return the result of an aggregate per group, null for groups without a value.

        Args:
            seen: How many values each group has.
        """

    @cached_property
    def sums(self) -> tuple[BoundAggregation, ...]:
        """The sums of a row as aggregates."""
        schema = pa.schema([pa.field(column, pa.int64(), nullable=False) for column in self.columns])
        return tuple(bound(column, sum_of(column), schema, f"part {self.name!r}") for column in self.columns)

    def column(self, name: str) -> str:
        """Return the state column of a sum."""
        return f"{name}.sum"

    def draft(self, groups: Sequence[pa.Field]) -> TableDraft:
        """Return the table, below groups by these columns."""
        suffix = [pa.field(f"{self.name}.{i}", kind, nullable=False) for i, kind in enumerate(self.suffix)]
        key = KeyType.of([*groups, *suffix], suffix=len(suffix))
        return TableDraft(key, value_columns(self.sums), self.name, orders=(BY_KEY,))


class Below:
    """One part of the groups of one subtask."""

    def __init__(self, operator: str, part: Part, table: StateTable, job: str | None) -> None:
        self.part, self._table, self._rows = part, table, OrderedRows(table)
        self._folding = Folding(operator, part.sums, table, job)

    def fold(self, groups: Sequence[pa.Array], values: pa.Array, weights: Counts) -> None:
        """Add values to their groups, or take them back; a null counts nothing.

        Raises:
            JobFailed: a sum does not fit.
        """
        valid = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        if not valid.size:
            return
        entries = self.part.entries(values.take(pa.array(valid)))
        if not entries.values.size:
            return
        rows = valid[entries.values]
        taken, signs = pa.array(rows), weights[rows]
        keys = self._table.spec.key.encode([*(column.take(taken) for column in groups), *entries.suffix])
        sums = [pa.array(each * signs) for each in entries.sums]
        self._folding.fold(keys, pa.RecordBatch.from_arrays(sums, names=list(self.part.columns)))

    def settle(self) -> None:
        """Delete the rows of which nothing is left, before the barrier asks for results."""
        slots = self._table.changed()
        if slots.size:
            sums = [self._table.values(self.part.column(name), slots) for name in self.part.columns]
            self._table.delete(slots[~np.logical_or.reduce(sums)])
        drop_absent(self._table)

    def results(self, kind: Kind, groups: Keys, seen: Counts) -> pa.Array:
        """Return the result of an aggregate per group; call `settle` before."""
        return self.part.results(kind, self._rows, groups, seen)
