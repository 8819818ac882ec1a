"""Sinks and sources whose server fails: it is away, restarted, gives no answers, or does not let the user in.

The timeouts of clients that are constants of ours are shortened, and so is the absence: it lasts for two attempts, each
of which ends by its timeout or by a refused connection. One slow test keeps every server away for a true minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from failing_servers import (
    JOB,
    PASSWORDS,
    S3_USER,
    Failing,
    FailingKafka,
    FailingPostgres,
    FailingRedis,
    FailingStore,
    FailingTable,
    http,
    sqlite,
)
from harness import wait
from http_receiver import HttpReceiver
from kafka_server import KafkaServer
from postgres_server import GUARDED
from postgres_server import running as running_postgres
from proxied import Proxied, free_address
from redis_server import running as running_redis
from s3_store import S3Store, s3_store

from holdfast.chaos.live.faults.proxy import Toxiproxy
from holdfast.errors import Unavailable
from holdfast.model import Generation, Timeline
from holdfast.runtime.testing import outages
from holdfast.runtime.testing.outages import PASSWORD, SinkPromise, SourcePromise
from holdfast.runtime.testing.sink_kit import KEY, SCHEMA
from holdfast.sinks.contract import OP, PUT
from holdfast.sinks.immediate import Origin, Owner
from holdfast.testing import sink_outages, source_outages

pytestmark = [pytest.mark.thorough, pytest.mark.toxiproxy]
SHORT_S = 2.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what is waited for, and give the process the passwords."""
    for name in ("sinks.kafka.client.WAIT_S", "sinks.kafka.client.READ_WITHIN_S", "sinks.redis.client.ANSWER_WITHIN_S"):
        monkeypatch.setattr(f"holdfast.{name}", SHORT_S)
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toxiproxy]:
    running = Toxiproxy(tmp_path_factory.mktemp("proxies") / "log")
    yield running
    running.close()


@pytest.fixture(scope="module")
def postgres_away(proxies: Toxiproxy) -> Iterator[FailingPostgres]:
    port = int(free_address().split(":")[1])
    with running_postgres(port) as server:
        link = Proxied("postgres", f"127.0.0.1:{port}", proxies)
        link.create()
        failing = FailingPostgres(server, link)
        failing.admin(f"ALTER ROLE {GUARDED} PASSWORD '{PASSWORD}'")
        yield failing


@pytest.fixture(scope="module")
def redis_away(proxies: Toxiproxy) -> Iterator[FailingRedis]:
    with running_redis() as server:
        link = Proxied("redis", f"127.0.0.1:{server.port}", proxies)
        link.create()
        yield FailingRedis(server, link)


@pytest.fixture(scope="module")
def kafka_away(proxies: Toxiproxy, kafka: KafkaServer) -> FailingKafka:
    link = Proxied("kafka", kafka.behind_proxy, proxies, kafka.proxied)
    link.create()
    return FailingKafka(kafka, link)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with s3_store(tmp_path_factory.mktemp("s3")) as running:
        running.account(S3_USER, PASSWORD)
        yield running


