"""The seam between a prepared job and the ways to carry it out: what all executions share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.model import WorkerId
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.driver.state import Site
from holdfast.runtime.execution.executing import Ports, Publisher, RunOutcome, execute
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.execution.running import DriverRun
from holdfast.runtime.job.live import Status, understood
from holdfast.runtime.job.requests import Inbox
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.wire import messages as m


class Reported:
    """What an execution reports to."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []
        self.notes: list[str] = []

    def update(self, status: Status) -> None:
        """See Ports.update."""
        self.statuses.append(status)

    def note(self, words: str) -> None:
        """See Ports.note."""
        self.notes.append(words)


class ImmediateLane:
    """A lane that does its work immediately; what raises is the result."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """See Lane.submit."""
        try:
            result = work()
        except Unavailable as error:
            result = error
        done(result)


class InThisProcess:
    """An execution with workers in this process, in virtual time: a second way through the seam."""

    def run(self, prepared: Prepared, ports: Ports) -> RunOutcome:
        """See Execution.run."""
        ports.note("running here")
        cluster = Cluster(prepared.plan, 2, 0, prepared.folder.store, 1.0, prepared.inputs.partitions)
        publisher = Publisher("here", "me", prepared, lambda _: ImmediateLane(), Inbox(prepared.folder.store))
        cluster.begin()
        cluster.pass_time(3)
        ports.update(publisher.publish(cluster.driver, 1_000_000))
        cluster.pass_time(10)
        assert cluster.driver.outcome is not None
        kind, error = cluster.driver.outcome
        return RunOutcome(kind, error, publisher.publish(cluster.driver, 2_000_000))


class Refusing:
    """An execution that must not be reached."""

    def run(self, prepared: Prepared, ports: Ports) -> RunOutcome:
        """See Execution.run."""
        raise AssertionError("a finished job was run")


@dataclass
class Word:
    word: int


@pytest.fixture
def app(tmp_path: Path) -> hf.App:
    app = hf.App("words", root=str(tmp_path / "root"), key_groups=8)
    words = app.source("words", hf.Generator(Word, lambda i: Word(i % 10), count=30))
    words.sink("out", hf.Log(tmp_path / "out"))
    return app


def prepared(app: hf.App) -> Prepared:
    return prepare(app.plan(), resolve(app))


class TestAnExecution:
    def test_runs_the_prepared_job_and_reports_to_its_ports(self, app: hf.App) -> None:
        reported, execution = Reported(), InThisProcess()
        job = prepared(app)
        outcome = execute(job, execution, reported)
        assert (outcome.kind, outcome.error, outcome.status.state) == ("finished", None, "finished")
        assert reported.notes == ["running here"]
        assert [each.mode for each in reported.statuses] == ["here"]
        assert understood(job.folder.store.get("live.json")) == outcome.status

    def test_is_not_reached_by_a_job_that_has_finished(self, app: hf.App) -> None:
        execute(prepared(app), InThisProcess(), Reported())
        outcome = execute(prepared(app), Refusing(), Reported())
        assert (outcome.kind, outcome.status.state) == ("already finished", "finished")


class NoWorkers:
    """Hosts workers that never come, so that a stop waits; every turn of the driver's loop sends it a signal."""

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """See Hosting.send."""

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """See Hosting.launch."""

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """See Hosting.dismiss."""

    def cancel(self, launch: int) -> None:
        """See Hosting.cancel."""

    def turn(self) -> None:
        """See Hosting.turn."""
        signal.raise_signal(signal.SIGINT)

    def published(self, status: Status) -> None:
        """See Hosting.published."""

    def close(self, *, hurry: bool) -> None:
        """See Hosting.close."""


class TestARun:
    def test_announces_what_a_second_signal_does_and_then_does_it(self, app: hf.App) -> None:
        reported = Reported()
        run = DriverRun(prepared(app), reported, "here", "localhost", lambda _: NoWorkers(), 30.0)
        with pytest.raises(KeyboardInterrupt, match="the next run reads uncommitted records again, and delivers"):
            run.run()
        (said,) = reported.notes
        assert said.startswith("stopping: a last checkpoint is taken and delivered. A second Ctrl-C or SIGTERM ends")


class Full:
    """A store that takes nothing."""

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore.put."""
        raise Unavailable("the disk is full", next_step="free space on it")


class TestAPublisher:
    def publisher(self, job: Prepared) -> tuple[Publisher, Cluster]:
        cluster = Cluster(job.plan, 2, 0, job.folder.store, 1.0, job.inputs.partitions)
        cluster.begin()
        cluster.pass_time(3)
        return Publisher("here", "me", job, lambda _: ImmediateLane(), Inbox(job.folder.store)), cluster

    def test_reports_a_root_that_refused_the_last_status(self, app: hf.App) -> None:
        job = prepared(app)
        publisher, cluster = self.publisher(job)
        publisher._store = Full()  # type: ignore[assignment]
        assert publisher.publish(cluster.driver, 1_000_000).problems == ()
        assert [each.code for each in publisher.publish(cluster.driver, 2_000_000).problems] == ["root_refused"]

    def test_does_not_write_the_file_of_the_run_that_fenced_this_one(self, app: hf.App) -> None:
        job = prepared(app)
        publisher, cluster = self.publisher(job)
        publisher.publish(cluster.driver, 1_000_000)
        before = job.folder.store.get("live.json")
        cluster.driver.outcome = "fenced", None
        publisher.publish(cluster.driver, 2_000_000)
        assert job.folder.store.get("live.json") == before
