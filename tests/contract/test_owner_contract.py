"""The contract of targets on their owner and on delivered output, run against each of them.

Source: PROTOCOL P17, P22, P24; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from delta_tables import FolderTable
from http_receiver import HttpReceiver
from iceberg_tables import FolderCatalog
from kafka_server import KafkaServer
from kafka_topics import KafkaTopic
from logged import rows_in
from redis_server import RedisServer
from sql_places import SqlPlace, delivery_of, place_of

from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner
from holdfast.sinks.contract.owners import NEVER, Claim, Held, Rival
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered
from holdfast.sinks.delta.sink import Delta
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.http.sink import Http
from holdfast.sinks.iceberg.sink import Iceberg
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.log.sink import LogSink
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.memory.sink import MemorySink
from holdfast.sinks.redis.sink import Redis

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
FIRST = Claim("first", Generation(1))
SECOND = Claim("second", Generation(2), {"first": Tag(Timeline(1), Epoch(2))})
COPY = Claim("copy", Generation(2), {"first": Tag(Timeline(1), Epoch(1))})
"""The owner of a root that was copied from FIRST's after epoch 1; SECOND continued with the original after epoch 2."""
THEIRS, OTHER = "7a9b0f6e-0000-4000-8000-000000000002", Claim("other", Generation(1))
"""Another job, and its driver."""


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)]


class World:
    """A sink, and the rows that a user would see in its target."""

    def __init__(self, sink: Any, numbers: Callable[[], list[int]], back_up: Callable[[], Callable[[], None]]) -> None:
        self.sink, self.numbers, self.back_up = sink, numbers, back_up


def in_memory(keyed: bool) -> World:
    sink = MemorySink(("n",) if keyed else None)
    sink.prepare(SCHEMA, None)

    def back_up() -> Callable[[], None]:
        kept = {name: value.copy() for name, value in vars(sink).items() if isinstance(value, dict | list)}
        return lambda: vars(sink).update(kept)

    return World(sink, lambda: sorted(row["n"] for row in sink.rows()), back_up)


def in_table(place: SqlPlace, key: tuple[str, ...] | None, delivery: str) -> World:
    sink = place.sink("t", key, delivery)
    sink.prepare(SCHEMA, None)

    def numbers() -> list[int]:
        return [n for (n,) in place.ask("SELECT n FROM t ORDER BY n")]

    return World(sink, numbers, place.back_up)


def in_log(folder: Path) -> World:
    sink = LogSink(str(folder / "log"), partitions=1)
    sink.prepare(SCHEMA, None)

    numbers = lambda: sorted(row["n"] for row in rows_in(folder / "log"))
    return World(sink, numbers, lambda: backed_up(folder / "log"))


def in_files(folder: Path) -> World:
    sink = FilesSink(str(folder / "files"))
    sink.prepare(SCHEMA, None)

    def numbers() -> list[int]:
        return sorted(ds.dataset(sink.path, SCHEMA, format="parquet").to_table().column("n").to_pylist())

    return World(sink, numbers, lambda: backed_up(folder / "files"))


def backed_up(folder: Path) -> Callable[[], None]:
    """Copy a folder; return what restores it."""
    backup = folder.with_name("backup")
    shutil.copytree(folder, backup)

    def restore() -> None:
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)

    return restore


def in_kafka(server: KafkaServer) -> World:
    topic = KafkaTopic(server, partitions=1)
    topic.sink.prepare(SCHEMA, None)
    return World(topic.sink, lambda: sorted(n for (n,) in topic.rows()), topic.back_up)


def in_redis(server: RedisServer) -> World:
    keys = server.keys(("n",))
    keys.sink.prepare(SCHEMA, None)
    return World(keys.sink, lambda: sorted(n for (n,) in keys.rows()), keys.back_up)


def in_http(receiver: HttpReceiver, folder: Path) -> World:
    sink = Http(receiver.url, progress=folder / "progress")
    sink.prepare(SCHEMA, None)
    numbers = lambda: sorted(row["n"] for row in receiver.rows())

    def back_up() -> Callable[[], None]:
        taken, restored = list(receiver.taken), backed_up(folder / "progress")

        def restore() -> None:
            receiver.taken[:] = taken
            restored()

        return restore

    return World(sink, numbers, back_up)


def in_tables(table: FolderTable | FolderCatalog) -> World:
    table.sink.prepare(SCHEMA, None)
    return World(table.sink, lambda: sorted(n for (n,) in table.rows()), table.back_up)


