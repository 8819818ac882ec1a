"""Join two streams by key and event time.

A row is compared with the kept rows of the other input when it arrives, and then kept for those that come later. So
every pair is emitted once, by the row that arrives second. An outer join emits a row without partners when it is over:
no row at or after the clock can join it (join_bounds.py).

A row that arrives when it is over is late. A row with a null in a key column joins nothing, so it is not kept: an outer
join emits it immediately, others drop it.

A hot key has many pairs for a row, so pairs are made in pieces that wait in the fragment's backlog.

Invariants
    - Two rows join if and only if keys and times fit and neither was over, by the clock of its key, when the second
      arrived. This holds for all pairs of rows that arrive in time.
    - An unmatched row is emitted once per committed history: when the clock passes the time at which it is over.
    - Event times of an input in the result lie at most the bound's `delay_us` behind the clock. So event time leaves
      the fragment as much later.
    - Rows are expired at a barrier only, when no piece waits.

Pure.
Source: docs/decisions/0060-joins.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import NEVER_US
from holdfast.runtime.operators.contract import (
    MAIN,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
    part_name,
)
from holdfast.runtime.operators.differences import Found, columns_text, compare_kept, compare_keys, typed
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times, time_not_held
from holdfast.runtime.operators.joins.rows import Candidates, KeptRows, Slots, draft
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.rows.kept_columns import from_state
from holdfast.runtime.time.join_bounds import LEFT, RIGHT, JoinBound, bound_text
from holdfast.runtime.time.windows import TIME, WINDOW_END, WINDOW_START, micros_of, outside
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.keys.batch import KeyType

OUTER = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}
"""By `how`: whether unmatched rows of the left and of the right input are emitted."""
CANDIDATES_MAX = 16_384
"""Candidates of one row that are compared together."""
PIECE_ROWS = 65_536
"""Candidates that are compared together, and unmatched rows that are emitted together."""
_PARTS = ("", "right")
"""The tables of the inputs."""
_NAMED = ("left", "right")


@dataclass(frozen=True)
class Join(KeyedStep):
    """Emit the pairs of rows of two streams with equal keys whose event times fit."""

    operator: str
    keys: tuple[str, ...]
    times: tuple[str, str]
    """The column with the event time, per input."""
    bound: JoinBound
    how: str
    names: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
    """Per input, each of its columns and its name in the result."""

    kind: ClassVar[str] = "join"
    keeps: ClassVar[str] = "the rows of two streams that may still join"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        behind = needed.get(MAIN, frozenset()) | needed.get(LATE, frozenset())
        read = [column for column, name in self.names[port] if name in behind]
        return tuple(dict.fromkeys((*self.keys, self.times[port], *(name for name in given.names if name in read))))

    def delay_us(self) -> int:
        """Return how much later event time leaves the fragment; of a full join, of either input."""
        ports = {"left": [LEFT], "inner": [LEFT], "right": [RIGHT]}.get(self.how, [LEFT, RIGHT])
        return max(self.bound.delay_us(port) for port in ports)

    def compared(self, port: int) -> tuple[str, ...]:
        return (self.times[port],)

    def times_held(self) -> tuple[int, int]:
        return self.bound.held()

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        types = [given[LEFT].field(key).type for key in self.keys]
        outer, (left, right) = OUTER[self.how], given
        return (
            draft(left, self.keys, types, self.times[LEFT], outer[LEFT], _PARTS[LEFT]),
            draft(right, self.keys, types, self.times[RIGHT], outer[RIGHT], _PARTS[RIGHT]),
            CLOCK_TABLE,
        )

    def identity(self, column: Description) -> dict[str, Any]:
        left, right = ([column(name, port) for name in self.keys] for port in (LEFT, RIGHT))
        times = [column(name, port) for port, name in enumerate(self.times)]
        rows = [self._kept(column, port) for port in (LEFT, RIGHT)]
        kept = {"bound": self.bound.identity(), "how": self.how, "event_times": times, "rows": rows}
        return {"keeps": self.keeps, "key": left, "right_key": right} | kept | {"times": [f"row.{self.times[LEFT]}"]}

    def _kept(self, column: Description, port: int) -> list[dict[str, Any]]:
        """Describe the columns that rows of an input keep: state holds times and decimals without their types."""
        named = {*self.keys, self.times[port]}
        return [column(name, port) for name in column.names(port) if name not in named]

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        compare_keys(found, before["right_key"], now["right_key"])
        for side_name, old, new in zip(_NAMED, before["event_times"], now["event_times"], strict=True):
            if typed(old) != typed(new):
                was, given = columns_text([old]), columns_text([new])
                found.refuse(f"had the {side_name} event time {was} and now has {given}")
            else:
                found.compare_provenance(f"{side_name} event time", old, new)
        for side_name, old, new in zip(_NAMED, before["rows"], now["rows"], strict=True):
            compare_kept(found, f"{side_name} column", old, new)
        if (was := bound_text(before["bound"])) != (shown := bound_text(now["bound"])):
            found.refuse(
                f"joined rows {was} and now joins rows {shown}", "; rows that it needs may have left its state"
            )
        elif before["bound"] != now["bound"]:
            found.refuse("keeps its rows in buckets of another length")
        if before["how"] != now["how"]:
            found.refuse(
                f"was how={before['how']!r} and now is how={now['how']!r}",
                "; its state does not record which rows have joined or were emitted",
            )

    def text(self) -> str:
        return f"join {self.operator} by {', '.join(self.keys)}, {self.how}: {self.bound.shown()}"

    def open(self, ctx: OperatorContext) -> Operator:
        return JoinOperator(self, ctx)


@dataclass(frozen=True)
class Arrived:
    """Rows of one input, in each of their buckets."""

    batch: pa.RecordBatch
    keys: tuple[pa.Array, ...]
    times: Times
    ends: Times
    over: Times
    clock: Times
    rows: Times
    """The number of each row in the batch that arrived."""

    def where(self, mask: NDArray[np.bool_]) -> Arrived:
        """Return some of the rows."""
        if mask.all():
            return self
        chosen = pa.array(mask)
        arrays = (each[mask] for each in (self.times, self.ends, self.over, self.clock, self.rows))
        return Arrived(self.batch.filter(chosen), tuple(each.filter(chosen) for each in self.keys), *arrays)

    @cached_property
    def null_keys(self) -> NDArray[np.bool_]:
        """Whether a key column is null."""
        nulls = [np.asarray(each.is_null().to_numpy(zero_copy_only=False)) for each in self.keys if each.null_count]
        return np.logical_or.reduce(nulls) if nulls else np.zeros(len(self.times), bool)


class JoinOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Join, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._held = step, ctx, step.times_held()
        self._clock = EventClock(step.operator, ctx)
        tables = [ctx.table(part_name(step.operator, part)) for part in _PARTS]
        sides = zip(tables, step.times, OUTER[step.how], strict=True)
        self.kept = tuple(KeptRows(t, step.bound, port, time, outer) for port, (t, time, outer) in enumerate(sides))
        self._results = _Rows(step, ctx.placed[0].schema, ctx.needed())
        self._late = _Rows(step, late_schema(ctx.placed[0].schema), ctx.needed(LATE))
        self._at_us = NEVER_US
        self.rows_in = self.rows_out = self.dropped = self.late = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Emit the pairs of rows with those that are kept; keep the rows for later ones.

        Raises:
            JobFailed: the state cannot hold an event time, which then comes from a function, or a row.
        """
        self.rows_in += batch.num_rows
        for side in self.kept:
            side.find_due(self._clock)
        arrivals = self._arrived(port, batch)
        late = arrivals.over <= arrivals.clock
        if late.any():
            self._set_late_apart(port, batch, arrivals.rows, late)
            arrivals = arrivals.where(~late)
        if (nulls := arrivals.null_keys).any():
            self._pass_by(port, arrivals.where(nulls))
            arrivals = arrivals.where(~nulls)
        if not arrivals.times.size:
            return
        types, side, other = self.kept[port].key_types, self.kept[port], self.kept[1 - port]
        keys = (a if a.type == kind else a.cast(kind) for a, kind in zip(arrivals.keys, types, strict=True))
        arrivals = replace(arrivals, keys=tuple(keys))
        own = side.keep(arrivals.batch, arrivals.keys, arrivals.ends, arrivals.over)
        asked = self._asked(port, arrivals, other)
        if asked.heads.size:
            self._ctx.defer(_JoinPairs(self, port, arrivals, own), _as_units(asked))

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; emit the unmatched rows that are over."""
        for side in self.kept:
            side.find_due(self._clock)
        self._at_us = at_us
        if self._clock.advance(at_us) is None:
            return
        for port, side in enumerate(self.kept):
            if (slots := side.unmatched(at_us)).size:
                batch = pa.RecordBatch.from_arrays([pa.array(slots)], ["slot"])
                self._ctx.defer(_Unmatched(self, port), batch)

    def on_barrier(self) -> None:
        self._clock.note()
        for side in self.kept:
            side.expire(self._clock, self._at_us)

    def progress(self) -> OperatorProgress:
        counts = self.rows_in, self.rows_out, 0
        return OperatorProgress(self._step.operator, *counts, dropped=self.dropped, late=self.late)

    def _arrived(self, port: int, batch: pa.RecordBatch) -> Arrived:
        step = self._step
        times = micros_of(batch.column(step.times[port]))
        if (wrong := outside(times, self._held)) is not None:
            at_us = int(times[wrong.argmax()])
            raise time_not_held("operator", step.operator, step.times[port], at_us, self._ctx.job)
        rows, ends = step.bound.place(times)
        if rows is None:
            rows = np.arange(times.size)
        else:
            batch, times = batch.take(pa.array(rows)), times[rows]
        keys = tuple(batch.column(name) for name in step.keys)
        kind = KeyType.of(batch.schema.field(name) for name in step.keys)
        clock = np.broadcast_to(self._clock.of(lambda: kind.encode(keys)), times.shape)
        return Arrived(batch, keys, times, ends, step.bound.over(port, times, ends), clock, rows)

    def _set_late_apart(self, port: int, batch: pa.RecordBatch, rows: Times, late: NDArray[np.bool_]) -> None:
        """Emit or count the late rows. A row in several windows is late if it is late for all of them."""
        taken = np.zeros(batch.num_rows, bool)
        taken[rows[~late]] = True
        whole = batch.filter(pa.array(~taken))
        self.late += whole.num_rows
        if self._ctx.wanted(LATE) and whole.num_rows:
            keys = [whole.column(name) for name in self._step.keys]
            self._ctx.emit(self._late.of_one(port, whole, keys, None), LATE)

    def _pass_by(self, port: int, arrived: Arrived) -> None:
        """Emit or drop rows that can never join."""
        if not self.kept[port].outer:
            self.dropped += np.unique(arrived.rows).size
            return
        self.rows_out += arrived.times.size
        if self._ctx.wanted():
            self._ctx.emit(self._results.of_one(port, arrived.batch, arrived.keys, arrived.ends))

    def _asked(self, port: int, arrived: Arrived, other: KeptRows) -> Candidates:
        """Return the kept rows in the buckets that partners of these rows can be in."""
        bound, every = self._step.bound, np.arange(arrived.times.size)
        if (partners := bound.partners(port, arrived.times)) is None:
            return other.candidates(every, arrived.keys, arrived.ends)
        first, last = (bound.bucket_of(each) for each in partners)
        candidates = other.candidates(every, arrived.keys, first)
        further = np.flatnonzero(first != last)
        if not further.size:
            return candidates
        keys = tuple(each.take(pa.array(further)) for each in arrived.keys)
        second = other.candidates(further, keys, last[further])
        both = [np.concatenate(each) for each in zip(candidates, second, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return Candidates(*(each[order] for each in both))

    def pairs_of(self, port: int, arrived: Arrived, own: Slots, units: Units) -> pa.RecordBatch | None:
        """Return the pairs of rows with some of their candidates; None if there are none, or nothing reads them."""
        side, other, time_bound = self.kept[port], self.kept[1 - port], self._step.bound
        rows, slots = units.candidates(other, arrived.keys)
        if (partners := time_bound.partners(port, arrived.times)) is not None:
            first, last = partners
            times = other.times(slots)
            fits = (times >= first[rows]) & (times <= last[rows])
            fits &= time_bound.over(1 - port, times, times) > arrived.clock[rows]
            rows, slots = rows[fits], slots[fits]
        self.rows_out += rows.size
        if not rows.size:
            return None
        for kept, joined in ((side, own[rows]), (other, slots)):
            if kept.outer:
                kept.matched(joined)
        return self._results.of_pairs(port, arrived, rows, other, slots) if self._ctx.wanted() else None

    def unmatched_of(self, port: int, slots: Slots) -> pa.RecordBatch | None:
        """Return kept rows as results without a partner; None if nothing reads them."""
        self.rows_out += slots.size
        return self._results.of_kept(port, self.kept[port], slots) if self._ctx.wanted() else None

    @property
    def work_name(self) -> str:
        """The name of the operator, for those who look at its work."""
        return self._step.operator


@dataclass(frozen=True)
class Units:
    """Ranges of candidates: of each row of `asking`, the rows with numbers `first`, `first` + 1, ... of a bucket."""

    asking: Slots
    ends: Times
    heads: Slots
    first: Slots
    counts: Slots

    def candidates(self, other: KeptRows, keys: Sequence[pa.Array]) -> tuple[Slots, Slots]:
        """Return every pair of an asking row and the slot of a candidate."""
        before = np.cumsum(self.counts) - self.counts
        unit = np.repeat(np.arange(self.counts.size), self.counts)
        numbers = np.arange(unit.size) - before[unit] + self.first[unit]
        rows, slots = self.asking[unit], self.heads[unit]
        further = np.flatnonzero(numbers)
        if further.size:
            columns = [each.take(pa.array(rows[further])) for each in keys]
            slots[further] = other.numbered(self.ends[unit[further]], numbers[further], columns)
        return rows, slots


def _as_units(asked: Candidates) -> pa.RecordBatch:
    """Return candidates as rows of the backlog, each with a bounded number of them."""
    parts = -(-asked.counts // CANDIDATES_MAX)
    unit = np.repeat(np.arange(parts.size), parts)
    first = (np.arange(unit.size) - (np.cumsum(parts) - parts)[unit]) * CANDIDATES_MAX
    counts = np.minimum(asked.counts[unit] - first, CANDIDATES_MAX)
    columns = [asked.asking[unit], asked.ends[unit], asked.heads[unit], first, counts]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], list(Units.__dataclass_fields__))


class _JoinPairs:
    """The pairs of the rows of one batch, made in pieces."""

    def __init__(self, operator: JoinOperator, port: int, arrived: Arrived, own: Slots) -> None:
        self._operator, self._port, self._arrived, self._own = operator, port, arrived, own
        self.name = operator.work_name
        self.mark = f"operator: {self.name}"

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Make the pairs of some units."""
        counts = batch.column("counts").to_numpy()[at : at + PIECE_ROWS]
        count = max(1, int(np.searchsorted(np.cumsum(counts), PIECE_ROWS, side="right")))
        units = Units(*(each.to_numpy() for each in batch.slice(at, count).columns))
        made = self._operator.pairs_of(self._port, self._arrived, self._own, units)
        return count, [] if made is None else [made]


