"""The contract of sinks that deliver at the commit of an epoch, run against each of them.

A target with a key takes puts and deletes; a target without a key only adds rows. Tests that apply to both use
`either`. What a changelog shows are the rows of its table; idempotent delivery always needs a key.

A crash is an exception that no delivery code knows, raised at a named point; the crashed target is
abandoned as it is, and a new one is opened, as by a restarted worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from delta_tables import FolderTable
from http_receiver import HttpReceiver
from iceberg_tables import FolderCatalog
from kafka_server import KafkaServer
from kafka_topics import KafkaTopic
from kafka_ways import BY_BATCH, ONE_BY_ONE, take
from logged import rows_in
from redis_server import RedisServer
from sql_places import SqlPlace, delivery_of, place_of

from holdfast.errors import AlreadyExists, ConfigError, Fenced, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import (
    DELETE,
    OP,
    PUT,
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    Fault,
    FaultPoint,
    Outcome,
    Target,
    no_fault,
)
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.http.sink import Http
from holdfast.sinks.log.sink import LogSink, LogTarget
from holdfast.sinks.memory.sink import MemorySink
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sql.values import from_json
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("total", pa.float64()), pa.field("name", pa.string())])
KEY = ("user",)
POINTS_BEFORE_COMMIT: tuple[FaultPoint, ...] = ("before_begin", "after_tag", "before_commit")

Image = tuple[Tag, int, dict[str, Any], dict[str, Any] | None]


class Crash(BaseException):
    """The process ends here."""


class World(Protocol):
    """A sink, and the rows that a user would see in its target."""

    @property
    def sink(self) -> Sink:
        """The configuration object."""

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        """Open a target that calls `fault` at every point."""

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the visible rows, sorted."""

    def before_images(self, writer: Writer) -> list[Image]:
        """Return the writer's before-images, in order."""


class MemoryWorld:
    def __init__(self, key: tuple[str, ...] | None) -> None:
        self.sink = MemorySink(key)
        self.sink.prepare(SCHEMA, key)

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        self.sink.fault = fault
        return self.sink.open(job, writer)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.sink.rows())

    def before_images(self, writer: Writer) -> list[Image]:
        return [(i.tag, i.n, i.key, i.before) for i in self.sink.before_images() if i.writer == writer]


class TableWorld:
    def __init__(self, place: SqlPlace, keyed: bool, delivery: str) -> None:
        key = KEY if keyed else None
        self._place, self.sink = place, place.sink("totals", key, delivery)
        self.sink.prepare(SCHEMA, key)
        self._open: list[Target] = []

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        target = SqlTarget(self.sink, job, writer, fault)
        self._open.append(target)
        return target

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self._place.ask('SELECT totals."user", total, name FROM totals'))

    def before_images(self, writer: Writer) -> list[Image]:
        found = self._place.ask(
            'SELECT timeline, epoch, n, "key", "before" FROM holdfast_undo '
            f"WHERE job = '{JOB}' AND sink = '{writer.sink}' AND writer = {writer.subtask} "
            "ORDER BY timeline, epoch, n"
        )
        return [
            (Tag(t, e), n, from_json(key), None if before is None else from_json(before))
            for t, e, n, key, before in found
        ]

    def close(self) -> None:
        for target in self._open:
            target.close()


class FaultyObjects(LocalObjects):
    """A folder that calls `fault` as the log's append passes the points of a delivery."""

    def __init__(self, root: Path, fault: Fault) -> None:
        super().__init__(root)
        self._fault = fault

    def put(self, path: str, data: bytes) -> None:
        self._fault("before_begin")
        super().put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._fault("after_tag")  # Rows and tag are one object, so there is one point for both.
        self._fault("before_commit")
        try:
            super().create(path, data)
        except AlreadyExists:
            self._fault("after_commit")
            raise
        self._fault("after_commit")


