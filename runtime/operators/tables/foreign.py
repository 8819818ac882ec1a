"""Two tables as one, where a column of the left one refers to the key of the right one: orders and their customers.

A left row subscribes to the key that it refers to, at the subtask of that key. `Matches` holds the subscriptions and
the right table, and answers each left key with the right row, or with a delete. `ForeignJoin` joins the answers with
the left table, by its key, as two tables with one key are joined (join.py).

    left -> retractions (left key -> reference) -> Matches (reference: left keys, right row) -> answers by left key
    left ------------------------------------------------------------------------------> ForeignJoin <- answers

At a barrier a left key has one subscription, that of its current reference, or none. Matches answers at barriers and
only for subscriptions that exist then. So answers for one left key never come from two subtasks in one epoch, for any
order of changes of both tables.

Invariants
    - A subscription is answered in the epoch in which it begins, and in each in which its right row changes.
    - A subscription that ends is not answered: the answer to the next one replaces its answer, or the left row is
      deleted, and the join forgets the key.

Pure.
Source: docs/decisions/0097-foreign-keys.md; Kafka Streams, KIP-213.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.runtime.operators.contract import (
    MAIN,
    OP_FIELD,
    Description,
    KeyedStep,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
    part_name,
)
from holdfast.runtime.operators.differences import Found, compare_kept, compare_keys, refuse_added
from holdfast.runtime.operators.event_clock import drop_vacant
from holdfast.runtime.operators.joins.rows import KEPT, Slots
from holdfast.runtime.operators.tables.join import Flags, TableJoin
from holdfast.runtime.operators.tables.lookup import kept_fields, key_columns, last_of, null_keys, state_of
from holdfast.runtime.operators.tables.retractions import WEIGHT
from holdfast.runtime.operators.tables.upserts import deletes
from holdfast.runtime.rows.kept_columns import from_state
from holdfast.runtime.time.join_bounds import LEFT, RIGHT
from holdfast.runtime.time.windows import TIME
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.sinks.contract.target import DELETE, PUT
from holdfast.state.collections.rows import OrderedRows, drop_absent, existing
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.ordered import BY_KEY
from holdfast.state.tables.placing import distinct
from holdfast.state.tables.spec import ColumnSpec
from holdfast.state.tables.table import StateTable

LEFT_KEY = "left."
"""Is put before the names of the left table's key in the state, where the reference comes first."""
RIGHT_ROWS = "right"
"""The table of the right rows."""
EXISTS = ColumnSpec("exists", np.dtype(np.bool_), False)
"""Whether a left row refers to the key, or the right table has the row, as of the last change."""
ANSWERED = ColumnSpec("answered", np.dtype(np.bool_), False)
"""Whether the subscription has been answered since it began."""
ANSWERS_MAX = 65_536
"""Answers in a batch: one right row may have many left ones."""


@dataclass(frozen=True)
class Matches(KeyedStep):
    """Return for every row of the left table the row of the right one that it refers to, by the left key."""

    operator: str
    references: tuple[str, ...]
    """Columns of the left table, in the order of the right key."""
    right_key: tuple[str, ...]
    left_key: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    """The columns of the right table besides its key, and their names in the result."""

    kind: ClassVar[str] = "matches"
    keeps: ClassVar[str] = "the rows of a table by key, and which rows of another refer to them"

    def keyed_by(self, port: int) -> tuple[str, ...]:
        return self.references if port == LEFT else self.right_key

    def timed(self, port: int) -> bool:
        return port == LEFT

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        behind = needed.get(MAIN, frozenset())
        if port == LEFT:
            return tuple(dict.fromkeys((*self.references, *self.left_key, WEIGHT.name)))
        return (*self.right_key, *(column for column, shown in self.names if shown in behind))

    def made_from(self, name: str) -> str | None:
        return name if name in self.left_key else None

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        references = [given[LEFT].field(name) for name in self.references]
        left = [given[LEFT].field(name).with_name(LEFT_KEY + name) for name in self.left_key]
        right, kept_columns = (
            [each.with_nullable(False) for each in references],
            kept_fields(given[RIGHT], self.right_key),
        )
        times = tuple(
            each.name for each in kept_columns if given[RIGHT].field(each.name.removeprefix(KEPT)).type == TIME
        )
        return (
            TableDraft(KeyType.of([*references, *left], suffix=len(left)), (EXISTS, ANSWERED), orders=(BY_KEY,)),
            TableDraft(KeyType.of(right), (EXISTS, *kept_columns), RIGHT_ROWS, times=times),
        )

    def identity(self, column: Description) -> dict[str, Any]:
        references, left = ([column(name, LEFT) for name in names] for names in (self.references, self.left_key))
        kept = [column(name, RIGHT) for name in column.names(RIGHT) if name not in {*self.right_key, OP_FIELD.name}]
        key = [column(name, RIGHT) for name in self.right_key]
        found = {"keeps": self.keeps, "key": references, "left_key": left, "right_key": key, "rows": kept}
        return found | {"suffix": len(left), "times": []}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for key in ("key", "left_key", "right_key"):
            compare_keys(found, before[key], now[key])
        compare_kept(found, "right column", before["rows"], now["rows"])
        refuse_added(found, before["rows"], now["rows"])

    def text(self) -> str:
        keys, left = ", ".join(self.references), ", ".join(self.left_key)
        return f"matches {self.operator} by {keys}: keeps each {left} that refers to it, and the row of the right table"

    def open(self, ctx: OperatorContext) -> Operator:
        return MatchesOperator(self, ctx)


class MatchesOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Matches, ctx: OperatorContext) -> None:
        self._step, self._ctx = step, ctx
        self._left = OrderedRows(ctx.table(step.operator))
        self._right = ctx.table(part_name(step.operator, RIGHT_ROWS))
        needed = ctx.needed()
        self._schema = pa.schema([*(field for field in ctx.placed[0].schema if field.name in needed), OP_FIELD])
        self._shown = {shown: KEPT + name for name, shown in step.names if shown in needed}
        self._columns = [column for column in self._right.spec.columns if column.name.startswith(KEPT)]
        self._emptied = 0
        """Slots of right rows without a row since vacant ones were last dropped, at most."""
        self.rows_in = self.rows_out = self.dropped = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take subscriptions that begin and end, or changes of the right table; the last of one key counts."""
        self.rows_in += batch.num_rows
        if port == LEFT:
            self._subscribe(batch)
        else:
            self._replace(batch)

    def on_barrier(self) -> None:
        left, right = self._left.table, self._right
        begun, ended = _split(left, left.changed())
        answered = left.values(ANSWERED.name, begun)
        asking = np.concatenate([begun[~answered], self._referring(right.changed())])
        left.delete(ended)
        for slots in _pieces(distinct(asking)):
            left.write(slots, {ANSWERED.name: np.ones(slots.size, np.bool_)})
            if self._ctx.wanted():
                self._answer(slots)
        _, gone = _split(right, right.changed())
        right.delete(gone)
        self._emptied += gone.size
        drop_absent(left)
        if drop_vacant(right, self._emptied):
            self._emptied = 0

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, dropped=self.dropped)

    def _subscribe(self, batch: pa.RecordBatch) -> None:
        table = self._left.table
        kind, names = table.spec.key, (*self._step.references, *self._step.left_key)
        slots = table.slots(kind.encode(key_columns(batch, names, kind)))
        rows = last_of(slots)
        added = batch.column(WEIGHT.name).to_numpy()[rows] > 0
        table.write(slots[rows], {EXISTS.name: added})

    def _replace(self, batch: pa.RecordBatch) -> None:
        nulls = null_keys(batch, self._step.right_key)
        if nulls.any():
            self.dropped += int(nulls.sum())
            batch = batch.filter(pa.array(~nulls))
        kind = self._right.spec.key
        slots = self._right.slots(kind.encode(key_columns(batch, self._step.right_key, kind)))
        rows = last_of(slots)
        slots, batch = slots[rows], batch.take(pa.array(rows))
        self._right.write(slots, state_of(batch, self._columns) | {EXISTS.name: ~deletes(batch)})

    def _referring(self, slots: Slots) -> Slots:
        """Return the subscriptions to right rows."""
        if not slots.size:
            return slots
        users = self._left.table.spec.key.routed
        found = self._left.find(users.encode(self._right.key_columns(slots)))
        return _split(self._left.table, found.slots)[0]

    def _answer(self, slots: Slots) -> None:
        """Emit for these subscriptions the right rows, or deletes."""
        count = len(self._step.references)
        key = self._left.table.key_columns(slots)
        right = self._asked(key[:count])
        found = np.flatnonzero(right >= 0)
        right_columns = self._right.read_columns(list(self._shown.values()), right[found])
        numbers = np.zeros(slots.size, np.int64)
        numbers[found] = np.arange(found.size)
        places = pa.array(numbers, mask=right < 0)
        columns = dict(zip(self._step.left_key, key[count:], strict=True))
        for shown, name in self._shown.items():
            columns[shown] = from_state(right_columns[name], self._schema.field(shown).type).take(places)
        columns[OP_FIELD.name] = pa.array(np.where(right >= 0, PUT, DELETE).astype(np.int8))
        arrays = [columns[field.name] for field in self._schema]
        arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, self._schema, strict=True)]
        self.rows_out += slots.size
        self._ctx.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _asked(self, references: Sequence[pa.Array]) -> Slots:
        """Return the slot of the right row per subscription, -1 for none; a null refers to none."""
        right_slots: Slots = np.full(len(references[0]), -1)
        nulls = np.logical_or.reduce([each.is_null().to_numpy(zero_copy_only=False) for each in references])
        rows = np.flatnonzero(~nulls)
        if rows.size:
            size = len(self._right)
            keys = self._right.spec.key.encode([each.take(pa.array(rows)) for each in references])
            slots = existing(self._right, keys)
            known = slots >= 0
            known[known] = self._right.values(EXISTS.name, slots[known])
            right_slots[rows[known]] = slots[known]
            self._emptied += len(self._right) - size
        return right_slots


@dataclass(frozen=True)
class ForeignJoin(TableJoin):
    """Join the rows of a table with the answers to their subscriptions."""

    references: tuple[str, ...] = ()
    """Columns of the left table, for plans."""

    kind: ClassVar[str] = "foreign-key join"
    keeps: ClassVar[str] = "the rows of a table, and those that they refer to"

    def outlasts(self, left: Flags, right: Flags) -> Flags:
        return left

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        super().compare(found, before, now)
        for old, new in zip(before["rows"], now["rows"], strict=True):
            refuse_added(found, old, new)

    def text(self) -> str:
        keys = f"{', '.join(self.references)} of each {', '.join(self.keys[LEFT])}"
        return f"join {self.operator} of tables by {keys}, {self.how}: keeps one row per {', '.join(self.keys[LEFT])}"


def _split(table: StateTable, slots: Slots) -> tuple[Slots, Slots]:
    """Return the slots whose row exists as of the last change, and the others."""
    exist: Flags = table.values(EXISTS.name, slots)
    return slots[exist], slots[~exist]


def _pieces(slots: Slots) -> Iterator[Slots]:
    for first in range(0, slots.size, ANSWERS_MAX):
        yield slots[first : first + ANSWERS_MAX]
