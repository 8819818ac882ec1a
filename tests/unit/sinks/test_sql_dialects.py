"""The seam between sinks/sql and its dialects: what every dialect decides, and what none of them can change."""

from __future__ import annotations

import os
import pickle
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from other_dialect import HOLD, Numbered, OtherTable

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.audited import Gone
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sqlite.sink import SQLite

JOB, WRITER = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)
EVERY_TYPE = pa.schema(
    [
        pa.field("k`'\"", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.uint32()),
        pa.field("real", pa.float64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
    ]
)
KEYS = ("k`'\"", "flag", "at")
AT = datetime(1, 1, 1, 9, 30, 0, 7, UTC)
ROW = ("é\"'\n", True, 7, 2.0, AT, date(2026, 1, 31), b"\x00\xff")


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def batch(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


class TestTheDeliveryTransaction:
    @pytest.mark.parametrize("known", [None, tag(1)])
    def test_moves_the_tag_by_its_first_statement(self, tmp_path: Path, known: Tag | None) -> None:
        sink = SQLite(tmp_path / "out.db", "users", KEY, "idempotent")
        sink.prepare(SCHEMA, KEY)
        seen: list[str] = []
        with closing(sink.open(JOB, WRITER, Claim("driver", Generation(1)))) as target:
            target.deliver(tag(1), [])
            cast(sqlite3.Connection, target._connection.db).set_trace_callback(seen.append)
            target.deliver(tag(2), [batch(SCHEMA, (1, "ann"))], known)
        first = next(each for each in seen[seen.index("BEGIN IMMEDIATE") + 1 :] if not each.startswith("PRAGMA"))
        assert first.startswith(("INSERT INTO main.holdfast_progress", "UPDATE main.holdfast_progress"))

    def test_locks_the_owner_that_it_has_read(self, tmp_path: Path) -> None:
        sink = OtherTable(tmp_path / "out.db", "users", KEY)
        sink.prepare(SCHEMA, KEY)
        with closing(sink.open(JOB, WRITER, Claim("driver", Generation(1)))) as target:
            target.delivered()
            db = cast(Numbered, target._connection.db)
            assert not any(HOLD in statement for statement in db.seen)
            target.deliver(tag(1), [batch(SCHEMA, (1, "ann"))])
            target.forget(tag(1))
            for _ in range(2):
                del db.seen[: db.seen.index("BEGIN WRITE") + 1]
                owner, table = [s for s in db.seen[: db.seen.index("COMMIT")] if HOLD in s]
                assert owner.startswith("SELECT owner, generation FROM")
                assert table.startswith("SELECT share, job, sink FROM")


class TestDialect:
    def test_types_and_the_form_of_values(self, tmp_path: Path) -> None:
        sink = OtherTable(tmp_path / "out.db", "every", KEYS)
        sink.prepare(EVERY_TYPE, None)
        with closing(sink.open(JOB, WRITER)) as target:
            target.deliver(tag(1), [batch(EVERY_TYPE, ROW)])
        assert ask(tmp_path / "out.db", "SELECT flag, at, day FROM every") == [
            ("t", -62_135_562_599_999_993, "20260131")
        ]

    def test_limits_of_names_and_columns(self) -> None:
        sink = OtherTable("/data/out.db", "users")
        with pytest.raises(ConfigError, match="has 64 bytes, and Other cuts names at 63"):
            sink.check(pa.schema([("é" * 32, pa.int64())]), None)
        with pytest.raises(ConfigError, match="21 columns are more than the 20 it takes"):
            sink.check(pa.schema([(f"c{n}", pa.int64()) for n in range(21)]), None)

    @pytest.mark.parametrize("name", ["pg_class", "PG_CLASS", "holdfast_undo", "Holdfast_x"])
    def test_reserved_names(self, name: str) -> None:
        with pytest.raises(ConfigError, match="reserved"):
            OtherTable("/data/out.db", name).check(SCHEMA, None)

    @pytest.mark.parametrize("names", [("a", "A"), ("x", "_OP")])
    def test_names_that_are_equal(self, names: tuple[str, str]) -> None:
        with pytest.raises(ConfigError, match=r"appears twice; Other takes upper and lower case as one"):
            OtherTable("/data/out.db", "users").check(pa.schema([(name, pa.int64()) for name in names]), None)

    def test_errors_of_a_missing_database(self, tmp_path: Path) -> None:
        sink = OtherTable(tmp_path / "out.db", "users", KEY)
        sink.prepare(SCHEMA, KEY)
        os.remove(tmp_path / "out.db")
        with closing(sink.open(JOB, WRITER)) as target, pytest.raises(ConfigError, match="the database is missing"):
            target.delivered()
        with pytest.raises(ConfigError, match="the database is missing"):
            sink.plan_repair(Rewinding(JOB, "out", tag(1, 2), (WRITER,)), SCHEMA, KEY)
        with pytest.raises(Gone, match="the database is missing"):
            sink.contents(cast(Any, None))


class TestCommonToAllDialects:
    @pytest.mark.parametrize("delivery", ["transactional", "idempotent"])
    def test_before_images_and_tombstones(self, tmp_path: Path, delivery: str) -> None:
        """The tables of Holdfast are one format, in whatever form a database stores the user's rows."""
        schema, found = EVERY_TYPE.append(pa.field(OP, pa.int8())), []
        for made, name in ((SQLite, "one.db"), (OtherTable, "other.db")):
            sink = made(tmp_path / name, "EVERY", KEYS, delivery)
            sink.prepare(EVERY_TYPE, KEYS)
            with closing(sink.open(JOB, WRITER)) as target:
                target.deliver(tag(1), [batch(schema, (*ROW, PUT))])
                target.deliver(tag(2), [batch(schema, (*ROW, DELETE), ("x", False, *ROW[2:], DELETE))])
            images = ask(tmp_path / name, 'SELECT epoch, n, "key", "before" FROM holdfast_undo ORDER BY epoch, n')
            tombstones = delivery == "idempotent" and ask(
                tmp_path / name, 'SELECT "key", tag, sink, writer FROM holdfast_tombstone ORDER BY "key"'
            )
            found.append((images, tombstones))
        assert found[0] == found[1] and len(found[0][0]) == 3

    def test_a_sink_can_be_pickled_for_the_workers(self, tmp_path: Path) -> None:
        sink = OtherTable(str(tmp_path / "out.db"), "users", KEY)
        sink.prepare(SCHEMA, KEY)
        shipped = pickle.loads(pickle.dumps(sink))  # noqa: S301
        assert shipped == sink and isinstance(shipped.open(JOB, WRITER), SqlTarget)
