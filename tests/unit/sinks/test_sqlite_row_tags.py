"""delivery="idempotent": a key accepts only writes newer than the tag of its row or tombstone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import DELETE, OP, PUT, Delivered
from holdfast.sinks.sql.row_tags import last_tag, row_tag
from holdfast.sinks.sql.table import TAG_COLUMN
from holdfast.sinks.sqlite.sink import SQLite

JOB, OTHER = "6f9b0f6e-0000-4000-8000-000000000001", "6f9b0f6e-0000-4000-8000-000000000002"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def changed(*rows: tuple[int, str | None, int]) -> pa.RecordBatch:
    schema = SCHEMA.append(pa.field(OP, pa.int8()))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def put(user: int, name: str) -> pa.RecordBatch:
    return changed((user, name, PUT))


def delete(user: int) -> pa.RecordBatch:
    return changed((user, None, DELETE))


def ask(sink: SQLite, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(sink.path)) as db, db:
        return db.execute(sql).fetchall()


def users(sink: SQLite) -> list[tuple[Any, ...]]:
    return ask(sink, "SELECT user, name FROM users ORDER BY user")


def deliver(sink: SQLite, writer: Writer, at: Tag, *batches: pa.RecordBatch, job: str = JOB) -> None:
    with closing(sink.open(job, writer)) as target:
        assert isinstance(target.deliver(at, batches), Delivered)


def lose_tags(sink: SQLite) -> None:
    """Delete the progress of all writers: only the tags of the rows remain."""
    ask(sink, "DELETE FROM holdfast_progress")
    ask(sink, "DELETE FROM holdfast_undo")


@pytest.fixture
def sink(tmp_path: Path) -> SQLite:
    made = SQLite(tmp_path / "out.db", "users", KEY, delivery="idempotent")
    made.prepare(SCHEMA, KEY)
    return made


class TestPlanning:
    def test_row_tags_need_a_key(self) -> None:
        with pytest.raises(ConfigError, match="keeps a tag per key, and the sink has no key"):
            SQLite("/data/out.db", "users", delivery="idempotent").check(SCHEMA, None)

    def test_an_append_stream_with_a_key_is_accepted(self) -> None:
        SQLite("/data/out.db", "users", KEY, delivery="idempotent").check(SCHEMA, None)

    @pytest.mark.parametrize("name", [TAG_COLUMN, TAG_COLUMN.upper()])
    def test_a_stream_may_not_have_the_column_of_the_tags(self, name: str) -> None:
        with pytest.raises(ConfigError, match="which holds the tags of rows"):
            SQLite("/data/out.db", "users", KEY, "idempotent").check(SCHEMA.append(pa.field(name, pa.string())), KEY)

    def test_a_table_without_tags_is_refused(self, tmp_path: Path) -> None:
        SQLite(tmp_path / "out.db", "users", KEY).prepare(SCHEMA, KEY)
        with pytest.raises(ConfigError, match="'_holdfast_tag' is missing"):
            SQLite(tmp_path / "out.db", "users", KEY, "idempotent").prepare(SCHEMA, KEY)

    def test_a_table_with_tags_is_refused_by_transactional_delivery(self, sink: SQLite) -> None:
        with pytest.raises(ConfigError, match="'_holdfast_tag' is not a column of the stream"):
            SQLite(sink.path, "users", KEY).prepare(SCHEMA, KEY)


class TestOlderTags:
    def test_a_row_carries_the_tag_of_its_epoch(self, sink: SQLite) -> None:
        deliver(sink, LEFT, tag(7), put(1, "ann"))
        assert ask(sink, f"SELECT {TAG_COLUMN} FROM users") == [(f"{JOB}/0000000001/0000000000000007",)]

    def test_tags_sort_as_text(self) -> None:
        tags = [tag(9), tag(10), tag(999_999_999_999), tag(1, timeline=2), tag(3, timeline=10)]
        texts = [row_tag(JOB, each) for each in tags]
        assert texts == sorted(texts) and texts[-1] < last_tag(JOB)

    def test_a_redelivery_after_the_writers_tag_was_lost_changes_nothing(self, sink: SQLite) -> None:
        deliver(sink, LEFT, tag(1), put(1, "old"))
        deliver(sink, LEFT, tag(2), put(1, "new"), put(2, "bea"))
        lose_tags(sink)
        deliver(sink, LEFT, tag(1), put(1, "old"))
        deliver(sink, LEFT, tag(2), put(1, "again"), put(2, "again"))
        assert users(sink) == [(1, "new"), (2, "bea")]
        assert ask(sink, "SELECT count(*) FROM holdfast_undo") == [(0,)]

    def test_a_late_older_write_does_not_replace_a_newer_row(self, sink: SQLite) -> None:
        deliver(sink, RIGHT, tag(9), put(1, "new"))
        deliver(sink, LEFT, tag(5), put(1, "old"), put(2, "bea"))
        assert users(sink) == [(1, "new"), (2, "bea")]

    def test_a_late_delete_does_not_remove_a_newer_row(self, sink: SQLite) -> None:
        deliver(sink, RIGHT, tag(9), put(1, "new"))
        deliver(sink, LEFT, tag(5), delete(1))
        assert users(sink) == [(1, "new")]

    def test_a_newer_timeline_replaces_any_epoch_of_an_older_one(self, sink: SQLite) -> None:
        deliver(sink, RIGHT, tag(3, timeline=2), put(1, "new"))
        deliver(sink, LEFT, tag(9), put(1, "old"))
        assert users(sink) == [(1, "new")]

    def test_a_row_without_a_tag_is_replaced(self, sink: SQLite) -> None:
        ask(sink, "INSERT INTO users (user, name) VALUES (1, 'by hand')")
        deliver(sink, LEFT, tag(1), put(1, "ann"))
        assert users(sink) == [(1, "ann")]

    def test_rows_of_a_deleted_job_do_not_block_epochs_of_a_new_job(self, sink: SQLite) -> None:
        deliver(sink, LEFT, tag(57), put(1, "old"), delete(2), job=OTHER)
        deliver(sink, LEFT, tag(1), put(1, "new"), put(2, "bea"))
        assert users(sink) == [(1, "new"), (2, "bea")]


class TestTombstones:
    def test_an_older_put_does_not_restore_a_deleted_row(self, sink: SQLite) -> None:
        deliver(sink, LEFT, tag(5), put(1, "ann"))
        deliver(sink, LEFT, tag(9), delete(1))
        assert users(sink) == []
        lose_tags(sink)
        deliver(sink, LEFT, tag(5), put(1, "ann"))
        deliver(sink, RIGHT, tag(8), put(1, "ann"))
        assert users(sink) == []

    def test_a_delete_before_an_older_row_keeps_the_row_out(self, sink: SQLite) -> None:
        deliver(sink, RIGHT, tag(9), delete(1))
        deliver(sink, LEFT, tag(5), put(1, "ann"))
        assert users(sink) == []

    def test_a_newer_put_restores_the_row_and_removes_the_tombstone(self, sink: SQLite) -> None:
        deliver(sink, LEFT, tag(1), delete(1))
        deliver(sink, LEFT, tag(2), put(1, "ann"))
        assert users(sink) == [(1, "ann")]
        assert ask(sink, "SELECT * FROM holdfast_tombstone") == []

    def test_an_older_delete_does_not_make_a_tombstone_older(self, sink: SQLite) -> None:
        deliver(sink, RIGHT, tag(9), delete(1))
        deliver(sink, LEFT, tag(5), delete(1))
        deliver(sink, LEFT, tag(6), put(1, "ann"))
        assert users(sink) == []

    def test_tables_in_one_file_have_separate_tombstones(self, sink: SQLite) -> None:
        other = SQLite(sink.path, "others", KEY, "idempotent")
        other.prepare(SCHEMA, KEY)
        deliver(other, Writer("others", Subtask(0)), tag(9), delete(1))
        deliver(sink, LEFT, tag(5), put(1, "ann"))
        assert users(sink) == [(1, "ann")]

    def test_tombstones_beyond_the_horizon_are_dropped_for_one_writer_only(self, sink: SQLite) -> None:
        deliver(sink, LEFT, tag(1), delete(1))
        deliver(sink, LEFT, tag(2), delete(2))
        deliver(sink, RIGHT, tag(1), delete(3))
        with closing(sink.open(JOB, LEFT)) as target:
            target.forget(tag(1))
        assert ask(sink, 'SELECT "key" FROM holdfast_tombstone ORDER BY "key"') == [('{"user":2}',), ('{"user":3}',)]

    def test_a_key_of_several_columns_is_one_key(self, tmp_path: Path) -> None:
        schema = pa.schema([("b", pa.string()), ("a", pa.float64()), ("v", pa.int64()), (OP, pa.int8())])
        sink = SQLite(tmp_path / "out.db", "t", ["b", "a"], "idempotent")
        sink.prepare(schema.remove(3), ("a", "b"))

        def rows(v: int, op: int) -> pa.RecordBatch:
            return pa.RecordBatch.from_pylist([{"b": "x'\"", "a": 0.1, "v": v, OP: op}], schema=schema)

        deliver(sink, RIGHT, tag(4), rows(0, DELETE))
        deliver(sink, LEFT, tag(3), rows(3, PUT))
        assert ask(sink, "SELECT * FROM t") == []
        deliver(sink, LEFT, tag(5), rows(5, PUT))
        assert ask(sink, "SELECT a, b, v FROM t") == [(0.1, "x'\"", 5)]

    def test_a_table_with_only_key_columns_moves_its_row_tags(self, tmp_path: Path) -> None:
        schema = pa.schema([("user", pa.int64()), (OP, pa.int8())])
        sink = SQLite(tmp_path / "out.db", "t", KEY, "idempotent")
        sink.prepare(schema.remove(1), KEY)
        for epoch in (1, 2):
            deliver(sink, LEFT, tag(epoch), pa.RecordBatch.from_pylist([{"user": 1, OP: PUT}], schema=schema))
        assert ask(sink, f"SELECT {TAG_COLUMN} FROM t") == [(row_tag(JOB, tag(2)),)]


Write = tuple[int, int, bool]
"""Epoch, key, whether it deletes."""
WRITES = st.tuples(st.integers(1, 9), st.integers(0, 2), st.booleans())


class TestAnyOrder:
    @given(
        writes=st.lists(WRITES, max_size=12, unique_by=lambda write: write[:2]),
        random=st.randoms(use_true_random=False),
    )
    @settings(max_examples=25, deadline=None)
    def test_the_newest_write_of_each_key_wins_in_any_order_and_repetition(
        self, writes: list[Write], random: Any, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        sink = SQLite(tmp_path_factory.mktemp("any") / "out.db", "users", KEY, "idempotent")
        sink.prepare(SCHEMA, KEY)
        arrivals = writes * 2
        random.shuffle(arrivals)
        for n, (epoch, key, deletes) in enumerate(arrivals):
            # Every arrival has a separate writer, so no writer's tag can hold it back.
            deliver(sink, Writer("out", Subtask(n)), tag(epoch), delete(key) if deletes else put(key, f"e{epoch}"))
        newest = {key: (epoch, deletes) for epoch, key, deletes in sorted(writes)}
        assert users(sink) == sorted((key, f"e{epoch}") for key, (epoch, deletes) in newest.items() if not deletes)
