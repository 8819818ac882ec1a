"""The contract of targets that are written at least once, run against each of them.

A crash abandons a target: after it, another one writes again what came after the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pytest
from kafka_server import KafkaServer
from kafka_topics import KafkaTopic
from kafka_ways import BY_BATCH, ONE_BY_ONE, take

from holdfast.model import Generation, Timeline
from holdfast.sinks.contract.immediate import ANYWHERE, ImmediateTarget, Owner
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.kafka.repeating_sink import RepeatingKafka
from holdfast.sinks.memory.repeating import RepeatingTable

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)
Rows = list[tuple[int, str]]


def owner(generation: int = 1) -> Owner:
    return Owner(JOB, "out", Generation(generation), Timeline(1), "any")


def rows(*given: tuple[int, str]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([{"user": user, "name": name}], schema=SCHEMA) for user, name in given]


def changes(*given: tuple[int, str | None]) -> list[pa.RecordBatch]:
    users, names = zip(*given, strict=True)
    ops = pa.array([DELETE if name is None else PUT for name in names], pa.int8())
    whole = pa.record_batch([pa.array(users, pa.int64()), pa.array(names, pa.string())], schema=SCHEMA)
    return [whole.append_column(OP, ops)]


class World(Protocol):
    sink: ImmediateSink

    def rows(self) -> Rows: ...


class MemoryWorld:
    def __init__(self, key: tuple[str, ...] | None) -> None:
        self.table = RepeatingTable(key)
        self.sink: ImmediateSink = self.table

    def rows(self) -> Rows:
        return [(row["user"], row["name"]) for row in self.table.rows()]


class KafkaWorld:
    def __init__(self, server: KafkaServer, key: tuple[str, ...] | None) -> None:
        self.topic = KafkaTopic(server, key, partitions=1)
        self.sink: ImmediateSink = RepeatingKafka(self.topic.sink)

    def rows(self) -> Rows:
        return self.topic.records_alone()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka one by one", marks=pytest.mark.kafka),
    ]
)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "memory":
        take(BY_BATCH if request.param == "kafka" else ONE_BY_ONE, monkeypatch)
    return str(request.param)


def world_of(kind: str, request: pytest.FixtureRequest, key: tuple[str, ...] | None) -> World:
    made = MemoryWorld(key) if kind == "memory" else KafkaWorld(request.getfixturevalue("kafka"), key)
    made.sink.prepare(SCHEMA, key)
    return made


@pytest.fixture
def appended(kind: str, request: pytest.FixtureRequest) -> World:
    """A target that keeps every row."""
    return world_of(kind, request, None)


@pytest.fixture
def keyed(kind: str, request: pytest.FixtureRequest) -> World:
    """A target in which the last row of a key counts."""
    return world_of(kind, request, KEY)


@pytest.fixture
def opened() -> Iterator[list[ImmediateTarget]]:
    targets: list[ImmediateTarget] = []
    yield targets
    for target in targets:
        target.close()


class TestRows:
    def test_every_row_is_visible_when_its_write_returns(self, appended: World, opened: list[ImmediateTarget]) -> None:
        opened.append(target := appended.sink.open_immediate(owner()))
        target.fence({})
        for n in range(3):
            assert target.write(ANYWHERE, 0, rows((n, "a"), (n, "b"))) == 0
            assert len(appended.rows()) == 2 * (n + 1)

    def test_rows_are_in_the_order_of_the_stream(self, appended: World, opened: list[ImmediateTarget]) -> None:
        opened.append(target := appended.sink.open_immediate(owner()))
        given = [(n % 3, str(n)) for n in range(60)]
        for at in range(0, 60, 7):
            target.write(ANYWHERE, 0, rows(*given[at : at + 7]))
        assert appended.rows() == given

    def test_a_delete_removes_a_key_and_a_later_put_restores_it(
        self, keyed: World, opened: list[ImmediateTarget]
    ) -> None:
        opened.append(target := keyed.sink.open_immediate(owner()))
        target.write(ANYWHERE, 0, changes((1, "ann"), (2, "bea"), (1, None)))
        assert keyed.rows() == [(2, "bea")]
        target.write(ANYWHERE, 0, changes((1, "anna"), (2, None)))
        assert keyed.rows() == [(1, "anna")]


class TestCrash:
    def test_rows_that_are_written_again_lose_none_and_end_with_the_last(
        self, keyed: World, opened: list[ImmediateTarget]
    ) -> None:
        given = [(n % 3, str(n)) for n in range(30)]
        opened.append(first := keyed.sink.open_immediate(owner(1)))
        first.write(ANYWHERE, 0, rows(*given[:20]))
        opened.append(second := keyed.sink.open_immediate(owner(2)))
        second.fence({})
        second.write(ANYWHERE, 0, rows(*given[10:]))
        assert sorted(keyed.rows()) == sorted(given[-3:])

    def test_rows_come_a_second_time(self, appended: World, opened: list[ImmediateTarget]) -> None:
        """What is not promised: a target without tags takes a row as often as it is written."""
        for generation in (1, 2):
            opened.append(target := appended.sink.open_immediate(owner(generation)))
            target.write(ANYWHERE, 0, rows((1, "ann")))
        assert appended.rows() == [(1, "ann"), (1, "ann")]


class TestSeam:
    def test_its_traits_say_that_it_repeats(self, appended: World) -> None:
        sink = appended.sink
        assert sink.immediate is not None and sink.traits.repeats and sink.repairs is None

    def test_it_knows_of_no_partition_and_has_nothing_to_forget(
        self, appended: World, opened: list[ImmediateTarget]
    ) -> None:
        opened.append(target := appended.sink.open_immediate(owner()))
        target.write(ANYWHERE, 0, rows((1, "ann")))
        assert appended.sink.written(JOB, "out") == () and not target.forget({})
