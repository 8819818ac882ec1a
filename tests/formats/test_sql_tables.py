"""The tables in users' databases are a format: a later version must read what this one wrote.

A difference here needs a page in docs/decisions/ and a migration of existing tables.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.immediate import Origin, Owner
from holdfast.sinks.contract.owners import Claim, Held, Holding, Rival
from holdfast.sinks.contract.target import DELETE, OP, PUT, Delivered
from holdfast.sinks.sqlite.sink import SQLite

GOLDEN = Path(__file__).parent / "sql_tables.sql"
GOLDEN_IDEMPOTENT = GOLDEN.with_name("sql_tables_idempotent.sql")
GOLDEN_OWNER = GOLDEN.with_name("sql_tables_owner.sql")
GOLDEN_CLAIMS = GOLDEN.with_name("sql_tables_claims.sql")
"""Added later: earlier versions leave these tables alone."""
GOLDEN_UNDO = GOLDEN.with_name("sql_tables_undo.sql")
"""Before-images that name their table, in place of those in `GOLDEN`: a start adds the column to these."""
GOLDEN_AT_ONCE = GOLDEN.with_name("sql_tables_immediate.sql")

SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("window_end", pa.timestamp("us", "UTC")),
        ("top", pa.float64()),
        ("raw", pa.binary()),
    ]
)
KEY = ("auction", "window_end")
JOB = "6f9b0f6e-0000-4000-8000-000000000001"


def created(sink: SQLite) -> list[str]:
    """Return the statements of all tables, sorted."""
    return sorted(sql for (sql,) in ask(sink, "SELECT sql FROM sqlite_master WHERE type = 'table'"))


def golden_of(path: Path) -> list[str]:
    """Return the statements of a golden file and of the tables that were added or widened later, sorted."""
    later = [sql for file in (GOLDEN_OWNER, GOLDEN_CLAIMS, GOLDEN_UNDO) for sql in statements(file)]
    return sorted([sql for sql in statements(path) if not sql.startswith("CREATE TABLE holdfast_undo")] + later)


def statements(path: Path) -> list[str]:
    return path.read_text().removesuffix(";\n").split(";\n\n")


def ask(sink: SQLite, sql: str) -> list[Any]:
    with closing(sqlite3.connect(sink.path)) as db:
        return db.execute(sql).fetchall()


class TestTablesInASqlTarget:
    @pytest.mark.parametrize(("delivery", "golden"), [("transactional", GOLDEN), ("idempotent", GOLDEN_IDEMPOTENT)])
    def test_tables_equal_those_created_by_earlier_versions(self, tmp_path: Path, delivery: str, golden: Path) -> None:
        sink = SQLite(tmp_path / "out.db", "hot", KEY, delivery)
        sink.prepare(SCHEMA, KEY)
        assert created(sink) == golden_of(golden)

    def test_an_immediate_table_equals_the_one_created_by_earlier_versions(self, tmp_path: Path) -> None:
        table = SQLite(tmp_path / "out.db", "hot", KEY, "idempotent")
        sink = table.immediate
        assert sink is not None
        sink.prepare(SCHEMA, KEY)
        assert created(table) == golden_of(GOLDEN_AT_ONCE)

    def test_rows_of_an_immediate_table_have_the_tag_of_earlier_versions(self, tmp_path: Path) -> None:
        table = SQLite(tmp_path / "out.db", "Hot", KEY, "idempotent")
        sink = table.immediate
        assert sink is not None
        sink.prepare(SCHEMA, KEY)
        schema = SCHEMA.append(pa.field(OP, pa.int8()))
        at = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
        rows = [{"auction": n, "window_end": at, "top": 0.5, "raw": b"", OP: op} for n, op in ((1, PUT), (2, DELETE))]
        origin = Origin("bids", 3)
        with closing(sink.open_immediate(Owner(JOB, "out", Generation(5), Timeline(2), "code"))) as target:
            target.fence({origin: 7})
            target.write(origin, 40, [pa.RecordBatch.from_pylist(rows, schema=schema)])
        tag = f"{JOB}/@out/bids/3/0000000002/0000000000000000040"
        assert ask(table, "SELECT auction, _holdfast_tag FROM hot") == [(1, tag)]
        assert ask(table, "SELECT * FROM holdfast_tombstone") == [
            ("hot", '{"auction":2,"window_end":"2026-01-31T09:30:00.000000Z"}', tag, "out", 3)
        ]
        assert ask(table, "SELECT * FROM holdfast_fence") == [(JOB, "out", "bids", 3, 5, 2, 40, "code")]

    def test_rows_and_tombstones_have_the_tag_in_the_form_of_earlier_versions(self, tmp_path: Path) -> None:
        sink = SQLite(tmp_path / "out.db", "Hot", KEY, "idempotent")
        sink.prepare(SCHEMA, KEY)
        schema = SCHEMA.append(pa.field(OP, pa.int8()))
        at = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
        rows = [{"auction": n, "window_end": at, "top": 0.5, "raw": b"", OP: op} for n, op in ((1, PUT), (2, DELETE))]
        with closing(sink.open(JOB, Writer("out", Subtask(3)))) as target:
            target.deliver(Tag(Timeline(2), Epoch(40)), [pa.RecordBatch.from_pylist(rows, schema=schema)])
        tag = f"{JOB}/0000000002/0000000000000040"
        assert ask(sink, "SELECT auction, _holdfast_tag FROM hot") == [(1, tag)]
        assert ask(sink, "SELECT * FROM holdfast_tombstone") == [
            ("hot", '{"auction":2,"window_end":"2026-01-31T09:30:00.000000Z"}', tag, "out", 3)
        ]

    def test_before_images_name_their_table(self, tmp_path: Path) -> None:
        at = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
        row = pa.RecordBatch.from_pylist([{"auction": 1, "window_end": at, "top": 0.5, "raw": b""}], schema=SCHEMA)
        for table, key in (("Hot", KEY), ("Added", None)):
            sink = SQLite(tmp_path / "out.db", table, key)
            sink.prepare(SCHEMA, None)
            with closing(sink.open(JOB, Writer(table, Subtask(0)))) as target:
                target.deliver(Tag(Timeline(1), Epoch(1)), [row])
        assert ask(sink, 'SELECT sink, "table", "before" FROM holdfast_undo ORDER BY 1') == [
            ("Added", "added", None),
            ("Hot", "hot", None),
        ]

    def test_claims_have_the_form_of_earlier_versions(self, tmp_path: Path) -> None:
        for table, key in (("Hot", KEY), ("Added", None)):
            sink = SQLite(tmp_path / "out.db", table, key)
            sink.prepare(SCHEMA, KEY if key else None)
            with closing(sink.open(JOB, Writer("out", Subtask(0)), Claim("driver", Generation(1)))) as target:
                target.deliver(Tag(Timeline(1), Epoch(1 if key else 2)), [])
        assert ask(sink, "SELECT * FROM holdfast_table ORDER BY 1, 2") == [
            ("added", "", "", ""),
            ("added", "out", JOB, "out"),
            ("hot", "", JOB, "out"),
        ]


class TestTargetOfAnEarlierVersion:
    """Its golden tables, with a row and a tag, before owners and claims were noted."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> SQLite:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db, db:
            db.executescript(GOLDEN.read_text())
            db.execute("INSERT INTO hot VALUES (1, '2026-01-31T09:30:00.000000Z', 0.5, x'')")
            db.execute("INSERT INTO holdfast_progress VALUES (?, 'out', 0, 1, 7)", [JOB])
        sink = SQLite(tmp_path / "out.db", "hot", KEY)
        sink.prepare(SCHEMA, KEY)
        return sink

    def test_its_job_continues_and_owns_the_table(self, sink: SQLite) -> None:
        assert sink.holding(JOB, "out") == Holding(None, Tag(Timeline(1), Epoch(7)))
        with closing(sink.open(JOB, Writer("out", Subtask(0)), Claim("driver", Generation(2)))) as target:
            assert target.deliver(Tag(Timeline(1), Epoch(8)), []) == Delivered(0)
        assert ask(sink, "SELECT * FROM holdfast_table") == [("hot", "", JOB, "out")]

    def test_its_before_images_name_their_table_from_now_on(self, sink: SQLite) -> None:
        row = {"auction": 2, "window_end": datetime(2026, 1, 31, tzinfo=UTC), "top": 0.5, "raw": b"", OP: PUT}
        with closing(sqlite3.connect(sink.path)) as db, db:
            db.execute("INSERT INTO holdfast_undo VALUES (?, 'out', 0, 1, 7, 0, '{}', NULL, NULL)", [JOB])
        with closing(sink.open(JOB, Writer("out", Subtask(0)))) as target:
            schema = SCHEMA.append(pa.field(OP, pa.int8()))
            target.deliver(Tag(Timeline(1), Epoch(8)), [pa.RecordBatch.from_pylist([row], schema=schema)])
        assert ask(sink, 'SELECT epoch, "table" FROM holdfast_undo ORDER BY 1') == [(7, None), (8, "hot")]

    def test_another_job_is_refused_until_then_and_afterwards(self, sink: SQLite) -> None:
        assert sink.holding("another", "out").rival == Rival(JOB, "out", None, certain=False)
        self.test_its_job_continues_and_owns_the_table(sink)
        owner = Held("driver", Generation(2))
        assert sink.holding("another", "out").rival == Rival(JOB, "out", owner)
