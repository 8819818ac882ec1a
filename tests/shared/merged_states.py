"""Merges states of aggregates in a table."""

from __future__ import annotations

import numpy as np

from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.operators.aggregates.aggregate import Folding
from holdfast.state.tables.table import StateTable


def merge_states(table: StateTable, folding: Folding, slots: Slots, into: Slots) -> None:
    """Merge the states of slots into others; row i into `into[i]`, of which each may occur several times."""
    targets = np.unique(into)
    groups = np.concatenate([np.arange(targets.size), np.searchsorted(targets, into)])
    states = folding.combined(np.concatenate([targets, slots]), groups, targets.size)
    table.write(targets, folding.stored(states))
