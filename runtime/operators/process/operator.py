"""Keyed functions: a user's Python object with state and timers per key, called record by record.

A batch is handled in pieces, as those of other functions are (backlog.py). A piece becomes a frame: its keys are
numbered, their state is read once, the function is called in the order of the records, and changes are written once
(cells.py). Timers fire in the order of (time, key, timer), in rounds of at most `ROUND_TIMERS` that are spread over
turns as the pieces of a batch are: neither a slow handler nor one that sets its timer again and again keeps the worker
from its other work. After the last round, the watermark leaves, and values that it expires are deleted. Rounds of
processing time are not tied together: the worker does other work between them.

With on_error="drop" or "dlq" every change and row of a failed call is undone. A returned row that does not fit its
columns shows only when the whole frame is converted; the frame is then handled again, with the rows of each call
checked before the next call.

Invariants
    - A key's function sees only its records and timers, the watermark and, if it asks, the clock; its view never
      depends on how records were batched.
    - Nothing of a failed call is kept: no state, timer, row or number.
    - A handler sets timers only for later times, so firing ends; after the end of the input, a key that fires without
      an end fails the job.

Pure, as far as the user's functions are.
Source: docs/decisions/0065-keyed-functions.md, 0066-rounds-of-timers.md, 0078-processing-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where, is_failure
from holdfast.model import LAST_US
from holdfast.runtime.functions.users.keyed_process import EVENT, PROCESSING, Declaration, bound_to, declared_by
from holdfast.runtime.operators.contract import (
    MAIN,
    ROUNDS,
    Description,
    Operator,
    OperatorContext,
    TableDraft,
    part_name,
)
from holdfast.runtime.operators.differences import Found, columns_text, compare_keys, typed
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times
from holdfast.runtime.operators.process.cells import (
    VALUE,
    Frame,
    ListCell,
    MapCell,
    Own,
    TimerCell,
    ValueRows,
    time_of,
)
from holdfast.runtime.operators.process.changes import compare_states
from holdfast.runtime.operators.process.events import Events, Firings, RecordEvents
from holdfast.runtime.operators.process.step import NOT_DONE, FunctionStep
from holdfast.runtime.operators.processing_clock import NOW_TABLE, ProcessingClock
from holdfast.runtime.rows.dead_letters import DeadLetter, encode_row, reported
from holdfast.runtime.rows.failing import NOT_THE_ROWS_FAULT, raised
from holdfast.runtime.rows.row_types import RowMaker, row_class
from holdfast.runtime.rows.rows import WrongRow, batch_of_rows
from holdfast.runtime.rows.state_types import MAP_KEYS, WrongValue, state_type
from holdfast.runtime.time.windows import micros_of
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.runtime.wire.vitals import FUNCTION
from holdfast.state.collections.lists import Lists
from holdfast.state.collections.maps import Maps
from holdfast.state.collections.rows import EXPIRES, EXPIRY_COLUMN
from holdfast.state.collections.timers import Timers
from holdfast.state.keys.batch import KeyType
from holdfast.state.keys.keygroups import splitmix64
from holdfast.state.tables.table import StateTable
from holdfast.storage.xxh3 import xxh3_of

E = TypeVar("E", bound=Events)
PIECE_ROWS = 16_384
ROUND_TIMERS = 16_384
FIRED_LAST_MAX = 1_000_000
"""Timers of one key that may fire after the end of the input."""
DRAWS = "_draws"
"""Column of the operator's own table: how many random numbers the key's function has drawn."""
_ODD = 0x9E3779B97F4A7C15
_NO_EVENT = object()
"""No event is left."""


@dataclass(frozen=True, eq=False)
class ProcessRecords(FunctionStep):
    """Call a keyed function with every record, and when its timers fire."""

    row_type: type | None
    time: str | None
    """Column with the event time."""
    sides: Mapping[str, pa.Schema]
    types: Mapping[str, type | None]
    """The dataclasses that emitted rows are to fit, by side."""

    kind: ClassVar[str] = "process"
    keeps: ClassVar[str] = "the state of a keyed function"
    shown: ClassVar[str] = "process"

    @property
    def sees_watermarks(self) -> bool:
        return self.time is not None  # it is told the watermark, and a timer fires before or after a row

    @property
    def uses_clock(self) -> bool:
        return any(timer.clock == PROCESSING for timer in declared_by(self.process).timers.values())

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        users = KeyType.of(given[0].field(key) for key in self.keys)
        declaration, own = declared_by(self.process), []
        drafts = [CLOCK_TABLE, NOW_TABLE]
        for name, value in declaration.values.items():
            if not value.ttl:
                own.append(state_type(name, value.type).column)
                continue
            columns = (state_type(VALUE, value.type).column, EXPIRY_COLUMN)
            drafts.append(TableDraft(users, columns, name, orders=(EXPIRES,)))
        for name, listed in declaration.lists.items():
            element = [state_type(VALUE, listed.type).column]
            drafts.append(TableDraft.of(Lists.spec(0, name, users, element, expiring=bool(listed.ttl)), name))
        for name, mapped in declaration.maps.items():
            key, entry = KeyType(("map_key",), (MAP_KEYS[mapped.key],)), [state_type(VALUE, mapped.type).column]
            drafts.append(TableDraft.of(Maps.spec(0, name, users, key, entry, expiring=bool(mapped.ttl)), name))
        drafts += [TableDraft.of(Timers.spec(0, name, users), name) for name in declaration.timers]
        return TableDraft(users, (*own, state_type(DRAWS, int).column)), *drafts

    def identity(self, column: Description) -> dict[str, Any]:
        time = None if self.time is None else column(self.time)
        key = [column(name) for name in self.keys]
        return {"keeps": self.keeps, "key": key, "time": time, "states": self.states()}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        _compare_times(found, before["time"], now["time"])
        compare_states(found, before, now)

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        return {name: name for name in columns if name == DRAWS or name in before["states"]}

    def open(self, ctx: OperatorContext) -> Operator:
        return ProcessOperator(self, ctx)


def _compare_times(found: Found, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Compare the event time, in which timers, times to live and clocks are kept."""
    if before is None or now is None:
        return  # without an event time there are no timers, and no times to live in it
    if typed(before)[1:] != typed(now)[1:]:
        found.refuse(f"had the event time {columns_text([before])} and now has {columns_text([now])}")
    else:
        found.compare_provenance("event time", before, now)