TABLES = [f"{kind}{how}" for kind in ("sqlite", "other", "postgres") for how in ("", " keyed", " idempotent")]
EXCLUSIVE = [kind for kind in TABLES if " " in kind]
SHARED = ("memory", "memory keyed", "sqlite", "other", "postgres", "log", "files", "delta", "iceberg", "http")
WITH_REPAIRS = ("memory", "memory keyed", *TABLES, "log", "files", "delta", "delta keyed", "iceberg", "iceberg keyed")
SERVERS = [
    pytest.param(kind, marks=mark) for kind, mark in (("redis", pytest.mark.redis), ("kafka", pytest.mark.kafka))
]


@pytest.fixture(params=[*WITH_REPAIRS, "http", *SERVERS])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, tmp_path)


def world_of(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind = request.param
    if kind == "log":
        return in_log(tmp_path)
    if kind == "files":
        return in_files(tmp_path)
    if kind.startswith(("delta", "iceberg")):
        made = FolderTable if kind.startswith("delta") else FolderCatalog
        return in_tables(made(tmp_path, ("n",) if kind.endswith("keyed") else None))
    if kind == "http":
        return in_http(request.getfixturevalue("receiver"), tmp_path)
    if kind == "kafka":
        return in_kafka(request.getfixturevalue("kafka"))
    if kind == "redis":
        return in_redis(request.getfixturevalue("redis"))
    if kind.startswith("memory"):
        return in_memory(kind == "memory keyed")
    return in_table(place_of(kind, tmp_path, request), ("n",) if " " in kind else None, delivery_of(kind))


class TestOwnersOfSeveralSinks:
    @pytest.fixture(params=[*SHARED, SERVERS[1]])
    def world(self, request: pytest.FixtureRequest, tmp_path: Path) -> World:
        """A target that takes rows of several sinks."""
        return world_of(request, tmp_path)

    def test_each_sink_of_a_target_has_its_own_owner(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        other = Writer("other", Subtask(0))
        assert world.sink.open(JOB, other, COPY).deliver(tag(1), rows(2)) == Delivered(1)
        assert world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(3)) == Delivered(1)


class TestOwner:
    def test_a_delivery_takes_over_the_target_and_records_its_owner(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        found = world.sink.ownership.holding(JOB, "out")
        assert (found.held, found.newest) == (Held("first", Generation(1)), tag(1))

    def test_a_successor_takes_over_from_an_owner_in_its_job_log(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        assert world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2)) == Delivered(1)
        assert world.sink.ownership.holding(JOB, "out").held == Held("second", Generation(2))

    def test_an_overtaken_owner_writes_nothing_more(self, world: World) -> None:
        first = world.sink.open(JOB, LEFT, FIRST)
        first.deliver(tag(1), rows(1))
        world.sink.open(JOB, RIGHT, SECOND).deliver(tag(2), rows(2))
        with pytest.raises(Fenced, match="not in the log of this job"):
            first.deliver(tag(2), rows(3))
        assert world.numbers() == [1, 2]

    def test_a_copy_of_the_job_is_fenced_even_if_its_tag_was_delivered(self, world: World) -> None:
        """An epoch with the same number holds other rows: skipping it would lose them silently."""
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        copy = world.sink.open(JOB, LEFT, COPY)
        assert copy.delivered() == tag(1)
        world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2))
        with pytest.raises(Fenced, match="not in the log of this job"):
            copy.deliver(tag(2), rows(3))
        with pytest.raises(Fenced, match="not in the log of this job"):
            copy.delivered()
        assert world.numbers() == [1, 2]

    def test_an_owner_overtaken_before_its_transaction_changes_nothing(self, world: World) -> None:
        """The check before the rows are read proves nothing: the transaction checks again."""
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))

        def meanwhile() -> Iterator[pa.RecordBatch]:
            world.sink.open(JOB, RIGHT, SECOND).deliver(tag(2), rows(2))
            yield from rows(3)

        with pytest.raises(Fenced, match="not in the log of this job"):
            world.sink.open(JOB, LEFT, COPY).deliver(tag(2), meanwhile())
        assert world.numbers() == [1, 2]

    @pytest.mark.parametrize("writer", [LEFT, RIGHT])
    def test_what_a_common_owner_delivered_in_another_history_is_refused(self, world: World, writer: Writer) -> None:
        """The copy may have completed more epochs since, with other rows: numbers prove nothing."""
        for epoch in (1, 2):
            world.sink.open(JOB, LEFT, FIRST).deliver(tag(epoch), rows(epoch))
        copy = world.sink.open(JOB, writer, COPY)
        with pytest.raises(Damaged, match=r"epoch 2, but the job log ends at timeline 1, epoch 1 for the run"):
            copy.delivered()
        for known in (None, NEVER, tag(2)):
            with pytest.raises(Damaged, match="was copied or restored"):
                copy.deliver(tag(300), rows(300), known)
        assert world.numbers() == [1, 2]
        assert world.sink.ownership.holding(JOB, "out").held == Held("first", Generation(1))

    def test_a_common_owner_that_delivers_before_the_transaction_is_noticed(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))

        def meanwhile() -> Iterator[pa.RecordBatch]:
            world.sink.open(JOB, LEFT, FIRST).deliver(tag(2), rows(2))
            yield from rows(300)

        with pytest.raises(Damaged, match="was copied or restored"):
            world.sink.open(JOB, RIGHT, COPY).deliver(tag(300), meanwhile(), NEVER)
        assert world.numbers() == [1, 2]

    def test_a_target_without_an_owner_is_taken_over(self, world: World) -> None:
        """An earlier version wrote it."""
        world.sink.open(JOB, LEFT).deliver(tag(1), rows(1))
        assert world.sink.ownership.holding(JOB, "out").held is None
        world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2))
        assert world.sink.ownership.holding(JOB, "out").held == Held("second", Generation(2))

    def test_only_the_owner_can_drop_before_images(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        copy = world.sink.open(JOB, LEFT, COPY)
        world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2))
        if isinstance(world.sink, LogSink | FilesSink | Delta | Iceberg | KafkaSink | Redis | Http):
            copy.forget(tag(1))  # the copy has none
            return
        with pytest.raises(Fenced):
            copy.forget(tag(1))