class LogWorld:
    def __init__(self, path: Path, key: tuple[str, ...] | None) -> None:
        self._folder, self._key = path / "log", key
        self.sink = LogSink(str(self._folder), key)
        self.sink.prepare(SCHEMA, key)

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        store = FaultyObjects(self._folder, fault)
        return LogTarget(self.sink.where, lambda: store, job, writer, pause=lambda _: None)

    def rows(self) -> list[tuple[Any, ...]]:
        if self._key is not None:
            table = read_table(LocalObjects(self._folder))
            return sorted(tuple(row.values()) for each in table for row in each.rows.to_pylist())
        return sorted(tuple(row.values()) for row in rows_in(self._folder))

    def before_images(self, writer: Writer) -> list[Image]:
        return []


class FilesWorld:
    """Files as a reader that knows nothing of the sink finds them."""

    def __init__(self, path: Path) -> None:
        self.sink = FilesSink(str(path / "files"))
        self.sink.prepare(SCHEMA, None)

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        return self.sink.opened(job, writer, fault=fault)

    def rows(self) -> list[tuple[Any, ...]]:
        found = ds.dataset(self.sink.path, SCHEMA, format="parquet").to_table()
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def before_images(self, writer: Writer) -> list[Image]:
        return []


class KafkaWorld:
    def __init__(self, server: KafkaServer, key: tuple[str, ...] | None) -> None:
        self._topic = KafkaTopic(server, key)
        self.sink = self._topic.sink
        self.sink.prepare(SCHEMA, key)
        self._open: list[Target] = []

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        target = self.sink.opened(job, writer, fault=self._topic.watched(fault))
        self._open.append(target)
        return target

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self._topic.rows())

    def before_images(self, writer: Writer) -> list[Image]:
        return []

    def close(self) -> None:
        for target in self._open:
            target.close()


class RedisWorld:
    def __init__(self, server: RedisServer) -> None:
        self._keys = server.keys(KEY)
        self.sink = self._keys.sink
        self.sink.prepare(SCHEMA, KEY)
        self._open: list[Target] = []

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        target: Target = self.sink.opened(job, writer, fault=fault)
        self._open.append(target)
        return target

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self._keys.rows())

    def before_images(self, writer: Writer) -> list[Image]:
        return []

    def close(self) -> None:
        for target in self._open:
            target.close()


class HttpWorld:
    """Rows as a receiver has them that honours idempotency keys."""

    def __init__(self, receiver: HttpReceiver, folder: Path) -> None:
        self._receiver = receiver
        self.sink = Http(receiver.url, progress=folder / "progress")
        self.sink.prepare(SCHEMA, None)

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        return self.sink.opened(job, writer, fault=fault)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self._receiver.rows())

    def before_images(self, writer: Writer) -> list[Image]:
        return []


class LakehouseWorld:
    def __init__(self, table: FolderTable | FolderCatalog, key: tuple[str, ...] | None) -> None:
        self._table = table
        self.sink = self._table.sink
        self.sink.prepare(SCHEMA, key)

    def open(self, writer: Writer, fault: Fault = no_fault, job: str = JOB) -> Target:
        target: Target = self.sink.opened(job, writer, fault=fault)
        return target

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self._table.rows())

    def before_images(self, writer: Writer) -> list[Image]:
        return []


KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)
KAFKA_BY_RECORD = pytest.param("kafka one by one", marks=pytest.mark.kafka)
"""Records are given to the client library one by one."""
REDIS = pytest.param("redis", marks=pytest.mark.redis)
TABLES_WITH_KEY = ("sqlite", "sqlite idempotent", "other", "other idempotent", "postgres")
KINDS_WITH_IMAGES = ("memory", *TABLES_WITH_KEY)
KINDS_WITH_KEY = (*KINDS_WITH_IMAGES, "log", "delta", "iceberg", REDIS, KAFKA, KAFKA_BY_RECORD)
KINDS_WITH_NUMBERS = ("memory", "sqlite", "other", "postgres")
KINDS_WITHOUT_KEY = (*KINDS_WITH_NUMBERS, "log", "files", "http", "delta", "iceberg", KAFKA)


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str, bool], World]]:
    worlds: list[TableWorld | KafkaWorld | RedisWorld] = []

    def build(kind: str, keyed: bool) -> World:
        if kind == "memory":
            return MemoryWorld(KEY if keyed else None)
        if kind == "log":
            return LogWorld(tmp_path, KEY if keyed else None)
        if kind == "files":
            return FilesWorld(tmp_path)
        if kind == "http":
            return HttpWorld(request.getfixturevalue("receiver"), tmp_path)
        if kind in ("delta", "iceberg"):
            made = FolderTable if kind == "delta" else FolderCatalog
            key = KEY if keyed else None
            return LakehouseWorld(made(tmp_path, key), key)
        if kind.startswith("kafka"):
            take(BY_BATCH if kind == "kafka" else ONE_BY_ONE, request.getfixturevalue("monkeypatch"))
            worlds.append(KafkaWorld(request.getfixturevalue("kafka"), KEY if keyed else None))
        elif kind == "redis":
            worlds.append(RedisWorld(request.getfixturevalue("redis")))
        else:
            worlds.append(TableWorld(place_of(kind, tmp_path, request), keyed, delivery_of(kind)))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


@pytest.fixture(params=KINDS_WITH_KEY)
def keyed(request: pytest.FixtureRequest, make: Callable[[str, bool], World]) -> World:
    return make(request.param, True)


@pytest.fixture(params=KINDS_WITH_IMAGES)
def imaged(request: pytest.FixtureRequest, make: Callable[[str, bool], World]) -> World:
    """A target with a key that keeps before-images."""
    return make(request.param, True)


@pytest.fixture(params=KINDS_WITHOUT_KEY)
def append(request: pytest.FixtureRequest, make: Callable[[str, bool], World]) -> World:
    return make(request.param, False)


@pytest.fixture(params=KINDS_WITH_NUMBERS)
def numbered(request: pytest.FixtureRequest, make: Callable[[str, bool], World]) -> World:
    """A target without a key whose before-images say which rows a delivery added."""
    return make(request.param, False)


