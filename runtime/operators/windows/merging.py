"""Merges rows of state with aggregates by their keys: the slices of a window, sessions that became one.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.runtime.operators.aggregates.aggregate import Folding
from holdfast.runtime.rows.aggregates.contract import Slots
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.records import Records
from holdfast.state.tables.spec import Columns, TableSpec
from holdfast.state.tables.table import Table


def merged(table: Table, folding: Folding, rows: Slots) -> Iterator[tuple[list[pa.Array], list[pa.Array]]]:
    """Yield the key columns and the result columns, one row per user key, whatever times are in the keys of the rows.

    All keys come together, unless functions of the user are called: then as many as a turn should ask for.

    Raises:
        JobFailed: a merged sum does not fit, or a function of the user failed.
    """
    groups, keys = grouped(table.keys_at(rows).routed())
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


def grouped(keys: Keys) -> Grouped:
    """Number the distinct keys of a batch that is not empty."""
    numbers = Records(TableSpec(0, "keys of a batch", keys.type, ())).add(keys)
    first = np.empty(int(numbers.max()) + 1, np.int64)
    first[numbers[::-1]] = np.arange(numbers.size)[::-1]  # of several, the last one assigned stays
    return Grouped(numbers, keys.take(first))
