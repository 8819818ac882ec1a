"""Merges the states of ranges of rows: the running results of a key, the window before each of its records.

States of 1, 2, 4, ... neighbouring rows are merged once, and every range is put together from at most one of each
length. So n ranges over n rows cost n log(longest range) merges, all in arrays, by `combine` alone: any aggregate
function will do, also one that cannot take a value back.

Pure.
Source: Bender, Farach-Colton, The LCA Problem Revisited, 2000 (sparse table), with disjoint parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import AggregateFunction, State, stacked
from holdfast.state.tables.values import taken

Rows = NDArray[np.int64]
_NONE: Rows = np.empty(0, np.int64)


class Runs(NamedTuple):
    """Ranges of rows that are in order of their keys."""

    rows: Rows
    """Which states are merged, in order; the numbers below count these."""
    ends: Rows
    """Per row, the end of the rows of its key: no others are merged with it."""
    first: Rows
    last: Rows
    """The first and the last row of every range."""

    @classmethod
    def behind(cls, numbers: Rows, count: int) -> Runs:
        """Return, for every row of a batch, the run of its key up to it, after the state that the key has.

        Args:
            numbers: The number of each row's key, 0 to count - 1, all of which occur. The states are those of the keys,
                and then those of the rows.
        """
        order, sizes = np.argsort(numbers, kind="stable"), np.bincount(numbers, minlength=count)
        state_positions = np.cumsum(sizes) - sizes + np.arange(count)  # where the state of each key is
        last = np.empty(numbers.size, np.int64)
        last[order] = np.arange(numbers.size) + numbers[order] + 1
        rows = np.empty(numbers.size + count, np.int64)
        rows[state_positions], rows[last] = np.arange(count), count + np.arange(numbers.size)
        return cls(rows, np.repeat(state_positions + sizes + 1, sizes + 1), state_positions[numbers], last)


def empty(function: AggregateFunction, like: State, count: int) -> State:
    """Return states without any value.

    Args:
        like: States of the function, any number of them.
    """
    return function.combine(_rows(like, _NONE), _NONE, count)


def over_ranges(function: AggregateFunction, states: State, runs: Runs) -> State:
    """Return the merged states of ranges of rows.

    Raises:
        CannotFold: a merged state does not fit.
    """
    states, (_, ends, first, last) = _rows(states, runs.rows), runs
    length = last - first + 1
    merged_states = empty(function, states, first.size)
    at, rows, step = first.copy(), np.arange(ends.size), 1
    while True:
        asking = np.flatnonzero(length & step)
        if asking.size:
            merged_states = _merged_at(function, merged_states, asking, _rows(states, at[asking]))
            at[asking] += step
        if 2 * step > int(length.max(initial=0)):
            return merged_states
        whole = rows[rows + 2 * step <= ends[rows]]
        if whole.size:
            states = _merged_at(function, states, whole, _rows(states, whole + step))
        rows, step = whole, 2 * step


def _merged_at(function: AggregateFunction, states: State, rows: Rows, others: State) -> State:
    """Return the states with others merged into these rows, each of which occurs once."""
    size = next(len(values) for values in states.values())
    new = function.combine(stacked(_rows(states, rows), others), np.tile(np.arange(rows.size), 2), rows.size)
    place = np.arange(size)
    place[rows] = size + np.arange(rows.size)
    return _rows(stacked(states, new), place)


def _rows(states: State, rows: Rows) -> State:
    return {role: taken(values, rows) for role, values in states.items()}
