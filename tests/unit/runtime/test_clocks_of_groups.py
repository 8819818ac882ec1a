"""After a restore the key groups of a subtask may have different clocks; each key is treated by its own.

A subtask that takes over key groups of two others has the clocks of both until event time has passed the later one. So
whichever subtask owns a key, its results are as before: nothing is late, over or forgotten early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import hopping_jobs
import lookup_jobs
import pattern_jobs
import pyarrow as pa
import pytest
import session_jobs
import sliding_jobs
from fragment_jobs import Job
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_jobs import never
from session_jobs import at

import holdfast as hf
from holdfast.runtime.plan.compiler import Plan
from holdfast.sinks.memory.sink import MemorySink

SCHEMA = session_jobs.SCHEMA
PAIRED = pa.schema([pa.field("k", pa.string()), pa.field("at", lookup_jobs.TIME, False), pa.field("v", pa.int64())])
KEYS = [f"k{number}" for number in range(6)]
Steps = list[tuple[Any, ...]]


def dedup() -> hf.App:
    app = hf.App("unique", key_groups=8)
    unique = app.source("rows", never(SCHEMA), event_time="at").key_by("k").dedup("unique", within="10s")
    unique.sink("out", MemorySink())
    unique.late.sink("late", MemorySink())
    return app


def join(how: str, bounded: bool) -> hf.App:
    app = hf.App("pairs", key_groups=8)
    left, right = (app.source(side, never(PAIRED), event_time="at") for side in ("left", "right"))
    within, window = (hf.between("-4s", "6s"), None) if bounded else (None, hf.tumbling("5s"))
    joined = left.join("pairs", right, on="k", how=how, within=within, window=window)
    joined.sink("out", MemorySink())
    joined.late.sink("late", MemorySink())
    return app


def visit(key: str, time: datetime, number: int) -> dict[str, Any]:
    return {"k": key, "v": number, "word": None, "at": time}


def paired(key: str, time: datetime, number: int) -> dict[str, Any]:
    return {"k": key, "at": time, "v": number}


def event(key: str, time: datetime, number: int) -> dict[str, Any]:
    return {"id": number, "user": key, "kind": "abc"[number % 3], "amount": number, "at": time}


JOBS: dict[str, tuple[Callable[[], hf.App], Callable[[str, datetime, int], dict[str, Any]]]] = {
    "tumbling windows": (lambda: hopping_jobs.app_of(10, 10, "final", 3), visit),
    "hopping windows": (lambda: hopping_jobs.app_of(10, 2, "close", 3), visit),
    "windows that are held": (lambda: hopping_jobs.app_of(10, 2, "final", 3, compiled=True), visit),
    "sessions": (lambda: session_jobs.app_of(5, 3), visit),
    "sliding windows": (sliding_jobs.app_of, visit),
    "dedup": (dedup, visit),
    "patterns": (lambda: pattern_jobs.app_of("relaxed", "none"), event),
    "a join in windows": (lambda: join("full", False), paired),
    "a join within bounds": (lambda: join("full", True), paired),
    "an inner join within bounds": (lambda: join("inner", True), paired),
}


def played(plan: Plan, steps: Steps, record: Callable[[str, datetime, int], dict[str, Any]], restored: int) -> Job:
    """Play steps on two subtasks, and the second half of them on as many as the state is restored to."""
    (index,) = (number for number, each in enumerate(plan.fragments) if each.input_edges)
    job, number = Job(plan, index, 2), 0
    ports = len(job.edges)
    for step in [*steps, ("time", 0, 10_000), ("barrier",)]:
        match step:
            case ("rows", port, rows):
                made = [record(key, at(second), number + i) for i, (key, second) in enumerate(rows)]
                number += len(made)
                port %= ports
                job.take(port, pa.RecordBatch.from_pylist(made, job.edges[port].schema))
            case ("ahead", which, second):  # only one subtask knows this time yet
                job.subtasks[which % len(job.subtasks)].fragment.on_watermark(us(second))
            case ("time", _, second):
                job.advance(us(second))
            case ("restore",):
                job.barrier(True)
                job.crash(restored)
            case ("barrier",):
                job.barrier(True)
    return job


def us(second: float) -> int:
    return round(at(second).timestamp() * 1_000_000)


def rows_of(job: Job) -> dict[str, Counter[str]]:
    return {sink: Counter(map(repr, rows)) for sink, rows in job.rows.items() if rows}


def kept(job: Job) -> int:
    tables = [each.state.table(operator.id) for each in job.subtasks for operator in job.plan.operators]
    return sum(int(table.present().size) for table in tables if not table.spec.name.endswith(".clock"))


ROWS = st.tuples(
    st.just("rows"),
    st.integers(0, 1),
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 30)), min_size=6, max_size=14),
)


def time(first: int, last: int, what: str = "time") -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.just(what), st.integers(0, 1), st.integers(first, last))


STEPS = st.tuples(
    *(ROWS, time(0, 10), ROWS, time(20, 45, "ahead"), st.just(("restore",))),
    *(time(5, 25), ROWS, time(10, 50), ROWS),
)
"""The time after the restore lies, as a rule, between the clocks of both."""


@pytest.mark.parametrize("job", JOBS)
@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_a_key_has_the_results_of_its_own_clock_whoever_owns_it(job: str, steps: Steps) -> None:
    app, record = JOBS[job]
    plan = app().plan()
    apart, together = (played(plan, steps, record, count) for count in (2, 1))
    assert rows_of(together) == rows_of(apart)
    assert kept(together) == 0


def test_a_sliding_window_keeps_its_rows_while_the_clock_of_another_key_is_ahead() -> None:
    """Expected: (event time - size, event time] of each record (docs/guide/event-time.md, windows)."""
    app, record = JOBS["sliding windows"]
    rows = [(key, second) for key in KEYS for second in (8, 12, 17)]
    steps: Steps = [("rows", 0, rows), ("ahead", 1, 40), ("restore",), ("time", 0, 15)]
    job = played(app().plan(), steps, record, 1)
    found = sorted((row["k"], row["window_end"], row["n"]) for row in job.rows["out"])
    assert found == sorted((key, at(second), n) for key in KEYS for second, n in ((8, 1), (12, 2), (17, 3)))
    assert kept(job) == 0
