"""Aggregates per window and key: input in whole batches, output of a window's rows when event time has passed it.

Rows of state are keyed by (end of the slice, keys); aggregates/aggregate.py folds them. Windows that overlap share
slices, and merging.py merges the slices of a window. The clock of a key group (event_clock.py) is the watermark up to
which its windows are closed. A closed window never opens again (P11).

Windows that are due are found by a scan over all rows, but only when event time passes the earliest due time. Windows
that are shown before their end are found likewise, by processing time: early.py defines which, and when.

Invariants
    - A record is late if and only if the end of its last window plus the lateness is not after the clock.
    - A row is deleted when the clock reaches the end of its last window plus the lateness; until then it counts for
      all of its windows. One range per key group deletes any number of rows (docs/decisions/0015-window-expiry.md).
    - `close` emits a window when the clock reaches its end, and again whenever a later batch changes it, up to the
      lateness. `final` emits it once, when the clock reaches its end plus the lateness.
    - The clock of every owned key group is in the state before the barrier's freeze.
    - A window is emitted when it closes, whether or not it has changed since it was last shown.

Pure.
Source: docs/decisions/0006-watermarks.md, 0062-slices.md, 0082-early-results.md; PROTOCOL P11; DESIGN section 5 (keys
of windows).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.functions.aggregation import BoundAggregation
from holdfast.runtime.functions.contract import Slots
from holdfast.runtime.operators.aggregates import changes
from holdfast.runtime.operators.aggregates.aggregate import (
    Folding,
    aggregates_identity,
    aggregates_text,
    columns_read,
    order_matters,
    value_columns,
)
from holdfast.runtime.operators.aggregates.pieces import calls_users, in_pieces, results_in_pieces
from holdfast.runtime.operators.contract import (
    EARLY,
    LATE_ROWS,
    OP_FIELD,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
)
from holdfast.runtime.operators.differences import Found, columns_text, compare_keys, typed
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times, drop_vacant, time_not_held
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.operators.windows.early import TIMES_TABLE, EarlyResults
from holdfast.runtime.operators.windows.held import HeldSlices
from holdfast.runtime.operators.windows.marked import MARK
from holdfast.runtime.operators.windows.merging import Owners, grouped, merged
from holdfast.runtime.time.windows import (
    END_COLUMN,
    TIME,
    WINDOW_END,
    Windows,
    event_times_held,
    micros_of,
    outside,
    span,
    window_text,
)
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract.target import PUT
from holdfast.state.collections.rows import existing
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.placing import distinct, order_of

Clock = Times | np.int64 | int
"""The clock of every row, or one for all."""
MERGED_AT_ONCE = 1 << 20
"""Rows of state that are looked up or merged at once where late records correct windows."""
_FAR_US = 1 << 62
"""Farther from 1970 than any window; differences of such times fit int64."""


class DueWindows(NamedTuple):
    """Slices of which a window is due."""

    slots: Slots
    ends: Times
    after: Clock
    through: Clock
    """Between which ends windows are due."""


class BySlice(NamedTuple):
    """Rows of state, ordered by their slices."""

    ends: Times
    """The ends of the slices that have rows, in order."""
    slots: Slots
    """The rows, those of one slice after those of another; otherwise in the order that they had."""
    bounds: Slots
    """Where the rows of each slice begin; and, last, the number of rows."""


@dataclass(frozen=True)
class WindowAggregate(KeyedStep):
    """Keep aggregates per window and key, and emit them when event time has passed the window."""

    operator: str
    keys: tuple[str, ...]
    aggregations: tuple[BoundAggregation, ...]
    time: str
    """Column with the event time."""
    window: Windows
    lateness_us: int
    emit: str
    """`close` or `final`."""
    early_us: int = 0
    """How often windows are also emitted before they close, in processing time; 0: not."""

    kind: ClassVar[str] = "windowaggregate"
    keeps: ClassVar[str] = "aggregates per window and key"

    @property
    def emission(self) -> str:
        """When windows are emitted, as the state is compared by: the interval of early results may change."""
        return "every" if self.early_us else self.emit

    @property
    def uses_clock(self) -> bool:
        return self.early_us > 0

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        read = columns_read(self.keys, self.aggregations, self.time)
        return tuple(dict.fromkeys((*read, *given.names))) if LATE in needed else read

    def compared(self, port: int) -> tuple[str, ...]:
        return (self.time,)

    def times_held(self) -> tuple[int, int]:
        return event_times_held([(self.window, self.lateness_us)])

    def depends_on_order(self) -> tuple[str, ...]:
        early = (EARLY,) if self.early_us else ()
        return (LATE_ROWS, *early, *order_matters(self.aggregations))

    def delay_us(self) -> int:
        """A window that is still open may have started so long before the clock; its start is the result's time."""
        return self.window.size_us + self.lateness_us

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        fields = [pa.field(WINDOW_END, TIME, nullable=False), *(given[0].field(key) for key in self.keys)]
        text = f"{self.window}, allowed_lateness={self.lateness_us}us, emit={self.emission}"
        marks = (MARK,) if self.early_us else ()
        columns = (END_COLUMN, *marks, *value_columns(self.aggregations))
        own = TableDraft(KeyType.of(fields, unrouted=1), columns, window=text)
        return (own, CLOCK_TABLE, TIMES_TABLE) if self.early_us else (own, CLOCK_TABLE)

    def identity(self, column: Description) -> dict[str, Any]:
        window = self.window.identity() | {
            "time": column(self.time),
            "lateness_us": self.lateness_us,
            "emit": self.emission,
        }
        return aggregates_identity(self.keys, self.aggregations, column) | {"window": window}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        changes.compare_aggregates(found, self.aggregations, before, now, in_windows=True)
        _compare_windows(found, before["window"], now["window"])

    def parts(self, before: Mapping[str, Any]) -> tuple[str, ...]:
        return changes.names(before)

    def without(self, before: Mapping[str, Any], parts: Collection[str]) -> Mapping[str, Any]:
        return changes.without(before, parts)

    def continued(self, before: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, str]:
        return changes.continued(self.aggregations, before, columns)

    def busy_with(self) -> tuple[str, ...]:
        return (self.operator,) if any(bound.kind.calls for bound in self.aggregations) else ()

    def text(self) -> str:
        emit = f"{self.emission} {span(self.early_us)}" if self.early_us else self.emission
        window = f"{self.window.shown()} of {self.time}, lateness {span(self.lateness_us)}, emit {emit}"
        keys = ", ".join(self.keys)
        return f"aggregate {self.operator} by {keys} over {window}: {aggregates_text(self.aggregations)}"

    def open(self, ctx: OperatorContext) -> Operator:
        return WindowOperator(self, ctx)