class _Unmatched:
    """Unmatched rows that are over, emitted in pieces."""

    def __init__(self, operator: JoinOperator, port: int) -> None:
        self._operator, self._port, self.name = operator, port, operator.work_name
        self.mark = f"operator: {self.name}"

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Emit some rows."""
        slots = batch.column("slot").to_numpy()[at : at + PIECE_ROWS]
        made = self._operator.unmatched_of(self._port, slots)
        return slots.size, [] if made is None else [made]


class _Rows:
    """Makes rows of the result, with the columns that are needed."""

    def __init__(self, step: Join, schema: pa.Schema, needed: frozenset[str]) -> None:
        self._step, self._schema = step, pa.schema([field for field in schema if field.name in needed])
        wanted = set(self._schema.names)
        self._read = tuple([(c, n) for c, n in names if n in wanted and c not in step.keys] for names in step.names)
        self._of_window = {WINDOW_START, WINDOW_END} & wanted - {name for names in step.names for _, name in names}

    def of_pairs(self, port: int, arrived: Arrived, rows: Slots, other: KeptRows, slots: Slots) -> pa.RecordBatch:
        """Return pairs of rows that arrived and kept rows."""
        taken = pa.array(rows)
        columns = {name: arrived.batch.column(column).take(taken) for column, name in self._read[port]}
        columns |= self._of_state(1 - port, other, slots)
        return self._made(rows.size, columns, [each.take(taken) for each in arrived.keys], arrived.ends[rows])

    def of_one(self, port: int, batch: pa.RecordBatch, keys: Sequence[pa.Array], ends: Times | None) -> pa.RecordBatch:
        """Return rows that arrived, without partners."""
        columns = {name: batch.column(column) for column, name in self._read[port]}
        return self._made(batch.num_rows, columns, keys, ends)

    def of_kept(self, port: int, side: KeptRows, slots: Slots) -> pa.RecordBatch:
        """Return kept rows, without partners."""
        ends, _, *keys = side.table.key_columns(slots)
        return self._made(slots.size, self._of_state(port, side, slots), keys, micros_of(ends))

    def _of_state(self, port: int, side: KeptRows, slots: Slots) -> dict[str, pa.Array]:
        found = side.read([column for column, _ in self._read[port]], slots)
        return {name: from_state(found[column], self._schema.field(name).type) for column, name in self._read[port]}

    def _made(
        self, count: int, columns: Mapping[str, pa.Array], keys: Sequence[pa.Array], ends: Times | None
    ) -> pa.RecordBatch:
        """Return rows with these columns; those of a missing partner are null."""
        all_columns = {**columns, **dict(zip(self._step.keys, keys, strict=True))}
        if ends is not None and self._of_window:  # event times in a window lie behind its end by its size at most
            size_us = self._step.bound.delay_us(LEFT)
            all_columns |= {WINDOW_START: pa.array(ends - size_us).view(TIME), WINDOW_END: pa.array(ends).view(TIME)}
        arrays = [_typed(all_columns.get(field.name), field.type, count) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def late_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of late rows: those of the result, of which the other input's are null."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _typed(array: pa.Array | None, kind: pa.DataType, count: int) -> pa.Array:
    if array is None:
        return pa.nulls(count, kind)
    return array if array.type == kind else array.cast(kind)
