"""How many rows and bytes the state of operators has, and where.

Rows are live rows: merged, without rows that newer pieces replaced. Bytes are those of the stored blocks, compressed,
and of whole objects: an object that two subtasks share after a rescale counts for both of them, but once in the sum.

Source: docs/decisions/0037-state-inspection.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.inspect.reading import StatePiece, SubtaskPieces

LARGEST_SHOWN = 5


@dataclass(frozen=True)
class Stock:
    """Stored pieces; `rows` includes those that newer pieces replace, and tombstones."""

    pieces: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class SubtaskSize:
    """The state of an operator on one subtask, which owns the key groups [first, end)."""

    subtask: int
    key_groups: tuple[int, int]
    rows: int
    base: Stock
    tail: Stock


@dataclass(frozen=True)
class OperatorSize:
    """The state of an operator."""

    name: str
    rows: int
    bytes: int
    subtasks: tuple[SubtaskSize, ...]
    largest: tuple[tuple[int, int], ...]
    """The key groups with most rows, and their rows."""


def size_of(name: str, parts: Iterable[SubtaskPieces], key_groups: int) -> OperatorSize:
    """Return the size of an operator's state; reads all its keys, but no values."""
    counts: NDArray[np.int64] = np.zeros(key_groups, np.int64)
    subtasks: list[SubtaskSize] = []
    blocks: dict[tuple[int, int], int] = {}
    for part in parts:
        before = int(counts.sum())
        for rows in part.rows(keys_only=True):
            counts += np.bincount(rows.groups, minlength=key_groups)
        blocks |= {(piece.data.address, piece.block.offset): piece.block.size for piece in part.pieces}
        base, tail = (_stock(each for each in part.pieces if each.is_base is is_base) for is_base in (True, False))
        rows_here = int(counts.sum()) - before
        subtasks.append(SubtaskSize(part.handle.subtask, part.handle.key_groups, rows_here, base, tail))
    order = np.argsort(-counts, kind="stable")[:LARGEST_SHOWN]
    largest = tuple((int(group), int(counts[group])) for group in order if counts[group])
    return OperatorSize(name, int(counts.sum()), sum(blocks.values()), tuple(subtasks), largest)


def _stock(pieces: Iterable[StatePiece]) -> Stock:
    listed = list(pieces)
    return Stock(len(listed), sum(each.block.rows for each in listed), sum(each.block.size for each in listed))
