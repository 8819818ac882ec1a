"""The state of a pattern: the rows that wait or belong to partial matches, and the partial matches.

A row is kept once, by (keys, event time, number), whatever partial matches it belongs to; number 0 counts the rows of
its key and time. While it waits, the table orders it by its time. A partial match is kept by (keys, number), with the
stage that it waits for and, as 24 bytes each, the stage, time and number of its rows.

Invariants
    - The rows of a partial match are kept.
    - A row that waits is not before the clock of its key.

Pure.
Source: docs/decisions/0069-patterns.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US
from holdfast.runtime.operators.contract import TableDraft
from holdfast.runtime.operators.joins.rows import ranks
from holdfast.runtime.operators.patterns.automaton import Partial, PatternRow
from holdfast.runtime.rows.kept_columns import from_state, kept_column, to_state
from holdfast.runtime.time.windows import TIME
from holdfast.state.collections.rows import OrderedRows, drop_absent, existing, extended
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.ordered import BY_KEY
from holdfast.state.tables.spec import ColumnSpec
from holdfast.state.tables.table import StateTable

Slots = NDArray[np.int64]
Times = NDArray[np.int64]
ROW_TIME, ROW_NUMBER, PARTIAL = "row_time", "row_number", "partial"
RESERVED = (ROW_TIME, ROW_NUMBER, PARTIAL)
"""Names in the keys of the state, which no key column can have."""
ROWS = "rows"
"""The part of the state with the rows."""
DUE = ColumnSpec("due", np.dtype(np.int64), LAST_US)
"""The time of a row that waits; never for others."""
FITS = ColumnSpec("fits", np.dtype(np.int64))
"""By condition, a bit that is set if its expressions hold for the row."""
SAME = ColumnSpec("same", np.dtype(np.int64))
"""In the row with number 0: how many rows of its key came with its time."""
KEPT = "row."
STAGE = ColumnSpec("stage", np.dtype(np.int64))
COUNT = ColumnSpec("count", np.dtype(np.int64))
ENDS = ColumnSpec("ends", np.dtype(np.int64), LAST_US)
TAKEN = ColumnSpec("taken", pa.large_binary(), None)
_TAKEN = np.dtype("<i8")


def drafts(given: pa.Schema, keys: Sequence[str], columns: Sequence[str]) -> tuple[TableDraft, TableDraft]:
    """Return the tables of partial matches and of rows.

    Args:
        columns: Those of a row that are neither a key nor the event time.
    """
    users = [given.field(name) for name in keys]
    places = [pa.field(ROW_TIME, TIME, nullable=False), pa.field(ROW_NUMBER, pa.int32(), nullable=False)]
    kept = [kept_column(given.field(name), KEPT + name) for name in columns]
    state_columns = tuple(column for column in kept if column is not None)
    assert len(state_columns) == len(kept), "the pattern was not checked"
    times = tuple(KEPT + name for name in columns if given.field(name).type == TIME)
    number = pa.field(PARTIAL, pa.int64(), nullable=False)
    return (
        TableDraft(KeyType.of([*users, number], suffix=1), (STAGE, COUNT, ENDS, TAKEN), orders=(BY_KEY, ENDS.name)),
        TableDraft(
            KeyType.of([*users, *places], suffix=2), (DUE, FITS, SAME, *state_columns), ROWS, None, (DUE.name,), times
        ),
    )


class StoredRows:
    """The rows of one subtask.

    Args:
        time: The stream's event time.
        given: The columns of the stream.
    """

    def __init__(self, table: StateTable, keys: Sequence[str], time: str, given: pa.Schema) -> None:
        self.table, self._keys, self._time, self._given = table, tuple(keys), time, given
        self._columns = [column for column in table.spec.columns if column.name.startswith(KEPT)]

    def keep(self, batch: pa.RecordBatch, times: Times, fits: Slots) -> None:
        """Keep rows until their time has come."""
        users = self.table.spec.key.routed.encode([batch.column(name) for name in self._keys])
        heads = self._slots(users, times, np.zeros(times.size, np.int32))
        numbers = self.table.values(SAME.name, heads) + ranks(heads)
        slots, further = heads, np.flatnonzero(numbers)
        if further.size:
            slots = heads.copy()
            slots[further] = self._slots(users.take(further), times[further], numbers[further].astype(np.int32))
        columns = {c.name: to_state(batch.column(c.name.removeprefix(KEPT)), c) for c in self._columns}
        self.table.write(slots, {DUE.name: times, FITS.name: fits, **columns})
        np.add.at(self.table.changing(heads)(SAME.name), heads, 1)

    def due(self, before_us: int) -> Slots:
        """Return the rows that wait with a time before this one, in the order of time and number."""
        return self.table.ordered(DUE.name).through(before_us - 1)

    def taken(self, slots: Slots) -> None:
        """Let rows that waited stay for partial matches."""
        if slots.size:
            self.table.write(slots, {DUE.name: np.full(slots.size, LAST_US)})

    def users(self, slots: Slots) -> Keys:
        """Return the keys of rows."""
        return self.table.keys_at(slots).routed()

    def rows(self, slots: Slots) -> list[PatternRow]:
        """Return rows as the automaton sees them."""
        *_, times, numbers = self.table.key_columns(slots)
        return list(map(PatternRow, times.view(pa.int64()).to_pylist(), numbers.to_pylist(), slots.tolist()))

    def found(self, users: Keys, times: Times, numbers: Slots) -> Slots:
        """Return the slots of rows that partial matches have."""
        slots = existing(self.table, self._key(users, times, numbers.astype(np.int32)))
        assert (slots >= 0).all(), "a partial match lacks a row"
        return slots

    def read(self, names: Sequence[str], slots: Slots) -> pa.RecordBatch:
        """Return columns of rows, as the stream has them."""
        *keys, times, _ = self.table.key_columns(slots)
        own = {**dict(zip(self._keys, keys, strict=True))}
        kept = [name for name in names if name not in own and name != self._time]
        state_columns = self.table.read_columns([KEPT + name for name in kept], slots)
        fields, arrays = [self._given.field(name) for name in names], []
        for field in fields:
            if field.name in own:
                array = own[field.name]
            elif field.name == self._time:
                array = times
            else:
                array = from_state(state_columns[KEPT + field.name], field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def tidy(self) -> None:
        """Drop slots without a row, if there are many; called at a barrier."""
        drop_absent(self.table, DUE.name)

    def _slots(self, users: Keys, times: Times, numbers: NDArray[np.int32]) -> Slots:
        return self.table.slots(self._key(users, times, numbers))

    def _key(self, users: Keys, times: Times, numbers: NDArray[np.int32]) -> Keys:
        return extended(self.table.spec.key, users, [pa.array(times).view(TIME), pa.array(numbers)])


class Loaded(NamedTuple):
    """The partial matches of some keys."""

    counts: Slots
    """Per key."""
    slots: Slots
    partials: list[list[Partial]]
    """Per key, in the order of their first rows."""
    next: list[int]
    """Per key, the number of the next one."""


class Partials:
    """The partial matches of one subtask."""

    def __init__(self, table: StateTable, rows: StoredRows, within_us: int) -> None:
        self.table, self._found, self._rows, self._within_us = table, OrderedRows(table), rows, within_us

    def load(self, users: Keys) -> Loaded:
        """Return the partial matches of these keys, each once."""
        counts, slots = self._found.find(users)
        partials: list[list[Partial]] = [[] for _ in range(len(users))]
        following = [0] * len(users)
        if not slots.size:
            return Loaded(counts, slots, partials, following)
        owners = np.repeat(np.arange(len(users)), counts)
        taken = self.table.read(TAKEN.name, slots).to_pylist()
        whole = np.frombuffer(b"".join(taken), _TAKEN).reshape(-1, 3)
        sizes = np.array([len(each) // (3 * _TAKEN.itemsize) for each in taken])
        held = self._rows.found(users.take(np.repeat(owners, sizes)), whole[:, 1], whole[:, 2])
        rows = list(map(PatternRow, whole[:, 1].tolist(), whole[:, 2].tolist(), held.tolist()))
        stages, ends = whole[:, 0].tolist(), np.cumsum(sizes).tolist()
        numbers = self.table.key_columns(slots)[-1].to_pylist()
        waiting, had = (self.table.values(c.name, slots).tolist() for c in (STAGE, COUNT))
        first = 0
        for owner, end, stage, count, slot, number in zip(
            owners.tolist(), ends, waiting, had, slots.tolist(), numbers, strict=True
        ):
            partials[owner].append(Partial(stage, count, tuple(rows[first:end]), tuple(stages[first:end]), slot))
            following[owner] = number + 1
            first = end
        for each in partials:
            each.sort(key=lambda partial: partial.rows[0])
        return Loaded(counts, slots, partials, following)

    def store(self, users: Keys, loaded: Loaded, now: Sequence[Sequence[Partial]]) -> None:
        """Replace the partial matches of these keys by those that they have now."""
        left = {each.slot for mine in now for each in mine}
        gone = [slot for slot in loaded.slots.tolist() if slot not in left]
        if gone:
            self.table.delete(np.array(gone, np.int64))
        added = [(owner, each) for owner, mine in enumerate(now) for each in mine if each.slot < 0]
        if not added:
            return
        owners, fresh = (list(each) for each in zip(*added, strict=True))
        numbers, following = [], list(loaded.next)
        for owner in owners:
            numbers.append(following[owner])
            following[owner] += 1
        keys = self._found.keys(users.take(np.array(owners, np.int64)), [pa.array(numbers, pa.int64())])
        columns = {
            STAGE.name: np.array([each.stage for each in fresh], np.int64),
            COUNT.name: np.array([each.had for each in fresh], np.int64),
            ENDS.name: np.array([each.rows[0].at_us + self._within_us for each in fresh], np.int64),
            TAKEN.name: pa.array([_packed(each) for each in fresh], pa.large_binary()),
        }
        self.table.write(self.table.slots(keys), columns)

    def over(self, at_us: int, limit: int) -> Keys | None:
        """Return the keys of the partial matches that are over first, with repetitions; None if none is over."""
        slots = self.table.ordered(ENDS.name).through(at_us, limit)
        return self.table.keys_at(slots).routed() if slots.size else None

    def tidy(self) -> None:
        """Drop slots without a partial match, if there are many; called at a barrier."""
        drop_absent(self.table)


def _packed(partial: Partial) -> bytes:
    cells = [(stage, row.at_us, row.number) for stage, row in zip(partial.stages, partial.rows, strict=True)]
    return np.array(cells, _TAKEN).tobytes()
