"""`holdfast txn list|abort JOB.py` with a real broker: what a killed job and another producer left open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kafka_server import KafkaServer
from patience import wait

import holdfast as hf
from holdfast.errors import Fenced
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.runtime.inspect.stored import open_job
from holdfast.sinks.contract.target import Delivered
from holdfast.sinks.kafka.progress import progress_topic
from holdfast.sinks.kafka.sink import transactional_id

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]

pytestmark = pytest.mark.kafka
JOB = """
import pyarrow as pa, holdfast as hf

app = hf.App("hot")
rows = app.source("rows", hf.Log({log!r}, pa.schema([pa.field("n", pa.int64())])))
rows.sink("out", hf.Kafka({servers!r}, {topic!r}))
rows.sink("table", hf.SQLite({db!r}, table="t"))
"""
ROWS = pa.record_batch({"n": pa.array([1, 2], pa.int64())})


@dataclass
class Job:
    """A job that has started once, and its topic, to which one epoch was delivered."""

    kafka: KafkaServer
    file: str
    topic: str
    history: History
    uuid: str
    held: ExitStack

    def deliver(self, epoch: int) -> object:
        """Deliver an epoch as the job does."""
        target = self.sink.open(self.uuid, Writer("out", Subtask(0)))
        try:
            return target.deliver(Tag(Timeline(1), Epoch(epoch)), [ROWS])
        finally:
            target.close()

    @property
    def sink(self) -> Any:
        return hf.Kafka(self.kafka.servers, self.topic).sink()

    @property
    def id(self) -> str:
        return transactional_id(self.uuid, "out")

    def leave_open(self, name: str, *topics: str) -> None:
        """Write a record to each topic, in a transaction that nothing ends before the test does."""
        from confluent_kafka import Producer

        settings = {"transactional.id": name, "transaction.timeout.ms": 3_000_000}
        producer = Producer({**self.kafka.quiet(), **settings})
        producer.init_transactions(30)
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"{}", key=b"k", partition=0)
        assert producer.flush(30) == 0
        self.held.callback(producer.purge)

    def seen(self) -> int:
        """Return how many records of the topic readers see."""
        return len(self.kafka.records(self.topic))


@pytest.fixture
def job(kafka: KafkaServer, history: Callable[[str], History], root: Path, tmp_path: Path) -> Iterator[Job]:
    topic, file = kafka.topic(), tmp_path / "hot.py"
    places = {"log": str(tmp_path / "rows"), "db": str(tmp_path / "out.db")}
    file.write_text(JOB.format(servers=kafka.servers, topic=topic, **places))
    begun = history("hot")
    with ExitStack() as held:
        job = Job(kafka, str(file), topic, begun, open_job(str(root), "hot").job.uuid, held)
        job.sink.prepare(ROWS.schema, None)
        job.deliver(1)
        wait(lambda: job.seen() == ROWS.num_rows, "the first epoch: markers follow a commit")
        yield job


class TestList:
    def test_shows_no_rows_where_nothing_is_open(self, job: Job, holdfast: Holdfast) -> None:
        ended = holdfast("txn", "list", job.file)
        assert (ended.status, ended.out) == (0, "no open transaction hides records in the topics that hot writes\n")
        assert holdfast("txn", "list", job.file, "--json").json == {
            "job": "hot",
            "running": False,
            "transactions": [{"sink": "out", "transactional_id": job.id, "hidden": []}],
        }

    def test_shows_from_where_records_are_hidden_and_that_the_owner_is_unknown(
        self, job: Job, holdfast: Holdfast
    ) -> None:
        progress = progress_topic(job.topic)
        wait(lambda: job.kafka.ends(progress) == job.kafka.ends(progress, "read_uncommitted"), "the first tag")
        seen, marks = job.kafka.ends(job.topic)[0], job.kafka.ends(progress)[0]
        job.leave_open(job.id, job.topic, progress)
        job.kafka.produce(job.topic, [b"another"])
        (found,) = holdfast("txn", "list", job.file, "--json").json["transactions"]
        assert found["hidden"] == [
            {"topic": job.topic, "partition": 0, "first": seen, "end": seen + 2, "records": 2, "owner": None},
            {"topic": progress, "partition": 0, "first": marks, "end": marks + 1, "records": 1, "owner": None},
        ]
        ended = holdfast("txn", "list", job.file)
        assert ended.status == 0 and job.id in ended.out and progress in ended.out
        assert "cannot ask brokers whose" in ended.err and "holdfast txn abort" in ended.err

    def test_needs_the_file_of_the_job_and_a_sink_with_transactions(self, job: Job, holdfast: Holdfast) -> None:
        ended = holdfast("txn", "list", "hot")
        assert ended.status == 2 and "holdfast txn list JOB.py" in ended.err
        ended = holdfast("txn", "list", job.file, "--sink", "table")
        assert ended.status == 2 and "no sink 'table' with transactions" in ended.err and "use one of out" in ended.err


class TestAbort:
    def test_changes_nothing_without_apply(self, job: Job, holdfast: Holdfast) -> None:
        assert holdfast("txn", "abort", job.file).status == 0
        seen = job.seen()
        job.leave_open(job.id, job.topic)
        job.kafka.produce(job.topic, [b"another"])
        ended = holdfast("txn", "abort", job.file)
        assert (
            ended.status == 3
            and f"Nothing changed. To abort the job's open transactions: holdfast txn abort {job.file}" in (ended.err)
        )
        assert job.seen() == seen

    def test_ends_what_the_job_left_open_and_loses_no_output(self, job: Job, holdfast: Holdfast) -> None:
        seen = job.seen()
        job.leave_open(job.id, job.topic, progress_topic(job.topic))
        job.kafka.produce(job.topic, [b"another"])
        assert job.seen() == seen
        ended = holdfast("txn", "abort", job.file, "--apply")
        assert ended.status == 0 and f"{job.id}: the open transactions of the job are aborted" in ended.err
        assert "still hidden" not in ended.err
        assert job.seen() == seen + 1
        assert isinstance(job.deliver(2), Delivered)
        wait(lambda: job.seen() == seen + 1 + ROWS.num_rows, "the next epoch")

    def test_leaves_the_transaction_of_another_producer_and_says_so(
        self, job: Job, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.cli.operate.txn.GONE_WITHIN_S", 0.5)
        job.leave_open("another", job.topic)
        shown = holdfast("txn", "abort", job.file, "--apply", "--json").json
        assert shown["applied"] and [each["sink"] for each in shown["left"]] == ["out"]
        ended = holdfast("txn", "abort", job.file, "--apply")
        assert ended.status == 0 and f"records are still hidden in {job.topic}" in ended.err

    def test_an_abort_for_a_running_job_is_refused(
        self, job: Job, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job.leave_open(job.id, job.topic)

        def renewed(_seconds: float) -> None:
            driver = {"host": "vm", "pid": 7, "at": time.time_ns() // 1_000, "owner": "o"}
            job.history.live(driver=driver)

        renewed(0.0)
        monkeypatch.setattr("holdfast.runtime.execution.checks.second_run.refusal", _waiting(renewed))
        ended = holdfast("txn", "abort", job.file, "--apply", "--json")
        assert ended.status == 6 and "is running on vm" in ended.json["what"]
        assert holdfast("txn", "list", job.file, "--json").json["transactions"][0]["hidden"] != []


def _waiting(renewed: Callable[[float], None]) -> Callable[..., Fenced | None]:
    """Return the check of a start, with a driver that renews its file whenever the check waits."""
    from holdfast.runtime.execution.checks.second_run import refusal

    return lambda store, job, note: refusal(store, job, note, sleep=renewed)
