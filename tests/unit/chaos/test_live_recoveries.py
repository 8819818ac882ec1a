"""What counts as one recovery of a real run, and how long it took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.chaos.evidence.page import read
from holdfast.chaos.judge.records import Sample
from holdfast.chaos.judge.recoveries import Recoveries, RecoveryAttempt
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.journal import JournalWriter
from holdfast.chaos.live.watch import Watch

BROKE = "a data channel broke between live workers"
S = 1_000_000


def attempt(at_s: float, took_ms: int = 1_000, cause: str = BROKE, *, known: bool = True) -> RecoveryAttempt:
    """Return an attempt noticed at this second and logged 100 ms later."""
    return RecoveryAttempt(cause, took_ms, at_s * S + 100_000, at_s * S if known else None)


def closed(*attempts: RecoveryAttempt, epoch_at_s: float = 20.0) -> list[dict[str, Any]]:
    recoveries = Recoveries()
    recoveries.open.extend(attempts)
    recoveries.completed(7, epoch_at_s * S, 9_000)
    return recoveries.closed(7)


class TestRecoveries:
    def test_attempts_between_two_epochs_are_one_recovery_from_the_first_failure_on(self) -> None:
        [recovery] = closed(*(attempt(8.0 + n, 1_000) for n in range(8)))
        assert recovery == {
            "cause": f"{BROKE} (8 times)",
            "attempts": 8,
            "recovery_ms": 8_000,
            "next_epoch_ms": 12_000,
            "since_ms": -3_000,
        }

    def test_a_killed_driver_and_failures_at_its_restart_are_one_recovery(self) -> None:
        [recovery] = closed(attempt(15.0, 2_000), attempt(10.0, 9_000, "the driver was killed"))
        assert recovery["cause"] == f"the driver was killed; {BROKE}"
        assert (recovery["recovery_ms"], recovery["next_epoch_ms"]) == (7_000, 10_000)

    def test_failures_separated_by_an_epoch_are_two_recoveries(self) -> None:
        recoveries = Recoveries()
        recoveries.completed(7, 11 * S, 1_000)
        recoveries.completed(8, 21 * S, 2_000)
        recoveries.open.extend([attempt(10.0), attempt(20.0)])  # reported late, and distinguished by their times
        assert [each["next_epoch_ms"] for each in recoveries.closed(None)] == [1_000, 1_000]

    def test_an_epoch_that_the_driver_has_not_reported_closes_nothing_yet(self) -> None:
        recoveries = Recoveries()
        recoveries.completed(7, 20 * S, 9_000)
        assert recoveries.closed(6) == []
        recoveries.open.append(attempt(10.0))
        assert len(recoveries.closed(7)) == 1 and recoveries.rest() == []

    def test_an_epoch_without_a_preceding_failure_closes_no_recovery(self) -> None:
        assert closed() == [] and closed(attempt(30.0)) == []

    def test_a_recovery_with_an_unknown_beginning_has_no_times_that_depend_on_it(self) -> None:
        assert closed(attempt(10.0, known=False)) == [{"cause": BROKE, "attempts": 1, "recovery_ms": 1_000}]
        [recovery] = closed(attempt(10.0, known=False), attempt(12.0))
        assert recovery["recovery_ms"] is None and "next_epoch_ms" not in recovery

    def test_failures_without_a_following_epoch_are_one_recovery(self) -> None:
        recoveries = Recoveries()
        recoveries.open.extend([attempt(10.0), attempt(12.0, 3_000)])
        [recovery] = recoveries.rest()
        assert recovery["recovery_ms"] == 5_000 and "next_epoch_ms" not in recovery


class Job:
    """A job whose progress, job log and live.json are written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sequence = folder / "root" / "job", 0
        (self.folder / "log").mkdir(parents=True)
        self.live = LiveJob(folder / "job.py", folder, (), {}, "token")
        self.journal = JournalWriter(folder / "journal.jsonl")
        self.watch = Watch(self.live, self.journal)

    def epoch(self, epoch: int, at_s: float) -> None:
        self.sequence += 1
        body = {"kind": "CheckpointCompleted", "epoch": epoch, "duration_ms": 5}
        record = {"seq": self.sequence, "generation": 1, "at": at_s * S, "body": body}
        (self.folder / "log" / f"{self.sequence:020}.json").write_text(json.dumps(record))

    def tell(self, epoch: int, *ready_at_s: float) -> None:
        restarts = [{"at": at * S, "cause": BROKE, "recovery_ms": 700} for at in ready_at_s]
        self.live.progress = {"state": "running", "epoch": epoch, "restarts": restarts}

    def show(self, at_s: float, *first_record_ms: int | None, generation: int = 2) -> None:
        """Let live.json show a restart logged 200 ms after the failure, and when its workers took a record."""
        restart = {"at": at_s * S, "logged_ms": 200, "generation": 2}
        times = [None if each is None else at_s * S + each * 1_000 for each in first_record_ms or (300,)]
        workers: list[dict[str, Any]] = [{"how": "restored", "first_record_at": each} for each in times]
        live = {"generation": generation, "restarts": [restart], "workers": workers}
        (self.folder / "live.json").write_text(json.dumps(live))


class TestWatch:
    def test_the_end_is_sampled_whatever_the_time_of_the_previous_sample(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        for records in (398_165, 400_000):
            job.live.progress = {"state": "running", "records_in": records}
            job.watch.look()
        job.watch.end()
        samples = read(tmp_path / "journal.jsonl").of(Sample)
        assert [sample.records_in for sample in samples] == [398_165, 400_000]

    def test_times_start_at_the_failure_even_if_it_is_reported_later(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.tell(6, 10.0)
        job.watch.look()
        job.show(10.0)
        job.watch.look()
        job.epoch(7, 12.0)
        job.tell(7, 10.0)
        job.watch.look()
        [line] = job.journal.of("recovery")
        assert (line["recovery_ms"], line["first_record_ms"], line["next_epoch_ms"]) == (700, 500, 2_200)

    def test_the_first_record_counts_even_if_live_json_shows_it_after_the_failure(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.tell(6, 10.0)
        for shown in ((None, None), (None, 300), (400, 300)):
            job.show(10.0, *shown)
            job.watch.look()
        job.show(10.0, 900, generation=3)  # workers of another generation
        job.epoch(7, 12.0)
        job.tell(7, 10.0)
        job.watch.look()
        assert [line["first_record_ms"] for line in job.journal.of("recovery")] == [600]

    def test_the_first_record_is_unknown_until_every_restored_worker_has_read_one(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.tell(6, 10.0)
        job.show(10.0, None, 300)
        job.epoch(7, 12.0)
        job.tell(7, 10.0)
        job.watch.look()
        [line] = job.journal.of("recovery")
        assert "first_record_ms" not in line and line["next_epoch_ms"] == 2_200

    def test_a_failure_at_an_unknown_time_has_no_time_to_the_next_epoch(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.tell(6, 10.0)
        job.epoch(7, 12.0)
        job.watch.end()
        [line] = job.journal.of("recovery")
        assert line["recovery_ms"] == 700 and "next_epoch_ms" not in line

    def test_an_attempt_reported_after_the_epoch_is_part_of_its_recovery(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.show(10.0)
        job.tell(6, 10.0)
        job.epoch(7, 12.0)
        job.watch.look()
        job.tell(7, 10.0, 11.0)
        job.watch.look()
        [line] = job.journal.of("recovery")
        assert line["attempts"] == 2