class _Context:
    """The `ctx` of a function; one per operator, for one record or timer after the other."""

    def __init__(self, operator: ProcessOperator, emit: Callable[[Any], None]) -> None:
        self._operator, self.emit = operator, emit

    @property
    def key(self) -> Any:
        return self._operator.key()

    @property
    def event_time(self) -> datetime | None:
        return time_of(self._operator.frame.at_us)

    @property
    def watermark(self) -> datetime | None:
        return time_of(self._operator.frame.seen_us())

    def now(self) -> datetime:
        self._operator.now.show()
        return cast(datetime, time_of(self._operator.frame.now_us))

    def random(self) -> float:
        return self._operator.random()

    def side(self, name: str, row: Any) -> None:
        sides = self._operator.sides
        if name not in sides:
            raise WrongValue(f"there is no side {name!r}; name it in .process(..., sides={{{name!r}: Out}})")
        sides[name].append(row)


class ProcessOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: ProcessRecords, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._gives = step, ctx, ctx.placed[0].schema
        self.name, self.mark = step.operator, FUNCTION + step.operator
        self._table, self._clock = ctx.table(step.operator), EventClock(step.operator, ctx)
        self.now, self._portions = ProcessingClock(step.operator, ctx), ctx.time_slice.portions(step.operator)
        self._rows = RowMaker(pa.schema([ctx.given.field(name) for name in step.columns]), step.row_type)
        self._keys = KeyType.of(ctx.given.field(name) for name in step.keys)
        self._out: list[Any] = []
        self.sides: dict[str, list[Any]] = {name: [] for name in step.sides}
        self._letters: list[DeadLetter] = []
        declaration = declared_by(step.process)
        self._own, self._cells, self._timers, attributes = _opened(step, ctx, declaration)
        self._draws = self._own.cells[DRAWS]
        self._draws_of = int(xxh3_of(pa.array([f"random of {step.operator}"]))[0])
        """Keeps the random numbers of two operators apart that have the same keys."""
        self._function = bound_to(step.process, attributes)
        self._handlers = [getattr(self._function, timer.handler) for timer in self._timers]
        self._timers_of = {clock: [t for t in self._timers if t.clock == clock] for clock in (EVENT, PROCESSING)}
        self._keeps_now = any(each.clock == PROCESSING for each in declaration.all().values())
        self._context = _Context(self, self._out.append)
        self._user_keys: list[Any] | None = None
        self._pace, self._timers_pace = ctx.time_slice.pace(), ctx.time_slice.pace()
        self.frame = Frame(self._keys.empty(), np.empty(0, np.int64))
        self.rows_in = self.rows_out = self.dropped = self.dlq = self._failed = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.defer(self, batch, self._left_out)

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Handle records from row `at` on; return their number and the rows emitted for them."""
        most, now_us = self._portions.begin(min(self._pace.rows, PIECE_ROWS), self.now.tick)
        piece = batch.slice(at, most)
        began = self._ctx.time_slice.now()
        numbers = self._number(piece, now_us)
        events, output = self._handled(lambda: self._records(piece, numbers))
        self._pace.took(events.taken, self._ctx.time_slice.now() - began)
        self._portions.end(events.taken, self.now.shown_in_portion)
        self.rows_in += events.taken
        return events.taken, output

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; fire the timers that are due, and delete expired values."""
        old = self._clock.advance(at_us)
        if old is None:
            return
        if any(timer.first_due(at_us, 1).size for timer in self._timers_of[EVENT]):
            self._ctx.defer(_Due(self, at_us, old), ROUNDS)
        else:
            self.expire(at_us)

    def on_clock(self, now_us: int) -> bool:
        """Fire timers that are due at this processing time: one round."""
        if (due_us := self.due_us()) is None or due_us > now_us:
            return False
        self.now.reach(now_us)
        self._ctx.defer(_Round(self, now_us), ROUNDS)
        return True

    def due_us(self) -> int | None:
        """Return the earliest time for which a timer of processing time is set."""
        firsts = (timer.timers.next_us() for timer in self._timers_of[PROCESSING])
        return min((at_us for at_us in firsts if at_us is not None), default=None)

    def expire(self, at_us: int) -> None:
        """Delete values that have expired at this point of event time."""
        for cell in self._cells:
            cell.expire(EVENT, at_us)

    def on_barrier(self) -> None:
        self._clock.note()
        self.now.note()
        for cell in self._cells:
            cell.expire(PROCESSING, self.now.shown_us)  # not by a time that may be undone
            cell.tidy()

    def progress(self) -> OperatorProgress:
        dlq = self.dlq if self._step.on_error == "dlq" else None
        return OperatorProgress(self.name, self.rows_in, self.rows_out, 0, dropped=self.dropped, dlq=dlq)

    # For the context

    def key(self) -> Any:
        """Return the current key."""
        if self._user_keys is None:
            decoded = zip(self._step.keys, self._keys.decode(self.frame.users), strict=True)
            columns = [self._rows.values(name, column) for name, column in decoded]
            self._user_keys = columns[0]
            if len(columns) > 1:
                self._user_keys = list(map(row_class(self._step.keys), zip(*columns, strict=True)))
        return self._user_keys[self.frame.k]

    def random(self) -> float:
        """Return the next random number of the current key."""
        draws = self._draws.get(0)
        self._draws.set(draws + 1)
        own = int(self.frame.users.hashes[self.frame.k]) ^ self._draws_of
        seed = np.uint64((own + draws * _ODD) % (1 << 64))
        return (int(splitmix64(np.array([seed]).view(np.int64))[0]) >> 11) / (1 << 53)

    # Frames

    def _number(self, piece: pa.RecordBatch, now_us: int) -> list[int]:
        """Begin the frame of a piece; return the number of the key of every row."""
        keys = self._keys.encode([piece.column(name) for name in self._step.keys])
        size = len(self._table)
        slots = self._table.slots(keys)
        self._own.looked_up += len(self._table) - size
        known, first, numbers = np.unique(slots, return_index=True, return_inverse=True)
        self._begin(Frame(keys.take(first), known), now_us)
        return cast(list[int], numbers.tolist())

    def _begin(self, frame: Frame, now_us: int) -> None:
        frame.now_us = self.now.begin(now_us)
        if self._keeps_now:
            self.now.show()
        frame.journal = None if self._step.on_error == "fail" else []
        self.frame, self._user_keys = frame, None

    def _records(self, piece: pa.RecordBatch, numbers: list[int]) -> RecordEvents:
        rows = self._rows.rows(piece.select(self._step.columns))
        times = None if self._step.time is None else micros_of(piece.column(self._step.time)).tolist()
        clocks = self._clock.of(lambda: self.frame.users)
        call, overdue = partial(self._function.on_record, self._context), self._ctx.time_slice.overdue
        return RecordEvents(self.frame, piece.select(self._step.columns), numbers, rows, times, clocks, call, overdue)

    def _handled(self, events_of: Callable[[], E]) -> tuple[E, list[pa.RecordBatch]]:
        """Handle the events of a frame, and write the state; return them, and the rows emitted to no side."""
        for strict in (False, True):
            self._restart()
            events = events_of()
            try:
                self._handle(events, strict)
                batches = {MAIN: self._batch(MAIN, self._gives, self._out)}
                sides = self._step.sides
                batches |= {name: self._batch(name, sides[name], rows) for name, rows in self.sides.items()}
                break
            except WrongRow as wrong:
                if strict or self.frame.journal is None:
                    raise self._job_failed(f"emitted a wrong row: {wrong.what}") from wrong
        for cell in self._cells:
            cell.store()
        return events, self._emitted(batches)

    def _batch(self, side: str, schema: pa.Schema, rows: list[Any]) -> pa.RecordBatch:
        return batch_of_rows(schema, rows, self._step.types.get(side))

    def _restart(self) -> None:
        """Begin with the state as it is stored, and with nothing emitted."""
        for rows in (self._out, *self.sides.values()):
            rows.clear()
        self._letters, self._failed = [], 0
        for cell in self._cells:
            cell.begin(self.frame)

    def _emitted(self, batches: Mapping[str, pa.RecordBatch]) -> list[pa.RecordBatch]:
        for letter in self._letters:
            self._ctx.dead_letter(letter)
        self.dlq += len(self._letters)
        self.dropped += self._failed - len(self._letters)
        self.rows_out += batches[MAIN].num_rows
        for name in self.sides:
            if batches[name].num_rows and self._ctx.wanted(name):
                self._ctx.emit(batches[name], name)
        return [batches[MAIN]] if batches[MAIN].num_rows else []

    def _handle(self, events: Events, strict: bool) -> None:
        try:
            if (journal := self.frame.journal) is None:
                for event in events:
                    events.call(event)
                return
            while self._handle_next(events, strict):
                journal.clear()
        except NOT_THE_ROWS_FAULT:
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._job_failed(self._reported(error)) from error

    def _handle_next(self, events: Events, strict: bool) -> bool:
        """Handle an event; undo its changes if that fails. Return False if there is none."""
        marks = [(rows, len(rows)) for rows in (self._out, *self.sides.values())]
        try:
            event = next(events, _NO_EVENT)  # not by StopIteration, which a function may raise too
            if event is _NO_EVENT:
                return False
            events.call(event)
            if strict:
                gives = {MAIN: self._gives, **self._step.sides}
                for (name, schema), (rows, first) in zip(gives.items(), marks, strict=True):
                    self._batch(name, schema, rows[first:])
        except NOT_THE_ROWS_FAULT:
            raise
        except WrongRow as wrong:
            self._leave_out(f"emitted a wrong row: {wrong.what}", events, marks)
        except BaseException as error:
            if not is_failure(error):
                raise
            self._leave_out(self._reported(error), events, marks)
        return True

    # Timers

    def fire(
        self, clock: str, through_us: int, before: Times | int | None = None
    ) -> tuple[NDArray[np.int64] | None, list[pa.RecordBatch]]:
        """Fire the first timers that are due by a clock: one round. Return the slots of their keys, None if none is.

        Args:
            before: Event time before it advanced to this point: per key group, or the same for all; None: it has not.

        Returns:
            The slots in the operator's own table, one per timer that fired, and the rows emitted.
        """
        timers = self._timers_of[clock]
        if not any(timer.first_due(through_us, 1).size for timer in timers):
            return None, []
        began, most = self._ctx.time_slice.now(), min(self._timers_pace.rows, ROUND_TIMERS)
        most = min(most, *(cell.table.batch_rows_max for cell in self._cells))
        most, now_us = self._portions.begin(most, self.now.tick)
        times = np.sort(np.concatenate([timer.first_due(through_us, most) for timer in timers]))
        bound, size, firings = int(times[:most][-1]), len(self._table), []
        for timer in timers:
            found = timer.timers.fire(bound, most)
            firings.append((self._table.slots(found.users), found.at_us))
        self._own.looked_up += len(self._table) - size
        slots = np.unique(np.concatenate([slots for slots, _ in firings]))
        users = self._table.keys_at(slots)
        order = users.order(np.zeros(slots.size, np.uint16))
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        self._begin(Frame(users.take(order), slots[order]), now_us)
        due = [(places[np.searchsorted(slots, mine)].tolist(), at.tolist()) for mine, at in firings]
        rest = through_us, self._event_times(before), self._call_handler, self._ctx.time_slice.overdue, most
        events, given = self._handled(lambda: Firings(self.frame, clock, timers, due, *rest))
        self._timers_pace.took(events.taken, self._ctx.time_slice.now() - began)
        self._portions.end(events.taken, self.now.shown_in_portion)
        return self.frame.slots[np.array(events.fired, np.int64)], given

    def _event_times(self, before: Times | int | None) -> Times | int:
        """Return event time for each key of the frame, or the same for all; see fire."""
        if before is None:
            clocks = self._clock.of(lambda: self.frame.users)
            return int(clocks) if isinstance(clocks, np.integer) else clocks
        return before if isinstance(before, int) else self._clock.at(before, self.frame.users)

    def fires_without_end(self, slot: int) -> JobFailed:
        """Return the failure for a key whose timers fire again and again after the end of the input."""
        key = ", ".join(str(column[0].as_py()) for column in self._table.key_columns(np.array([slot])))
        return JobFailed(
            f"{self._step.use}: timers of {type(self._step.process).__name__} fired {FIRED_LAST_MAX:,} times for the "
            f"key {key!r:.60} after the end of the input, and are set again",
            not_done=NOT_DONE,
            next_step="let the handler set no timer again once ctx.watermark is the last time of all, "
            "datetime.max.replace(tzinfo=UTC); then run the job again, which resumes from the last checkpoint",
            where=Where(job=self._ctx.job, operator=self.name),
        )

    def _call_handler(self, number: int) -> None:
        self._handlers[number](self._context)

    # Failures

    def _left_out(self, batch: pa.RecordBatch, row: int, base: int, did: str) -> None:
        """Leave a row out that is not given to the function."""
        self.rows_in += 1
        if self._step.on_error == "fail":
            raise self._job_failed(did)
        if self._step.on_error == "drop":
            self.dropped += 1
            return
        self._ctx.dead_letter(self._letter(did, batch.select(self._step.columns), row))
        self.dlq += 1

    def _letter(self, did: str, batch: pa.RecordBatch, row: int) -> DeadLetter:
        raw, error = encode_row(batch, row), reported(self._step.described(did))
        return DeadLetter(self.name, self._ctx.origin.source, None, None, error, "row", raw)

    def _leave_out(self, did: str, events: Events, marks: list[tuple[list[Any], int]]) -> None:
        self.frame.undo()
        for rows, first in marks:
            del rows[first:]
        self._failed += 1
        if self._step.on_error == "dlq":
            self._letters.append(self._letter(did, *events.raw(self._keys)))

    def _job_failed(self, did: str) -> JobFailed:
        return self._step.failure(did, self._ctx.job)

    def _reported(self, error: BaseException) -> str:
        return raised(error, type(self._step.process).on_record, __file__)