class TestTableWithAKey:
    """It belongs to one sink of one job: a rewind of another one would undo its rows."""

    @pytest.fixture(params=EXCLUSIVE)
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> SqlPlace:
        return place_of(request.param, tmp_path, request)

    @pytest.fixture
    def world(self, request: pytest.FixtureRequest, place: SqlPlace) -> World:
        kind = request.node.callspec.params["place"]
        world = in_table(place, ("n",), delivery_of(kind))
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        return world

    def test_a_look_at_a_missing_table_changes_no_claim(self, world: World, place: SqlPlace) -> None:
        place.ask("DROP TABLE t")
        world.sink.probe(SCHEMA, None)
        assert place.ask("SELECT job, sink FROM holdfast_table") == [(JOB, "out")]

    def test_in_a_target_of_an_earlier_version_a_sink_with_tags_continues(self, world: World, place: SqlPlace) -> None:
        place.ask("DROP TABLE holdfast_table")
        world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2))
        assert place.ask("SELECT * FROM holdfast_table") == [(world.sink.dialect.folded("t"), "", JOB, "out")]
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            world.sink.open(THEIRS, LEFT, OTHER).deliver(tag(9), rows(9))
        assert world.numbers() == [1, 2]

    def test_in_a_target_of_an_earlier_version_a_sink_without_tags_is_refused(
        self, world: World, place: SqlPlace
    ) -> None:
        place.ask("DROP TABLE holdfast_table")
        unknown = Rival(JOB, "out", Held("first", Generation(1)), certain=False)
        assert world.sink.ownership.holding(THEIRS, "out").rival == unknown
        assert world.sink.ownership.holding(JOB, "out").rival is None
        world.sink.prepare(SCHEMA, None)
        assert world.sink.ownership.holding(THEIRS, "out").rival == unknown
        place.ask("DELETE FROM t")
        assert world.sink.ownership.holding(THEIRS, "out").rival is None


