"""The tables in users' databases are a format: a later version must read what this one wrote.

A difference here needs a page in docs/design/ and a way to bring existing tables along.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from holdfast.sinks.sqlite import SQLite

GOLDEN = Path(__file__).parent / "sql_tables.sql"


class TestTablesInASqlTarget:
    def test_they_are_those_that_earlier_versions_created(self, tmp_path: Path) -> None:
        schema = pa.schema(
            [
                ("auction", pa.int64()),
                ("window_end", pa.timestamp("us", "UTC")),
                ("top", pa.float64()),
                ("raw", pa.binary()),
            ]
        )
        sink = SQLite(tmp_path / "out.db", "hot", ["auction", "window_end"])
        sink.prepare(schema, ("auction", "window_end"))
        with closing(sqlite3.connect(sink.path)) as db:
            created = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        assert ";\n\n".join(created) + ";\n" == GOLDEN.read_text()
