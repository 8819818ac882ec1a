"""Repair of SQLite targets: the particulars of rowids, row tags and older files."""

from __future__ import annotations

import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.sql.added import ranges_of
from holdfast.sinks.sql.values import from_json
from holdfast.sinks.sqlite.sink import SQLite

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
LEFT = Writer("out", Subtask(0))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("real", pa.float64()), pa.field("raw", pa.binary())])
KEY = ("user",)
VACUUM = "VACUUM"


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*given: tuple[int, float | None, bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], schema=SCHEMA)


def changed(*given: tuple[int, float | None, int]) -> pa.RecordBatch:
    schema = SCHEMA.append(pa.field(OP, pa.int8()))
    listed = [{"user": u, "real": r, "raw": None, OP: op} for u, r, op in given]
    return pa.RecordBatch.from_pylist(listed, schema=schema)


def deliver(sink: SQLite, epoch: int, *batches: pa.RecordBatch, timeline: int = 1) -> None:
    with closing(sink.open(JOB, LEFT)) as target:
        target.deliver(tag(epoch, timeline), batches)


def ask(sink: SQLite, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(sink.path, isolation_level=None)) as db:
        return db.execute(sql).fetchall()


def to(epoch: int, timeline: int = 2) -> Rewinding:
    return Rewinding(JOB, "out", tag(epoch, timeline), (LEFT,))


def plan(sink: SQLite, epoch: int) -> Repair:
    return sink.plan_repair(to(epoch), SCHEMA, sink.key)


def repair(sink: SQLite, epoch: int) -> Repair:
    return sink.repair(to(epoch), SCHEMA, sink.key)


def users(sink: SQLite) -> list[int]:
    return [user for (user,) in ask(sink, "SELECT user FROM t ORDER BY user")]


def test_a_rewind_brings_nan_back(tmp_path: Path) -> None:
    sink = SQLite(tmp_path / "out.db", "t", KEY)
    sink.prepare(SCHEMA, KEY)
    deliver(sink, 1, rows((1, math.nan, None), (2, None, None)))
    deliver(sink, 2, rows((1, 1.5, None), (2, math.nan, None)))
    assert ask(sink, "SELECT user, real FROM t ORDER BY user") == [(1, 1.5), (2, "NaN")]
    repair(sink, 1)
    assert ask(sink, "SELECT user, real FROM t ORDER BY user") == [(1, "NaN"), (2, None)]


def undone_nothing(sink: SQLite, standing: tuple[int, int]) -> bool:
    return ask(sink, "SELECT timeline, epoch FROM holdfast_progress") == [standing]


@pytest.fixture
def added(tmp_path: Path) -> SQLite:
    sink = SQLite(tmp_path / "out.db", "t")
    sink.prepare(SCHEMA, None)
    for epoch in (1, 2, 3):
        deliver(sink, epoch, rows((10 * epoch, -0.0, b"\x00"), (10 * epoch + 1, None, None)))
    return sink


