"""Merges the pieces of one subtask's state into its rows, in order, without holding them all.

Every input gives rows sorted by (key group, key). A key is decided once every input has passed it: the newest row of
the key wins, a range erases the rows of older pieces that it covers, and a tombstone leaves nothing. Two merges of
different epochs are compared in the same way.

Invariants
    - The rows are those that restoring the pieces in the same order gives.
    - At most ROWS_AT_ONCE rows of every input are held.

Pure. Source: docs/decisions/0037-state-inspection.md; PROTOCOL P8 (the newer value wins; a range erases what it
covers).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.state.blocks import StateRows, concatenated
from holdfast.state.keys import canonical as codec
from holdfast.state.tables.expiry import NOTHING, Through
from holdfast.state.tables.values import differ


class Sorted(Protocol):
    """Rows sorted by (key group, key), each key once."""

    def read(self) -> StateRows | None:
        """Return the next rows, at least one; None at the end."""


class Ranged(Sorted, Protocol):
    """Rows of a piece of state, and the ranges that it erases in older pieces."""

    @property
    def through(self) -> Through:
        """The bound of every key group; known for a key group once a row of it was returned."""


@dataclass(frozen=True)
class Changed:
    """A part of the difference between two states: the rows of one side, and of the other, that differ.

    Args:
        change: "added", "removed" or "changed".
        before: None if added.
        after: None if removed; else row i belongs to the key of row i in `before`.
    """

    change: str
    before: StateRows | None
    after: StateRows | None


def merged(pieces: Sequence[Ranged], *, tombstones: bool = False) -> Iterator[StateRows]:
    """Yield the rows of a state in order.

    Args:
        pieces: Oldest first.
        tombstones: Whether keys whose newest row is a tombstone are yielded, as such.
    """
    for parts in aligned(pieces):
        # Newest first: a stable sort then puts the winner before the rows that it replaces.
        ranked = [(rank, part) for rank, part in reversed(list(enumerate(parts))) if part is not None]
        rows = concatenated([part for _, part in ranked])
        ranks = np.repeat([rank for rank, _ in ranked], [len(part) for _, part in ranked])
        if len(ranked) > 1:
            order = _order(rows)
            rows, ranks = rows.take(order), ranks[order]
        stays = np.ones(len(rows), bool) if tombstones else rows.puts.copy()
        stays[1:] &= ~_repeated(rows)
        stays &= ~_erased(rows, ranks, pieces)
        if stays.all():
            yield rows
        elif stays.any():
            yield rows.take(np.flatnonzero(stays))


def compared(before: Sorted, after: Sorted) -> Iterator[Changed]:
    """Yield the differences between two states with the same columns, in order within every kind of change."""
    for old, new in aligned((before, after)):
        if old is None or new is None:
            assert old is not None or new is not None
            yield Changed("added" if old is None else "removed", old, new)
            continue
        rows, split = concatenated([old, new]), len(old)
        order = _order(rows)
        second = np.flatnonzero(_repeated(rows.take(order))) + 1
        both = np.zeros(len(rows), bool)
        both[order[second]] = both[order[second - 1]] = True
        if not both[:split].all():
            yield Changed("removed", old.take(np.flatnonzero(~both[:split])), None)
        if not both[split:].all():
            yield Changed("added", None, new.take(np.flatnonzero(~both[split:])))
        old, new = old.take(order[second - 1]), new.take(order[second] - split)
        unequal = np.flatnonzero(_differ(old, new))
        if unequal.size:
            yield Changed("changed", old.take(unequal), new.take(unequal))


def aligned(inputs: Iterable[Sorted]) -> Iterator[list[StateRows | None]]:
    """Yield the rows of all inputs up to a place that all of them have passed, again and again to the end.

    An input without rows up to that place has None; at least one has rows.
    """
    sources = list(inputs)
    heads = [source.read() for source in sources]
    while ends := [rows.place(len(rows) - 1) for rows in heads if rows is not None]:
        frontier = min(ends)
        parts: list[StateRows | None] = [None] * len(sources)
        for number, rows in enumerate(heads):
            if rows is None or not (count := rows.through(frontier)):
                continue
            parts[number] = rows.slice(0, count)
            heads[number] = rows.slice(count, len(rows)) if count < len(rows) else sources[number].read()
        yield parts


class Chained:
    """Rows that an iterator yields, as an input of a merge."""

    def __init__(self, rows: Iterator[StateRows]) -> None:
        self._rows = rows

    def read(self) -> StateRows | None:
        return next(self._rows, None)


def _order(rows: StateRows) -> NDArray[np.int64]:
    """Return the stable order by (key group, key)."""
    if isinstance(rows.keys, np.ndarray):
        return np.lexsort((rows.keys, rows.groups))
    table = pa.table({"group": rows.groups, "key": rows.keys, "place": np.arange(len(rows))})
    by = [("group", "ascending"), ("key", "ascending"), ("place", "ascending")]
    return np.asarray(pc.sort_indices(table, sort_keys=by).to_numpy(), np.int64)


def _repeated(rows: StateRows) -> NDArray[np.bool_]:
    """Return, for every row but the first, whether it has the key of the row before it."""
    same: Any = rows.groups[1:] == rows.groups[:-1]
    if isinstance(rows.keys, np.ndarray):
        return np.asarray(same & (rows.keys[1:] == rows.keys[:-1]))
    keys = pc.equal(rows.keys.slice(1), rows.keys.slice(0, max(len(rows) - 1, 0)))
    return np.asarray(same & keys.to_numpy(zero_copy_only=False))


def _erased(rows: StateRows, ranks: NDArray[np.int64], pieces: Sequence[Ranged]) -> NDArray[np.bool_]:
    """Return which rows a range of a newer piece covers."""
    first, end = int(rows.groups[0]), int(rows.groups[-1]) + 1
    bounds = np.stack([piece.through[first:end] for piece in pieces])
    if (bounds == NOTHING).all():
        return np.zeros(len(rows), bool)
    newer = np.full_like(bounds, NOTHING)
    newer[:-1] = np.maximum.accumulate(bounds[:0:-1])[::-1]
    bound = newer[ranks, rows.groups.astype(np.int64) - first]
    assert not isinstance(rows.keys, np.ndarray), "a range of keys that begin with no time"
    covered: NDArray[np.bool_] = (codec.leading_ints(rows.keys) <= bound) & (bound != NOTHING)
    return covered


def _differ(before: StateRows, after: StateRows) -> NDArray[np.bool_]:
    found = np.zeros(len(before), bool)
    for name, old in before.columns.items():
        found |= differ(old, after.columns[name])
    return found