class _Due:
    """The timers that a watermark makes due, fired in rounds."""

    def __init__(self, operator: ProcessOperator, at_us: int, before: Times | int) -> None:
        self._operator, self._at_us, self._before = operator, at_us, before
        self.name, self.mark = operator.name, operator.mark
        self._fired = np.zeros(0, np.int64)
        """By slot of a key: its timers that have fired since the end of the input."""

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Fire the timers of one round; after the last, delete expired values."""
        slots, outputs = self._operator.fire(EVENT, self._at_us, self._before)
        if slots is None:
            self._operator.expire(self._at_us)
            return batch.num_rows - at, outputs
        if self._at_us == LAST_US and slots.size:
            self._count(slots)
        return 1, outputs

    def _count(self, slots: NDArray[np.int64]) -> None:
        if (most := int(slots.max())) >= self._fired.size:
            self._fired = np.concatenate([self._fired, np.zeros(most + 1, np.int64)])
        np.add.at(self._fired, slots, 1)
        if self._fired[slot := int(slots[self._fired[slots].argmax()])] > FIRED_LAST_MAX:
            raise self._operator.fires_without_end(slot)


class _Round:
    """One round of the timers that are due by the clock; those that are left are due when the operator is next told."""

    def __init__(self, operator: ProcessOperator, now_us: int) -> None:
        self._operator, self._now_us = operator, now_us
        self.name, self.mark = operator.name, operator.mark

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Fire the timers of the round."""
        _, given = self._operator.fire(PROCESSING, self._now_us)
        return batch.num_rows - at, given


