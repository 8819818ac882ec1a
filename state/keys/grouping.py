"""Groups the rows of a batch by the subtask that owns their key: two passes over the rows, however many subtasks.

A counting sort: count the rows of each subtask, then place each row after the earlier ones of its subtask. It is
stable, so the rows of one key keep their order.

Pure: no clock, thread or I/O.
Source: Knuth, The Art of Computer Programming, volume 3, 5.2 (distribution counting).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.state.compiled.jit import kernel


@kernel("none", "groups", "words", "words", "words")
def _place(
    groups: NDArray[np.uint16], owners: NDArray[np.int64], ends: NDArray[np.int64], order: NDArray[np.int64]
) -> None:
    """Fill `order` with the rows by owner, and `ends`, which holds zeros, with where the rows of each owner end."""
    for row in range(groups.size):
        ends[owners[groups[row]]] += 1
    begin = 0
    for owner in range(ends.size):
        count = ends[owner]
        ends[owner] = begin
        begin += count
    for row in range(groups.size):
        owner = owners[groups[row]]
        order[ends[owner]] = row
        ends[owner] += 1


def rows_by_owner(
    groups: NDArray[np.uint16], owners: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of a batch in the order of their owners, and where the rows of each owner begin and all end.

    Args:
        groups: Key group of every row.
        owners: Owner of every key group, each below `count`.

    Returns:
        int64, shape (rows,), and int64, shape (count + 1,): the rows of owner i are order[bounds[i] : bounds[i + 1]].
    """
    order, bounds = np.empty(groups.size, np.int64), np.zeros(count + 1, np.int64)
    _place(groups, owners, bounds[1:], order)
    return order, bounds
