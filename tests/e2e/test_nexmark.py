"""The queries of Nexmark as a user runs them, on Spark, at a size at which state and windows have many epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench_keyed_count import Used, run_file
from nexmark_oracle import expected

from holdfast.examples import nexmark
from holdfast.examples.nexmark_data import ROWS, Events
from holdfast.runtime.inspect.logframe import log

EVENTS = Events(200_000, group=1_000)
FILE = Path(__file__).parents[2] / "examples" / "nexmark.py"


@cache
def tables() -> Mapping[str, pa.Table]:
    return {kind: pa.Table.from_batches(list(EVENTS.batches(kind))) for kind in ROWS}


def comparable(value: Any) -> Any:
    """Return a value without its zone, with nine digits, as something that can be counted."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return tuple(map(comparable, value)) if isinstance(value, list) else value


@pytest.mark.e2e
@pytest.mark.slow
class TestNexmark:
    @pytest.mark.parametrize("query", [query for query in nexmark.QUERIES if query != "q12"])
    def test_a_query_gives_what_duckdb_finds(self, query: str, tmp_path: Path) -> None:
        variables = {"NEXMARK_QUERY": query, "NEXMARK_EVENTS": str(EVENTS.count), "NEXMARK_OUT": str(tmp_path / "out")}
        logs = {"NEXMARK_LOGS": str(tmp_path / "events")}
        run_file(FILE, tmp_path, Used(), variables | logs, "--root", str(tmp_path / "root"))
        app = nexmark.make(query, EVENTS, str(tmp_path / "events"), str(tmp_path / "out"))
        replaced = any(sink.upsert_key is not None for sink in app.plan().sinks)
        have = log(tmp_path / "out" / query, as_table=replaced).collect().to_dicts()
        want = expected(query, tables())
        names = list(want[0])
        counted = [Counter(tuple(comparable(row[name]) for name in names) for row in side) for side in (have, want)]
        assert counted[0] == counted[1]
