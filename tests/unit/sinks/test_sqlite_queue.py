"""Writers of one SQLite file take turns; no wait gives up while the file becomes free now and then."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import Delivered
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sqlite import queue as sqlite_queue
from holdfast.sinks.sqlite.queue import queue_of
from holdfast.sinks.sqlite.sink import SQLite

SCHEMA = pa.schema([pa.field("n", pa.int64())])
FIRST = Tag(Timeline(1), Epoch(1))


class Waits:
    """Stands in for `time.sleep`: counts, and lets something happen at a given look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at = 0, 0
        self.happens: Callable[[], object] = lambda: None
        monkeypatch.setattr("holdfast.sinks.sqlite.queue.time.sleep", self.sleep)

    def sleep(self, _seconds: float) -> None:
        self.count += 1
        if self.count == self.at:
            self.happens()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


@pytest.fixture
def sink(tmp_path: Path) -> SQLite:
    made = SQLite(tmp_path / "out.db", "t")
    made.prepare(SCHEMA, None)
    return made


@pytest.fixture
def target(sink: SQLite) -> Iterator[SqlTarget]:
    with closing(sink.open("job", Writer("out", Subtask(0)))) as opened:
        yield opened


@pytest.fixture
def other(sink: SQLite) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(sink.path, isolation_level=None)) as db:
        yield db


class TestQueue:
    def test_a_delivery_begins_at_the_first_check_that_finds_the_file_unlocked(
        self, target: SqlTarget, other: sqlite3.Connection, waits: Waits
    ) -> None:
        target.delivered()
        other.execute("BEGIN IMMEDIATE")
        waits.at, waits.happens = 5, lambda: other.execute("COMMIT")
        assert target.deliver(FIRST, []) == Delivered(0)
        assert waits.count == 5

    def test_the_tag_is_read_as_soon_as_a_commit_in_progress_is_over(
        self, target: SqlTarget, other: sqlite3.Connection, waits: Waits
    ) -> None:
        target.delivered()
        other.execute("BEGIN EXCLUSIVE")
        waits.at, waits.happens = 5, lambda: other.execute("COMMIT")
        assert target.delivered() is None
        assert waits.count == 5

    def test_the_first_writer_in_the_queue_goes_first(self, sink: SQLite, target: SqlTarget, waits: Waits) -> None:
        target.delivered()
        handle = os.open(queue_of(sink.path), os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_EX)
        waits.at, waits.happens = 3, lambda: os.close(handle)
        assert target.deliver(FIRST, []) == Delivered(0)
        assert waits.count == 3

    def test_a_writer_stopped_in_the_queue_does_not_block_others_forever(
        self, sink: SQLite, target: SqlTarget, waits: Waits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target.delivered()
        monkeypatch.setattr(sqlite_queue, "WITHIN_S", 0.0)
        with open(queue_of(sink.path), "rb") as stopped:
            fcntl.flock(stopped, fcntl.LOCK_EX)
            assert target.deliver(FIRST, []) == Delivered(0)

    def test_a_file_that_stays_locked_is_reported(
        self, target: SqlTarget, other: sqlite3.Connection, waits: Waits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target.delivered()
        monkeypatch.setattr(sqlite_queue, "WITHIN_S", 0.0)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            target.deliver(FIRST, [])
        other.execute("ROLLBACK")
        assert target.deliver(FIRST, []) == Delivered(0)

    def test_the_queue_is_not_locked_while_a_delivery_is_written(self, sink: SQLite) -> None:
        """Otherwise a writer that is stopped in its transaction would also block readers."""
        found: list[bool] = []

        def free(point: str) -> None:
            if point == "before_commit":
                with open(queue_of(sink.path), "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found.append(True)

        with closing(SqlTarget(sink, "job", Writer("out", Subtask(0)), free)) as target:
            target.deliver(FIRST, [])
        assert found == [True]
