"""The rows below user keys: the common part of lists and maps.

A row is a key of the table: the user key, and a suffix that orders the rows of a user key. Values are read and written
by slot through the table's columns, whatever these are; slots are valid until the table drops absent keys.

Invariants
    - Reading and deleting touch the rows of the named user keys only.
    - Nothing is kept here: after a rollback or a restore, the rows are those of the table.

Pure: no clock, thread or I/O.
Source: docs/decisions/0041-ordered-rows-and-timers.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.ordered import BY_KEY, RangeSlots
from holdfast.state.tables.records import TableRecords
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec
from holdfast.state.tables.table import StateTable

EXPIRES = "expires"
"""The column with the time in microseconds at which a row expires."""
NEVER = (1 << 63) - 1
"""The time of a row that does not expire."""
ABSENT_MIN = 1_024
"""So many deleted rows may stay in memory whatever the size of the table."""
EXPIRY_COLUMN = ColumnSpec(EXPIRES, np.dtype(np.int64), NEVER)


def spec_of(
    operator: int, name: str, users: KeyType, suffix: KeyType, columns: Sequence[ColumnSpec], expiring: bool
) -> TableSpec:
    """Return the table of rows below user keys; `expiring` rows have a time to live."""
    key = KeyType(
        users.names + suffix.names,
        users.types + suffix.types,
        users.nullable + suffix.nullable,
        suffix=len(suffix.types),
    )
    values = (*columns, EXPIRY_COLUMN) if expiring else tuple(columns)
    return TableSpec(operator, name, key, values, orders=(BY_KEY, EXPIRES) if expiring else (BY_KEY,))


class OrderedRows:
    """The rows of one table, by user key.

    Args:
        table: Its key has a suffix, and BY_KEY is one of its orders.
    """

    def __init__(self, table: StateTable) -> None:
        assert table.spec.key.suffix and BY_KEY in table.spec.orders
        self.table = table

    def keys(self, users: Keys, suffix: Sequence[pa.Array]) -> Keys:
        """Return the keys of rows, one per user key given."""
        return extended(self.table.spec.key, users, suffix)

    def find(
        self,
        users: Keys,
        first: Sequence[pa.Array] = (),
        end: Sequence[pa.Array] = (),
        *,
        skip: Rows | int = 0,
        limit: Rows | int | None = None,
        descending: bool = False,
    ) -> RangeSlots:
        """Return the rows of each user key with a suffix in [first, end), in order.

        Args:
            users: One may occur more than once.
            first, end: The first columns of the suffix, one value per user key; none: no such bound.
            skip, limit: How many rows of each user key to leave out first, and to return then at most.
            descending: From the last row of each user key to the first.
        """
        index = self.table.ordered()
        return index.below(users, first, end, skip=skip, limit=limit, descending=descending)

    def counts(self, users: Keys) -> Rows:
        """Return how many rows each user key has."""
        return self.table.ordered().counts(users)

    def values(self, slots: Rows) -> Columns:
        """Return copies of the values of rows, in every column of the table."""
        table, columns = self.table, self.table.spec.columns
        return {c.name: table.values(c.name, slots) if c.plain else table.read(c.name, slots) for c in columns}

    def delete(self, users: Keys, first: Sequence[pa.Array] = (), end: Sequence[pa.Array] = ()) -> int:
        """Delete the rows with a suffix in [first, end), all by default; return how many. Each user key once."""
        slots = self.find(users, first, end).slots
        self.table.delete(slots)
        return int(slots.size)


def extended(kind: KeyType, users: Keys, suffix: Sequence[pa.Array]) -> Keys:
    """Return the keys of a type that consist of user keys and suffixes."""
    assert users.type == kind.routed and not kind.unrouted
    if users.type.fixed:
        return kind.encode([*users.columns(), *suffix])
    return kind.from_canonical(codec.joined(users.canonical(), codec.encode(suffix)))


def existing(table: StateTable, keys: Keys) -> Rows:
    """Return the slot of every key, -1 for those that do not exist; adds no keys."""
    slots = table.find(keys)
    known = np.flatnonzero(slots >= 0)
    slots[known[~table.is_present(slots[known])]] = -1
    return slots


def drop_absent(table: StateTable, by: str = BY_KEY) -> None:
    """Drop the slots of deleted rows once they are most of the table; call it at a barrier. Present ones stay."""
    if len(table) > 2 * len(table.ordered(by)) + ABSENT_MIN:
        table.drop_vacant()


def ranks_of(users: Keys) -> NDArray[np.int64]:
    """Return how many earlier rows of the batch have the same user key, per row."""
    numbers = TableRecords(TableSpec(0, "user keys", users.type, ())).add(users)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if order.size else order
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size) - np.repeat(starts, np.diff(np.append(starts, order.size)))
    return ranks


def expire(table: StateTable, now_us: int, limit: int | None = None) -> int:
    """Delete the rows of a table with the order EXPIRES whose time has come; return how many.

    Call it before a batch is read, with the watermark or the processing time. Rows that are written later with a time
    that has passed are visible until the next call. The earliest rows go first if `limit` stops it.
    """
    slots = table.ordered(EXPIRES).through(now_us, limit)
    table.delete(slots)
    return int(slots.size)
