"""How a real job ends: when it may be stopped, and what its end then proves. No Spark is needed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import WALL_S

from holdfast.chaos.live import ending as live_ending
from holdfast.chaos.live.ending import let_end
from holdfast.chaos.live.faults.scenario import parse
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.journal import JournalWriter
from holdfast.chaos.live.running import _Run
from holdfast.chaos.live.testbed import Testbed
from holdfast.chaos.live.watch import Watch

RAW = {"duration": "60s", "platform": "local[3]", "faults": {"worker-kill": 1}, "wait": {"end": "1s"}}


class Job:
    """A job whose driver is a process that does nothing; its output is written by hand."""

    def __init__(self, folder: Path) -> None:
        self.live = LiveJob(folder / "job.py", folder, (), {}, "token")
        self.folder = folder / "root" / "job"
        (self.folder / "log").mkdir(parents=True)
        self.live.driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
        self.scenario = parse(RAW, "name", toxiproxy=False, checked_elsewhere=True)
        self.testbed = Testbed(self.scenario, folder)
        self.journal = JournalWriter(folder / "journal.jsonl")
        self.running = _Run(self.scenario, (), folder / "job.py", folder, self.journal, print)
        self.running._job, self.running._watch = self.live, Watch(self.live, self.journal)

    def record(self, kind: str) -> None:
        record = {"seq": 1, "generation": 1, "at": 0, "body": {"kind": kind}}
        (self.folder / "log" / f"{1:020}.json").write_text(json.dumps(record))

    def tell(self, lag: int | None, *, sources: tuple[str, ...] = ("bids",), ended: tuple[str, ...] = ()) -> None:
        self.live.progress = {"state": "running", "lag": lag}
        rows: list[dict[str, Any]] = [{"name": name, "partition": 0} for name in sources]
        live = {"sources": rows, "ended": [{"source": name, "partition": 0} for name in ended]}
        (self.folder / "live.json").write_text(json.dumps(live))

    def let_end(self, *, sealed: bool = False, whole: bool = True) -> str | None:
        return let_end(self.live, self.testbed, immediate, 300.0, sealed=sealed, whole=whole)

    def is_asked(self) -> bool:
        """Return whether the driver was asked to end, and ended."""
        assert self.live.driver is not None
        return self.live.asked_to_end and self.live.driver.wait(WALL_S) == -signal.SIGTERM


def immediate(true: Callable[[], bool], limit_s: float) -> bool:
    """Do not wait: a condition that does not hold now counts as not met within the limit."""
    return true()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(live_ending, "END_SEEN_WITHIN_S", -1.0)
    monkeypatch.setattr(live_ending, "SEAL_SEEN_WITHIN_S", -1.0)
    job = Job(tmp_path)
    yield job
    assert job.live.driver is not None
    job.live.driver.kill()
    job.live.driver.communicate()
    job.journal.close()


class TestLetEnd:
    @pytest.mark.parametrize(("lag", "said"), [(572_404, "still 572,404 records behind"), (None, "an unknown number")])
    def test_a_job_that_lags_behind_its_source_is_not_compared_with_all_input(
        self, job: Job, lag: int | None, said: str
    ) -> None:
        job.tell(lag)
        assert said in (job.let_end() or "") and not job.live.asked_to_end

    def test_an_audit_compares_the_records_read_at_any_lag(self, job: Job) -> None:
        job.tell(572_404)
        assert job.let_end(whole=False) is None and job.is_asked()

    def test_a_job_that_has_read_everything_and_still_runs_is_stopped(self, job: Job) -> None:
        job.tell(0)
        assert job.let_end() is None and job.is_asked()

    def test_a_job_whose_sources_have_ended_is_not_stopped(self, job: Job) -> None:
        job.tell(0, ended=("bids",))
        assert job.let_end() is None and not job.live.asked_to_end

    def test_a_job_with_a_sealed_and_an_endless_source_is_stopped(self, job: Job) -> None:
        job.tell(0, sources=("bids", "clicks"), ended=("bids",))
        assert job.let_end(sealed=True, whole=False) is None and job.is_asked()

    def test_a_sealed_log_that_is_not_fully_read_does_not_stop_the_job(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_ending, "SEAL_SEEN_WITHIN_S", 30.0)
        job.tell(7)
        assert job.let_end(sealed=True, whole=False) is None and not job.live.asked_to_end


class TestDone:
    def test_a_driver_that_had_finished_before_the_signal_is_not_restarted(self, job: Job) -> None:
        job.live.terminate()
        assert job.is_asked()
        assert job.running._ended() == -signal.SIGTERM
        job.record("Finished")
        assert job.running._ended() == 0
        job.running._tick()
        assert job.live.drivers == 0 and job.journal.of("driver") == []

    def test_a_driver_that_has_finished_receives_no_request(self, job: Job) -> None:
        job.record("Stopped")
        job.live.terminate()
        assert not job.live.asked_to_end

    def test_a_driver_killed_by_a_signal_without_a_request_has_not_completed(self, job: Job) -> None:
        assert job.live.driver is not None
        job.record("Finished")
        job.live.driver.terminate()
        job.live.driver.wait(WALL_S)
        assert job.running._ended() == -signal.SIGTERM