class WindowOperator(Operator):
    """One window operator on one subtask."""

    def __init__(self, step: WindowAggregate, ctx: OperatorContext) -> None:
        placed_step = ctx.placed[0]
        self._step, self._ctx, self._upsert = step, ctx, placed_step.upsert_key is not None
        self._schema = pa.schema([*placed_step.schema, OP_FIELD] if self._upsert else placed_step.schema)
        self._table, self._clock = ctx.table(step.operator), EventClock(step.operator, ctx)
        also = (WINDOW_END, MARK.name) if step.early_us else (WINDOW_END,)
        self._folding = Folding(step.operator, step.aggregations, self._table, ctx.job, also, ctx.time_slice)
        overlap = step.window.overlap
        early = EarlyResults(step.operator, step.early_us, ctx, overlap, MERGED_AT_ONCE) if step.early_us else None
        self._early = early
        self._taken = in_pieces(ctx, step.operator, step.aggregations, self._take)
        self._give = results_in_pieces(ctx, step.operator, step.aggregations)
        self._keys = KeyType.of(placed_step.schema.field(name) for name in step.keys)
        self._exact = ctx.time_slice.portions(step.operator).exact
        """Whether results of one moment leave in the order of their keys; else the order is that of the slots."""
        by_key = self._exact and calls_users(step.aggregations)
        self._owners, self._slices = Owners(self._table, lasting=not by_key), HeldSlices(self._table, self._folding)
        self.rows_in = self.rows_out = self.late = 0
        self._due = NEVER_US
        """Nothing is due before this time."""
        self._looked_up = 0
        """Slots added for slices without state since vacant slots were last dropped."""
        self._held = step.times_held()
        self._spread_us = (step.window.overlap - 1) * step.window.every_us
        """From the end of a slice to that of its last window."""
        self._reach_us = self._spread_us + step.lateness_us
        """From the end of a slice to the time from which it is over."""

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._taken(batch)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Take rows into their windows; emit late rows, and the rows of already closed windows that changed.

        Raises:
            JobFailed: a value does not fit, or no window can hold an event time (which then comes from a function).
        """
        self.rows_in += batch.num_rows
        times = micros_of(batch.column(self._step.time))
        if (wrong := outside(times, self._held)) is not None:
            at_us, step = int(times[wrong.argmax()]), self._step
            raise time_not_held("windows of operator", step.operator, step.time, at_us, self._ctx.job)
        ends = self._step.window.slices(times)
        clock = self._clock.of(lambda: self._keys.encode([batch.column(name) for name in self._step.keys]))
        late = ends + self._reach_us <= clock
        if late.any():
            self._set_late_apart(batch, late)
            batch, ends = batch.filter(pa.array(~late)), ends[~late]
            clock = clock[~late] if isinstance(clock, np.ndarray) else clock
            if batch.num_rows == 0:
                return
        columns = [pa.array(ends).view(TIME), *(batch.column(name) for name in self._step.keys)]
        also = [ends]
        if self._early is not None:
            also.append(self._early.marks(ends + self._spread_us > clock))
        slots = self._folding.fold(self._table.spec.key.encode(columns), batch, also)
        self._slices.changed(ends)
        self._due = min(self._due, self._first_due(ends, clock))
        if self._step.emit == "close":
            self._correct(slots, ends, clock)

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; emit and delete the windows that are due."""
        old = self._clock.advance(at_us)
        if old is not None and at_us >= self._due:
            self._close(old)

    def on_clock(self, now_us: int) -> bool:
        """Emit open windows that have changed since they were last shown, if it is time: one round."""
        if self._early is None:
            return False
        slots = self._early.take_round(now_us, self._folding.at_once(merged=self._step.window.overlap > 1))
        if slots is None:
            return False
        if slots.size:
            began = self._ctx.time_slice.now()
            self._give(self._open_windows(slots))
            self._early.took(slots.size, self._ctx.time_slice.now() - began)
        return True

    def due_us(self) -> int | None:
        """Return when windows are shown next; None while none has changed."""
        return None if self._early is None else self._early.due_us()

    def on_barrier(self) -> None:
        self._clock.note()
        has_shrunk = drop_vacant(self._table, self._looked_up)
        if has_shrunk:
            self._looked_up = 0
        if self._early is not None:
            if has_shrunk:
                self._early.give_up()
            self._early.note()

    def _set_late_apart(self, batch: pa.RecordBatch, late: NDArray[np.bool_]) -> None:
        """Emit or count the late records."""
        self.late += int(late.sum())
        if self._ctx.wanted(LATE):
            self._ctx.emit(batch.filter(pa.array(late)), LATE)

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, late=self.late)

    def _close(self, old: Times | int) -> None:
        """Emit the windows that became due after the clock `old`, delete rows that are over, find the next due time."""
        if isinstance(old, int) and self._step.window.overlap > 1:
            self._close_slices(old)
            return
        due, over, self._due = list[DueWindows](), list[Slots](), LAST_US
        for slots in self._table.present_parts():
            ends = self._table.values(WINDOW_END, slots)
            now, before = self._clock.of(lambda: self._table.keys_at(slots)), old  # noqa: B023 - called here
            if isinstance(old, np.ndarray):
                before = self._clock.at(old, self._table.keys_at(slots))
            is_over = ends + self._reach_us <= now
            self._due = min(self._due, self._first_due(ends[~is_over], at(now, ~is_over)))
            after, through = self._became_due(before, now)
            is_due = (ends + self._spread_us > after) & (ends <= through)
            due.append(DueWindows(slots[is_due], ends[is_due], at(after, is_due), at(through, is_due)))
            over.append(slots[is_over])
        if sum(slots.size for slots in over):
            self._give(self._closed(self._results_due(due), np.concatenate(over)))
        else:
            self._give(self._results_due(due))

    def _close_slices(self, old: int) -> None:
        """Close windows as `_close` does, where all keys have one clock: then all rows of a slice are due, or none."""
        window, now = self._step.window, int(self._clock.of(self._keys.empty))
        after, through = (int(each) for each in self._became_due(old, now))
        rows, over, self._due = dict[int, list[Slots]](), list[Slots](), LAST_US
        over_at, from_us = max(now - self._reach_us, NEVER_US), max(after - self._spread_us, NEVER_US)
        able = self._slices.able
        given = over_at, (from_us, through), self._slices.ends if able else ()
        for slots, times, left in self._table.present_by_time(WINDOW_END, *given):
            if left is not None:
                self._due = min(self._due, self._first_due_between(*left, through, now))
            if not slots.size:
                continue
            ends, ordered, bounds = by_slice(slots, times, window.every_us)
            over.append(ordered[: bounds[np.searchsorted(ends, over_at, "right")]])
            for number in np.flatnonzero((ends > from_us) & (ends <= through)).tolist():
                rows.setdefault(int(ends[number]), []).append(ordered[bounds[number] : bounds[number + 1]])
        if able:
            for end in rows.keys() - set(self._slices.ends):
                self._slices.take(end, np.concatenate(rows[end]))
            results = self._of_held(after, through)
        else:
            results = self._of_slices(rows, after, through)
        self._give(self._closed(results, np.concatenate(over)) if any(each.size for each in over) else results)

    def _of_slices(self, held: Mapping[int, list[Slots]], after: Clock, through: Clock) -> Iterator[pa.RecordBatch]:
        """Yield the windows of slices that end after the first time, and by the second, in the order of their ends."""
        for end, slices in self._windows_over(held, after, through):
            yield from self._window(end, np.concatenate([rows for each in slices for rows in held[each]]))

    def _of_held(self, after: int, through: int) -> Iterator[pa.RecordBatch]:
        """Yield windows as `_of_slices` does, of slices that are held."""
        for end, slices in self._windows_over(self._slices.ends, after, through):
            window = self._slices.merged(slices)
            if window is None:  # a sum may not fit
                yield from self._window(end, self._rows_of(end))
                continue
            keys, states = window
            batch = self._made(np.full(len(keys), end), keys.type.decode(keys), self._folding.results_of(states))
            yield self._by_key(batch)
        self._slices.release(through - self._spread_us)

    def _windows_over(self, ends: Iterable[int], after: Clock, through: Clock) -> Iterator[tuple[int, list[int]]]:
        """Yield the end of each window of slices with these ends, and which of them it has."""
        window, known = self._step.window, sorted(ends)
        _, windows = windows_between(np.array(known, np.int64), after, through, window)
        for end in np.unique(windows).tolist():
            yield end, known[bisect_right(known, end - window.size_us) : bisect_right(known, end)]

    def _rows_of(self, end: int) -> Slots:
        """Return the rows of state of one window."""
        given = NEVER_US, (end - self._step.window.size_us, end), ()
        return np.concatenate([slots for slots, _, _ in self._table.present_by_time(WINDOW_END, *given)])

    def _closed(self, results: Iterator[pa.RecordBatch], over: Slots) -> Iterator[pa.RecordBatch]:
        """Yield the windows that are due; delete the rows that are over after the last one."""
        yield from results
        self._table.expire(over, self._clock.expired_through(self._reach_us))

    def _became_due(self, before: Clock, now: Clock) -> tuple[Clock, Clock]:
        """Return between which ends windows became due: after the first, up to the second."""
        shift = self._step.lateness_us if self._step.emit == "final" else 0
        through = np.maximum(now, NEVER_US + shift) - shift
        if self._step.emit == "final" and self._step.window.overlap == 1:
            return np.int64(NEVER_US), through  # those that were due are not there any longer
        return np.maximum(before, NEVER_US + shift) - shift, through

    def _next_due(self, ends: Times, now: Clock) -> Times:
        """Return when each slice has to be looked at next: a window of it is due, or it is over."""
        window = self._step.window
        _, through = self._became_due(now, now)
        shift = self._step.lateness_us if self._step.emit == "final" else 0
        passed = windows_until(ends, through, window)
        return np.where(passed < window.overlap, ends + passed * window.every_us + shift, ends + self._reach_us)

    def _first_due(self, ends: Times, clock: Clock) -> int:
        """Return when the first of some slices has to be looked at next, or an earlier time.

        With one clock for all, few different slices represent many rows; one that no row is in costs a scan at most.
        """
        every_us = self._step.window.every_us
        if ends.size and not isinstance(clock, np.ndarray) and self._step.window.overlap > 1:
            first, last = int(ends.min()), int(ends.max())
            if (last - first) // every_us < ends.size:
                ends = np.arange(first, last + 1, every_us)
        return int(self._next_due(ends, clock).min(initial=LAST_US))

    def _first_due_between(self, first: int, last: int, through: int, now: int) -> int:
        """Return when the first of slices has to be looked at next, or an earlier time.

        Args:
            first, last: The ends of the earliest and of the latest one.
            through: Up to this end, windows are not due any longer.
        """
        every_us = self._step.window.every_us
        following = first if through < first else first + ((through - first) // every_us + 1) * every_us
        return int(self._next_due(np.array([first, min(last, following)]), np.int64(now)).min())

    def _correct(self, slots: Slots, ends: Times, clock: Clock) -> None:
        """Emit the windows of changed slices that are closed and not over yet."""
        lateness = self._step.lateness_us
        if not lateness or not (ends <= clock).any():
            return
        self._emit(self._windows_of(slots, ends, np.maximum(clock, NEVER_US + lateness) - lateness, clock))

    def _open_windows(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Yield the windows of slices that event time has not passed yet."""
        clock = self._clock.of(lambda: self._table.keys_at(slots))
        yield from self._windows_of(slots, self._table.values(WINDOW_END, slots), clock, _FAR_US)

    def _windows_of(self, slots: Slots, ends: Times, after: Clock, through: Clock) -> Iterator[pa.RecordBatch]:
        """Yield the windows of slices that end after the first time, and by the second, each window and key once."""
        rows, windows = windows_between(ends, after, through, self._step.window)
        if self._step.window.overlap == 1:
            yield from self._results(distinct(slots[rows]))
            return
        # Windows that are farther apart than their size share no slice: slices between them are not looked up.
        order = np.argsort(windows, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(windows[order]) >= self._step.window.size_us) + 1):
            if part.size:
                yield from self._merged(self._table.keys_at(slots[rows[part]]).routed(), windows[part])

    def _emit(self, results: Iterator[pa.RecordBatch]) -> None:
        """Emit results together with the rows that changed them."""
        for each in results:
            self._ctx.emit(each)

    def _merged(self, keys: Keys, windows: Times) -> Iterator[pa.RecordBatch]:
        """Yield, for each of these keys, the window whose end is beside it, each pair once."""
        window, owners = self._step.window, grouped(keys)
        first, last = int(windows.min()) - window.size_us + window.every_us, int(windows.max())
        width = (last - first) // window.every_us + 1
        pairs = np.unique((windows - first) // window.every_us * len(owners.keys) + owners.numbers)
        of, at_end = pairs % len(owners.keys), pairs // len(owners.keys)
        known_slots, places = self._known_slices(owners.keys, first, width)
        begins = np.searchsorted(places, of * width + at_end - window.overlap + 1)
        sizes = np.searchsorted(places, of * width + at_end, "right") - begins
        for part in np.array_split(np.arange(pairs.size), -(-int(sizes.sum()) // MERGED_AT_ONCE)):
            members, groups = spread(begins[part], sizes[part])
            states = self._folding.combined(known_slots[members], groups, part.size)
            keys_given = keys.type.decode(owners.keys.take(of[part]))
            yield self._made(first + at_end[part] * window.every_us, keys_given, self._folding.results_of(states))

    def _known_slices(self, users: Keys, first: int, width: int) -> tuple[Slots, Times]:
        """Return the slots of slices that have state, and their places: `width` for each user key, from `first` on."""
        ends, size = first + np.arange(width) * self._step.window.every_us, len(self._table)
        columns, slot_parts = users.type.decode(users), list[tuple[Slots, Times]]()
        for part in np.array_split(np.arange(len(users)), -(-len(users) * width // MERGED_AT_ONCE)):
            owners = np.repeat(part, width)
            bounds = pa.array(np.tile(ends, part.size)).view(TIME)
            slots = existing(
                self._table, self._table.spec.key.encode([bounds, *(each.take(pa.array(owners)) for each in columns)])
            )
            known = np.flatnonzero(slots >= 0)
            slot_parts.append((slots[known], part[0] * width + known))
        self._looked_up += len(self._table) - size
        slots, places = (np.concatenate(each) for each in zip(*slot_parts, strict=True))
        return slots, places

    def _results_due(self, due: list[DueWindows]) -> Iterator[pa.RecordBatch]:
        """Yield windows in the order of their ends."""
        slots, ends = (np.concatenate([each[i] for each in due] or [np.empty(0, np.int64)]) for i in (0, 1))
        if not slots.size:
            return
        if self._step.window.overlap == 1:
            yield from self._results(slots[np.argsort(ends, kind="stable")])
            return
        order = in_order(ends, self._step.window.every_us)
        slots, ends = slots[order], ends[order]
        after, through = (joined([each[i] for each in due], [each.ends.size for each in due], order) for i in (2, 3))
        first, last = np.int64(np.min(after)), np.int64(np.max(through))
        distinct_ends = ends[np.flatnonzero(np.diff(ends, prepend=NEVER_US))]
        _, windows = windows_between(distinct_ends, first, last, self._step.window)
        for end in np.unique(windows).tolist():
            held = slice(*np.searchsorted(ends, [end - self._step.window.size_us, end], "right"))
            is_due = (at(after, held) < end) & (end <= at(through, held))
            yield from self._window(end, slots[held][np.broadcast_to(is_due, held.stop - held.start)])

    def _window(self, end: int, members: Slots) -> Iterator[pa.RecordBatch]:
        """Yield a window that consists of several slices."""
        if members.size:
            for keys, results in merged(self._folding, self._owners, self._slots_by_key(members)):
                yield self._by_key(self._made(np.full(len(keys[0]), end), keys, results))

    def _results(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Yield windows that are one slice each."""
        for part, results in self._folding.each_piece(self._slots_by_key(slots)):
            yield self._made(self._table.values(WINDOW_END, part), self._table.key_columns(part)[1:], results)

    def _slots_by_key(self, slots: Slots) -> Slots:
        """Return slots in the order of their ends and keys, if that counts."""
        if not self._exact or slots.size < 2:
            return slots
        ordered: Slots = slots[self._table.keys_at(slots).order(np.zeros(slots.size, np.uint16))]
        return ordered

    def _by_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of one window in the order of their keys, if that counts."""
        if not self._exact or batch.num_rows < 2:
            return batch
        return batch.take(pc.sort_indices(batch, [(name, "ascending") for name in self._step.keys]))

    def _made(self, ends: Times, keys: list[pa.Array], results: list[pa.Array]) -> pa.RecordBatch:
        bounds = [pa.array(each).view(TIME) for each in (self._step.window.starts(ends), ends)]
        arrays = [*keys, *bounds, *results]
        if self._upsert:
            arrays.append(pa.array(np.full(ends.size, PUT, np.int8)))
        self.rows_out += ends.size
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def at(clock: Clock, rows: Any) -> Clock:
    """Return the clock of these rows; one that is the same for all stays as it is."""
    return clock[rows] if isinstance(clock, np.ndarray) else clock


def in_order(ends: Times, every_us: int) -> Times:
    """Return the order of ends, which is stable; fast if they lie within 65,536 windows."""
    number = (ends - ends.min()) // every_us
    order: Times = np.argsort(number.astype(np.uint16) if number.max() < 1 << 16 else ends, kind="stable")
    return order


def by_slice(slots: Slots, ends: Times, every_us: int) -> BySlice:
    """Order rows of state by their slices; there is at least one.

    Args:
        ends: The end of each row's slice.
    """
    first = int(ends.min())
    numbers = (ends - first) // every_us
    if int(numbers.max()) < ends.size:
        sizes = np.bincount(numbers)
        order, known = order_of(numbers), np.flatnonzero(sizes)
        distinct_ends, sizes = first + known * every_us, sizes[known]
    else:  # times are far apart
        order = np.argsort(ends, kind="stable")
        distinct_ends, sizes = np.unique(ends, return_counts=True)
    return BySlice(distinct_ends, slots if order is None else slots[order], np.append(0, np.cumsum(sizes)))


def spread(begins: Slots, sizes: Slots) -> tuple[Slots, Slots]:
    """Return the numbers of several ranges, one range after another, and the range of each."""
    ranges = np.repeat(np.arange(sizes.size), sizes)
    return np.arange(ranges.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + begins[ranges], ranges


def joined(clocks: Sequence[Clock], sizes: Sequence[int], order: Times) -> Clock:
    """Return the clocks of parts as one, in this order."""
    if not any(isinstance(each, np.ndarray) for each in clocks):
        return clocks[0]
    return np.concatenate([np.broadcast_to(each, size) for each, size in zip(clocks, sizes, strict=True)])[order]


def windows_until(ends: Times, through: Clock, window: Windows) -> Times:
    """Return how many of each slice's windows have ended by this time."""
    since = np.clip(through, -_FAR_US, _FAR_US) - ends
    return np.clip(since // window.every_us + 1, 0, window.overlap)


def windows_between(ends: Times, after: Clock, through: Clock, window: Windows) -> tuple[Times, Times]:
    """Return every pair of a slice and a window of it that ends after the first time, and by the second.

    Args:
        ends: Ends of the slices.

    Returns:
        The numbers of the slices and the ends of the windows.
    """
    first = windows_until(ends, after, window)
    count = np.maximum(windows_until(ends, through, window) - first, 0)
    rows = np.repeat(np.arange(ends.size), count)
    number = np.arange(rows.size) - np.repeat(np.cumsum(count) - count, count) + first[rows]
    return rows, ends[rows] + number * window.every_us


def _compare_windows(found: Found, before: Any, now: Any) -> None:
    if _windows(before) != _windows(now):
        found.refuse(f"had the windows {window_text(before)} and now has {window_text(now)}")
        return
    if typed(before["time"])[1:] != typed(now["time"])[1:]:
        found.refuse(f"had the event time {columns_text([before['time']])} and now has {columns_text([now['time']])}")
    else:
        found.compare_provenance("event time", before["time"], now["time"])
    if before["emit"] != now["emit"]:
        found.refuse(
            f"had emit={before['emit']!r} and now has emit={now['emit']!r}",
            "; windows with results already emitted would be emitted again, or never",
        )
    old, new = before["lateness_us"], now["lateness_us"]
    if new > old:
        found.refuse(
            f"had allowed_lateness {span(old)} and now has {span(new)}",
            "; windows that are already closed would reopen without their earlier rows",
        )
    elif new < old and before["emit"] == "final" and now["kind"] == "hopping":
        found.refuse(
            f"had allowed_lateness {span(old)} and now has {span(new)}",
            "; windows that are over by the new lateness would never be emitted",
        )
    elif new < old:
        found.allow(
            f"had allowed_lateness {span(old)} and now has {span(new)}",
            "windows that are over by the new lateness close when event time next advances, and take no more rows",
        )


def _windows(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of the windows themselves."""
    return {part: value for part, value in identity.items() if part not in ("time", "lateness_us", "emit")}