class TestTableWithoutAKey:
    """Several sinks may add rows to it, if their names differ."""

    @pytest.fixture(params=["sqlite", "other", "postgres"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> SqlPlace:
        return place_of(request.param, tmp_path, request)

    @pytest.fixture
    def world(self, place: SqlPlace) -> World:
        world = in_table(place, None, "transactional")
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        return world

    @pytest.mark.parametrize("job", [JOB, THEIRS])
    def test_a_rewind_of_one_sink_leaves_the_rows_of_others(self, world: World, job: str) -> None:
        other = Writer("else", Subtask(0))
        world.sink.ownership.check_owner(job, "else")
        world.sink.open(job, other, OTHER).deliver(tag(1), rows(7))
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(2), rows(2))
        world.sink.open(job, other, OTHER).deliver(tag(2), rows(8))
        world.sink.repair(Rewinding(JOB, "out", tag(1, 2), (LEFT,), FIRST), SCHEMA, None)
        assert world.numbers() == [1, 7, 8]
        world.sink.ownership.check_owner(JOB, "out")

    def test_a_sink_of_the_same_name_of_another_job_is_refused(self, world: World) -> None:
        for job in (None, THEIRS):
            with pytest.raises(ConfigError, match=f"holds rows of a sink 'out' of another job, {JOB}") as refused:
                world.sink.ownership.check_owner(job, "out")
            assert "give this sink another name" in refused.value.next_step
        for claim in (OTHER, replace(OTHER, adopted=("first",))):
            with pytest.raises(Fenced, match=f"belongs to sink 'out' of another job, {JOB}"):
                world.sink.open(THEIRS, LEFT, claim).deliver(tag(1), rows(9))
        assert world.numbers() == [1]

    def test_other_tables_of_the_place_are_not_concerned(self, world: World, place: SqlPlace) -> None:
        second = place.sink("second", ("n",))
        second.prepare(SCHEMA, None)
        assert second.holding(THEIRS, "out").rival is None
        assert second.open(THEIRS, LEFT, OTHER).deliver(tag(1), rows(9)) == Delivered(1)

    def test_a_sink_with_a_key_is_refused(self, place: SqlPlace) -> None:
        keyed, added = place.sink("u", ("n",)), place.sink("u", None)
        keyed.prepare(SCHEMA, None)
        added.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        assert keyed.holding(JOB, "else").rival == Rival(JOB, "out", Held("first", Generation(1)))
        with pytest.raises(Fenced, match="belongs to sink 'out' of this job"):
            keyed.open(JOB, Writer("else", Subtask(0)), FIRST).deliver(tag(1), rows(9))
        assert place.ask("SELECT n FROM u") == [(1,)]

    def test_in_a_target_of_an_earlier_version_only_the_same_name_is_refused(
        self, world: World, place: SqlPlace
    ) -> None:
        place.ask("DROP TABLE holdfast_table")
        with pytest.raises(ConfigError, match=f"may hold rows of a sink 'out' of another job, {JOB}"):
            world.sink.ownership.check_owner(THEIRS, "out")
        world.sink.ownership.check_owner(THEIRS, "else")
        world.sink.ownership.check_owner(JOB, "out")


class TestRepair:
    @pytest.fixture(params=WITH_REPAIRS)
    def world(self, request: pytest.FixtureRequest, tmp_path: Path) -> World:
        """A target that takes its output back."""
        return world_of(request, tmp_path)

    def test_a_repair_takes_over_the_target(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(2), rows(2))
        to = Rewinding(JOB, "out", tag(1, 2), (LEFT,), SECOND)
        world.sink.repair(to, SCHEMA, None)
        assert world.numbers() == [1]
        assert world.sink.ownership.holding(JOB, "out").held == Held("second", Generation(2))

    def test_a_repair_undoes_what_a_common_owner_delivered_in_another_history(self, world: World) -> None:
        for epoch in (1, 2):
            world.sink.open(JOB, LEFT, FIRST).deliver(tag(epoch), rows(epoch))
        later = Rewinding(JOB, "out", tag(300, 2), (LEFT,), replace(COPY, undone_after=Epoch(300)))
        for act in (world.sink.plan_repair, world.sink.repair):
            with pytest.raises(Damaged, match="was copied or restored"):
                act(later, SCHEMA, None)
        assert world.numbers() == [1, 2]
        world.sink.repair(Rewinding(JOB, "out", tag(1, 2), (LEFT,), replace(COPY, undone_after=Epoch(1))), SCHEMA, None)
        assert world.numbers() == [1]
        assert world.sink.open(JOB, LEFT, COPY).deliver(tag(300, 2), rows(300)) == Delivered(1)

    def test_a_repair_is_refused_if_the_common_owner_rewound_in_its_own_history(self, world: World) -> None:
        """Its new timeline has the number that the copy's has, so a repair would leave what it delivered there."""
        for epoch in (1, 2):
            world.sink.open(JOB, LEFT, FIRST).deliver(tag(epoch), rows(epoch))
        world.sink.repair(
            Rewinding(JOB, "out", tag(1, 2), (LEFT,), replace(FIRST, undone_after=Epoch(1))), SCHEMA, None
        )
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(206, 2), rows(206))
        to = Rewinding(JOB, "out", tag(1, 2), (LEFT,), replace(COPY, undone_after=Epoch(1)))
        for act in (world.sink.plan_repair, world.sink.repair):
            with pytest.raises(Damaged, match="was copied or restored"):
                act(to, SCHEMA, None)
        assert world.numbers() == [1, 206]

    def test_a_repair_of_another_history_is_fenced_and_undoes_nothing(self, world: World) -> None:
        world.sink.open(JOB, LEFT, FIRST).deliver(tag(1), rows(1))
        world.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2))
        to = Rewinding(JOB, "out", tag(1, 2), (LEFT,), COPY)
        for act in (world.sink.plan_repair, world.sink.repair):
            with pytest.raises(Fenced, match="not in the log of this job"):
                act(to, SCHEMA, None)
        assert (world.numbers(), world.sink.open(JOB, LEFT).delivered()) == ([1, 2], tag(2))


