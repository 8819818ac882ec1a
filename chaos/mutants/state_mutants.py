"""Wrong versions of a worker's state, each the negation of a rule, which property tests of the state must catch.

The simulator plays no lists, no times to live and no memory that leaves the process. So it sees only those that need a
branch of its jobs (simulated.py). They are applied as those of mutants.py are; tests/unit/state/test_state_mutants.py
names the test that catches each.

Source: PROTOCOL P8, P10; docs/decisions/0039, 0040, 0041.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.chaos.mutants.mutation import Mutant, Right, Swap
from holdfast.chaos.mutants.protocol.wrong_memory import copies_what_was_changed
from holdfast.model import Epoch
from holdfast.state.collections.rows import EXPIRES, NEVER, OrderedRows
from holdfast.state.collections.timers import Fired, Timers
from holdfast.state.keys.batch import Keys
from holdfast.state.paging.area import REGION_BYTES, Area
from holdfast.state.store import Piece, StateStore
from holdfast.state.tables import indexed
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.kernels.layout import DIRTY, Control
from holdfast.state.tables.table import StateTable
from holdfast.state.tables.values import taken

DELETED_MAX = 3
LIVES_LONGER = 10


def _drops_unwritten(right: Right) -> Right:
    def swap_out(area: Any, number: int, folder: Any) -> None:
        if area.needs_room(number):
            ctypes.memset(area.address + number * REGION_BYTES, 0, REGION_BYTES)
        right(area, number, folder)

    return swap_out


def fires_outside_of_epochs(right: Right) -> Right:
    def fire(timers: Timers, through_us: int, limit: int | None = None) -> Fired:
        table = timers.table
        opened = int(table._control[Control.OPENED])
        due_timers: Fired = right(timers, through_us, limit)
        fresh = table.changed()[opened:]
        table._control[Control.OPENED] = opened
        table._set(fresh, DIRTY)
        return due_timers

    return fire


def _keeps_orders(right: Right) -> Right:
    def roll_back(table: StateTable, base: Epoch) -> bool:
        orders, table._orders = table._orders, {}
        held: bool = right(table, base)
        table._orders = orders
        return held

    return roll_back


def _deletes_a_few(right: Right) -> Right:
    def delete(rows: OrderedRows, users: Keys, first: Sequence[Any] = (), end: Sequence[Any] = ()) -> int:
        slots = rows.find(users, first, end).slots
        rows.table.delete(slots[:DELETED_MAX])
        return int(slots.size)

    return delete


def _restores_first_again(right: Right) -> Right:
    def restore(store: StateStore, epoch: Epoch, segments: Iterable[bytes | Piece], *rest: Any, **named: Any) -> None:
        pieces = list(segments)
        right(store, epoch, pieces, *rest, **named)
        for first in pieces[:1]:
            piece = first if isinstance(first, Piece) else Piece(first, store.owned)
            store._absorb(piece, lambda: None)

    return restore


def _lives_again(right: Right) -> Right:
    def absorb(table: StateTable, delta: OperatorDelta) -> None:
        if EXPIRES in delta.columns:
            at = np.asarray(delta.columns[EXPIRES])
            again = np.where(at == NEVER, NEVER, np.minimum(at, NEVER - LIVES_LONGER) + LIVES_LONGER)
            delta = replace(delta, columns={**delta.columns, EXPIRES: again})
        right(table, delta)

    return absorb


def _keeps_texts(right: Right) -> Right:
    def roll_back(table: StateTable, base: Epoch) -> bool:
        slots = table.changed()
        varying = [column.name for column in table.spec.columns if column.varying]
        texts = {name: table.read(name, slots) for name in varying}
        success: bool = right(table, base)
        if success and varying:
            left = np.flatnonzero(table.is_present(slots))
            table.write(slots[left], {name: taken(values, left) for name, values in texts.items()})
        return success

    return roll_back


def _leaves_inputs(_: Right) -> Right:
    return lambda records, inputs, order: (inputs, None)


STATE_MUTANTS = (
    Mutant("region-dropped-unwritten", "decisions/0039", "a region leaves memory before its file has its content",
           (Swap(Area, "swap_out", _drops_unwritten),)),
    Mutant("rows-left-in-order-of-records", "decisions/0039", "rows taken in another order get each other's slots",
           (Swap(indexed, "arrived", lambda _: lambda ordered, order: ordered),)),
    Mutant("inputs-left-in-order-of-arrival", "decisions/0039", "rows taken in another order fold each other's values",
           (Swap(indexed.IndexedRecords, "_reordered", _leaves_inputs),)),
    Mutant("timer-fires-outside-of-epochs", "P8, decisions/0041", "a fired timer fires again after a restore",
           (Swap(Timers, "fire", fires_outside_of_epochs),), needs="reminders"),
    Mutant("order-outlives-rollback", "P10, decisions/0041", "a timer that was set before a rollback fires after it",
           (Swap(StateTable, "roll_back", _keeps_orders),), needs="reminders"),
    Mutant("suffix-left-by-prefix-delete", "decisions/0041", "a prefix delete leaves the rows after the third one",
           (Swap(OrderedRows, "delete", _deletes_a_few),)),
    Mutant("freeze-sees-later-write", "P8", "a segment holds what was written after the barrier",
           (Swap(StateTable, "write", copies_what_was_changed), Swap(StateTable, "delete", copies_what_was_changed))),
    Mutant("range-restored-twice", "P14", "a restore reads the first piece of its key groups again at its end",
           (Swap(StateStore, "restore", _restores_first_again),)),
    Mutant("restore-resets-ttl", "decisions/0041", "the time to live of a row begins again with a restore",
           (Swap(StateTable, "absorb", _lives_again),)),
    Mutant("text-of-abandoned-epoch", "P10, decisions/0040", "a rollback keeps the texts of the epochs it abandons",
           (Swap(StateTable, "roll_back", _keeps_texts),)),
)  # fmt: skip
"""The wrong versions that the tests must catch; each names the rule that it negates."""
