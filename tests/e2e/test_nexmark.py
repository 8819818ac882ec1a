"""The queries of Nexmark as a user runs them, on Spark, at a size at which state and windows have many epochs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from bench_keyed_count import Used, run_file
from nexmark_oracle import counted, expected

from holdfast.examples import nexmark
from holdfast.examples.nexmark_data import ROWS, Events
from holdfast.runtime.inspect.logframe import log

EVENTS = Events(200_000, group=1_000)
FILE = Path(__file__).parents[2] / "examples" / "nexmark.py"


@cache
def tables() -> Mapping[str, pa.Table]:
    return {kind: pa.Table.from_batches(list(EVENTS.batches(kind))) for kind in ROWS}


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
        assert counted(have, names) == counted(want, names)
