"""The queries of Nexmark as users run them: logs, Spark, two workers, an epoch a second; a table of all of them.

Every query runs the file of the example. The number of its rows is compared with DuckDB's. Its rate is that between
the first and the last full epoch, by the times at which they were committed, so starting Spark does not count; CPU is
that of both workers since they were first seen.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from bench_keyed_count import Used, run_file
from harness import Bench
from nexmark_oracle import count

from holdfast.checkpoint.repository import Repository
from holdfast.examples import nexmark
from holdfast.examples.nexmark_data import ROWS, Events, written
from holdfast.runtime.inspect.logframe import log
from holdfast.storage.objects import open_objects

FILE = Path(__file__).parents[2] / "examples" / "nexmark.py"
EXACT_DISTINCT = ("q15", "q16")
"""They keep the values of every key, which is meant for some ten thousand of them: they get a tenth of the events."""
FRAME = {"make", "Site", "QUERIES"}
"""What the queries have in common is not counted as part of one."""


@dataclass(frozen=True)
class Measured:
    query: str
    rows_in: int
    rows_out: int
    rate: float | None
    cpu_us: float

    def line(self) -> str:
        rate = "-" if self.rate is None else f"{self.rate:,.0f}"
        lines = lines_of(self.query)
        return f"| {self.query} | {lines} | {self.rows_in:,} | {self.rows_out:,} | {rate} | {self.cpu_us:.2f} |"


@dataclass
class Working(Used):
    """Counts CPU from when a worker is first seen: it has started, and has read next to nothing."""

    begun_s: dict[int, float] = field(default_factory=dict)

    def sample(self, pids: list[int]) -> None:
        super().sample(pids)
        for pid, seconds in self.cpu_s.items():
            self.begun_s.setdefault(pid, seconds)

    def seconds(self) -> float:
        return sum(self.cpu_s.values()) - sum(self.begun_s.values())


@pytest.mark.e2e
def bench_nexmark(bench: Bench, tmp_path: Path) -> None:
    """At smoke size one query alone, because each of them starts Spark."""
    events = bench.size("events", smoke=20_000, full=5_000_000)
    found = list[Measured]()
    with bench.timed():
        for query in nexmark.QUERIES if bench.full else ["q5"]:
            given = Events(events // 10 if query in EXACT_DISTINCT else events, group=1_000)
            found.append(measured(query, given, tmp_path))
            print(found[-1].line(), flush=True)  # what stands if a later query fails
    rows = sum(each.rows_in for each in found)
    bench.report(per=rows, unit="row", check=sum(each.rows_out for each in found))
    bench.note("| query | lines of code | rows in | rows out | rows/s | CPU us per row |")
    bench.note("|---|---|---|---|---|---|")
    for each in found:
        bench.note(each.line())
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


def measured(query: str, events: Events, folder: Path) -> Measured:
    """Run a query, compare the number of its rows with DuckDB's, and return what it took."""
    logs, used = written(str(folder / f"events-{events.count}"), events), Working()
    variables = {"NEXMARK_QUERY": query, "NEXMARK_LOGS": logs, "NEXMARK_OUT": str(folder / "out")}
    run_file(
        FILE,
        folder,
        used,
        variables | {"NEXMARK_EVENTS": str(events.count)},
        *("--root", str(folder / "root"), "--parallelism", "2"),
    )
    app = nexmark.make(query, events, logs, str(folder / "out"))
    replaced = any(sink.upsert_key is not None for sink in app.plan().sinks)
    result = log(folder / "out" / query, as_table=replaced)
    if query == "q12":  # counts by the clock: no other run has the same rows
        rows_out = result.select(pl.col("bid_count").sum()).collect().item()
        assert rows_out == events.rows("bids")
    rows_out = result.select(pl.len()).collect().item()
    kinds = [source.name for source in app.plan().sources]
    assert query == "q12" or rows_out == count(query, {kind: table(events, kind) for kind in kinds})
    rows_in = sum(events.rows(kind) for kind in kinds)
    cpu_us = used.seconds() / rows_in * 1e6
    return Measured(query, rows_in, rows_out, rate_of(folder / "root" / f"nexmark-{query}"), cpu_us)


@cache
def table(events: Events, kind: str) -> pa.Table:
    return pa.Table.from_batches(list(events.batches(kind)))


def rate_of(root: Path) -> float | None:
    """Return the rows per second between the first and the last full epoch; None for a run of fewer than three."""
    repository = Repository(open_objects(str(root)))
    job = repository.read_log()
    assert job is not None and job.finished
    full = [
        (done.at / 1e6, sum(at.offset for at in repository.load_manifest(done.body.manifest).positions))
        for done in job.completed[:-1]
    ]
    if len(full) < 3:
        return None
    (first_s, first), (last_s, last) = full[0], full[-1]
    return (last - first) / (last_s - first_s)


def lines_of(query: str) -> int:
    """Return the lines of code of a query and of what it alone uses, without blank lines and docstrings."""
    text = FILE.read_text()
    parts = {
        name: node
        for node in ast.parse(text).body
        for name in names_of(node)
        if name not in FRAME and not isinstance(node, ast.Import | ast.ImportFrom | ast.If)
    }
    wanted, found = [query], dict[str, ast.stmt]()
    while wanted:
        name = wanted.pop()
        if name in parts and name not in found:
            found[name] = parts[name]
            wanted += [each.id for each in ast.walk(parts[name]) if isinstance(each, ast.Name)]
    lines = text.splitlines()
    return sum(
        bool(lines[at].strip())
        for node in found.values()
        for at in set(range(first_line(node) - 1, node.end_lineno or 0)) - documentation(node)
    )


def names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return []


def first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min([node.lineno, *(each.lineno for each in decorators)])


def documentation(node: ast.stmt) -> set[int]:
    """Return the lines of all texts that stand alone in a definition."""
    alone = [
        each.value for each in ast.walk(node) if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    ]
    return {at for each in alone for at in range(each.lineno - 1, each.end_lineno or 0)}


def bench_lines_of_code(bench: Bench) -> None:
    """The other column of the table, which needs no run."""
    with bench.timed():
        lines = {query: lines_of(query) for query in nexmark.QUERIES}
    bench.report(per=len(lines), unit="query", check=sum(lines.values()))
    assert min(lines.values()) == lines["q0"] == 2, "a signature and an expression"
    assert max(lines.values()) < 60
    assert lines["q4"] > lines["q0"] + 4, "with the join that it shares with two others"
    bench.note(", ".join(f"{query} {number}" for query, number in lines.items()))
    assert set(ROWS) == {"persons", "auctions", "bids"}