class TestRestoredTarget:
    def test_a_delivery_above_a_lost_delivery_is_refused(self, world: World) -> None:
        target = world.sink.open(JOB, LEFT, FIRST)
        target.deliver(tag(1), rows(1))
        restore = world.back_up()
        target.deliver(tag(2), rows(2), known=tag(1))
        restore()
        with pytest.raises(Damaged, match="epoch 1, but timeline 1, epoch 2 was delivered to it: it was restored"):
            target.deliver(tag(3), rows(3), known=tag(2))
        assert (world.numbers(), world.sink.open(JOB, LEFT).delivered()) == ([1], tag(1))

    def test_a_delivery_is_refused_if_the_tag_itself_was_lost(self, world: World) -> None:
        target, restore = world.sink.open(JOB, LEFT, FIRST), world.back_up()
        target.deliver(tag(1), rows(1))
        restore()
        with pytest.raises(Damaged, match="has no tag"):
            target.deliver(tag(2), rows(2), known=tag(1))
        assert (world.numbers(), world.sink.open(JOB, LEFT).delivered()) == ([], None)

    def test_a_delivery_is_refused_if_the_target_was_restored_after_the_check(self, world: World) -> None:
        target = world.sink.open(JOB, LEFT, FIRST)
        target.deliver(tag(1), rows(1))
        restore = world.back_up()
        target.deliver(tag(2), rows(2), known=tag(1))

        def meanwhile() -> Iterator[pa.RecordBatch]:
            if not isinstance(world.sink, LogSink | KafkaSink):  # they have no transaction that reads what it writes
                restore()
            yield from rows(3)

        if isinstance(world.sink, LogSink | KafkaSink):
            restore()
        with pytest.raises(Damaged, match="restored"):
            target.deliver(tag(3), meanwhile(), known=tag(2))
        assert world.numbers() == [1]

    def test_a_target_above_the_known_tag_is_unavailable_until_it_is_reread(self, world: World) -> None:
        """Another process delivered in between: a worker that this driver replaced, or a copy of the job."""
        target = world.sink.open(JOB, LEFT, FIRST)
        target.deliver(tag(1), rows(1))
        target.deliver(tag(2), rows(2))
        for known in (NEVER, tag(1)):
            with pytest.raises(Unavailable, match="another process delivered"):
                target.deliver(tag(3), rows(3), known=known)
            assert world.numbers() == [1, 2]
            assert target.deliver(tag(2), rows(2), known=known) == AlreadyDelivered(tag(2))
        assert target.deliver(tag(3), rows(3), known=tag(2)) == Delivered(1)
        assert target.deliver(tag(3), rows(3), known=tag(2)) == AlreadyDelivered(tag(3))


LEFT_PARTITION = Origin("bids", 0)


class ImmediateWorld:
    def __init__(self, world: World) -> None:
        self.world = world
        self._opened: list[ImmediateTarget] = []

    def open(self, claim: Claim, generation: int = 1, job: str = JOB) -> ImmediateTarget:
        owner = Owner(job, "out", Generation(generation), Timeline(1), "code", claim)
        self._opened.append(self.world.sink.immediate.open_immediate(owner))
        return self._opened[-1]

    def fenced(self, claim: Claim, generation: int = 1, job: str = JOB) -> ImmediateTarget:
        target = self.open(claim, generation, job)
        target.fence({LEFT_PARTITION: 0})
        return target

    def close(self) -> None:
        for target in self._opened:
            target.close()


