"""The check of the flights job for a run under faults: the oracles of the demo, as findings.

Used by chaos/scenarios/flights.toml; FLIGHTS_DB and FLIGHTS_OUT in the job's environment are the paths of the results.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import polars as pl

from holdfast.chaos.judge.findings import Context, Finding
from holdfast.examples import flights_hours_oracle, flights_oracle

SHOWN_MAX = 3


def check(context: Context) -> Iterator[Finding]:
    """Recompute every row of every output from the data."""
    db, out = Path(context.environment["FLIGHTS_DB"]), Path(context.environment["FLIGHTS_OUT"])
    yield from totals(db)
    hours = flights_hours_oracle.verify(db, out)
    missing = sum(line.endswith(": missing") for line in hours.differences)
    more = sum(line.endswith(": should not be there") for line in hours.differences)
    said = "; ".join(hours.differences[:SHOWN_MAX]) or ", ".join(f"{n} {name}" for name, n in hours.rows.items())
    moved = out_of_order(out / "hours")
    yield Finding("hours, late, unknown airports", not hours.differences, "I2", missing, more, moved, said)


def out_of_order(log: Path) -> int | None:
    """Count the hours that were appended after a later hour of their airport; None if the log was rewound or compacted.

    The rows of one commit go round the partitions and have no order, so only commits are compared.
    """
    newest: dict[str, datetime] = {}
    wrong = 0
    for commit in flights_hours_oracle.commits_of(log):
        if commit["kind"] in ("void", "compact"):
            return None
        parts = [pl.read_ipc(log / each["path"], columns=["airport", "window_end"]) for each in commit["segments"]]
        rows = [row for part in parts for row in part.iter_rows()]
        wrong += sum(end < newest.get(airport, end) for airport, end in rows)
        for airport, end in rows:
            newest[airport] = max(end, newest.get(airport, end))
    return wrong


def totals(db: Path) -> Iterator[Finding]:
    """Compare the tables of totals: events missing from a total are lost, surplus events were counted twice."""
    verdict = flights_oracle.verify(db)
    for table in flights_oracle.TABLES:
        wrong = [line for line in verdict.differences if line.startswith(f"{table} ")]
        counted = _events(db, table)
        lost, twice = max(0, verdict.events - counted), max(0, counted - verdict.events)
        said = "; ".join(wrong[:SHOWN_MAX]) or f"{verdict.rows[table]} rows count {counted} events"
        yield Finding(table, not wrong and lost == twice == 0, "I1", lost, twice, None, said)


def _events(db: Path, table: str) -> int:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return int(connection.execute(f'SELECT sum(events) FROM "{table}"').fetchone()[0])
