"""Random joins against a list of rows: disorder, late rows, time, barriers, rollbacks, restores and rescales.

The oracle goes through all rows for every row and shares no code with the operator.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from fragment_jobs import Job
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.plan.compiler import Plan
from holdfast.sinks.memory.sink import MemorySink

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
WINDOW_MS, WINDOW_US = 10, 10_000
TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([pa.field("at", TIME, False), pa.field("k", pa.string()), pa.field("n", pa.int64(), False)])
RIGHT = pa.schema(
    [
        pa.field("k", pa.large_string()),
        pa.field("n", pa.int64()),
        pa.field("at", TIME, False),
        pa.field("s", pa.string()),
    ]
)
SCHEMAS = (LEFT, RIGHT)
Numbers = tuple[int | None, int | None]
"""The numbers of the rows of a pair, None for a missing one."""


@dataclass(frozen=True)
class Case:
    """What to join; times are milliseconds."""

    how: str
    bounds: tuple[int, int] | None
    """None: windows of WINDOW_MS."""

    def plan(self) -> Plan:
        app = hf.App("joined")
        left = app.source("left", PlannedSource(LEFT), event_time="at", out_of_orderness="0s")
        right = app.source("right", PlannedSource(RIGHT), event_time="at", out_of_orderness="0s")
        window = hf.tumbling(f"{WINDOW_MS}ms") if self.bounds is None else None
        within = None if self.bounds is None else hf.between(*(f"{each}ms" for each in self.bounds))
        joined = left.join("both", right, on="k", how=self.how, within=within, window=window)
        joined.sink("out", MemorySink())
        joined.late.sink("late", MemorySink())
        return app.plan()


@dataclass
class OracleRow:
    key: str | None
    at: int
    n: int
    matched: bool = False
    gone: bool = False


@dataclass
class Oracle:
    """All rows that were taken, one after another."""

    case: Case
    clock: int = -1_000_000_000
    """In microseconds, as all times here."""
    rows: tuple[list[OracleRow], list[OracleRow]] = field(default_factory=lambda: ([], []))
    out: list[Numbers] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)
    dropped: int = 0

    def is_over(self, port: int, row: OracleRow) -> bool:
        if self.case.bounds is None:
            return row.at - row.at % WINDOW_US + WINDOW_US <= self.clock
        lower, upper = self.case.bounds
        return row.at + max(0, 1_000 * upper if port == 0 else -1_000 * lower) < self.clock

    def fits(self, left: OracleRow, right: OracleRow) -> bool:
        if left.key is None or left.key != right.key:
            return False
        if self.case.bounds is None:
            return left.at // WINDOW_US == right.at // WINDOW_US
        return 1_000 * self.case.bounds[0] <= right.at - left.at <= 1_000 * self.case.bounds[1]

    def outer(self, port: int) -> bool:
        return self.case.how in ("full", ("left", "right")[port])

    def take(self, port: int, row: OracleRow) -> None:
        if self.is_over(port, row):
            self.late.append((port, row.n))
            return
        if row.key is None and not self.outer(port):
            self.dropped += 1
            return
        if row.key is None:
            self.alone(port, row)
            return
        for other in self.rows[1 - port]:
            left, right = (row, other) if port == 0 else (other, row)
            if not self.is_over(1 - port, other) and self.fits(left, right):
                self.out.append((left.n, right.n))
                row.matched = other.matched = True
        self.rows[port].append(row)

    def advance(self, at: int) -> None:
        self.clock = max(self.clock, at)
        for port in (0, 1):
            for row in self.rows[port]:
                if self.outer(port) and self.is_over(port, row) and not row.matched and not row.gone:
                    self.alone(port, row)

    def alone(self, port: int, row: OracleRow) -> None:
        row.gone = True
        self.out.append((row.n, None) if port == 0 else (None, row.n))


KEYS = st.sampled_from(["a", "a", "a\x00", None])
TIMES = st.builds(lambda ms, after: 1_000 * ms + after, st.integers(0, 25), st.sampled_from([0, 0, 0, 1]))
ROWS = st.lists(st.tuples(KEYS, TIMES), min_size=1, max_size=12)
TAKES = st.tuples(st.just("rows"), st.integers(0, 1), ROWS)
OPERATIONS = st.one_of(
    TAKES,
    TAKES,
    st.tuples(st.just("time"), TIMES, st.none()),
    st.tuples(st.just("time"), TIMES, st.none()),
    st.tuples(st.just("barrier"), st.booleans(), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 3), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 3), st.tuples(TAKES, TIMES)),
    st.tuples(st.just("partners"), st.integers(0, 1), st.tuples(ROWS, TIMES, ROWS)),
)
"""Restore: rows arrive, time passes, and the state as of then is restored, with rows that are over and still in it.
Partners: rows arrive, time passes, and then rows of the other input, some of which are partners of rows that are over.
"""
BOUNDS = st.one_of(
    st.none(), st.tuples(st.integers(-12, 12), st.integers(-12, 12)).map(lambda each: (min(each), max(each)))
)
CASES = st.builds(Case, st.sampled_from(["inner", "left", "right", "full"]), BOUNDS)


def row_of(port: int, key: str | None, at: int, n: int) -> dict[str, Any]:
    row = {"at": BEGIN + timedelta(microseconds=at), "k": key, "n": n}
    return row if port == 0 else row | {"s": None if n % 3 == 0 else f"text {n}"}


def apart(operation: tuple[str, Any, Any]) -> list[tuple[str, Any, Any]]:
    """Return the simple operations of which one consists."""
    match operation:
        case ("restore", parallelism, (rows, at)):
            return [rows, ("time", at, None), ("barrier", True, None), ("crash", parallelism, None)]
        case ("partners", port, (first, at, later)):
            return [("rows", port, first), ("time", at, None), ("rows", 1 - port, later)]
    return [operation]


def played(
    case: Case, operations: list[tuple[str, Any, Any]], parallelism: int
) -> tuple[Job, Oracle, dict[tuple[int, int], dict[str, Any]]]:
    """Run operations on both; return them and all rows by port and number."""
    job, oracle, given, number = (
        Job(case.plan(), 2, parallelism),
        Oracle(case),
        dict[tuple[int, int], dict[str, Any]](),
        0,
    )
    kept = copy.deepcopy(oracle)
    ends = [("barrier", True, None), ("time", 10_000_000, None), ("barrier", True, None)]
    for what, which, rows in [*chain.from_iterable(map(apart, operations)), *ends]:
        if what == "rows":
            batch = []
            for key, at in rows:
                number += 1
                given[which, number] = row_of(which, key, at, number)
                batch.append(given[which, number])
                oracle.take(which, OracleRow(key, at, number))
            job.take(which, pa.RecordBatch.from_pylist(batch, SCHEMAS[which]))
        elif what == "time":
            job.advance(BEGIN_US + which)
            oracle.advance(which)
        elif what == "barrier":
            job.barrier(which)
            kept = copy.deepcopy(oracle) if which else kept
        else:
            job.crash(which)
            oracle = copy.deepcopy(kept)
    return job, oracle, given


def expected(
    case: Case, given: Mapping[tuple[int, int], Mapping[str, Any]], pair: Numbers, late: bool
) -> dict[str, Any]:
    """Return the row of the result for a left and a right row, of which one may be missing."""
    left = given[0, pair[0]] if pair[0] is not None else {}
    right = given[1, pair[1]] if pair[1] is not None else {}
    either = left or right
    columns = {"at": left.get("at"), "k": either["k"], "n": left.get("n")}
    columns |= {"n_right": right.get("n"), "at_right": right.get("at"), "s": right.get("s")}
    if case.bounds is not None:
        return columns
    start = BEGIN + (either["at"] - BEGIN) // timedelta(milliseconds=WINDOW_MS) * timedelta(milliseconds=WINDOW_MS)
    end = start + timedelta(milliseconds=WINDOW_MS)
    return columns | {"window_start": None if late else start, "window_end": None if late else end}


def by_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["n"] or 0, row["n_right"] or 0))


def rows_kept(job: Job) -> int:
    """Return how many rows of both inputs are in the state."""
    tables = [each.state.table(operator.id) for each in job.subtasks for operator in job.plan.operators]
    return sum(int(table.present().size) for table in tables if not table.spec.name.endswith(".clock"))


class TestModel:
    @pytest.mark.parametrize("parallelism", [0, 1, 2])
    def test_a_row_emitted_at_the_clock_of_a_checkpoint_is_not_emitted_again(self, parallelism: int) -> None:
        operations = [("rows", 0, [("a", 0)]), ("time", 4_001, None), ("barrier", True, None)]
        job, _, _ = played(Case("left", (0, 4)), [*operations, ("crash", parallelism, None)], 1)
        assert [row["n"] for row in job.rows["out"]] == [1]
        assert rows_kept(job) == 0

    @pytest.mark.parametrize(("how", "alone"), [("inner", []), ("left", [(1, None)]), ("full", [(1, None), (None, 2)])])
    def test_a_row_that_is_over_joins_no_partner_that_is_still_in_time(self, how: str, alone: list[Numbers]) -> None:
        """Its result without a partner was emitted when it was over."""
        operations = [("rows", 0, [("a", 5_000)]), ("time", 5_001, None), ("rows", 1, [("a", 4_000)])]
        job, _, given = played(Case(how, (-10, 0)), operations, 1)
        wanted = [expected(Case(how, (-10, 0)), given, pair, False) for pair in alone]
        assert by_numbers(job.rows["out"]) == by_numbers(wanted) and job.rows["late"] == []

    @given(CASES, st.lists(OPERATIONS, min_size=4, max_size=25), st.integers(1, 2))
    @settings(max_examples=120, deadline=None)
    def test_results_are_those_of_a_list_of_rows(
        self, case: Case, operations: list[tuple[str, Any, Any]], parallelism: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.runtime.operators.joins.join.CANDIDATES_MAX", 2)
            patch.setattr("holdfast.runtime.operators.joins.join.PIECE_ROWS", 3)
            patch.setattr("holdfast.state.tables.table.VACANT_SLOTS_MIN", 4)
            job, oracle, given = played(case, operations, parallelism)
        assert by_numbers(job.rows["out"]) == by_numbers([expected(case, given, pair, False) for pair in oracle.out])
        late = [expected(case, given, (n, None) if port == 0 else (None, n), True) for port, n in oracle.late]
        assert by_numbers(job.rows["late"]) == by_numbers(late)
        if not any(what in ("crash", "restore") for what, _, _ in operations):
            counted = job.progress()
            assert counted["rows_in"] == len(given) and counted["rows_out"] == len(oracle.out)
            assert (counted["late"], counted["dropped"]) == (len(oracle.late), oracle.dropped)
        assert rows_kept(job) == 0
