"""Two tables with the same key as one: a row of each, kept up to date.

State holds the rows of both tables below one key, and whether the result has a row. So a change reads and writes one
record, and a key that has never joined is never deleted downstream.

Invariants
    - Every key that changed in an epoch is emitted once at its barrier, as it is then.
    - A delete is emitted only for a row that the result had.
    - A key leaves the state when both tables have lost it.

Pure.
Source: docs/decisions/0068-retractions.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.operators.contract import (
    MAIN,
    OP_FIELD,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
)
from holdfast.runtime.operators.differences import READ_UNCHANGED, Found, compare_kept, compare_keys
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.tables.lookup import key_columns, last_of, null_keys
from holdfast.runtime.operators.tables.upserts import deletes
from holdfast.runtime.rows.kept_columns import from_state, kept_column, to_state
from holdfast.runtime.time.join_bounds import LEFT, RIGHT
from holdfast.runtime.time.windows import TIME
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract.target import DELETE, PUT
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import ColumnSpec

SIDES = ("left", "right")
HAS = tuple(ColumnSpec(f"has_{side}", np.dtype(np.bool_), False) for side in SIDES)
"""Whether each table has a row of the key."""
SHOWN = ColumnSpec("shown", np.dtype(np.bool_), False)
"""Whether the result has one."""
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TableJoin(KeyedStep):
    """Return the rows of two tables with equal keys as the rows of one."""

    operator: str
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    """The key of each table, in the same order."""
    how: str
    names: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
    """Per table, its columns besides the key and their names in the result."""

    kind: ClassVar[str] = "table join"
    keeps: ClassVar[str] = "the rows of two tables"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.keys[port]

    def timed(self, port: int) -> bool:
        return port == LEFT

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        behind = needed.get(MAIN, frozenset())
        return (*self.keys[port], *(column for column, shown in self.names[port] if shown in behind))

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        key = KeyType.of(given[LEFT].field(name).with_nullable(False) for name in self.keys[LEFT])
        kept_columns = []
        for port, schema in enumerate(given):
            fields = [schema.field(name) for name, _ in self.names[port] if name in schema.names]
            kept_columns += [kept_column(f.with_nullable(True), _kept(port, f.name)) for f in fields]
        columns = [column for column in kept_columns if column is not None]
        assert len(columns) == len(kept_columns), "the join was not checked"
        return (TableDraft(key, (*HAS, SHOWN, *columns)),)

    def identity(self, column: Description) -> dict[str, Any]:
        keys = [[column(name, port) for name in self.keys[port]] for port in (LEFT, RIGHT)]
        rows = [self._rows(column, port) for port in (LEFT, RIGHT)]
        times = [_kept(port, c["column"]) for port in (LEFT, RIGHT) for c in rows[port] if c["type"] == str(TIME)]
        kept = {"how": self.how, "rows": rows, "times": times}
        return {"keeps": self.keeps, "key": keys[LEFT], "right_key": keys[RIGHT]} | kept

    def _rows(self, column: Description, port: int) -> list[dict[str, Any]]:
        return [column(name, port) for name in column.names(port) if name not in {*self.keys[port], OP_FIELD.name}]

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        compare_keys(found, before["key"], now["key"])
        compare_keys(found, before["right_key"], now["right_key"])
        for side, old, new in zip(SIDES, before["rows"], now["rows"], strict=True):
            compare_kept(found, f"{side} column", old, new)
        if before["how"] != now["how"]:
            what = f"was how={before['how']!r} and now is how={now['how']!r}"
            found.allow(what, f"{READ_UNCHANGED}; a row of the result follows when its key changes next")

    def outlasts(self, left: Flags, right: Flags) -> Flags:
        """Return which keys stay in the state, given which of them each table has."""
        return left | right

    def text(self) -> str:
        return f"join {self.operator} of tables by {', '.join(self.keys[LEFT])}, {self.how}: keeps one row per key"

    def open(self, ctx: OperatorContext) -> Operator:
        return TableJoinOperator(self, ctx)


class TableJoinOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: TableJoin, ctx: OperatorContext) -> None:
        self._step, self._ctx, self._table = step, ctx, ctx.table(step.operator)
        needed = ctx.needed()
        self._schema = pa.schema([*(field for field in ctx.placed[0].schema if field.name in needed), OP_FIELD])
        known = {column.name: column for column in self._table.spec.columns}
        self._columns = tuple(
            {name: known[_kept(port, name)] for name, _ in step.names[port] if _kept(port, name) in known}
            for port in (LEFT, RIGHT)
        )
        self._emptied = 0
        """Slots that lost their row since vacant ones were last dropped."""
        self.rows_in = self.rows_out = self.dropped = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take changes of one table; of several with one key the last counts. A null in the key joins nothing."""
        self.rows_in += batch.num_rows
        nulls = null_keys(batch, self._step.keys[port])
        if nulls.any():
            self.dropped += int(nulls.sum())
            batch = batch.filter(pa.array(~nulls))
        kind = self._table.spec.key
        slots = self._table.slots(kind.encode(key_columns(batch, self._step.keys[port], kind)))
        rows = last_of(slots)
        slots, batch = slots[rows], batch.take(pa.array(rows))
        gone = deletes(batch)
        values = {c.name: _cleared(batch.column(name), gone, c) for name, c in self._columns[port].items()}
        self._table.write(slots, values | {HAS[port].name: ~gone})

    def on_barrier(self) -> None:
        slots = self._table.changed()
        if not slots.size:
            return
        left, right, visible = (self._table.values(column.name, slots) for column in (*HAS, SHOWN))
        exists = {"inner": left & right, "left": left, "right": right, "full": left | right}[self._step.how]
        self._table.write(slots, {SHOWN.name: exists})
        if self._ctx.wanted():
            self._give(slots[exists | visible], exists[exists | visible])
        empty = slots[~self._step.outlasts(left, right)]
        self._table.delete(empty)
        self._emptied += empty.size
        if drop_vacant(self._table, self._emptied):
            self._emptied = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, dropped=self.dropped)

    def _give(self, slots: NDArray[np.int64], exists: Flags) -> None:
        if not slots.size:
            return
        self.rows_out += slots.size
        columns = dict(zip(self._step.keys[LEFT], self._table.key_columns(slots), strict=True))
        # A row that exists no more has no values, also if one of the tables still has some.
        places = None if exists.all() else pa.array(np.arange(slots.size), mask=~exists)
        for port in (LEFT, RIGHT):
            shown = {name: as_ for name, as_ in self._step.names[port] if as_ in self._schema.names}
            found = self._table.read_columns([_kept(port, name) for name in shown], slots)
            for name, as_ in shown.items():
                array = from_state(found[_kept(port, name)], self._schema.field(as_).type)
                columns[as_] = array if places is None else array.take(places)
        columns[OP_FIELD.name] = pa.array(np.where(exists, PUT, DELETE).astype(np.int8))
        arrays = [columns[field.name] for field in self._schema]
        arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, self._schema, strict=True)]
        self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


def _kept(port: int, name: str) -> str:
    """Return the state column that keeps a column of a table."""
    return f"{SIDES[port]}.{name}"


def _cleared(values: pa.Array, gone: Flags, column: ColumnSpec) -> Any:
    """Return values as the state keeps them; null in rows that are deleted."""
    if gone.any():
        values = values.take(pa.array(np.arange(gone.size), mask=gone))
    return to_state(values, column)
