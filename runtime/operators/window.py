"""Aggregates per window and key: a whole batch at a time in, the rows of a window out when event time has passed it.

Rows of state are keyed by (window end, keys); how they are folded is the matter of aggregate.py. The clock of a key
group is the watermark up to which its windows are closed. It is the larger of what the fragment's input says and what
the operator had written down at the checkpoint, in a table of its own with one row per key group: a window that was
closed never opens again, whatever the watermark after a restore or a change of parallelism (P11).

Windows that are due are found by a scan over all rows, but only when time passes the earliest one that is due.

Invariants
    - A record is late, and nothing else, if the end of its window and the lateness are not after the clock.
    - A row is deleted when the clock reaches the end of its window and the lateness; `final` gives it then. One range
      per key group says so, whatever the number of rows (docs/design/0015-window-expiry.md).
    - `close` gives a row when the clock reaches the end of its window, and again whenever a later batch changes it.
    - The clock of every owned key group is in the state before the barrier's freeze.

Pure.
Source: docs/design/0006-watermarks.md; PROTOCOL P11; DESIGN section 5 (keys of windows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import JobFailed, Where
from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.operators.aggregate import AggregateOperator, Slots
from holdfast.runtime.operators.stateless import OP_FIELD
from holdfast.runtime.steps import Aggregate, WindowAggregate
from holdfast.runtime.windows import CLOCK_KEY, TIME, WINDOW_END, event_times_held, micros_of, not_held, outside
from holdfast.sinks.contract import PUT
from holdfast.state.keygroups import key_of_group
from holdfast.state.keys import Keys, KeyType
from holdfast.state.table import Table

Consumer = Callable[[pa.RecordBatch], None]
Times = NDArray[np.int64]

VACANT_SLOTS_MIN = 16_384
"""Expired windows leave slots behind; they are dropped when they are more than this, and half of all."""


@dataclass(frozen=True)
class KeyGroups:
    """How many the job has, and which this subtask owns: [first, end)."""

    count: int
    first: int
    end: int


class WindowOperator:
    """One window operator on one subtask.

    Args:
        kind: What to keep.
        schema: What comes out: keys, window_start, window_end, results.
        upsert: Rows that come out replace each other.
        tables: State by name, with that of the clock.
        job: Named in errors.
        give: Takes results.
        give_late: Takes late records; None: they are counted only.
    """

    def __init__(
        self,
        kind: WindowAggregate,
        schema: pa.Schema,
        upsert: bool,
        tables: Mapping[str, Table],
        key_groups: KeyGroups,
        job: str | None,
        give: Consumer,
        give_late: Consumer | None,
    ) -> None:
        self._kind, self._give, self._give_late, self._job = kind, give, give_late, job
        self._schema, self._upsert = pa.schema([*schema, OP_FIELD] if upsert else schema), upsert
        self._table, self._clock_table, self._key_groups = tables[kind.operator], tables[kind.clock], key_groups
        inner = Aggregate(kind.operator, kind.keys, kind.aggregations)
        self._aggregate = AggregateOperator(inner, schema, self._table, job)
        self._keys = KeyType.of(schema.field(name) for name in kind.keys)
        self.name, self.reads = kind.operator, self._aggregate.reads | {kind.time}
        self.rows_in = self.rows_out = self.late = 0
        owned = np.arange(key_groups.first, key_groups.end)
        self._changed = False
        self._clock_keys = CLOCK_KEY.from_ints(key_of_group(owned, key_groups.count))
        self._clock = self._read_clock()
        self._note_uniform()
        self._due = NEVER_US
        """Nothing is due before this time."""
        self._held = event_times_held([(kind.window, kind.lateness_us)])

    def update(self, batch: pa.RecordBatch) -> None:
        """Take rows into their windows; give the late ones, and windows that are closed already and changed.

        Raises:
            JobFailed: a sum does not fit, or no window holds an event time, which a function gave then.
        """
        self.rows_in += batch.num_rows
        times = micros_of(batch.column(self._kind.time))
        if (wrong := outside(times, self._held)) is not None:
            raise self._failed(int(times[wrong.argmax()]))
        ends = self._kind.window.ends(times)
        clock = self._clock_of(lambda: self._keys.encode([batch.column(name) for name in self._kind.keys]))
        late = ends + self._kind.lateness_us <= clock
        if late.any():
            batch, ends = self._set_late_apart(batch, ends, late)
            clock = clock[~late] if isinstance(clock, np.ndarray) else clock
            if batch.num_rows == 0:
                return
        columns = [pa.array(ends).view(TIME), *(batch.column(name) for name in self._kind.keys)]
        slots = self._aggregate.fold(self._table.spec.key.encode(columns), batch)
        self._table.column(WINDOW_END)[slots] = ends
        if self._kind.emit == "final":
            self._due = min(self._due, int(ends.min()) + self._kind.lateness_us)
            return
        closed = ends <= clock
        if not closed.all():
            self._due = min(self._due, int(ends[~closed].min()))
        if closed.any():
            self._due = min(self._due, int(ends[closed].min()) + self._kind.lateness_us)
            self._give_rows(np.unique(slots[closed]))

    def advance(self, at_us: int) -> None:
        """Event time has come this far; give and delete the windows that are due."""
        if self._uniform is not None and at_us <= self._uniform:
            return
        old: Times | int = self._clock if self._uniform is None else self._uniform
        self._clock, self._changed = np.maximum(self._clock, at_us), True
        self._note_uniform()
        if at_us >= self._due:
            self._close(old)

    def note_clock(self) -> None:
        """Write the clock into the state, before the barrier freezes it."""
        if self._changed:
            slots = self._clock_table.slots(self._clock_keys)
            self._clock_table.column("at")[slots] = self._clock[self._key_groups.first : self._key_groups.end]
            self._clock_table.touch(slots)
            self._changed = False
        if self._table.vacant > max(VACANT_SLOTS_MIN, len(self._table) // 2):
            self._table.drop_vacant()

    def _read_clock(self) -> Times:
        groups = self._key_groups
        # What this subtask does not own is never asked for; it must not keep the clock from being uniform.
        clock = np.full(groups.count, LAST_US)
        slots = self._clock_table.slots(self._clock_keys)
        clock[groups.first : groups.end] = self._clock_table.column("at")[slots]
        return clock

    def _note_uniform(self) -> None:
        """Note the clock if it is the same in all owned key groups, as it is but for a while after a restore."""
        owned = self._clock[self._key_groups.first : self._key_groups.end]
        self._uniform: int | None = int(owned[0]) if owned.size and (owned == owned[0]).all() else None

    def _clock_of(self, keys: Callable[[], Keys]) -> Times | np.int64:
        """Return the clock of each key; a single one if it is the same for all."""
        if self._uniform is not None:
            return np.int64(self._uniform)
        clocks: Times = self._clock[keys().key_groups(self._key_groups.count)]
        return clocks

    def _set_late_apart(
        self, batch: pa.RecordBatch, ends: Times, late: NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, Times]:
        """Give or count the late rows; return the others."""
        self.late += int(late.sum())
        if self._give_late is not None:
            self._give_late(batch.filter(pa.array(late)))
        return batch.filter(pa.array(~late)), ends[~late]

    def _failed(self, at_us: int) -> JobFailed:
        name = self._kind.operator
        return JobFailed(
            f"windows of operator {name!r}: a function gave {self._kind.time!r} a time that cannot be held: "
            f"{not_held(at_us)}",
            not_done="the epoch was not completed; state and output stay as of the last checkpoint",
            next_step=f"give {self._kind.time!r} out as it came in, or filter such rows out in the function; then run "
            "the job again, it goes on from the last checkpoint",
            where=Where(job=self._job, operator=name),
        )

    def _close(self, old: Times | int) -> None:
        """Give what is due since the clock stood at `old`, delete what is over, and find what is due next."""
        slots = self._table.present()
        ends = self._table.column(WINDOW_END)[slots]
        now = self._clock_of(lambda: self._table.keys_at(slots))
        before: Times | int = old
        if isinstance(old, np.ndarray):
            before = old[self._table.keys_at(slots).key_groups(self._key_groups.count)]
        over = ends + self._kind.lateness_us <= now
        due = over if self._kind.emit == "final" else (ends > before) & (ends <= now)
        if due.any():
            rows = np.flatnonzero(due)
            self._give_rows(slots[rows[np.argsort(ends[rows], kind="stable")]])
        if over.any():
            self._table.expire(slots[over], self._expired_through())
        left, closed = ends[~over], (ends <= now)[~over]
        next_due = np.where(closed | (self._kind.emit == "final"), left + self._kind.lateness_us, left)
        self._due = int(next_due.min(initial=LAST_US))

    def _expired_through(self) -> Times:
        """Return per owned key group the last window end that is over, its lateness included."""
        groups, lateness = self._key_groups, self._kind.lateness_us
        through = np.full(groups.count, NEVER_US)
        owned = self._clock[groups.first : groups.end]
        through[groups.first : groups.end] = np.maximum(owned, NEVER_US + lateness) - lateness
        return through

    def _give_rows(self, slots: Slots) -> None:
        ends, *keys = self._table.key_columns(slots)
        starts = pa.array(self._table.column(WINDOW_END)[slots] - self._kind.window.size_us).view(TIME)
        arrays = [*keys, starts, ends, *self._aggregate.results(slots)]
        if self._upsert:
            arrays.append(pa.array(np.full(slots.size, PUT, np.int8)))
        self.rows_out += slots.size
        self._give(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
