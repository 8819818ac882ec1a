"""Sinks and sources whose server fails: it is away, restarted, gives no answers, or does not let the user in.

The timeouts of clients that are constants of ours are shortened, and so is the absence: it lasts for two attempts, each
of which ends by its timeout or by a refused connection. One slow test keeps every server away for a true minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
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
    silent,
    sqlite,
    unanswered,
    unreachable,
    users_in,
)
from http_receiver import HttpReceiver
from kafka_server import KafkaServer
from patience import wait
from postgres_server import GUARDED
from postgres_server import running as running_postgres
from proxied import Proxied, free_address
from redis_server import running as running_redis
from s3_store import S3Store, s3_store

from holdfast.chaos.live.faults.proxy import Toxiproxy
from holdfast.errors import Unavailable
from holdfast.model import Generation, Tag, Timeline
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.runtime.job.status import of_run
from holdfast.runtime.testing import outages
from holdfast.runtime.testing.outages import PASSWORD, SinkPromise, SourcePromise
from holdfast.runtime.testing.tested_sink import KEY, SCHEMA, tag
from holdfast.sinks.contract.immediate import Origin, Owner
from holdfast.sinks.contract.target import OP, PUT
from holdfast.sinks.kafka.changelog.reading import OpenKafkaChangelog
from holdfast.sinks.kafka.changelog.sink import Brokers, KafkaChangelog
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.testing import sink_outages, source_outages
from tests.unit.runtime.test_changelog_topic import Job

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
    "kafka changelog": lambda given, _: given("kafka_away").changelog(),
    "kafka changelog guarded": lambda given, _: given("kafka_away").guarded_changelog(),
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
        sink = failing.table.immediate
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
            wait(lambda: written(target), "the write that is repeated")
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


Fault = Callable[[Proxied], AbstractContextManager[None]]
IN_EVERY_WAY = pytest.mark.parametrize("how", [unreachable, unanswered, silent], ids=lambda how: how.__name__)


@pytest.mark.kafka
class TestRestores:
    """State that is read from a changelog in Kafka."""

    @pytest.fixture(autouse=True)
    def short_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.sinks.kafka.changelog.brokers.STANDS_FOR_S", SHORT_S)

    @IN_EVERY_WAY
    def test_wait_for_the_brokers_with_a_message_that_says_so(self, kafka_away: FailingKafka, how: Fault) -> None:
        _, changelog = delivered(kafka_away, 3)
        with how(kafka_away.link):
            for _ in range(2):
                with pytest.raises(Unavailable) as caught:
                    users_in(changelog)
                assert changelog.kafka.where in caught.value.what and caught.value.not_done == "no state was restored"
                assert caught.value.next_step.startswith("no action needed: a job that restores its state tries again")
        assert wait(lambda: restored(changelog), "a restore") == dict.fromkeys(range(3), "x")

    @IN_EVERY_WAY
    def test_a_restore_cut_off_in_the_middle_returns_no_state(self, kafka_away: FailingKafka, how: Fault) -> None:
        _, changelog = delivered(kafka_away, 60_000, "x" * 200)
        seen = list[tuple[int, int]]()
        with ExitStack() as fault:

            def advanced(done: int, all_bytes: int) -> None:
                if done and not seen:
                    fault.enter_context(how(kafka_away.link))
                if done:
                    seen.append((done, all_bytes))

            def cut_off() -> Unavailable | None:
                """A busy broker may not answer in time even before the fault."""
                with pytest.raises(Unavailable) as caught:
                    users_in(changelog, advanced)
                return caught.value if seen else None

            kafka_away.link.toxic("bandwidth", rate=2_000)
            fault.callback(kafka_away.link.untoxic, "bandwidth")
            error: Unavailable = wait(cut_off, "a read that is cut off")
            assert 0 < seen[-1][0] < seen[-1][1], "the fault came in the middle"
            assert error.not_done == "no state was restored"
        assert wait(lambda: restored(changelog), "a restore") == dict.fromkeys(range(60000), "x" * 200)

    def test_wait_for_a_broker_that_was_killed_with_a_transaction_open(self, kafka_away: FailingKafka) -> None:
        """The delivery is repeated, and the state has each row once."""
        failing, changelog = delivered(kafka_away, 3)
        kit, killed = failing.kit, list[bool]()

        def kill(point: str) -> None:
            if point == "before_commit" and not killed:
                killed.append(True)
                kafka_away.server.kill()

        with closing(kit.open(kit.prepared(), None, kill)) as target:

            def struck() -> bool:
                """A busy broker may not answer in time even before it is killed."""
                with pytest.raises(Unavailable):
                    target.deliver(tag(2), [kit.batch((7, "y"))])
                return bool(killed)

            wait(struck, "the end of the broker")
        with pytest.raises(Unavailable):
            users_in(changelog)
        kafka_away.server.start()
        with kit.target() as target:
            wait(lambda: redelivered(target, tag(2), [kit.batch((7, "y"))]), "the delivery that is repeated")
        assert wait(lambda: restored(changelog), "a restore") == {0: "x", 1: "x", 2: "x", 7: "y"}


@dataclass(frozen=True)
class Patient(KafkaChangelog):
    """Waits until a busy broker answers: what the test itself reads, past the proxy."""

    def open(self, job_uuid: str) -> OpenKafkaChangelog:
        def look() -> OpenKafkaChangelog | None:
            with suppress(Unavailable):
                return super(Patient, self).open(job_uuid)
            return None

        found: OpenKafkaChangelog = wait(look, "an answer past the proxy")
        return found


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_whose_changelog_is_unreachable_waits_and_loses_nothing(kafka_away: FailingKafka, tmp_path: Path) -> None:
    """First while epochs are written, then while the state is restored."""
    name, server = f"{kafka_away.server.topic()}-state", kafka_away.server
    place, past = KafkaPlace(kafka_away.link.address, name), Patient(KafkaPlace(server.servers, name))
    job = Job(tmp_path, CONTINUOUS, kind="kafka", brokers=Brokers(), kafka=place, past=past)
    job.run(60)
    job.settle()
    wait(lambda: settled(job), "the delivery of every change")
    confirmed = job.opened().delivered
    with unreachable(kafka_away.link):
        job.run(30, 30)
        epoch = job.manifest().epoch
        assert job.opened().delivered == confirmed and epoch > max(confirmed.values())
        job.start_again(2)
        epoch = job.manifest().epoch
        job.run(10)
        status = of_run(job.cluster.driver.state, "root", CONTINUOUS, None).as_json()
        assert job.cluster.driver.outcome is None and job.manifest().epoch == epoch
        assert f"{name!r}" in f"{status['restarts']}" and "unreachable" in f"{status['restarts']}"
    job.run(30)
    wait(lambda: settled(job), "the delivery of every change")
    job.start_again(3)
    job.finish()
    job.check()


def settled(job: Job) -> bool:
    """Return whether the topic alone has the state, after some time of the job; the segments that it confirmed go."""
    job.settle()
    return job.forget_segments() == 0


def delivered(kafka: FailingKafka, users: int, value: str = "x") -> tuple[Failing, KafkaChangelog]:
    """Deliver one epoch; return the changelog as it is written, and as it is read, through the proxy."""
    failing = kafka.changelog()
    with failing.kit.target() as target:
        batches = [failing.kit.batch(*((user, value) for user in range(users)))]
        wait(lambda: redelivered(target, tag(1), batches), "the first delivery")
    place = failing.kit.sink().place
    return failing, KafkaChangelog(KafkaPlace(place.servers, place.topic, (("fetch.message.max.bytes", 100_000),)))


def restored(changelog: KafkaChangelog) -> dict[int, str] | None:
    """Return the users, or None while the broker does not answer in time: a busy one may not."""
    try:
        return users_in(changelog)
    except Unavailable:
        return None


def redelivered(target: Any, of: Tag, batches: list[pa.RecordBatch]) -> bool:
    try:
        target.deliver(of, batches)
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