class TestAddedRows:
    def test_a_before_image_names_rowids_and_a_digest(self, added: SQLite) -> None:
        images = [from_json(key) for (key,) in ask(added, 'SELECT "key" FROM holdfast_undo ORDER BY epoch')]
        assert [(image["first"], image["last"]) for image in images] == [(1, 2), (3, 4), (5, 6)]
        assert {len(str(image["xxh3"])) for image in images} == {16}

    def test_runs_of_neighbours_become_ranges(self) -> None:
        assert ranges_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]

    def test_rows_that_users_inserted_between_deliveries_are_kept(self, added: SQLite) -> None:
        ask(added, "INSERT INTO t (user) VALUES (99)")
        deliver(added, 4, rows((40, 4.0, b"")))
        assert repair(added, 2).delete == 3
        assert users(added) == [10, 11, 20, 21, 99]

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE t SET real = 7 WHERE user = 30",
            "DELETE FROM t WHERE user = 31",
            "UPDATE t SET raw = x'01' WHERE user = 30",
        ],
    )
    def test_rows_that_others_changed_make_the_repair_impossible(self, added: SQLite, change: str) -> None:
        ask(added, change)
        found = plan(added, 2)
        assert (found.verdict, found.changed_by_others) == ("impossible", 2)
        assert found.sample == ({"first_rowid": 5, "last_rowid": 6},)
        before = users(added)
        with pytest.raises(ConfigError, match="which rows are the job's is no longer known"):
            repair(added, 2)
        assert users(added) == before and undone_nothing(added, (1, 3))
        assert plan(added, 3).verdict == "truncate"

    def test_rows_renumbered_by_vacuum_are_not_confused(self, added: SQLite) -> None:
        ask(added, "DELETE FROM t WHERE user = 10")
        ask(added, VACUUM)
        assert ask(added, "SELECT max(rowid) FROM t") == [(5,)]
        assert plan(added, 2).verdict == "impossible"

    def test_vacuum_without_gaps_keeps_the_repair_possible(self, added: SQLite) -> None:
        ask(added, VACUUM)
        repair(added, 1)
        assert users(added) == [10, 11]

    def test_a_reused_rowid_is_not_confused(self, added: SQLite) -> None:
        ask(added, "DELETE FROM t WHERE user = 31")
        ask(added, "INSERT INTO t (user) VALUES (99)")
        with pytest.raises(ConfigError):
            repair(added, 2)
        assert 99 in users(added)

    def test_columns_may_shadow_names_of_the_rowid(self, tmp_path: Path) -> None:
        schema = pa.schema([("rowid", pa.int64()), ("OID", pa.int64())])
        sink = SQLite(tmp_path / "out.db", "t")
        sink.prepare(schema, None)
        for epoch in (1, 2):
            deliver(sink, epoch, pa.RecordBatch.from_pylist([{"rowid": 77, "OID": epoch}], schema=schema))
        sink.repair(to(1), schema, None)
        assert ask(sink, 'SELECT "OID" FROM t') == [(1,)]

    def test_a_table_without_rowids_cannot_be_repaired(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE t (user INT, real REAL, raw BLOB, PRIMARY KEY (user)) WITHOUT ROWID")
        sink = SQLite(tmp_path / "out.db", "t")
        sink.prepare(SCHEMA.set(0, SCHEMA.field("user").with_nullable(False)), None)  # its keys may not be null
        deliver(sink, 4, rows((1, 1.0, b"")))
        assert plan(sink, 3).verdict == "impossible"
        assert plan(sink, 4).verdict == "truncate"

    def test_a_rowid_that_is_a_column_names_each_row(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE t (user INTEGER PRIMARY KEY, real REAL, raw BLOB)")
        sink = SQLite(tmp_path / "out.db", "t")
        sink.prepare(SCHEMA, None)
        deliver(sink, 1, rows((5, 1.0, b""), (900, 1.0, b"")))
        deliver(sink, 2, rows((7, 1.0, b""), (6, 1.0, b""), (901, 1.0, b"")))
        assert repair(sink, 1).delete == 3
        assert users(sink) == [5, 900]


class TestRowsWithTags:
    @pytest.fixture
    def tagged(self, tmp_path: Path) -> SQLite:
        sink = SQLite(tmp_path / "out.db", "t", KEY, "idempotent")
        sink.prepare(SCHEMA, KEY)
        deliver(sink, 1, changed((1, 1.0, PUT), (2, 1.0, PUT)))
        deliver(sink, 2, changed((1, 2.0, PUT), (2, None, DELETE), (3, 2.0, PUT)))
        return sink

    def test_restored_and_deleted_rows_carry_the_tag_of_the_rewind(self, tagged: SQLite) -> None:
        repair(tagged, 1)
        standing = f"{JOB}/0000000002/0000000000000001"
        assert ask(tagged, "SELECT user, real, _holdfast_tag FROM t ORDER BY user") == [
            (1, 1.0, standing),
            (2, 1.0, standing),
        ]
        assert ask(tagged, 'SELECT "key", tag, sink, writer FROM holdfast_tombstone') == [
            ('{"user":3}', standing, "out", 0)
        ]

    def test_a_zombie_cannot_overwrite_repaired_rows_even_if_its_tag_was_lost(self, tagged: SQLite) -> None:
        repair(tagged, 1)
        ask(tagged, "DELETE FROM holdfast_progress")
        deliver(tagged, 2, changed((1, 2.0, PUT), (2, None, DELETE), (3, 2.0, PUT)))
        assert ask(tagged, "SELECT user, real FROM t ORDER BY user") == [(1, 1.0), (2, 1.0)]

    def test_changes_by_others_are_counted_as_far_as_tags_show_them(self, tagged: SQLite) -> None:
        assert plan(tagged, 1).changed_by_others is None
        ask(tagged, "DELETE FROM t WHERE user = 3")
        ask(tagged, "INSERT OR REPLACE INTO t (user, real) VALUES (1, 9.0)")
        assert plan(tagged, 1).changed_by_others == 2

    def test_changes_by_others_are_unknown_without_tags(self, tmp_path: Path) -> None:
        sink = SQLite(tmp_path / "out.db", "t", KEY)
        sink.prepare(SCHEMA, KEY)
        deliver(sink, 1, changed((1, 1.0, PUT)))
        assert plan(sink, 0).changed_by_others is None


class TestOlderFiles:
    def test_output_of_an_earlier_version_cannot_be_undone(self, added: SQLite) -> None:
        ask(added, "DROP TABLE holdfast_horizon")
        ask(added, "DELETE FROM holdfast_undo")
        assert plan(added, 2).verdict == "impossible"
        with pytest.raises(ConfigError, match="an earlier version wrote it"):
            repair(added, 2)
        added.prepare(SCHEMA, None)
        deliver(added, 4, rows((40, 4.0, b"")))
        assert plan(added, 2).verdict == "impossible"
        repair(added, 3)
        assert users(added) == [10, 11, 20, 21, 30, 31]

    def test_preparing_again_does_not_move_the_horizon(self, added: SQLite) -> None:
        added.prepare(SCHEMA, None)
        assert plan(added, 0).verdict == "truncate"


class TestRefusals:
    def test_a_missing_file_is_not_created(self, added: SQLite) -> None:
        os.remove(added.path)
        with pytest.raises(ConfigError, match="the file is missing"):
            plan(added, 1)
        assert not os.path.exists(added.path)

    def test_a_dropped_table_is_named(self, added: SQLite) -> None:
        ask(added, "DROP TABLE t")
        with pytest.raises(ConfigError, match="the table is missing"):
            repair(added, 1)

    def test_a_file_that_no_job_wrote_is_refused_by_name(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE t (user INT, real REAL, raw BLOB)")
        with pytest.raises(ConfigError, match="the file has no tables of Holdfast"):
            plan(SQLite(tmp_path / "out.db", "t"), 1)

    def test_other_columns_are_refused(self, added: SQLite) -> None:
        with pytest.raises(ConfigError, match="has or had the columns"):
            added.repair(to(1), SCHEMA.remove(1), None)

    def test_a_locked_file_is_unavailable_and_works_once_unlocked(self, added: SQLite) -> None:
        with closing(sqlite3.connect(added.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked"):
                repair(added, 1)
            other.execute("ROLLBACK")
        repair(added, 1)
        assert users(added) == [10, 11]

    def test_a_plan_does_not_wait_for_another_writer(self, added: SQLite) -> None:
        with closing(sqlite3.connect(added.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert plan(added, 1).delete == 4
            other.execute("ROLLBACK")
