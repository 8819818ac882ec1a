"""Standing queries: each row of a stream finds the queries that it satisfies, of those that a table has now.

A query is data: values with which columns of a row have to be equal, and bounds between which they have to be. Queries
are state, ordered by the columns that a row and its queries have in common. So a row meets the queries of its key and
no others. If a term is an equality, a batch sorts the queries of its keys by that column, and a row meets those that
have its value or none. The other terms are tested on columns of pairs, the rest of which shrinks with every term.

The queries come as rows that are added and taken back (retractions.py), because one that changes may leave the key.

Invariants
    - A row finds the queries that were added before it and not taken back since, each once.
    - A null in a query restricts nothing; a null in a row satisfies only that.
    - No row waits, and the event time of the table holds nothing back.

Pure.
Source: docs/decisions/0070-standing-queries.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.operators.contract import (
    Description,
    Needed,
    Operator,
    OperatorContext,
    TableDraft,
    in_order,
)
from holdfast.runtime.operators.differences import Found, compare_keys
from holdfast.runtime.operators.joins.rows import KEPT, Slots
from holdfast.runtime.operators.tables.lookup import (
    TABLE,
    Lookup,
    kept_fields,
    key_columns,
    last_of,
    null_keys,
    state_of,
)
from holdfast.runtime.operators.tables.retractions import WEIGHT
from holdfast.runtime.operators.windows.merging import grouped
from holdfast.runtime.rows.kept_columns import from_state
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.state.collections.rows import OrderedRows, drop_absent
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.ordered import BY_KEY

QUERY = "query."
"""Is put before the names of the table's key in the state, where the columns of `on` come first."""
PAIRS_MAX = 65_536
"""Rows and queries that are compared together."""
RANGES = 2
"""Ranges of queries that a row meets if queries are found by a value: those without a value, and those with the
row's."""
HOLDS = {
    "==": pc.equal,
    ">=": pc.greater_equal,
    ">": pc.greater,
    "<=": pc.less_equal,
    "<": pc.less,
}


@dataclass(frozen=True)
class Term:
    """One condition of every query: the column of the row compares so with the column of the query."""

    column: str
    compares: str
    """One of HOLDS."""
    query: str
    type: pa.DataType
    """That of the row's column."""

    def passed(self, values: pa.Array, bounds: pa.Array) -> pa.Array:
        """Return whether each value satisfies the query beside it."""
        return pc.or_(bounds.is_null(), HOLDS[self.compares](values, bounds).fill_null(False))

    @property
    def finds(self) -> bool:
        """Whether queries can be found by its value: 0.0 and -0.0 are equal, and differ as keys do."""
        return self.compares == "==" and not pa.types.is_floating(self.type)

    def text(self) -> str:
        return f"{self.column} {self.compares} {self.query}"


