"""The contract of immediate targets, run against each of them.

A crash is an exception that no target knows, raised at a named point of a write; the crashed target is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_places import SqlPlace, place_of

from holdfast.errors import ConfigError, Fenced, Unavailable
from holdfast.model import Generation, Timeline
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner, Written
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.contract.target import DELETE, OP, PUT, Fault, FaultPoint, no_fault
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.sql.immediate import ImmediateSqlTarget
from holdfast.sinks.sqlite.sink import SQLite

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)
LEFT, RIGHT = Origin("in", 0), Origin("in", 1)
POINTS: tuple[FaultPoint, ...] = ("before_begin", "after_tag", "before_commit", "after_commit")
Rows = list[tuple[Any, ...]]


class Crash(BaseException):
    """The process ends here."""


def owner(generation: int = 1, timeline: int = 1, job: str = JOB, sink: str = "out", path: str = "p") -> Owner:
    return Owner(job, sink, Generation(generation), Timeline(timeline), path)


def rows(*given: tuple[int, str | None, int]) -> list[pa.RecordBatch]:
    schema = SCHEMA.append(pa.field(OP, pa.int8()))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*given, strict=True), schema, strict=True)]
    return [pa.record_batch(columns, schema=schema)]


def put(user: int, name: str) -> list[pa.RecordBatch]:
    return rows((user, name, PUT))


def delete(user: int) -> list[pa.RecordBatch]:
    return rows((user, None, DELETE))


class World(Protocol):
    sink: ImmediateSink

    def open(self, owner: Owner, fault: Fault = no_fault) -> ImmediateTarget: ...
    def rows(self) -> Rows: ...
    def tombstones(self) -> int: ...


class MemoryWorld:
    def __init__(self, table: type[ImmediateTable] = ImmediateTable) -> None:
        self.table = table(KEY)
        self.sink: ImmediateSink = self.table
        self.table.prepare(SCHEMA, KEY)

    def open(self, owner: Owner, fault: Fault = no_fault) -> ImmediateTarget:
        self.table.fault = fault
        return self.table.open_immediate(owner)

    def rows(self) -> Rows:
        return sorted(tuple(row.values()) for row in self.table.rows())

    def tombstones(self) -> int:
        return sum(known.deleted for known in self.table.tags.values())


class TableWorld:
    def __init__(self, place: SqlPlace) -> None:
        self._place = place
        self._table = place.sink("users", KEY, "idempotent")
        sink = self._table.immediate
        assert sink is not None
        self.sink = sink
        self.sink.prepare(SCHEMA, KEY)
        self._opened: list[ImmediateTarget] = []

    def open(self, owner: Owner, fault: Fault = no_fault) -> ImmediateTarget:
        self._opened.append(ImmediateSqlTarget(self._table, owner, fault))
        return self._opened[-1]

    def rows(self) -> Rows:
        return self._place.ask('SELECT users."user", name FROM users ORDER BY 1')

    def tombstones(self) -> int:
        return int(self._place.ask("SELECT count(*) FROM holdfast_tombstone")[0][0])

    def close(self) -> None:
        for target in self._opened:
            target.close()


@pytest.fixture(params=["memory", "sqlite", "other", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    made = TableWorld(place_of(request.param, tmp_path, request))
    yield made
    made.close()


def fenced(world: World, who: Owner, *origins: Origin, start: int = 0) -> ImmediateTarget:
    target = world.open(who)
    target.fence(dict.fromkeys(origins or (LEFT, RIGHT), start))
    return target


def crash_at(point: FaultPoint) -> Fault:
    def fault(reached: FaultPoint) -> None:
        if reached == point:
            raise Crash

    return fault


class TestTags:
    def test_rows_are_visible_as_soon_as_they_are_written(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 1, put(1, "ann"))
        target.write(RIGHT, 1, put(2, "bea"))
        assert world.rows() == [(1, "ann"), (2, "bea")]

    def test_the_last_row_of_a_key_in_one_write_is_kept(self, world: World) -> None:
        fenced(world, owner()).write(LEFT, 3, rows((1, "a", PUT), (1, None, DELETE), (1, "c", PUT)))
        assert world.rows() == [(1, "c")]

    def test_an_append_stream_puts_every_row(self, world: World) -> None:
        batch = pa.RecordBatch.from_pylist([{"user": 1, "name": "a"}, {"user": 1, "name": "b"}], schema=SCHEMA)
        fenced(world, owner()).write(LEFT, 2, [batch])
        assert world.rows() == [(1, "b")]

    def test_an_older_value_does_not_replace_a_newer_one(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 9, put(1, "new"))
        target.write(LEFT, 5, put(1, "old"))
        target.write(LEFT, 9, put(1, "equal"))
        assert world.rows() == [(1, "new")]

    def test_a_newer_timeline_replaces_any_offset_of_an_older_one(self, world: World) -> None:
        fenced(world, owner(1)).write(LEFT, 99, put(1, "old"))
        fenced(world, owner(2, timeline=2)).write(LEFT, 3, put(1, "new"))
        assert world.rows() == [(1, "new")]

    def test_rows_of_a_deleted_job_are_replaced(self, world: World) -> None:
        fenced(world, owner(job="another")).write(LEFT, 99, put(1, "old"))
        fenced(world, owner()).write(RIGHT, 1, put(1, "new"))
        assert world.rows() == [(1, "new")]

    def test_a_key_of_another_partition_is_an_error_and_changes_nothing(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 1, put(1, "ann"))
        with pytest.raises(ConfigError, match="from partition 1 of source 'in', but was written from partition 0"):
            target.write(RIGHT, 9, rows((2, "bea", PUT), (1, "anna", PUT)))
        assert world.rows() == [(1, "ann")]

    def test_a_deleted_key_of_another_partition_is_an_error(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 1, delete(1))
        with pytest.raises(ConfigError, match="belongs to one partition"):
            target.write(RIGHT, 9, put(1, "ann"))
        assert world.rows() == []

    def test_a_key_of_another_sink_is_an_error(self, world: World) -> None:
        fenced(world, owner(sink="left")).write(LEFT, 1, put(1, "ann"))
        with pytest.raises(ConfigError, match="by sink 'left'"):
            fenced(world, owner(sink="right")).write(LEFT, 9, put(1, "anna"))


class TestTombstones:
    def test_an_older_put_does_not_restore_a_deleted_row(self, world: World) -> None:
        target = fenced(world, owner())
        assert target.write(LEFT, 9, delete(1)) == 1
        target.write(LEFT, 5, put(1, "ann"))
        assert world.rows() == []

    def test_a_newer_put_restores_a_deleted_row(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 5, delete(1))
        target.write(LEFT, 9, put(1, "ann"))
        assert (world.rows(), world.tombstones()) == ([(1, "ann")], 0)

    def test_tombstones_of_committed_deletes_are_dropped_per_partition(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 5, delete(1))
        target.write(LEFT, 6, delete(2))
        target.write(RIGHT, 5, delete(3))
        assert target.forget({LEFT: 5, RIGHT: 4})
        assert world.tombstones() == 2

    def test_forget_reports_whether_the_partitions_still_have_tombstones(self, world: World) -> None:
        target = fenced(world, owner())
        target.write(LEFT, 5, delete(1))
        target.write(RIGHT, 5, delete(3))
        assert target.forget({LEFT: 4})
        assert not target.forget({LEFT: 5})
        assert world.tombstones() == 1


class TestFence:
    def test_a_newer_generation_ends_an_older_one(self, world: World) -> None:
        zombie = fenced(world, owner(1))
        fenced(world, owner(2))
        with pytest.raises(Fenced, match="generation 1 no longer writes from partition 0 of source 'in': generation 2"):
            zombie.write(LEFT, 9, put(1, "late"))
        with pytest.raises(Fenced):
            zombie.fence({LEFT: 0})
        assert world.rows() == []

    def test_the_fence_is_checked_in_the_transaction(self, world: World) -> None:
        successor = world.open(owner(2))

        def overtaken(point: FaultPoint) -> None:
            if point == "before_begin":
                successor.fence({LEFT: 0})

        zombie = world.open(owner(1), overtaken)
        zombie.fence({LEFT: 0})
        with pytest.raises(Fenced):
            zombie.write(LEFT, 9, put(1, "late"))
        assert world.rows() == []

    def test_partitions_are_fenced_independently(self, world: World) -> None:
        older = fenced(world, owner(1))
        fenced(world, owner(2), RIGHT)
        older.write(LEFT, 1, put(1, "ann"))
        assert world.rows() == [(1, "ann")]

    def test_nothing_is_fenced_if_a_newer_generation_fenced_one_partition(self, world: World) -> None:
        fenced(world, owner(3), RIGHT)
        with pytest.raises(Fenced):
            fenced(world, owner(2), LEFT, RIGHT)
        assert [fence.generation for fence in world.sink.written(JOB, "out")] == [3]

    def test_a_write_without_a_fence_is_refused(self, world: World) -> None:
        with pytest.raises(ConfigError):
            world.open(owner()).write(LEFT, 1, put(1, "ann"))

    def test_an_owner_can_fence_its_partitions_again(self, world: World) -> None:
        target = fenced(world, owner())
        target.fence({LEFT: 0})
        target.write(LEFT, 1, put(1, "ann"))
        assert world.rows() == [(1, "ann")]

    def test_written_reports_offset_and_code_path_of_each_partition(self, world: World) -> None:
        target = fenced(world, owner(path="old"), start=3)
        target.write(LEFT, 9, put(1, "ann"))
        target.write(LEFT, 5, put(1, "old"))
        fenced(world, owner(2, path="new"), LEFT, start=4)
        assert sorted(world.sink.written(JOB, "out"), key=lambda each: each.origin) == [
            Written(LEFT, Generation(2), Timeline(1), 9, "new"),
            Written(RIGHT, Generation(1), Timeline(1), 3, "old"),
        ]

    def test_a_new_timeline_starts_at_the_offset_of_its_fence(self, world: World) -> None:
        fenced(world, owner(1)).write(LEFT, 9, put(1, "ann"))
        fenced(world, owner(2, timeline=2), LEFT, start=4)
        assert {each.offset for each in world.sink.written(JOB, "out") if each.origin == LEFT} == {4}


class TestCrash:
    @pytest.mark.parametrize("point", POINTS)
    def test_a_write_is_atomic_and_can_be_repeated(self, world: World, point: FaultPoint) -> None:
        fenced(world, owner(1)).write(LEFT, 2, rows((1, "ann", PUT), (2, "bea", PUT)))
        again = rows((1, None, DELETE), (2, "b", PUT))
        with pytest.raises(Crash):
            world.open(owner(1), crash_at(point)).write(LEFT, 4, again)
        done = point == "after_commit"
        assert world.rows() == ([(2, "b")] if done else [(1, "ann"), (2, "bea")])
        fenced(world, owner(2)).write(LEFT, 4, again)
        assert world.rows() == [(2, "b")]

    def test_a_lost_reply_does_not_change_the_result(self, world: World) -> None:
        def lose(point: FaultPoint) -> None:
            if point == "after_commit":
                raise Unavailable("the connection broke", next_step="nothing")

        fenced(world, owner())
        target = world.open(owner(), lose)
        with pytest.raises(Unavailable):
            target.write(LEFT, 4, put(1, "ann"))
        fenced(world, owner()).write(LEFT, 4, put(1, "ann"))
        assert world.rows() == [(1, "ann")]


Record = tuple[int, bool]
"""Key, and whether the change deletes it."""
RECORDS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=12)


class TestAnyCut:
    @given(records=RECORDS, data=st.data())
    @settings(max_examples=15, deadline=None)
    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    def test_the_last_row_of_each_key_is_kept_however_often_the_input_is_reread(
        self,
        kind: str,
        records: list[Record],
        data: st.DataObject,
        tmp_path_factory: pytest.TempPathFactory,
        request: pytest.FixtureRequest,
    ) -> None:
        """Every read starts at or before the end of the previous one and ends anywhere; the last ends at the end."""
        world: World = MemoryWorld()
        if kind != "memory":
            world = TableWorld(place_of(kind, tmp_path_factory.mktemp("any"), request))
        changes = [(k, None if gone else f"r{n}", DELETE if gone else PUT) for n, (k, gone) in enumerate(records)]
        reached = 0
        ends = [*data.draw(st.lists(st.integers(0, len(records)), max_size=3)), len(records)]
        for generation, end in enumerate(ends, 1):
            at = data.draw(st.integers(0, min(reached, end)))
            target = fenced(world, owner(generation))
            while at < end:
                following = data.draw(st.integers(at + 1, end))
                target.write(LEFT, following, rows(*changes[at:following]))
                at = following
                standing = _last(changes[: max(reached, at)])
                assert world.rows() == sorted((k, v) for k, v in standing.items() if v is not None)
            reached = max(reached, end)
            target.close()


def _last(changes: list[tuple[int, str | None, int]]) -> dict[int, str | None]:
    return {key: value for key, value, _ in changes}


class TestChoice:
    def test_a_table_that_keeps_tags_can_be_written_immediately(self) -> None:
        table = SQLite("/data/out.db", "users", KEY, "idempotent")
        immediate = table.immediate
        assert immediate is not None and immediate.immediate is immediate and immediate.where == table.where

    def test_a_table_without_tags_cannot_be_written_immediately(self) -> None:
        assert SQLite("/data/out.db", "users", KEY).immediate is None


class WithoutTimeline(ImmediateTable):
    """Tags without a timeline, so a rewind does not change them."""

    def tag_of(self, owner: Owner, origin: Origin, offset: int) -> str:
        return super().tag_of(replace(owner, timeline=Timeline(1)), origin, offset)


class WithoutTombstones(ImmediateTable):
    """A deleted key leaves no tombstone."""

    def bury(self, key: tuple[Any, ...], tag: str) -> None:
        pass


class WithoutPartitions(ImmediateTable):
    """A key may come from any partition."""

    def is_elsewhere(self, owner: Owner, origin: Origin, tag: str) -> bool:
        return False


class WithoutUuid(ImmediateTable):
    """Tags of different jobs are compared."""

    def write(
        self, owner: Owner, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch], reached: int = 0
    ) -> int:
        super().fence(replace(owner, job_uuid=""), {origin: 0})
        return super().write(replace(owner, job_uuid=""), origin, offset, batches)


class TestWrongVersions:
    """Each breaks a part of P1 or P22; the test named beside it must catch it."""

    @pytest.mark.parametrize(
        ("wrong", "promise"),
        [
            (WithoutTimeline, TestTags.test_a_newer_timeline_replaces_any_offset_of_an_older_one),
            (WithoutTombstones, TestTombstones.test_an_older_put_does_not_restore_a_deleted_row),
            (WithoutPartitions, TestTags.test_a_key_of_another_partition_is_an_error_and_changes_nothing),
            (WithoutUuid, TestTags.test_rows_of_a_deleted_job_are_replaced),
        ],
    )
    def test_a_wrong_version_fails_its_test(
        self, wrong: type[ImmediateTable], promise: Callable[[Any, World], None]
    ) -> None:
        promise(None, MemoryWorld())
        with pytest.raises((AssertionError, ConfigError, pytest.fail.Exception)):
            promise(None, MemoryWorld(wrong))