@pytest.fixture
def store_away(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> FailingStore:
    for name, value in store.environment(S3_USER, PASSWORD).items():
        monkeypatch.setenv(name, value)
    failing = FailingStore(store)
    failing.permit_all()
    return failing


@pytest.fixture
def http_away(receiver: HttpReceiver, tmp_path: Path) -> Failing:
    return http(receiver, tmp_path)


Given = Callable[[str], Any]
SINKS: dict[str, Callable[[Given, Path], Failing]] = {
    "sqlite": lambda given, folder: sqlite(folder, None),
    "sqlite key": lambda given, folder: sqlite(folder, KEY),
    "sqlite idempotent": lambda given, folder: sqlite(folder, KEY, "idempotent"),
    "postgres": lambda given, _: given("postgres_away").sink(None),
    "postgres key": lambda given, _: given("postgres_away").sink(KEY),
    "postgres idempotent": lambda given, _: given("postgres_away").sink(KEY, "idempotent"),
    "redis": lambda given, _: given("redis_away").sink(),
    "http": lambda given, _: given("http_away"),
    "kafka": lambda given, _: given("kafka_away").sink(None),
    "kafka key": lambda given, _: given("kafka_away").sink(KEY),
    "kafka guarded": lambda given, _: given("kafka_away").guarded_sink(None),
    "log": lambda given, _: given("store_away").log(),
    "changelog": lambda given, _: given("store_away").log(KEY),
    "files": lambda given, _: given("store_away").files(),
    "delta": lambda given, _: given("store_away").delta(),
    "delta key": lambda given, _: given("store_away").delta(KEY),
    "iceberg": lambda given, folder: given("store_away").iceberg(folder),
    "iceberg key": lambda given, folder: given("store_away").iceberg(folder, KEY),
    "catalogue": lambda given, folder: given("postgres_away").iceberg(folder),
}
SOURCES: dict[str, Callable[[Given], Failing]] = {
    "kafka": lambda given: given("kafka_away").source(),
    "kafka guarded": lambda given: given("kafka_away").guarded_source(),
    "log": lambda given: given("store_away").log_source(),
    "files": lambda given: given("store_away").files_source(),
}
ONE_OF_EACH = ("sqlite", "postgres key", "redis", "kafka", "log")
SERVERS = {"kafka": pytest.mark.kafka, "redis": pytest.mark.redis}
STORED = ("log", "changelog", "files", "delta", "iceberg")


def cells(kinds: Iterable[str]) -> list[Any]:
    """Return the kinds with the marks of the servers that they need; broker and store take long to be given up."""
    server = {kind: kind.split()[0] for kind in kinds}
    marks = {**SERVERS, **dict.fromkeys(STORED, pytest.mark.s3)}
    slow = ("kafka", *STORED)
    return [
        pytest.param(kind, marks=[*([marks[of]] if of in marks else []), *([pytest.mark.slow] if of in slow else [])])
        for kind, of in server.items()
    ]


@pytest.fixture(params=cells(SINKS))
def failing_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Failing:
    return SINKS[request.param](request.getfixturevalue, tmp_path)


@pytest.fixture(params=cells(SOURCES))
def failing_source(request: pytest.FixtureRequest) -> Failing:
    return SOURCES[request.param](request.getfixturevalue)


@sink_outages
def test_sinks(promise: SinkPromise, failing_sink: Failing) -> None:
    promise(failing_sink.kit, failing_sink.outages)


@source_outages
def test_sources(promise: SourcePromise, failing_source: Failing) -> None:
    promise(failing_source.kit, failing_source.outages)


HERE = Origin("in", 0)
BREAKS = (("sqlite", "away"), *(("postgres", how) for how in ("away", "restart", "refused", "unanswered")))


class TestImmediate:
    """A table that is written as rows arrive: a write that failed is repeated, with the same offset."""

    @pytest.mark.parametrize(("kind", "how"), BREAKS)
    def test_every_row_is_written_once(
        self, request: pytest.FixtureRequest, tmp_path: Path, kind: str, how: str
    ) -> None:
        failing: FailingTable
        if kind == "postgres":
            failing = request.getfixturevalue("postgres_away").immediate()
        else:
            kept = sqlite(tmp_path, KEY, "idempotent")
            failing = FailingTable(kept.kit.sink(), kept.kit.rows, kept.outages)
        fails = getattr(failing.outages, how)
        sink = failing.table.immediate()
        sink.prepare(SCHEMA, KEY)
        with closing(sink.open_immediate(Owner(JOB, "out", Generation(1), Timeline(1), "p"))) as target:
            target.fence({HERE: 0})
            target.write(HERE, 1, [put(1, "ann")])
            if how == "restart":
                fails()
            else:
                with fails():
                    for _ in range(2):
                        with pytest.raises(Unavailable):
                            target.write(HERE, 2, [put(2, "bea")])
            wait(lambda: written(target), "the write that is repeated", 60)
            target.write(HERE, 3, [put(3, "cat")])
        assert sorted(failing.rows()) == [(1, "ann"), (2, "bea"), (3, "cat")]


def put(user: int, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"user": user, "name": name, OP: PUT}], SCHEMA.append(pa.field(OP, pa.int8())))


def written(target: Any) -> bool:
    try:
        target.write(HERE, 2, [put(2, "bea")])
    except Unavailable:
        return False
    return True


class TestMinute:
    """The true timeouts, and an absence that is longer than each of them."""

    @pytest.fixture
    def short(self) -> None:
        """Nothing is shortened."""

    @pytest.mark.slow
    @pytest.mark.kafka
    @pytest.mark.redis
    @pytest.mark.s3
    def test_every_sink_waits_for_a_minute(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name, value in PASSWORDS.items():
            monkeypatch.setenv(name, value)
        found = {kind: SINKS[kind](request.getfixturevalue, tmp_path) for kind in ONE_OF_EACH}
        with ThreadPoolExecutor(len(found)) as threads:
            done = [
                threads.submit(outages.waits_while_its_server_is_away, each.kit, replace(each.outages, lasts_s=60.0))
                for each in found.values()
            ]
            for each in done:
                each.result()