@dataclass(frozen=True)
class Search(Lookup):
    """Return each row once per query that it satisfies, with the columns of the query."""

    query_key: tuple[str, ...]
    """The table's key, which identifies a query below a key of the stream."""
    terms: tuple[Term, ...]

    kind: ClassVar[str] = "search"
    keeps: ClassVar[str] = "standing queries"

    def timed(self, port: int) -> bool:
        return port != TABLE

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        # In the order of the input, not of the terms: the order of state columns is part of the state.
        return in_order(super().reads(port, given, needed), given)

    def also_reads(self, port: int) -> tuple[str, ...]:
        if port != TABLE:
            return tuple(term.column for term in self.terms)
        return (*self.query_key, *(term.query for term in self.terms), WEIGHT.name)

    def tables(self, given: Sequence[pa.Schema]) -> tuple[TableDraft, ...]:
        table = given[TABLE]
        shared = [table.field(key).with_nullable(False) for key in self.table_keys]
        key = [table.field(name).with_name(QUERY + name) for name in self.query_key]
        kept = kept_fields(table, (*self.table_keys, *self.query_key, WEIGHT.name))
        return (TableDraft(KeyType.of([*shared, *key], suffix=len(key)), tuple(kept), orders=(BY_KEY,)),)

    def identity(self, column: Description) -> dict[str, Any]:
        base_identity, keys = super().identity(column), {*self.query_key, WEIGHT.name}
        rows = [each for each in base_identity["rows"] if each["column"] not in keys]
        times = [each for each in base_identity["times"] if each.removeprefix(KEPT) not in keys]
        key = [column(name, TABLE) for name in self.query_key]
        return base_identity | {"rows": rows, "times": times, "query_key": key, "suffix": len(key)}

    def compare(self, found: Found, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        super().compare(found, before, now)
        compare_keys(found, before["query_key"], now["query_key"])

    def text(self) -> str:
        terms = "".join(f", {term.text()}" for term in self.terms)
        return f"search {self.operator} by {', '.join(self.keys)}{terms}: keeps one row per query"

    def open(self, ctx: OperatorContext) -> Operator:
        return SearchOperator(self, ctx)


class Met(NamedTuple):
    """The queries whose keys the rows of a batch have, those of one key after another."""

    slots: Slots
    bounds: tuple[pa.Array, ...]
    """Per term, the column of the query."""


class SearchOperator(Operator):
    """One operator on one subtask."""

    def __init__(self, step: Search, ctx: OperatorContext) -> None:
        self._step, self._ctx = step, ctx
        self._table = ctx.table(step.operator)
        self._queries, self._kind = OrderedRows(self._table), self._table.spec.key
        needed = ctx.needed()
        self._schema = pa.schema([field for field in ctx.placed[0].schema if field.name in needed])
        self._indexed = next((each for each in step.terms if each.finds), None)
        self._shown = {shown: name for name, shown in step.names if shown in needed}
        self.name = step.operator
        self.rows_in = self.rows_out = self.dropped = 0

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        """Take rows, or changes of the queries."""
        self.rows_in += batch.num_rows
        nulls = null_keys(batch, self._step.keyed_by(port))
        if port == TABLE:
            additions = batch.column(WEIGHT.name).to_numpy() > 0
            self.dropped += int((nulls & additions).sum())
            batch, additions = batch.filter(pa.array(~nulls)), additions[~nulls]
            if batch.num_rows:
                self._change(batch, additions)
            return
        batch = batch.filter(pa.array(~nulls)) if nulls.any() else batch
        if batch.num_rows:
            self._search(batch)

    def on_barrier(self) -> None:
        drop_absent(self._table)

    def progress(self) -> OperatorProgress:
        return OperatorProgress(self._step.operator, self.rows_in, self.rows_out, 0, dropped=self.dropped)

    def pairs_of(self, batch: pa.RecordBatch, met: Met, rows: Slots, places: Slots) -> pa.RecordBatch | None:
        """Return the pairs of rows and queries whose terms all hold; None if there are none, or nothing reads them."""
        for term, bounds in zip(self._step.terms, met.bounds, strict=True):
            values = batch.column(term.column).take(pa.array(rows))
            passed = term.passed(values, bounds.take(pa.array(places)))
            kept = np.flatnonzero(passed.to_numpy(zero_copy_only=False))
            rows, places = rows[kept], places[kept]
            if not rows.size:
                return None
        self.rows_out += rows.size
        return self._result(batch, rows, met.slots[places]) if self._ctx.wanted() else None

    def _change(self, batch: pa.RecordBatch, added: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Add queries and take them back; of several changes of one below the same key, the last counts."""
        names = (*self._step.table_keys, *self._step.query_key)
        slots = self._table.slots(self._kind.encode(key_columns(batch, names, self._kind)))
        rows = last_of(slots)
        put = rows[added[rows]]
        if put.size:
            self._table.write(slots[put], state_of(batch.take(pa.array(put)), self._table.spec.columns))
        self._remove(slots[rows[~added[rows]]])

    def _remove(self, slots: Slots) -> None:
        if slots.size:
            self._table.delete(slots)

    def _search(self, batch: pa.RecordBatch) -> None:
        keys = self._kind.routed.encode(key_columns(batch, self._step.keys, self._kind.routed))
        owners = grouped(keys)
        queries = self._queries.find(owners.keys)
        counts = queries.counts[owners.numbers]
        if not counts.any():
            return
        if self._indexed is None:
            firsts = (np.cumsum(queries.counts) - queries.counts)[owners.numbers]
            self._ctx.defer(_Pairs(self, batch, self._met(queries.slots)), _ranges(firsts, counts))
            return
        whose, place = np.repeat(np.arange(queries.counts.size), queries.counts), self._step.terms.index(self._indexed)
        candidates = self._met(queries.slots)
        pairs = by_value(batch.column(self._indexed.column), owners.numbers, candidates.bounds[place], whose)
        if pairs.counts.any():
            candidates = Met(
                candidates.slots[pairs.order],
                tuple(each.take(pa.array(pairs.order)) for each in candidates.bounds),
            )
            self._ctx.defer(_Pairs(self, batch, candidates), _ranges(pairs.firsts, pairs.counts, RANGES))

    def _met(self, slots: Slots) -> Met:
        """Read the queries of a batch: once, however many rows have their key."""
        kept = self._table.read_columns(list({KEPT + term.query for term in self._step.terms}), slots)
        return Met(slots, tuple(from_state(kept[KEPT + term.query], term.type) for term in self._step.terms))

    def _result(self, batch: pa.RecordBatch, rows: Slots, slots: Slots) -> pa.RecordBatch:
        key = dict(zip(self._step.query_key, self._table.key_columns(slots)[len(self._step.table_keys) :], strict=True))
        query_columns = self._table.read_columns(
            [KEPT + name for name in self._shown.values() if name not in key], slots
        )
        row_indexes, arrays = pa.array(rows), []
        for field in self._schema:
            name = self._shown.get(field.name)
            if name is None:
                arrays.append(batch.column(field.name).take(row_indexes))
            else:
                arrays.append(from_state(key[name] if name in key else query_columns[KEPT + name], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class Asked(NamedTuple):
    """Which queries the rows of a batch have to be compared with."""

    order: Slots
    """The queries, in the order in which ranges name them."""
    firsts: Slots
    """The first query of each range; RANGES per row."""
    counts: Slots


def by_value(values: pa.Array, owners: Slots, bounds: pa.Array, whose: Slots) -> Asked:
    """Let each row of a batch meet the queries of its key that have its value of one column, or none.

    Args:
        values: The column of the rows.
        owners: The number of the key of each row.
        bounds: The column of the queries, of the same type.
        whose: The number of the key of each query.
    """
    codes = pa.concat_arrays([bounds, values.cast(bounds.type)]).dictionary_encode().indices
    codes = codes.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) + 1
    restricted, value_codes = codes[: len(bounds)], codes[len(bounds) :]
    width = int(codes.max()) + 1
    places = whose * width + restricted
    order = np.argsort(places, kind="stable")
    asked = np.stack([owners * width, owners * width + value_codes], axis=1).ravel()
    firsts = np.searchsorted(places[order], asked)
    counts = np.searchsorted(places[order], asked, "right") - firsts
    counts[1::RANGES][value_codes == 0] = 0  # a null meets the queries without a value once
    return Asked(order, firsts, counts)


def _ranges(firsts: Slots, counts: Slots, per_row: int = 1) -> pa.RecordBatch:
    """Return the queries of each row as rows of the backlog, each with a bounded number of them."""
    parts = -(-counts // PAIRS_MAX)
    row = np.repeat(np.arange(parts.size), parts)
    before = (np.arange(row.size) - (np.cumsum(parts) - parts)[row]) * PAIRS_MAX
    columns = row // per_row, firsts[row] + before, np.minimum(counts[row] - before, PAIRS_MAX)
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], ["row", "first", "count"])


class _Pairs:
    """The rows of one batch with the queries of their keys, compared in pieces."""

    def __init__(self, operator: SearchOperator, batch: pa.RecordBatch, met: Met) -> None:
        self._operator, self._batch, self._met = operator, batch, met
        self.name = operator.name
        self.mark = f"operator: {self.name}"

    def some(self, batch: pa.RecordBatch, at: int, base: int) -> tuple[int, list[pa.RecordBatch]]:
        """Compare some rows with their queries."""
        counts = batch.column("count").to_numpy()[at : at + PAIRS_MAX]
        number = max(1, int(np.searchsorted(np.cumsum(counts), PAIRS_MAX, side="right")))
        row, first, count = (each.to_numpy() for each in batch.slice(at, number).columns)
        unit = np.repeat(np.arange(number), count)
        places = np.arange(unit.size) - (np.cumsum(count) - count)[unit] + first[unit]
        made = self._operator.pairs_of(self._batch, self._met, row[unit], places)
        return number, [] if made is None else [made]
