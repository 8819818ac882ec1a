"""Our own connectors keep the promises that the public kits test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from delta_tables import FolderTable
from http_receiver import HttpReceiver
from iceberg_tables import FolderCatalog
from kafka_server import KafkaServer
from kafka_topics import KafkaTopic
from redis_server import RedisServer
from sinks_around import TargetAround
from sql_places import SqlPlace, delivery_of, place_of

import holdfast as hf
from holdfast.model import Tag
from holdfast.runtime.testing.tested_sink import KEY, SCHEMA, Row
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import Fault, Outcome, Target
from holdfast.sinks.log.sink import LogTarget
from holdfast.sinks.memory.sink import MemorySink
from holdfast.sinks.sql.target import SqlTarget
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.table import read_table
from holdfast.storage.objects import LocalObjects
from holdfast.testing import SinkKit, SourceKit, sink_conformance, source_conformance

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def log_kit(folder: Path) -> SourceKit:
    create_log(LocalObjects(folder), NUMBERS, partitions=2)

    def append() -> None:
        tables = {partition: pa.table({"n": [1, 2, 3]}, NUMBERS) for partition in (0, 1)}
        LogWriter(LocalObjects(folder)).append(tables)

    def add_partition() -> None:
        writer = LogWriter(LocalObjects(folder))
        writer.widen(3)
        writer.append({2: pa.table({"n": [7, 8]}, NUMBERS)})

    append()
    append()
    return SourceKit(lambda: hf.Log(folder, NUMBERS).source(), append, add_partition)


def topic_kit(kafka: KafkaServer) -> SourceKit:
    topic = kafka.topic(2)

    def append() -> None:
        for partition in (0, 1):
            kafka.produce(topic, [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'], partition)

    def add_partition() -> None:
        kafka.widen(topic, 3)
        kafka.produce(topic, [b'{"n": 7}', b'{"n": 8}'], 2)

    append()
    with kafka.transaction(commit=False) as producer:
        producer.produce(topic, b'{"n": 0}', partition=1)
    append()
    return SourceKit(lambda: hf.Kafka(kafka.servers, topic, hf.JSON(NUMBERS)).source(), append, add_partition)


def topics_kit(kafka: KafkaServer, folder: Path) -> SourceKit:
    """Return a kit of topics by a pattern that a job has listed; the one that is added sorts before the others."""
    family = f"family-{folder.name}-{kafka.topic()}"
    topics = [kafka.topic(1, f"{family}.{each}") for each in ("d", "e")]

    def append() -> None:
        for topic in topics:
            kafka.produce(topic, [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'])

    def add_partition() -> None:
        kafka.produce(kafka.topic(1, f"{family}.a"), [b'{"n": 7}', b'{"n": 8}'])

    append()
    append()
    pattern = re.compile(re.escape(family) + "[.].*")
    source = hf.Kafka(kafka.servers, pattern, hf.JSON(NUMBERS)).source()
    listed = source.in_folder(str(folder / "job")).copied(again=True)
    return SourceKit(lambda: listed, append, add_partition)


def files_kit(form: Any, encode: Callable[[list[int]], bytes]) -> Callable[[Path], SourceKit]:
    """Return a kit of files that a job has listed; every append is a file of three numbers."""

    def kit(folder: Path) -> SourceKit:
        inbox = folder / "inbox"
        inbox.mkdir(parents=True)

        def append() -> None:
            count = len(list(inbox.iterdir()))
            (inbox / f"part-{count}").write_bytes(encode([count, count + 1, count + 2]))

        append()
        append()
        append()
        source = hf.Files(inbox, NUMBERS, form, partitions=2).source().in_folder(str(folder / "job"))
        listed = source.copied(again=True)
        return SourceKit(lambda: listed, append)

    return kit


def in_parquet(numbers: list[int]) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"more": numbers, "n": numbers}), written, row_group_size=2)
    return bytes(written.getvalue())


SOURCES: dict[str, Callable[[Path], SourceKit]] = {
    "parquet": files_kit("parquet", in_parquet),
    "jsonl": files_kit("jsonl", lambda numbers: "".join(f'{{"n": {n}}}\n' for n in numbers).encode()),
    "csv": files_kit("csv", lambda numbers: ("more,n\n" + "\n".join(f"x,{n}" for n in numbers)).encode()),
    "log": log_kit,
    "generator": lambda _: SourceKit(lambda: hf.Generator(NUMBERS, lambda i: (i,), count=9, partitions=2)),
    "vectorised": lambda _: SourceKit(lambda: hf.Generator(NUMBERS, lambda i: {"n": i}, count=9, vectorised=True)),
}


OF_KAFKA = [pytest.param(kind, marks=pytest.mark.kafka) for kind in ("kafka", "kafka topics")]


@pytest.fixture(params=[*SOURCES, *OF_KAFKA])
def source_kit(request: pytest.FixtureRequest, tmp_path: Path) -> SourceKit:
    if request.param == "kafka":
        return topic_kit(request.getfixturevalue("kafka"))
    if request.param == "kafka topics":
        return topics_kit(request.getfixturevalue("kafka"), tmp_path)
    return SOURCES[request.param](tmp_path / "log")


@source_conformance
def test_sources(promise: Callable[[SourceKit], None], source_kit: SourceKit) -> None:
    promise(source_kit)


def in_memory(keyed: bool) -> SinkKit:
    sink = MemorySink(KEY if keyed else None, commits_once=True)

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        sink.fault = fault
        return _Reset(sink, sink.open("6f9b0f6e-0000-4000-8000-000000000001", writer))

    return SinkKit(lambda: sink, lambda: [tuple(row.values()) for row in sink.rows()], opened, travels=False)


class _Reset(TargetAround):
    """A target whose faults end with it."""

    def __init__(self, sink: MemorySink, target: Target) -> None:
        super().__init__(target)
        self._sink = sink

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        return self.inner.deliver(tag, batches, known)

    def close(self) -> None:
        self._sink.fault = lambda _: None
        super().close()


def in_table(place: SqlPlace, key: tuple[str, ...] | None, delivery: str) -> SinkKit:
    sink = place.sink("totals", key, delivery)

    def rows() -> list[Row]:
        return place.ask('SELECT totals."user", name FROM totals')

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        return SqlTarget(sink, "6f9b0f6e-0000-4000-8000-000000000001", writer, fault)

    return SinkKit(lambda: sink, rows, opened)


class FaultyObjects(LocalObjects):
    """A folder that calls `fault` as the append of a log passes the points of a delivery."""

    def __init__(self, root: Path, fault: Fault) -> None:
        super().__init__(root)
        self._fault = fault

    def put(self, path: str, data: bytes) -> None:
        self._fault("before_begin")
        super().put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._fault("after_tag")  # Rows and tag are one object, so there is one point for both.
        self._fault("before_commit")
        super().create(path, data)
        self._fault("after_commit")


def in_log(folder: Path, key: tuple[str, ...] | None = None) -> SinkKit:
    sink = hf.Log(folder, key=key).sink()

    def rows() -> list[Row]:
        if key is not None:
            return [tuple(row.values()) for each in read_table(LocalObjects(folder)) for row in each.rows.to_pylist()]
        reader, found = LogReader(LocalObjects(folder)), list[Row]()
        for partition, end in reader.end_offsets().items():
            offset = 0
            while offset < end:
                batch, following = reader.read(partition, offset, 1 << 20)
                if batch is None:
                    break
                found += [tuple(row.values()) for row in batch.to_pylist()]
                offset = following
        return found

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        store = FaultyObjects(folder, fault)
        return LogTarget(sink.where, lambda: store, "6f9b0f6e-0000-4000-8000-000000000001", writer)

    return SinkKit(lambda: sink, rows, opened)


def in_files(folder: Path, **how: Any) -> SinkKit:
    sink = hf.Files(folder, **how).sink()

    def rows() -> list[Row]:
        found = ds.dataset(folder, SCHEMA, format="parquet", partitioning="hive").to_table()
        return [tuple(row.values()) for row in found.to_pylist()]

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        return sink.opened("6f9b0f6e-0000-4000-8000-000000000001", writer, fault=fault)

    return SinkKit(lambda: sink, rows, opened)


def in_kafka(server: KafkaServer, key: tuple[str, ...] | None) -> SinkKit:
    topic = KafkaTopic(server, key)

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        return topic.sink.opened("6f9b0f6e-0000-4000-8000-000000000001", writer, fault=topic.watched(fault))

    return SinkKit(lambda: topic.sink, topic.rows, opened)


def in_redis(server: RedisServer) -> SinkKit:
    keys = server.keys(KEY)

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        target: Target = keys.sink.opened("6f9b0f6e-0000-4000-8000-000000000001", writer, fault=fault)
        return target

    return SinkKit(lambda: keys.sink, keys.rows, opened)


def in_http(receiver: HttpReceiver, folder: Path) -> SinkKit:
    sink = hf.Http(receiver.url, progress=folder / "progress")

    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        return sink.opened("6f9b0f6e-0000-4000-8000-000000000001", writer, fault=fault)

    return SinkKit(lambda: sink, lambda: [tuple(row.values()) for row in receiver.rows()], opened)


def in_tables(table: FolderTable | FolderCatalog) -> SinkKit:
    def opened(given: Sink, writer: Any, fault: Fault) -> Target:
        target: Target = table.sink.opened("6f9b0f6e-0000-4000-8000-000000000001", writer, fault=fault)
        return target

    return SinkKit(lambda: table.sink, table.rows, opened)


SINKS: dict[str, Callable[[Path], SinkKit]] = {
    "memory": lambda _: in_memory(False),
    "memory, key": lambda _: in_memory(True),
    "log": lambda folder: in_log(folder / "log"),
    "changelog": lambda folder: in_log(folder / "log", KEY),
    "files": lambda folder: in_files(folder / "files"),
    "partitioned files": lambda folder: in_files(folder / "files", partition_by="name"),
    "delta": lambda folder: in_tables(FolderTable(folder)),
    "delta key": lambda folder: in_tables(FolderTable(folder, KEY)),
    "iceberg": lambda folder: in_tables(FolderCatalog(folder)),
    "iceberg key": lambda folder: in_tables(FolderCatalog(folder, KEY)),
}


TABLES = [f"{database}{how}" for database in ("sqlite", "other", "postgres") for how in ("", " key", " idempotent")]


# The contract of sinks beside this file tests most of it with one broker in a fraction of the time.
KAFKA = [pytest.param(kind, marks=[pytest.mark.kafka, pytest.mark.slow]) for kind in ("kafka", "kafka key")]


@pytest.fixture(params=[*SINKS, *TABLES, "http", pytest.param("redis", marks=pytest.mark.redis), *KAFKA])
def sink_kit(request: pytest.FixtureRequest, tmp_path: Path) -> SinkKit:
    if request.param in SINKS:
        return SINKS[request.param](tmp_path)
    if request.param == "http":
        return in_http(request.getfixturevalue("receiver"), tmp_path)
    if request.param == "redis":
        return in_redis(request.getfixturevalue("redis"))
    key = KEY if " " in request.param else None
    if request.param.startswith("kafka"):
        return in_kafka(request.getfixturevalue("kafka"), key)
    return in_table(place_of(request.param, tmp_path, request), key, delivery_of(request.param))


@sink_conformance
def test_sinks(promise: Callable[[SinkKit], None], sink_kit: SinkKit) -> None:
    promise(sink_kit)
