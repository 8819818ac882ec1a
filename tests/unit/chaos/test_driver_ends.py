"""What exit statuses of drivers and causes of restarts prove about the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.chaos.judge import driver_ends
from holdfast.chaos.judge.driver_ends import Ended
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.journal import JournalWriter
from holdfast.chaos.live.watch import Watch
from holdfast.runtime.processes.host import unexpected

SURVIVED = (
    "started",
    "worker 1734190e1be3 (pid 6869 on h1) closed its stream: its process ended, or the network cut the connection",
    "a data channel broke between live workers",
    "worker 9 on h1 was silent for 5.0 s",
    "worker process on h1 ended (SparkException: Python worker exited unexpectedly (crashed):)",
    "OSError: [Errno 27] File too large at files.py:80",
)


def ended(status: int, why: str = "", *, struck: bool = False, epochs: int = 3) -> Ended:
    return Ended(status, why, struck, epochs)


class TestRaised:
    def test_the_effects_of_faults_are_not_violations(self) -> None:
        ends = [ended(-9, struck=True), ended(7, struck=True), ended(5, "holdfast: the store is out of reach")]
        assert driver_ends.raised(SURVIVED, ends).passed

    @pytest.mark.parametrize("error", [AssertionError(), AssertionError("a gap"), KeyError("epochs"), TypeError("x")])
    def test_a_worker_that_found_a_rule_broken_is_a_violation(self, error: Exception) -> None:
        finding = driver_ends.raised([*SURVIVED, unexpected(error).what], [])
        assert not finding.passed
        assert type(error).__name__ in finding.detail

    def test_a_broken_rule_that_only_spark_reports_is_a_violation(self) -> None:
        assert not driver_ends.raised(["worker process on h1 ended (AssertionError: a gap)"], []).passed

    @pytest.mark.parametrize("status", [1, -11, -6])
    def test_a_driver_that_broke_without_a_fault_is_a_violation(self, status: int) -> None:
        assert driver_ends.raised([], [ended(status, "holdfast: unexpected OSError")]).passed is False
        assert driver_ends.raised([], [ended(status, "holdfast: unexpected OSError", struck=True)]).passed

    def test_before_the_first_epoch_only_a_broken_rule_counts(self) -> None:
        assert driver_ends.raised([], [ended(1, "holdfast: unexpected ModuleNotFoundError", epochs=0)]).passed
        assert not driver_ends.raised([], [ended(1, "holdfast: unexpected AssertionError: x", epochs=0)]).passed


class TestGaveUp:
    @pytest.mark.parametrize("status", [4, 7])
    def test_a_job_that_ran_and_then_failed_under_faults_is_a_violation(self, status: int) -> None:
        finding = driver_ends.gave_up([ended(-9, struck=True), ended(status, "holdfast: job 'j' failed: damaged")])
        assert finding is not None and not finding.passed
        assert finding.invariant == "I11" and "damaged" in finding.detail

    def test_a_job_that_refused_damage_or_never_ran_is_not_a_violation(self) -> None:
        ends = [ended(7, struck=True), ended(4, epochs=0), ended(5), ended(-9)]
        assert driver_ends.gave_up(ends) is None


class TestWatched:
    def test_causes_come_from_the_job_log_even_for_generations_that_were_never_ready(self, tmp_path: Path) -> None:
        folder = tmp_path / "root" / "job" / "log"
        folder.mkdir(parents=True)
        for number, cause in enumerate(("started", "AssertionError: a gap at loop.py:9"), 1):
            body = {"kind": "GenerationStarted", "cause": cause}
            record = {"seq": number, "generation": number, "at": number, "body": body}
            (folder / f"{number:020}.json").write_text(json.dumps(record))
        watch = Watch(
            LiveJob(tmp_path / "job.py", tmp_path, (), {}, "token"), JournalWriter(tmp_path / "journal.jsonl")
        )
        watch.end()
        assert watch.causes == ["started", "AssertionError: a gap at loop.py:9"]
