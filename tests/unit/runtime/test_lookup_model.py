"""Random look-ups against lists of rows: disorder, late rows, time, barriers, rollbacks, restores and rescales.

The oracle keeps every version that ever arrived and shares no code with the operators.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from fragment_jobs import Job
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planned_source import PlannedSource

import holdfast as hf
from holdfast.runtime.plan.compiler import Plan
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.table import StateTable

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
END_US = 10_000_000
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([pa.field("at", TIME, False), pa.field("k", pa.string()), pa.field("n", pa.int64(), False)])
TABLE = pa.schema(
    [
        pa.field("key", pa.large_string()),
        pa.field("n", pa.int64()),
        pa.field("at", TIME, False),
        pa.field("holdfast_deleted", pa.bool_()),
    ]
)
CHANGES = pa.schema([*list(TABLE)[:3], pa.field("_op", pa.int8(), False)])
FRAGMENT = 3
"""That of the look-up: behind those of two sources, and of the rows of the table as upserts."""


@dataclass(frozen=True)
class Case:
    as_of: str
    how: str

    def plan(self) -> Plan:
        app = hf.App("looked-up")
        rows = app.source("rows", PlannedSource(ROWS), event_time="at")
        table = app.table("table", PlannedSource(TABLE), key="key", event_time="at")
        found = rows.lookup("look", table, on=[("k", "key")], as_of=self.as_of, how=self.how)
        found.sink("out", MemorySink())
        if self.as_of == "event_time":
            found.late.sink("late", MemorySink())
        return app.plan()


@dataclass(frozen=True)
class Row:
    n: int
    key: str | None
    at: int


@dataclass(frozen=True)
class Version:
    n: int
    at: int
    deletes: bool


@dataclass
class Oracle:
    """Everything that arrived; times are microseconds."""

    case: Case
    clock: int = -1_000_000_000
    waiting: list[Row] = field(default_factory=list)
    versions: dict[str, list[Version]] = field(default_factory=dict)
    out: list[tuple[int, int | None]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    dropped: int = 0
    useless: int = 0
    """Changes of the table without a key, or so late that no row can ask for them."""

    def take(self, row: Row) -> None:
        if row.key is None:
            self.emit(row, None)
        elif self.case.as_of == "latest":
            self.emit(row, self.last(row.key))
        elif row.at >= self.clock:
            self.waiting.append(row)
        elif (found := self.valid(row.key, row.at)) is not None and found in self.kept(row.key):
            self.emit(row, found)
        else:
            self.late.append(row.n)

    def last(self, key: str) -> Version | None:
        return self.versions[key][-1] if self.versions.get(key) else None

    def valid(self, key: str, at: int) -> Version | None:
        past = [each for each in self.versions.get(key, []) if each.at <= at]
        return max(past, key=lambda each: each.at, default=None)

    def kept(self, key: str) -> list[Version]:
        """What a row at the clock or after it may ask for."""
        now = self.valid(key, self.clock)
        later = [each for each in self.versions.get(key, []) if each.at > self.clock]
        return later if now is None or now.deletes else [now, *later]

    def emit(self, row: Row, found: Version | None) -> None:
        if found is not None and not found.deletes:
            self.out.append((row.n, found.n))
        elif self.case.how == "left":
            self.out.append((row.n, None))
        else:
            self.dropped += 1

    def change(self, key: str | None, change: Version) -> None:
        if key is None:
            self.useless += 1
            return
        held = self.versions.setdefault(key, [])
        if self.case.as_of == "event_time":
            held[:] = [each for each in held if each.at != change.at]
        held.append(change)

    def settle(self, changed: list[tuple[str | None, Version]]) -> None:
        """Forget what no row can ask for, after a batch of changes."""
        if self.case.as_of == "latest":
            return
        taken = {(key, change.at): change for key, change in changed if key is not None}
        self.useless += sum(c.at < self.clock and c not in self.kept(k) for (k, _), c in taken.items())
        self.forget()

    def forget(self) -> None:
        for key, held in self.versions.items():
            held[:] = [each for each in held if each in self.kept(key)]

    def advance(self, at: int) -> None:
        self.clock = max(self.clock, at)
        due = [row for row in self.waiting if row.at < self.clock]
        self.waiting = [row for row in self.waiting if row.at >= self.clock]
        for row in due:
            assert row.key is not None
            self.emit(row, self.valid(row.key, row.at))
        if self.case.as_of == "event_time":
            self.forget()


KEYS = st.sampled_from(["a", "a", "a\x00", "b", None])
TIMES = st.builds(lambda ms, after: 1_000 * ms + after, st.integers(0, 12), st.sampled_from([0, 0, 0, 1]))
TAKES = st.tuples(st.just("rows"), st.lists(st.tuples(KEYS, TIMES), min_size=1, max_size=8))
CHANGED = st.tuples(st.just("table"), st.lists(st.tuples(KEYS, TIMES, st.booleans()), min_size=1, max_size=6))
OPERATIONS = st.one_of(
    TAKES,
    CHANGED,
    CHANGED,
    st.tuples(st.just("time"), TIMES),
    st.tuples(st.just("time"), TIMES),
    st.tuples(st.just("barrier"), st.booleans()),
    st.tuples(st.just("crash"), st.integers(0, 3)),
)
CASES = st.builds(Case, st.sampled_from(["event_time", "event_time", "latest"]), st.sampled_from(["inner", "left"]))
Operation = tuple[str, Any]


def time_of(at: int) -> datetime:
    return BEGIN + timedelta(microseconds=at)


class Play:
    """The same operations on a job and on the oracle."""

    def __init__(self, case: Case, parallelism: int) -> None:
        self.case, self.job, self.oracle = case, Job(case.plan(), FRAGMENT, parallelism), Oracle(case)
        self.committed, self.rows, self.changes = copy.deepcopy(self.oracle), dict[int, Row](), dict[int, int]()
        self.number = 0

    def play(self, operations: list[Operation]) -> Play:
        for what, which in [*operations, ("barrier", True), ("time", END_US), ("barrier", True)]:
            getattr(self, f"do_{what}")(which)
        return self

    def do_rows(self, given: list[tuple[str | None, int]]) -> None:
        batch = list[dict[str, Any]]()
        for key, at in given:
            self.number += 1
            self.rows[self.number] = row = Row(self.number, key, at)
            self.oracle.take(row)
            batch.append({"at": time_of(at), "k": key, "n": row.n})
        self.job.take(0, pa.RecordBatch.from_pylist(batch, ROWS))

    def do_table(self, given: list[tuple[str | None, int, bool]]) -> None:
        batch, changed = [], []
        for key, at, gone in given:
            self.number += 1
            self.changes[self.number] = at
            changed.append((key, Version(self.number, at, gone)))
            self.oracle.change(*changed[-1])
            batch.append({"key": key, "n": None if gone else self.number, "at": time_of(at), "_op": int(gone)})
        self.oracle.settle(changed)
        self.job.take(1, pa.RecordBatch.from_pylist(batch, CHANGES))

    def do_time(self, at: int) -> None:
        self.job.advance(BEGIN_US + at)
        self.oracle.advance(at)

    def do_barrier(self, commits: bool) -> None:
        self.job.barrier(commits)
        self.committed = copy.deepcopy(self.oracle) if commits else self.committed

    def do_crash(self, parallelism: int) -> None:
        self.job.crash(parallelism)
        self.oracle = copy.deepcopy(self.committed)

    def expected(self) -> list[dict[str, Any]]:
        made = []
        for n, found in self.oracle.out:
            row = self.rows[n]
            theirs = None if found is None else time_of(self.changes[found])
            made.append({"at": time_of(row.at), "k": row.key, "n": n, "n_right": found, "at_right": theirs})
        return made

    def check(self, operations: list[Operation]) -> None:
        assert by_number(self.job.rows["out"]) == by_number(self.expected())
        late = [{"at": time_of(r.at), "k": r.key, "n": r.n} for r in map(self.rows.__getitem__, self.oracle.late)]
        assert by_number(self.job.rows["late"]) == by_number(late)
        if any(what == "crash" for what, _ in operations):
            return
        counted, oracle = self.job.progress(), self.oracle
        assert counted["rows_in"] == len(self.rows) + len(self.changes)
        assert counted["rows_out"] == len(oracle.out) and counted["late"] == len(oracle.late)
        assert counted["dropped"] == oracle.dropped + oracle.useless
        assert len(self.rows) == len(oracle.out) + len(oracle.late) + oracle.dropped, "no row waits at the end"

    def held(self, table: str) -> int:
        """Return how many rows a table has on all subtasks."""
        found = next(operator for operator in self.job.plan.operators if operator.name == table)
        return sum(each.state.table(found.id).present().size for each in self.job.subtasks)


def by_number(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: int(row["n"]))


VERSIONED = Case("event_time", "inner")
LATE_VERSION: list[Operation] = [("table", [("a", 2_000, False)]), ("rows", [("a", 6_000)])]


class TestVersions:
    def test_a_row_gets_the_version_of_its_time_whatever_arrives_first(self) -> None:
        play = Play(VERSIONED, 2).play(
            [("rows", [("a", 4_000)]), ("table", [("a", 5_000, False), ("a", 3_000, False)])]
        )
        assert [(row["n"], row["n_right"]) for row in play.job.rows["out"]] == [(1, 3)]

    def test_a_version_at_the_time_of_a_row_is_its_own(self) -> None:
        play = Play(VERSIONED, 1).play(
            [("table", [("a", 3_000, False), ("a", 4_000, False)]), ("rows", [("a", 4_000)])]
        )
        assert [(row["n"], row["n_right"]) for row in play.job.rows["out"]] == [(3, 2)]

    def test_a_deleted_version_gives_no_row(self) -> None:
        changes = ("table", [("a", 3_000, False), ("a", 4_000, True)])
        play = Play(VERSIONED, 1).play([changes, ("rows", [("a", 3_999), ("a", 4_000)])])
        assert [row["n"] for row in play.job.rows["out"]] == [3] and play.job.progress()["dropped"] == 1

    def test_a_row_behind_the_clock_gets_the_version_that_is_still_kept(self) -> None:
        changes = ("table", [("a", 1_000, False), ("a", 4_000, False)])
        play = Play(VERSIONED, 1).play([changes, ("time", 6_000), ("rows", [("a", 5_000), ("a", 3_000), ("b", 5_000)])])
        assert [(row["n"], row["n_right"]) for row in play.job.rows["out"]] == [(3, 2)]
        assert [row["n"] for row in play.job.rows["late"]] == [4, 5]

    def test_a_late_delete_counts_for_rows_that_wait(self) -> None:
        waits = [("table", [("a", 1_000, False)]), ("time", 5_000), ("rows", [("a", 6_000)])]
        play = Play(VERSIONED, 1).play([*waits, ("table", [("a", 3_000, True)]), ("time", 9_000)])
        assert play.job.rows["out"] == [] and play.job.progress()["dropped"] == 2

    def test_a_version_after_a_deleted_one_leaves_it_deleted(self) -> None:
        changes = [(key, at, at == 3_000) for key in ("a", "b") for at in (1_000, 3_000, 8_000)]
        play = Play(VERSIONED, 1).play([("table", changes), ("rows", [("a", 2_000), ("a", 7_000), ("b", 8_000)])])
        assert [(row["n"], row["n_right"]) for row in play.job.rows["out"]] == [(7, 1), (9, 6)]

    def test_rows_that_wait_survive_a_restore_with_another_parallelism(self) -> None:
        waiting = ("rows", [("a", 5_000), ("b", 5_000), ("a\x00", 5_000)])
        changes = ("table", [("a", 1_000, False), ("b", 2_000, False)])
        play = Play(Case("event_time", "left"), 1).play([waiting, ("barrier", True), ("crash", 3), changes])
        assert sorted(row["n_right"] or 0 for row in play.job.rows["out"]) == [0, 4, 5]

    def test_only_the_version_at_the_clock_and_later_ones_are_kept(self) -> None:
        changes = ("table", [("a", ms * 1_000, False) for ms in range(8)] + [("b", 0, False), ("b", 2_000, True)])
        play = Play(VERSIONED, 2)
        for operation in [changes, ("time", 5_500), ("barrier", True)]:
            getattr(play, f"do_{operation[0]}")(operation[1])
        assert play.held("look") == 3, "those of 5, 6 and 7 ms; none of the key that was deleted"

    def test_rows_that_were_looked_up_leave_the_state(self) -> None:
        play = Play(VERSIONED, 2).play([("rows", [("a", 1_000), ("b", 2_000)]), ("barrier", True)])
        assert play.held("look.waiting") == 0

    def test_rows_that_are_due_together_are_sorted_and_looked_up_in_pieces(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.tables.versioned.PIECE_ROWS", 3)
        monkeypatch.setattr("holdfast.runtime.operators.backlog.OUTPUT_ROWS", 1)
        sizes = list[int]()
        order = Keys.order

        def noted(keys: Keys, groups: Any) -> Any:
            sizes.append(len(keys))
            return order(keys, groups)

        monkeypatch.setattr(Keys, "order", noted)
        times = [7_000, 3_000, 5_000, 1_000, 6_000, 2_000, 4_000, 0, 8_000, 8_000, 8_000, 8_000]
        play = Play(Case("event_time", "left"), 1)
        play.do_rows([("a", at) for at in times])
        play.do_time(9_000)
        written = play.job.subtasks[0].written["out"]
        assert [row["at"] for row in written] == [time_of(at) for at in sorted(times)]
        assert sizes == [3, 3, 6], "the four rows of one time are sorted together"

    def test_a_barrier_looks_at_no_row_that_still_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        play = Play(Case("event_time", "left"), 1)
        play.do_time(0)
        play.do_rows([("ab"[n % 2], 1_000 * n) for n in range(1, 9_000)])
        with monkeypatch.context() as patch:
            patch.setattr(
                StateTable, "present_parts", lambda table: pytest.fail(f"all rows of {table.spec.name} are read")
            )
            for ms in (500, 3_500, 6_500):
                play.do_time(1_000 * ms)
                play.do_barrier(True)
                assert len(play.job.rows["out"]) == ms - 1
        assert play.held("look.waiting") == 2_500


class TestModel:
    @given(CASES, st.lists(OPERATIONS, max_size=25), st.integers(1, 2))
    @example(VERSIONED, [("table", [("a", 2_000, False)]), ("time", 5_000), ("table", [("a", 1_000, False)])], 1)
    @example(VERSIONED, [("table", [("a", 3_000, True)]), ("time", 5_000), *LATE_VERSION], 1)
    @example(VERSIONED, [("table", [("a", 3_000, True)]), ("time", 5_000), ("barrier", True), *LATE_VERSION], 1)
    @settings(max_examples=200, deadline=None)
    def test_results_are_those_of_lists_of_rows(
        self, case: Case, operations: list[Operation], parallelism: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.runtime.operators.tables.versioned.PIECE_ROWS", 3)
            patch.setattr("holdfast.state.tables.table.VACANT_SLOTS_MIN", 4)
            patch.setattr("holdfast.state.collections.rows.ABSENT_MIN", 4)
            play = Play(case, parallelism).play(operations)
        play.check(operations)
