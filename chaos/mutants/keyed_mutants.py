"""Wrong versions of keyed functions, which tests of whole jobs must catch.

They are applied as those of mutants.py are; tests/unit/runtime/test_keyed_mutants.py plays the job that catches them.
The simulator catches those that need a branch of its jobs too (simulated.py).

Source: docs/decisions/0065, 0066, 0078.
"""

from __future__ import annotations

from typing import Any

from holdfast.chaos.mutants.mutation import Mutant, Right, Swap
from holdfast.chaos.mutants.state_mutants import fires_outside_of_epochs
from holdfast.runtime.functions.users.keyed_process import PROCESSING
from holdfast.runtime.operators.process.cells import ListCell, TimerCell, ValueCell
from holdfast.runtime.operators.process.operator import ProcessOperator
from holdfast.runtime.operators.processing_clock import ProcessingClock
from holdfast.state.collections.rows import NEVER
from holdfast.state.collections.timers import AT, Timers
from holdfast.state.tables.table import StateTable


def _loses_timers(right: Right) -> Right:
    def roll_back(table: StateTable, *given: Any) -> Any:
        held = right(table, *given)
        if held and AT.name in table.spec.orders:
            table.delete(table.present())
        return held

    return roll_back


def _keeps_what_fired(right: Right) -> Right:
    def fired(timer: TimerCell, k: int, at_us: int) -> Any:
        was = timer._changes.get(k)
        fires = right(timer, k, at_us)
        if fires and was is not None:
            timer._changes[k] = was
        return fires

    return fired


def _loses_the_rest(right: Right) -> Right:
    def store(timer: TimerCell) -> None:
        timer.due.clear()
        right(timer)

    return store


def _expires_renewed_values(right: Right) -> Right:
    def put(cell: ValueCell, value: Any, expires: int) -> None:
        k = cell._rows.frame.k
        if cell._life is not None and value is not None and cell.values[k] is not None:
            expires = min(expires, cell.expires[k]) if cell.expires[k] != NEVER else expires
        right(cell, value, expires)

    return put


def _loses_sides(right: Right) -> Right:
    def emitted(operator: ProcessOperator, batches: Any) -> Any:
        main = batches["main"]
        kept = batches if main.num_rows else {name: each.slice(0, 0) for name, each in batches.items()}
        return right(operator, kept)

    return emitted


def _forgets_a_key_group(right: Right) -> Right:
    def begin(operator: ProcessOperator, step: Any, ctx: Any) -> None:
        right(operator, step, ctx)
        for table in (cell.table for cell in operator._cells):
            slots = table.present()
            groups = table.keys_at(slots).key_groups(ctx.key_groups.count)
            table.delete(slots[groups == groups.min(initial=ctx.key_groups.count)])

    return begin


def _keeps_what_failed(_: Right) -> Right:
    return lambda cell, k, old: None


def _keeps_the_expiry(right: Right) -> Right:
    def back(cell: ValueCell, k: int, old: Any) -> None:
        right(cell, k, (old[0], cell.expires[k] if cell.expires else old[1]))

    return back


def _fires_again(right: Right) -> Right:
    def fire(operator: ProcessOperator, clock: str, *given: Any) -> Any:
        if clock != PROCESSING:
            return right(operator, clock, *given)
        fires = Timers.fire
        Timers.fire = fires_outside_of_epochs(fires)  # type: ignore[method-assign]
        try:
            return right(operator, clock, *given)
        finally:
            Timers.fire = fires  # type: ignore[method-assign]

    return fire


def _loses_overdue(right: Right) -> Right:
    def begin(operator: ProcessOperator, step: Any, ctx: Any) -> None:
        right(operator, step, ctx)
        for timer in operator._timers_of[PROCESSING]:
            timer.timers.fire(ctx.time_slice.wall_us())

    return begin


def _records_nothing(_: Right) -> Right:
    return lambda clock: None


CLOCK_MUTANTS = (
    Mutant("clock-timer-fires-again", "P8, decisions/0078",
           "a timer of the clock that has fired returns with a restore",
           (Swap(ProcessOperator, "fire", _fires_again),)),
    Mutant("overdue-timers-lost", "decisions/0078", "timers that became due while a subtask was down never fire",
           (Swap(ProcessOperator, "__init__", _loses_overdue),)),
    Mutant("now-goes-back", "decisions/0078", "the time that functions were shown is not recorded",
           (Swap(ProcessingClock, "note", _records_nothing),)),
)  # fmt: skip
"""Those of processing time."""
KEYED_MUTANTS = (
    Mutant("timers-lost-in-a-rollback", "P10, decisions/0065", "a survivor's rollback empties the timers",
           (Swap(StateTable, "roll_back", _loses_timers),), needs="reminders"),
    Mutant("timer-fires-twice", "decisions/0066", "a timer that is set and fires in one round is stored again",
           (Swap(TimerCell, "fired", _keeps_what_fired),)),
    Mutant("rest-of-a-round-lost", "decisions/0066", "due timers that a round does not reach are lost",
           (Swap(TimerCell, "store", _loses_the_rest),)),
    Mutant("renewed-value-expires", "decisions/0065",
           "a value that is set again expires when the former one would have",
           (Swap(ValueCell, "_put", _expires_renewed_values),)),
    Mutant("side-lost", "decisions/0065", "rows for a side are lost if their frame emits none to the stream",
           (Swap(ProcessOperator, "_emitted", _loses_sides),)),
    Mutant("key-group-forgotten", "P10, decisions/0065", "a deployed subtask loses the state of one key group",
           (Swap(ProcessOperator, "__init__", _forgets_a_key_group),), needs="reminders"),
    Mutant("failed-timer-kept", "decisions/0065", "a timer that a failed call set stays",
           (Swap(TimerCell, "_back", _keeps_what_failed),)),
    Mutant("failed-element-kept", "decisions/0065", "an element that a failed call appended stays",
           (Swap(ListCell, "_back", _keeps_what_failed),)),
    Mutant("failed-value-lives-on", "decisions/0065", "a value that a failed call set again lives as long as it said",
           (Swap(ValueCell, "_back", _keeps_the_expiry),)),
    *CLOCK_MUTANTS,
)  # fmt: skip