def _opened(
    step: ProcessRecords, ctx: OperatorContext, declared: Declaration
) -> tuple[ValueRows, list[Own], list[TimerCell], dict[str, Any]]:
    """Return the operator's own values, all cells, those of timers, and the attributes of the function."""

    def table(name: str) -> StateTable:
        return ctx.table(part_name(step.operator, name))

    plain = {name: state_type(name, value.type) for name, value in declared.values.items() if not value.ttl}
    own = ValueRows(ctx.table(step.operator), plain | {DRAWS: state_type(DRAWS, int)})
    attributes: dict[str, Any] = {name: own.cells[name] for name in plain}
    cells: list[Own] = [own]
    for name, value in declared.values.items():
        if value.ttl:
            rows = ValueRows(table(name), {VALUE: state_type(VALUE, value.type)}, value.clock, value.ttl_us)
            attributes[name] = rows.cells[VALUE]
            cells.append(rows)
    for name, each in declared.lists.items():
        attributes[name] = ListCell(table(name), state_type(VALUE, each.type), each.clock, each.ttl_us)
    for name, entry in declared.maps.items():
        key, kind = state_type("map_key", entry.key), state_type(VALUE, entry.type)
        attributes[name] = MapCell(table(name), kind, entry.clock, entry.ttl_us, MAP_KEYS[entry.key], key.encode)
    timers = [
        TimerCell(table(name), number, name, timer.handlers[0], timer.clock)
        for number, (name, timer) in enumerate(declared.timers.items())
    ]
    cells += [attributes[name] for name in (*declared.lists, *declared.maps)] + timers
    return own, cells, timers, attributes | {timer.name: timer for timer in timers}