@pytest.fixture(params=[*KINDS_WITHOUT_KEY, "sqlite idempotent", "other idempotent", REDIS])
def either(request: pytest.FixtureRequest, make: Callable[[str, bool], World]) -> World:
    return make(request.param, request.param.endswith(("idempotent", "redis")))


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def added(*rows: tuple[int, float, str]) -> pa.RecordBatch:
    """A batch of an append stream."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.record_batch(columns, schema=SCHEMA)


def changed(*rows: tuple[int, float | None, str | None, int]) -> pa.RecordBatch:
    """A batch of an upsert stream."""
    schema = SCHEMA.append(pa.field(OP, pa.int8()))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def crash_at(point: FaultPoint) -> Fault:
    def fault(reached: FaultPoint) -> None:
        if reached == point:
            raise Crash

    return fault


def lose_reply(point: FaultPoint) -> None:
    if point == "after_commit":
        raise Unavailable("the connection broke", next_step="nothing")


ANN, BEA, CAT = (1, 1.5, "ann"), (2, 2.5, "bea"), (3, 3.5, "cat")


class TestDelivery:
    def test_rows_and_tag_arrive_together(self, either: World) -> None:
        target = either.open(LEFT)
        assert target.delivered() is None
        assert target.deliver(tag(1), [added(ANN, BEA)]) == Delivered(2)
        assert (either.rows(), target.delivered()) == ([ANN, BEA], tag(1))

    def test_several_parts_are_applied_in_order(self, keyed: World) -> None:
        parts = [
            changed((1, 1.0, "old", PUT)),
            changed((1, 2.0, "new", PUT), (2, 0.0, "x", PUT)),
            changed((2, None, None, DELETE)),
        ]
        keyed.open(LEFT).deliver(tag(1), parts)
        assert keyed.rows() == [(1, 2.0, "new")]

    def test_an_append_target_keeps_equal_rows(self, append: World) -> None:
        append.open(LEFT).deliver(tag(1), [added(ANN), added(ANN)])
        assert append.rows() == [ANN, ANN]

    def test_an_empty_epoch_moves_the_tag_only(self, imaged: World) -> None:
        target = imaged.open(LEFT)
        target.deliver(tag(1), [changed((*ANN, PUT))])
        assert target.deliver(tag(2), []) == Delivered(0)
        assert (imaged.rows(), target.delivered()) == ([ANN], tag(2))
        assert [image[0] for image in imaged.before_images(LEFT)] == [tag(1)]

    def test_an_empty_epoch_moves_the_tag_of_an_append_target(self, either: World) -> None:
        target = either.open(LEFT)
        target.deliver(tag(1), [added(ANN)])
        assert target.deliver(tag(2), []) == Delivered(0)
        assert (either.rows(), target.delivered()) == ([ANN], tag(2))

    def test_a_put_replaces_the_row_with_its_key(self, keyed: World) -> None:
        target = keyed.open(LEFT)
        target.deliver(tag(1), [changed((*ANN, PUT), (*BEA, PUT))])
        target.deliver(tag(2), [changed((1, 9.0, "anna", PUT))])
        assert keyed.rows() == [(1, 9.0, "anna"), BEA]

    def test_a_delete_removes_the_row_with_its_key(self, keyed: World) -> None:
        target = keyed.open(LEFT)
        target.deliver(tag(1), [changed((*ANN, PUT), (*BEA, PUT))])
        target.deliver(tag(2), [changed((1, None, None, DELETE), (7, None, None, DELETE))])
        assert keyed.rows() == [BEA]

    def test_an_append_stream_into_a_keyed_target_keeps_the_last_row(self, imaged: World) -> None:
        imaged.open(LEFT).deliver(tag(1), [added(ANN, (1, 7.0, "anna"))])
        assert imaged.rows() == [(1, 7.0, "anna")]

    def test_two_writers_do_not_move_each_others_tags(self, keyed: World) -> None:
        left, right = keyed.open(LEFT), keyed.open(RIGHT)
        left.deliver(tag(1), [changed((*ANN, PUT))])
        right.deliver(tag(1), [changed((*BEA, PUT))])
        left.deliver(tag(3), [changed((*CAT, PUT))])
        right.deliver(tag(2), [changed((2, 0.0, "b", PUT))])
        assert keyed.rows() == [ANN, (2, 0.0, "b"), CAT]
        assert (left.delivered(), right.delivered()) == (tag(3), tag(2))

    def test_another_job_with_the_same_name_has_its_own_tags(self, either: World) -> None:
        either.open(LEFT).deliver(tag(5), [added(ANN)])
        assert either.open(LEFT, job="another").deliver(tag(1), [added(BEA)]) == Delivered(1)
        assert either.rows() == [ANN, BEA]

    def test_a_null_key_is_refused_and_changes_nothing(self, keyed: World) -> None:
        batch = changed((*ANN, PUT), (None, 1.0, "nobody", PUT))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="1 rows have no value in the key column 'user'"):
            keyed.sink.accept(batch)
        target = keyed.open(LEFT)
        with pytest.raises(ConfigError, match="'user'"):
            target.deliver(tag(1), [batch])
        assert (keyed.rows(), target.delivered()) == ([], None)


class TestCrash:
    @pytest.mark.parametrize("point", POINTS_BEFORE_COMMIT)
    def test_a_crash_before_the_commit_changes_nothing_and_redelivery_writes_all(
        self, keyed: World, point: FaultPoint
    ) -> None:
        keyed.open(LEFT).deliver(tag(1), [changed((*ANN, PUT), (*BEA, PUT))])
        batches = [changed((1, 9.0, "anna", PUT), (2, None, None, DELETE))]
        with pytest.raises(Crash):
            keyed.open(LEFT, crash_at(point)).deliver(tag(2), batches)
        again = keyed.open(LEFT)
        assert (keyed.rows(), again.delivered()) == ([ANN, BEA], tag(1))
        assert len(keyed.before_images(LEFT)) == (
            0 if isinstance(keyed, LogWorld | LakehouseWorld | KafkaWorld | RedisWorld) else 2
        )
        assert again.deliver(tag(2), batches) == Delivered(2)
        assert (keyed.rows(), again.delivered()) == ([(1, 9.0, "anna")], tag(2))

    @pytest.mark.parametrize("point", POINTS_BEFORE_COMMIT)
    def test_a_crash_before_the_commit_adds_no_row(self, either: World, point: FaultPoint) -> None:
        either.open(LEFT).deliver(tag(1), [added(ANN)])
        with pytest.raises(Crash):
            either.open(LEFT, crash_at(point)).deliver(tag(2), [added(BEA), added(CAT)])
        again = either.open(LEFT)
        assert (either.rows(), again.delivered()) == ([ANN], tag(1))
        assert again.deliver(tag(2), [added(BEA), added(CAT)]) == Delivered(2)
        assert (either.rows(), again.delivered()) == ([ANN, BEA, CAT], tag(2))

    def test_a_crash_after_the_commit_loses_nothing_and_redelivery_is_a_no_op(self, either: World) -> None:
        with pytest.raises(Crash):
            either.open(LEFT, crash_at("after_commit")).deliver(tag(1), [added(ANN)])
        again = either.open(LEFT)
        assert again.deliver(tag(1), [added(ANN)]) == AlreadyDelivered(tag(1))
        assert either.rows() == [ANN]

    def test_a_batch_that_cannot_be_read_changes_nothing_in_the_target(self, either: World) -> None:
        def broken() -> Iterator[pa.RecordBatch]:
            yield added(ANN)
            raise Unavailable("the store is unreachable", next_step="nothing")

        target = either.open(LEFT)
        with pytest.raises(Unavailable):
            target.deliver(tag(1), broken())
        assert (either.rows(), target.delivered()) == ([], None)
        assert target.deliver(tag(1), [added(BEA)]) == Delivered(1)
        assert either.rows() == [BEA]


class TestRepetition:
    def test_the_same_tag_again_changes_nothing_and_reads_nothing(self, either: World) -> None:
        target = either.open(LEFT)
        target.deliver(tag(1), [added(ANN)])
        unread = iter([added(ANN)])
        assert target.deliver(tag(1), unread) == AlreadyDelivered(tag(1))
        assert (either.rows(), len(list(unread))) == ([ANN], 1)

    def test_a_lost_reply_does_not_duplicate_rows(self, either: World) -> None:
        with pytest.raises(Unavailable):
            either.open(LEFT, lose_reply).deliver(tag(1), [added(ANN)])
        again = either.open(LEFT)
        assert again.delivered() == tag(1)
        assert again.deliver(tag(1), [added(ANN)]) == AlreadyDelivered(tag(1))
        assert either.rows() == [ANN]

    def test_the_same_target_delivers_the_next_epoch_after_a_lost_reply(self, either: World) -> None:
        replies = [lose_reply, no_fault]
        target = either.open(LEFT, lambda point: replies[0](point))
        with pytest.raises(Unavailable):
            target.deliver(tag(1), [added(ANN)])
        del replies[0]
        assert target.deliver(tag(2), [added(BEA)]) == Delivered(1)
        assert either.rows() == [ANN, BEA]


KINDS_THAT_MERGE = (
    *((kind, True) for kind in KINDS_WITH_IMAGES),
    *((kind, False) for kind in KINDS_WITH_NUMBERS),
    pytest.param(("redis", True), marks=pytest.mark.redis),
    pytest.param(("kafka", False), marks=pytest.mark.kafka),
)


@pytest.fixture(params=KINDS_THAT_MERGE, ids=lambda kind: f"{kind[0]}, {'key' if kind[1] else 'no key'}")
def merging(request: pytest.FixtureRequest, make: Callable[[str, bool], World]) -> World:
    return make(*request.param)


def together(target: Target, *epochs: tuple[int, list[pa.RecordBatch]], known: Tag | None = None) -> Outcome:
    assert target.merges is not None
    return target.merges.deliver_together([EpochOutput(tag(n), batches) for n, batches in epochs], known)


DAN, ANNA = (4, 4.5, "dan"), (1, 9.0, "anna")
THREE: tuple[tuple[int, list[pa.RecordBatch]], ...] = ((2, [added(BEA), added(CAT)]), (3, []), (5, [added(DAN)]))


class TestSeveralEpochs:
    """One transaction of a writer that has fallen behind."""

    def test_several_epochs_become_visible_together_with_the_last_tag(self, merging: World) -> None:
        target = merging.open(LEFT)
        target.deliver(tag(1), [added(ANN)])
        assert together(target, *THREE, known=tag(1)) == Delivered(3)
        assert (merging.rows(), target.delivered()) == ([ANN, BEA, CAT, DAN], tag(5))
        assert target.deliver(tag(6), []) == Delivered(0)

    def test_several_epochs_can_be_the_first_of_the_writer(self, merging: World) -> None:
        target = merging.open(LEFT)
        assert together(target, *THREE) == Delivered(3)
        assert (merging.rows(), target.delivered()) == ([BEA, CAT, DAN], tag(5))

    def test_the_later_epoch_wins(self, imaged: World) -> None:
        puts = [changed((*ANN, PUT), (*BEA, PUT))]
        target = imaged.open(LEFT)
        together(target, (1, puts), (2, [changed((*ANNA, PUT), (2, None, None, DELETE), (*CAT, PUT))]))
        assert imaged.rows() == [ANNA, CAT]
        together(target, (3, [changed((3, None, None, DELETE), (*BEA, PUT))]), (4, [changed((*CAT, PUT))]))
        assert imaged.rows() == [ANNA, BEA, CAT]

    def test_each_epoch_has_its_own_before_images(self, imaged: World) -> None:
        target = imaged.open(LEFT)
        target.deliver(tag(1), [changed((*ANN, PUT))])
        deleted = [changed((1, None, None, DELETE))]
        together(target, (2, [changed((*ANNA, PUT), (*BEA, PUT))]), (3, deleted), (4, [changed((*ANN, PUT))]))
        assert imaged.before_images(LEFT) == [
            (tag(1), 0, {"user": 1}, None),
            (tag(2), 0, {"user": 1}, {"total": 1.5, "name": "ann"}),
            (tag(2), 1, {"user": 2}, None),
            (tag(3), 0, {"user": 1}, {"total": 9.0, "name": "anna"}),
            (tag(4), 0, {"user": 1}, None),
        ]

    def test_an_append_target_records_which_rows_each_epoch_added(self, numbered: World) -> None:
        together(numbered.open(LEFT), *THREE)
        found = [(at, n, key["first"], key["last"]) for at, n, key, _ in numbered.before_images(LEFT)]
        assert found == [(tag(2), 0, 1, 2), (tag(5), 0, 3, 3)]

    @pytest.mark.parametrize("point", [*POINTS_BEFORE_COMMIT, "between_epochs"])
    def test_a_crash_before_the_commit_delivers_no_epoch(self, merging: World, point: FaultPoint) -> None:
        merging.open(LEFT).deliver(tag(1), [added(ANN)])
        images = merging.before_images(LEFT)
        with pytest.raises(Crash):
            together(merging.open(LEFT, crash_at(point)), *THREE, known=tag(1))
        again = merging.open(LEFT)
        assert (merging.rows(), again.delivered(), merging.before_images(LEFT)) == ([ANN], tag(1), images)
        assert together(again, *THREE, known=tag(1)) == Delivered(3)
        assert (merging.rows(), again.delivered()) == ([ANN, BEA, CAT, DAN], tag(5))

    def test_a_crash_after_the_commit_loses_no_epoch_and_redelivery_is_a_no_op(self, merging: World) -> None:
        with pytest.raises(Crash):
            together(merging.open(LEFT, crash_at("after_commit")), *THREE)
        again, images = merging.open(LEFT), merging.before_images(LEFT)
        assert together(again, *THREE) == AlreadyDelivered(tag(5))
        assert again.deliver(tag(2), [added(BEA)]) == AlreadyDelivered(tag(5))
        assert (merging.rows(), merging.before_images(LEFT)) == ([BEA, CAT, DAN], images)

    def test_a_prefix_that_was_delivered_is_not_delivered_again(self, merging: World) -> None:
        target = merging.open(LEFT)
        together(target, *THREE[:2])
        assert together(target, *THREE) == AlreadyDelivered(tag(3))
        assert (merging.rows(), target.delivered()) == ([BEA, CAT], tag(3))
        assert together(target, THREE[2], (6, [added(ANN)]), known=tag(3)) == Delivered(2)
        assert merging.rows() == [ANN, BEA, CAT, DAN]

    @pytest.mark.parametrize("known", [None, tag(1)])
    def test_a_prefix_delivered_between_check_and_transaction_is_not_repeated(
        self, merging: World, known: Tag | None
    ) -> None:
        """The guard is the first of the epochs: compared with the last, the prefix would be delivered twice."""
        merging.open(LEFT).deliver(tag(1), [added(ANN)])
        successors = [merging.open(LEFT)]

        def overtaken(point: FaultPoint) -> None:
            if point == "before_begin" and successors:
                together(successors.pop(), *THREE[:2])

        zombie = merging.open(LEFT, overtaken)
        assert together(zombie, *THREE, known=known) == AlreadyDelivered(tag(3))
        assert (merging.rows(), zombie.delivered()) == ([ANN, BEA, CAT], tag(3))

    def test_a_batch_that_cannot_be_read_changes_nothing(self, merging: World) -> None:
        def broken() -> Iterator[pa.RecordBatch]:
            yield added(CAT)
            raise Unavailable("the store is unreachable", next_step="nothing")

        target = merging.open(LEFT)
        with pytest.raises(Unavailable):
            target.deliver_together([EpochOutput(tag(1), [added(BEA)]), EpochOutput(tag(2), broken())])  # type: ignore[attr-defined]
        assert (merging.rows(), target.delivered()) == ([], None)
        assert together(target, (1, [added(BEA)]), (2, [])) == Delivered(1)
        assert merging.rows() == [BEA]

    def test_an_older_timeline_is_fenced(self, merging: World) -> None:
        merging.open(LEFT).deliver(tag(1, timeline=2), [added(ANN)])
        with pytest.raises(Fenced, match="timeline 2"):
            together(merging.open(LEFT), *THREE)
        assert merging.rows() == [ANN]


class TestZombie:
    def test_an_older_epoch_changes_nothing(self, either: World) -> None:
        either.open(LEFT).deliver(tag(7), [added(ANN)])
        assert either.open(LEFT).deliver(tag(6), [added(BEA)]) == AlreadyDelivered(tag(7))
        assert either.rows() == [ANN]

    def test_an_older_timeline_is_fenced_even_with_a_higher_epoch(self, either: World) -> None:
        either.open(LEFT).deliver(tag(5, timeline=2), [added(ANN)])
        zombie = either.open(LEFT)
        with pytest.raises(Fenced, match="timeline 2"):
            zombie.deliver(tag(9), [added(BEA)])
        assert (either.rows(), zombie.delivered()) == ([ANN], tag(5, timeline=2))

    def test_a_newer_timeline_may_deliver_lower_epochs(self, either: World) -> None:
        either.open(LEFT).deliver(tag(9), [added(ANN)])
        assert either.open(LEFT).deliver(tag(5, timeline=2), [added(BEA)]) == Delivered(1)
        assert either.rows() == [ANN, BEA]

    def test_a_writer_overtaken_between_check_and_transaction_changes_nothing(self, either: World) -> None:
        """The guard is in the transaction: reading the tag before it proves nothing."""
        successors = [either.open(LEFT)]

        def overtaken(point: FaultPoint) -> None:
            if point == "before_begin" and successors:
                successors.pop().deliver(tag(1), [added(ANN)])

        assert either.open(LEFT, overtaken).deliver(tag(1), [added(ANN)]) == AlreadyDelivered(tag(1))
        assert either.rows() == [ANN]

    def test_a_writer_of_the_same_generation_cannot_repeat_an_epoch(self, either: World) -> None:
        """The guard is (timeline, epoch): with the generation alone, an owner's own retry would pass."""
        owner = either.open(LEFT)
        epochs = (1, ANN), (2, BEA), (1, ANN), (2, BEA)
        assert [owner.deliver(tag(n), [added(row)]) for n, row in epochs] == [
            Delivered(1),
            Delivered(1),
            AlreadyDelivered(tag(2)),
            AlreadyDelivered(tag(2)),
        ]
        assert either.rows() == [ANN, BEA]


