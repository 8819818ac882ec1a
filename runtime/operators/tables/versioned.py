"""Look rows up in a table as it was at their event time: an order gets the tax rate of its day, also on a replay.

A row waits until the clock has passed its event time; all versions that were valid then have arrived. It gets the last
version at or before its time. State holds the rows that wait, as a join keeps them (joins/rows.py), and the versions of
the table in order below their keys. A version *leaves* when the clock reaches the next one of its key: no row at or
after the clock can ask for it. A version that deletes leaves when the clock reaches it, as no row is the same as none.

Invariants
    - A row that arrives in time gets the version that is valid at its time, whatever the order of arrival.
    - For every key, the last version at or before the clock is kept, unless it deletes, and all later ones.
    - A row behind the clock is looked up if the version of its time has not left, and else is late.
    - A row is emitted once per committed history: when the clock passes it, in pieces over several turns.
    - A watermark or barrier looks at rows that are due, and at no others that wait.

Pure.
Source: docs/decisions/0067-tables-and-lookups.md; Flink's event-time temporal join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.operators.contract import (
    ROUNDS,
    Description,
    Operator,
    OperatorContext,
    TableDraft,
    part_name,
)
from holdfast.runtime.operators.differences import Found, columns_text, compare_kept, typed
from holdfast.runtime.operators.event_clock import CLOCK_TABLE, EventClock, Times, time_not_held
from holdfast.runtime.operators.joins.rows import KEPT, KeptRows, Slots, draft
from holdfast.runtime.operators.side import LATE
from holdfast.runtime.operators.tables.lookup import (
    ROWS,
    TABLE,
    Lookup,
    Results,
    kept_fields,
    key_columns,
    last_of,
    null_keys,
    state_of,
)
from holdfast.runtime.operators.tables.upserts import deletes
from holdfast.runtime.rows.kept_columns import from_state
from holdfast.runtime.time.join_bounds import LEFT, Between
from holdfast.runtime.time.windows import TIME, micros_of, outside
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.collections.rows import OrderedRows, drop_absent
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.ordered import BY_KEY
from holdfast.state.tables.spec import ColumnSpec

VALID_FROM = "valid_from"
"""The event time of a version; last in its key."""
LEAVES = ColumnSpec("leaves_at", np.dtype(np.int64), LAST_US)
"""When the version leaves: the time of the next one, also of a late delete that is not kept; its own if it deletes."""
WAITING = "waiting"
"""The table of the rows that wait."""
PIECE_ROWS = 65_536
"""Rows that are sorted and looked up together when event time advances; those of one time are sorted together."""
_AT_ONCE = Between(0, 0)
"""A row waits until the clock is past its own time."""


@dataclass(frozen=True)
class VersionedLookup(Lookup):
    """Add the columns of the row that the table had at the event time of each row."""

    times: tuple[str, str]
    """The column with the event time, per input."""

    kind: ClassVar[str] = "lookup"
    keeps: ClassVar[str] = "the versions of a table, and the rows that wait for theirs"

    def also_reads(self, port: int) -> tuple[str, ...]:
        return (self.times[port],)

    def compared(self, port: int) -> tuple[str, ...]:
        return (self.times[port],)

    def times_held(self) -> tuple[int, int]:
        return _AT_ONCE.held()

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        keys = [given[TABLE].field(key).with_nullable(False) for key in self.table_keys]
        kept = kept_fields(given[TABLE], self.table_keys)
        versions = KeyType.of([*keys, pa.field(VALID_FROM, TIME, nullable=False)], suffix=1)
        return (
            TableDraft(versions, (LEAVES, *kept), orders=(BY_KEY, LEAVES.name)),
            draft(given[ROWS], self.keys, [key.type for key in keys], self.times[ROWS], True, WAITING),
            CLOCK_TABLE,
        )

    def identity(self, column: Description) -> dict[str, Any]:
        times = [column(name, port) for port, name in enumerate(self.times)]
        named = {*self.keys, self.times[ROWS]}
        waiting = [column(name, ROWS) for name in column.names(ROWS) if name not in named]
        return super().identity(column) | {"suffix": 1, "event_times": times, "waiting": waiting}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        super().compare(found, before, now)
        for qualifier, old, new in zip(("", " of the table"), before["event_times"], now["event_times"], strict=True):
            if typed(old) != typed(new):
                was, given = columns_text([old]), columns_text([new])
                found.refuse(f"had the event time{qualifier} {was} and now has {given}")
            else:
                found.compare_provenance(f"event time{qualifier}", old, new)
        compare_kept(found, "column", before["waiting"], now["waiting"])

    def text(self) -> str:
        state = f"keeps each row until {self.times[ROWS]}, and the versions of the table from then on"
        return f"lookup {self.operator} by {', '.join(self.keys)}, {self.how}, as of {self.times[ROWS]}: {state}"

    def open(self, ctx: OperatorContext) -> Operator:
        return VersionedOperator(self, ctx)


class VersionedOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: VersionedLookup, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._held = step, ctx, step.times_held()
        self._clock = EventClock(step.operator, ctx)
        self._versions = Versions(OrderedRows(ctx.table(step.operator)), self._clock, step)
        self._waiting = KeptRows(ctx.table(part_name(step.operator, WAITING)), _AT_ONCE, LEFT, step.times[ROWS], True)
        self._results = Results(step, ctx.placed[0].schema, ctx.needed())
        self.name = step.operator
        self.mark = f"operator: {self.name}"
        self._at_us = NEVER_US
        self._next: Slots = np.empty(0, np.int64)
        """Rows that are due, in the order of their times, and were not looked up yet; empty at a barrier."""
        self.rows_in = self.rows_out = self.dropped = self.late = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take changes of the table; keep rows until their time, and look up those that are behind it.

        Raises:
            JobFailed: the state cannot hold an event time, which then comes from a function, or a row.
        """
        self.rows_in += batch.num_rows
        self._waiting.find_due(self._clock)
        nulls = null_keys(batch, self._step.keyed_by(port))
        if nulls.any():
            self._pass_by(port, batch.filter(pa.array(nulls)))
            batch = batch.filter(pa.array(~nulls))
        if not batch.num_rows:
            return
        times = micros_of(batch.column(self._step.times[port]))
        if (wrong := outside(times, self._held)) is not None:
            at_us, column = int(times[wrong.argmax()]), self._step.times[port]
            raise time_not_held("operator", self.name, column, at_us, self._ctx.job)
        if port == TABLE:
            self.dropped += self._versions.take(batch, times)
        else:
            self._keep(batch, times)

    def on_watermark(self, at_us: int) -> None:
        """Advance event time to this point; look up the rows that it has passed."""
        self._waiting.find_due(self._clock)
        self._at_us = at_us
        if self._clock.advance(at_us) is None:
            return
        if self._waiting.is_due(at_us):
            self._ctx.defer(self, ROUNDS)

    def on_barrier(self) -> None:
        self._clock.note()
        self._waiting.expire(self._clock, self._at_us)
        self._versions.expire()
        drop_absent(self._versions.table)

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Look up some of the rows that are due, the first ones first; see Work."""
        if not self._next.size:
            self._next = self._waiting.unmatched(self._at_us, PIECE_ROWS)
        if not self._next.size:
            return batch.num_rows - at, []
        slots, self._next = self._next[:PIECE_ROWS], self._next[PIECE_ROWS:]
        rows = self._kept(slots)
        made = self._made(rows, self._versions.at(rows, micros_of(rows.column(self._step.times[ROWS]))).slots)
        return 1, [] if made is None else [made]

    def progress(self) -> OperatorProgress:
        counts = self.rows_in, self.rows_out, 0
        return OperatorProgress(self.name, *counts, dropped=self.dropped, late=self.late)

    def _keep(self, batch: pa.RecordBatch, times: Times) -> None:
        over = _AT_ONCE.over(LEFT, times, times)
        kind = self._versions.users
        keys = key_columns(batch, self._step.keys, kind)
        behind = over <= self._clock.of(lambda: kind.encode(keys))
        if behind.any():
            self._look_up_behind(batch.filter(pa.array(behind)), times[behind])
            kept = pa.array(~behind)
            batch, times, over, keys = batch.filter(kept), times[~behind], over[~behind], [k.filter(kept) for k in keys]
        if times.size:
            self._waiting.keep(batch, keys, _AT_ONCE.place(times)[1], over)

    def _look_up_behind(self, rows: pa.RecordBatch, times: Times) -> None:
        """Look up rows that the clock has passed, if the versions of their time are kept; the others are late."""
        versions = self._versions.at(rows, times)
        late = ~versions.kept
        if late.any():
            self.late += int(late.sum())
            if self._ctx.wanted(LATE):
                self._ctx.emit(rows.filter(pa.array(late)), LATE)
            rows, slots = rows.filter(pa.array(~late)), versions.slots[~late]
        else:
            slots = versions.slots
        if rows.num_rows and (made := self._made(rows, slots)) is not None:
            self._ctx.emit(made)

    def _pass_by(self, port: int, rows: pa.RecordBatch) -> None:
        """Emit or drop rows that match nothing."""
        if port == TABLE:
            self.dropped += rows.num_rows
        elif (made := self._made(rows, np.full(rows.num_rows, -1))) is not None:
            self._ctx.emit(made)

    def _made(self, rows: pa.RecordBatch, slots: Slots) -> pa.RecordBatch | None:
        """Return results for rows and the slots of their versions, -1 for none; None if there are none to emit."""
        if self._step.how == "inner" and (missing := slots < 0).any():
            self.dropped += int(missing.sum())
            rows, slots = rows.filter(pa.array(~missing)), slots[~missing]
        self.rows_out += slots.size
        return self._results.of(rows, self._versions.table, slots) if slots.size and self._ctx.wanted() else None

    def _kept(self, slots: Slots) -> pa.RecordBatch:
        """Return rows that wait, as they arrived."""
        schema, names = self._ctx.given, [n for n in self._ctx.given.names if n not in self._step.keys]
        found = self._waiting.read(names, slots)
        _, _, *keys = self._waiting.table.key_columns(slots)
        columns = dict(zip(self._step.keys, keys, strict=True))
        columns |= {name: from_state(found[name], schema.field(name).type) for name in names}
        arrays = [columns[field.name] for field in schema]
        arrays = [a if a.type == field.type else a.cast(field.type) for a, field in zip(arrays, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class _Versions:
    """The versions of rows at their times."""

    slots: Slots
    """Per row the slot of its version, -1 if the table had no row."""
    kept: NDArray[np.bool_]
    """Whether the version has not left."""


class Versions:
    """The versions of a table, in order below their keys."""

    def __init__(self, rows: OrderedRows, clock: EventClock, step: VersionedLookup) -> None:
        self._rows, self._clock, self._step = rows, clock, step
        self.table = rows.table
        self.users = self.table.spec.key.routed
        """The type of the table's own key."""
        self._columns = [column for column in self.table.spec.columns if column.name.startswith(KEPT)]

    def take(self, batch: pa.RecordBatch, times: Times) -> int:
        """Take changes of the table; return how many came so late that no row can ask for them.

        If several have the same key and time, the last one counts.
        """
        self.expire()  # so that the result for a late change does not depend on barriers
        users = self.users.encode(key_columns(batch, self._step.table_keys, self.users))
        slots = self.table.slots(self._rows.keys(users, [_as_times(times)]))
        rows = last_of(slots)
        slots, times, users, batch = slots[rows], times[rows], users.take(rows), batch.take(pa.array(rows))
        deletions = deletes(batch)
        self.table.write(slots, state_of(batch, self._columns) | {LEAVES.name: times})
        following = self._rows.find(users, [_as_times(times + 1)], limit=1)
        leaves = np.full(slots.size, LAST_US)
        leaves[following.counts == 1] = self._valid_from(following.slots)
        leaves[deletions] = times[deletions]
        before = self._rows.find(users, (), [_as_times(times)], limit=1, descending=True)
        self.table.write(slots, {LEAVES.name: leaves})
        # A version that leaves earlier was deleted, perhaps by a late change that left no version.
        earlier = np.minimum(self.table.values(LEAVES.name, before.slots), times[before.counts == 1])
        self.table.write(before.slots, {LEAVES.name: earlier})
        useless = (times < self._clock.of(lambda: users)) & (leaves <= self._clock.of(lambda: users))
        self.table.delete(slots[useless])
        return int(useless.sum())

    def at(self, rows: pa.RecordBatch, times: Times) -> _Versions:
        """Return the versions that were valid at the times of rows."""
        users = self.users.encode(key_columns(rows, self._step.keys, self.users))
        versions = self._rows.find(users, (), [_as_times(times + 1)], limit=1, descending=True)
        slots, has = np.full(times.size, -1), versions.counts == 1
        leaves, kept = self.table.values(LEAVES.name, versions.slots), np.zeros(times.size, bool)
        kept[has] = leaves > _of(self._clock, users, has)
        slots[has] = np.where(leaves > times[has], versions.slots, -1)
        return _Versions(slots, kept)

    def expire(self) -> None:
        """Delete the versions that have left."""
        latest = int(self._clock.expired_through(0).max())
        slots = self.table.ordered(LEAVES.name).through(latest)
        if slots.size:
            clock = self._clock.of(lambda: self.table.keys_at(slots))
            self.table.delete(slots[self.table.values(LEAVES.name, slots) <= clock])

    def _valid_from(self, slots: Slots) -> Times:
        return micros_of(self.table.key_columns(slots)[-1])


def _of(clock: EventClock, users: Keys, rows: NDArray[np.bool_]) -> Times | np.int64:
    """Return the clock of some keys."""
    return clock.of(lambda: users.take(np.flatnonzero(rows)))


def _as_times(times: Times) -> pa.Array:
    return pa.array(times).view(TIME)