@pytest.fixture(params=["memory", "sqlite", "other", "postgres"])
def immediate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ImmediateWorld]:
    if request.param == "memory":
        world = in_memory(True)
        table = ImmediateTable(("n",))
        table.prepare(SCHEMA, None)

        def back_up() -> Callable[[], None]:
            kept = {name: value.copy() for name, value in vars(table).items() if isinstance(value, dict | list)}
            return lambda: vars(table).update({name: value.copy() for name, value in kept.items()})

        made = ImmediateWorld(World(table, lambda: sorted(row["n"] for row in table.rows()), back_up))
    else:
        world = in_table(place_of(request.param, tmp_path, request), ("n",), "idempotent")
        world.sink.immediate.prepare(SCHEMA, None)
        made = ImmediateWorld(world)
    yield made
    made.close()


class TestImmediateTarget:
    def test_a_fence_takes_the_target_over(self, immediate: ImmediateWorld) -> None:
        immediate.fenced(FIRST)
        assert immediate.world.sink.immediate.holding(JOB, "out").held == Held("first", Generation(1))

    def test_a_copy_of_the_job_with_the_same_generation_is_fenced(self, immediate: ImmediateWorld) -> None:
        second = immediate.fenced(SECOND, 2)
        with pytest.raises(Fenced, match="not in the log of this job"):
            immediate.fenced(COPY, 2)
        second.write(LEFT_PARTITION, 1, rows(1))
        assert immediate.world.numbers() == [1]

    def test_an_owner_overtaken_by_a_copy_writes_nothing_more(self, immediate: ImmediateWorld) -> None:
        first = immediate.fenced(FIRST)
        immediate.fenced(COPY, 1)
        with pytest.raises(Fenced, match="not in the log of this job"):
            first.write(LEFT_PARTITION, 1, rows(1))
        with pytest.raises(Fenced, match="not in the log of this job"):
            first.forget({LEFT_PARTITION: 1})
        assert immediate.world.numbers() == []

    def test_a_target_restored_to_before_its_last_write_is_damaged(self, immediate: ImmediateWorld) -> None:
        target = immediate.fenced(FIRST)
        target.write(LEFT_PARTITION, 1, rows(1))
        restore = immediate.world.back_up()
        target.write(LEFT_PARTITION, 2, rows(2))
        restore()
        with pytest.raises(Damaged, match="restored from a backup"):
            target.write(LEFT_PARTITION, 3, rows(3))
        assert immediate.world.numbers() == [1]

    def test_a_target_restored_to_before_its_fence_is_damaged(self, immediate: ImmediateWorld) -> None:
        immediate.fenced(FIRST)
        restore = immediate.world.back_up()
        target = immediate.fenced(SECOND, 2)
        restore()
        with pytest.raises((Damaged, Fenced)) as refused:
            target.write(LEFT_PARTITION, 1, rows(1))
        assert isinstance(refused.value, Damaged) and immediate.world.numbers() == []


class TestImmediateTableOfAnotherSink:
    @pytest.fixture(params=["sqlite", "other", "postgres"])
    def immediate(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ImmediateWorld]:
        world = in_table(place_of(request.param, tmp_path, request), ("n",), "idempotent")
        world.sink.immediate.prepare(SCHEMA, None)
        made = ImmediateWorld(world)
        yield made
        made.close()

    def test_its_fence_is_refused(self, immediate: ImmediateWorld) -> None:
        first = immediate.fenced(FIRST)
        with pytest.raises(Fenced, match=f"belongs to sink 'out' of another job, {JOB}"):
            immediate.fenced(OTHER, job=THEIRS)
        first.write(LEFT_PARTITION, 1, rows(1))
        assert immediate.world.numbers() == [1]

    def test_a_table_that_is_moved_takes_no_more_writes(self, immediate: ImmediateWorld) -> None:
        first = immediate.fenced(FIRST)
        first.write(LEFT_PARTITION, 1, rows(1))
        immediate.fenced(replace(OTHER, adopted=("first",)), job=THEIRS)
        with pytest.raises(Fenced, match=f"belongs to sink 'out' of another job, {THEIRS}"):
            first.write(LEFT_PARTITION, 2, rows(2))
        with pytest.raises(Fenced, match=f"belongs to sink 'out' of another job, {THEIRS}"):
            first.forget({LEFT_PARTITION: 1})
        assert immediate.world.numbers() == [1]