class TestBeforeImages:
    def test_each_key_has_its_row_from_before_the_delivery(self, imaged: World) -> None:
        target = imaged.open(LEFT)
        target.deliver(tag(1), [changed((*ANN, PUT), (*BEA, PUT))])
        target.deliver(
            tag(2), [changed((3, 3.5, "c", PUT), (2, None, None, DELETE)), changed((1, 0.1, None, PUT), (*CAT, PUT))]
        )
        assert imaged.before_images(LEFT) == [
            (tag(1), 0, {"user": 1}, None),
            (tag(1), 1, {"user": 2}, None),
            (tag(2), 0, {"user": 1}, {"total": 1.5, "name": "ann"}),
            (tag(2), 1, {"user": 2}, {"total": 2.5, "name": "bea"}),
            (tag(2), 2, {"user": 3}, None),
        ]

    def test_a_redelivery_does_not_write_before_images_again(self, imaged: World) -> None:
        with pytest.raises(Unavailable):
            imaged.open(LEFT, lose_reply).deliver(tag(1), [changed((*ANN, PUT))])
        imaged.open(LEFT).deliver(tag(1), [changed((*ANN, PUT))])
        assert imaged.before_images(LEFT) == [(tag(1), 0, {"user": 1}, None)]

    def test_an_append_target_records_which_rows_a_delivery_added(self, numbered: World) -> None:
        target = numbered.open(LEFT)
        target.deliver(tag(1), [added(ANN, BEA)])
        target.deliver(tag(2), [])
        target.deliver(tag(3), [added(CAT)])
        found = [(at, n, key["first"], key["last"], before) for at, n, key, before in numbered.before_images(LEFT)]
        assert found == [(tag(1), 0, 1, 2, None), (tag(3), 0, 3, 3, None)]

    def test_before_images_beyond_the_horizon_are_dropped_for_one_writer_only(self, imaged: World) -> None:
        left, right = imaged.open(LEFT), imaged.open(RIGHT)
        for n in (1, 2, 3):
            left.deliver(tag(n), [changed((*ANN, PUT))])
            right.deliver(tag(n), [changed((*BEA, PUT))])
        left.forget(tag(2))
        assert [image[0] for image in imaged.before_images(LEFT)] == [tag(3)]
        assert [image[0] for image in imaged.before_images(RIGHT)] == [tag(1), tag(2), tag(3)]


class TestPlanning:
    def test_an_upsert_stream_needs_a_key(self, append: World) -> None:
        with pytest.raises(ConfigError, match=r"the stream replaces rows by \['user'\]"):
            append.sink.check(SCHEMA, KEY)

    def test_an_upsert_stream_needs_the_key_of_its_target(self, keyed: World) -> None:
        with pytest.raises(ConfigError, match=r"give the sink key=\['user', 'name'\]"):
            keyed.sink.check(SCHEMA, ("user", "name"))

    def test_a_key_must_name_columns(self, keyed: World) -> None:
        with pytest.raises(ConfigError, match=r"unknown columns \['user'\]|key column 'user' is not in the schema"):
            keyed.sink.check(SCHEMA.remove(0), None)

    def test_a_stream_may_not_have_a_reserved_column(self, append: World) -> None:
        with pytest.raises(ConfigError, match="_op"):
            append.sink.check(SCHEMA.append(pa.field(OP, pa.int8())), None)

    def test_preparing_again_changes_nothing(self, keyed: World) -> None:
        keyed.open(LEFT).deliver(tag(1), [changed((*ANN, PUT))])
        keyed.sink.prepare(SCHEMA, KEY)
        assert keyed.rows() == [ANN]
