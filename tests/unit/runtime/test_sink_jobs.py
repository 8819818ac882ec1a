"""Complete jobs in one thread that deliver to real targets: crashes, other writers, a server that is away, rewinds.

Source: PROTOCOL P1, P17, P21.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delta_tables import FolderTable
from http_receiver import HttpReceiver
from iceberg_tables import FolderCatalog
from kafka_server import KafkaServer
from played_jobs import Said, WordsJob, totals_of
from postgres_server import PostgresServer
from redis_server import RedisServer

import holdfast as hf
from holdfast.runtime.config.settings import CONTINUOUS, MODES
from holdfast.runtime.driver.repair import unrepairable
from holdfast.sinks.kafka.progress import progress_topic

Rows = list[tuple[Any, ...]]


@dataclass
class Target:
    """Where a job writes, as a user sees it.

    Args:
        rows: The sink of all rows; `totals` gets those that replace others.
        shown: Returns the rows of both targets, sorted.
        away: The server is away in its block.
        check: What else must be so of a finished job.
        repairs: Whether a rewind takes rows back.
        keyed: Whether rows that come again replace those that are there.
    """

    rows: Any
    totals: Any
    shown: Callable[[], tuple[Rows, Rows]]
    away: Callable[[], Any] = nullcontext
    check: Callable[[], None] = lambda: None
    repairs: bool = False
    keyed: bool = False


@contextmanager
def killed(server: Any) -> Iterator[None]:
    """End a server as a crash does, and start it again."""
    server.kill()
    try:
        yield
    finally:
        server.start()


def on_lake(made: Callable[..., Any], folder: Path) -> Target:
    rows, totals = made(folder / "rows", partition_by=["word"]), made(folder / "totals", ("word",))

    def check() -> None:
        epochs = [(each["timeline"], each["epoch"]) for each in rows.said()]
        assert len(set(epochs)) == len(epochs) > 0, "an epoch is one commit for all writers"

    shown = lambda: (sorted(rows.rows()), sorted(totals.rows()))
    return Target(rows.sink, totals.sink, shown, check=check, repairs=True)


def on_redis(server: RedisServer) -> Target:
    rows, totals = server.keys(("n",)), server.keys(("word",))
    shown = lambda: (sorted(rows.rows()), sorted(totals.rows()))
    return Target(rows.sink, totals.sink, shown, lambda: killed(server), keyed=True)


def on_postgres(server: PostgresServer) -> Target:
    place = server.place()
    tables = ("SELECT n, word FROM copy ORDER BY n", "SELECT word, totals.rows, total FROM totals ORDER BY word")
    shown = lambda: (place.ask(tables[0]), place.ask(tables[1]))
    return Target(
        place.sink("copy", None), place.sink("totals", ("word",)), shown, lambda: killed(server), repairs=True
    )


def on_kafka(kafka: KafkaServer) -> Target:
    copy, totals = kafka.topic(2), kafka.topic(2, cleanup_policy="compact")

    def shown() -> tuple[Rows, Rows]:
        copied = (json.loads(each.value()) for each in kafka.records(copy))
        newest = {each.key(): json.loads(each.value()) for each in kafka.records(totals)}
        assert all(row["word"].encode() == key for key, row in newest.items())
        return sorted((row["n"], row["word"]) for row in copied), sorted(tuple(row.values()) for row in newest.values())

    def check() -> None:
        keys = (json.loads(each.key()) for each in kafka.records(progress_topic(copy)))
        assert {key[3] for key in keys if key[0] == "tag"} == {0}, "one committer delivers for all writers"

    sinks = hf.Kafka(kafka.servers, copy, hf.JSON(Said)), hf.Kafka(kafka.servers, totals, key=["word"])
    return Target(*sinks, shown, lambda: killed(kafka), check)


def on_http(receiver: HttpReceiver, folder: Path) -> Target:
    sink = hf.Http(receiver.url, progress=folder / "progress", batch_rows=7)
    shown = lambda: (sorted((row["n"], row["word"]) for row in receiver.rows()), Rows())
    return Target(sink, None, shown, receiver.away)


def target_of(request: pytest.FixtureRequest, folder: Path) -> Target:
    match request.param:
        case "delta" | "iceberg":
            return on_lake(FolderTable if request.param == "delta" else FolderCatalog, folder)
        case "redis":
            return on_redis(request.getfixturevalue("redis"))
        case "postgres":
            return on_postgres(request.getfixturevalue("postgres"))
        case "kafka":
            return on_kafka(request.getfixturevalue("kafka"))
    return on_http(request.getfixturevalue("receiver"), folder)


LAKE, SERVED = ("delta", "iceberg"), ("postgres", "http", pytest.param("redis", marks=pytest.mark.redis))
KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


@pytest.fixture(params=[*LAKE, *SERVED, KAFKA])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return target_of(request, tmp_path)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


class Job(WordsJob):
    """A job that writes to one of the targets."""

    def __init__(self, folder: Path, target: Target, mode: str = CONTINUOUS) -> None:
        self.target = target
        super().__init__(folder, mode, target.rows, target.totals)

    def shows(self, count: int | None = None) -> bool:
        """Return whether the targets hold exactly the results of so many rows; None: of all."""
        said = self.said[:count]
        return self.target.shown() == (said, totals_of(said) if self.target.totals is not None else [])


class TestResults:
    def test_are_exact_though_workers_crash_and_writers_change(self, tmp_path: Path, target: Target, mode: str) -> None:
        job = Job(tmp_path, target, mode)
        job.disturb()
        assert job.shows()
        target.check()


class TestServerThatIsAway:
    @pytest.fixture(params=[*SERVED, pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
    def target(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
        if request.param == "kafka":
            monkeypatch.setattr("holdfast.sinks.kafka.client.WAIT_S", 1.0)
        return target_of(request, tmp_path)

    def test_is_waited_for_and_nothing_is_lost_or_repeated(
        self, tmp_path: Path, target: Target, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = Job(tmp_path, target, mode)
        job.deliver(20)
        assert job.shows()
        with target.away():
            job.waits_through(lambda: job.say(20))
        monkeypatch.undo()
        assert job.shows(20)
        job.say(5)
        job.finish()
        assert job.shows()


class TestRewind:
    def test_ends_with_exact_results_or_has_to_be_accepted(self, tmp_path: Path, target: Target) -> None:
        """A sink without repairs keeps its rows: what is processed again is added, or replaces them by key."""
        job = Job(tmp_path, target)
        job.deliver(6)
        base = job.base()
        job.deliver(6)
        assert job.shows()
        sinks = () if target.repairs else tuple(spec.name for spec in job.plan.sinks)
        assert unrepairable(job.plan.sinks) == sinks
        job.rewind(base, *(f"{name}:impossible" for name in sinks))
        job.finish()
        rows, totals = target.shown()
        again = [] if target.repairs or target.keyed else job.said[6:]
        assert Counter(rows) == Counter(job.said) + Counter(again)
        assert totals == (totals_of(job.said) if target.totals is not None else [])
