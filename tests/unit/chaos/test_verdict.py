"""What makes a run's journal a proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos.commands.live import exit_status
from holdfast.chaos.evidence import page
from holdfast.chaos.judge import verdict
from holdfast.chaos.judge.records import of_lines


def line(kind: str, **fields: Any) -> dict[str, Any]:
    return {"at_ms": 0, "kind": kind, **fields}


def fault(phase: str, number: int = 1, name: str = "worker-kill") -> dict[str, Any]:
    return line("fault", id=number, fault=name, target="worker", phase=phase, detail="")


def check(passed: bool = True, name: str = "tables") -> dict[str, Any]:
    return line(
        "check",
        name=name,
        invariant="I1",
        passed=passed,
        lost=0 if passed else 3,
        duplicated=None,
        reordered=None,
        detail="3 missing",
    )


EPOCH = line("epoch", epoch=7, generation=1, duration_ms=10)
BEGIN = line("begin", job="job.py", seed=1, scenario="s", faults=["worker-kill"], planned=1)


def sample(records_in: int | None) -> dict[str, Any]:
    return line("sample", state="running", records_in=records_in)


READ = sample(9)
HELD = [BEGIN, sample(7), fault("armed"), fault("fired"), EPOCH, READ, check()]
IDLE = "no record was read under faults: the whole source was read before the first fault"


def judged(lines: list[dict[str, Any]], failed: str | None = None) -> tuple[str, str]:
    found = verdict.of(lines, failed)
    return found.verdict, found.reason


class TestVerdict:
    def test_a_run_held_if_its_faults_fired_and_its_checks_passed(self) -> None:
        assert judged(HELD) == ("held", "1 faults fired, 1 checks passed")

    def test_faults_that_an_early_end_of_the_job_skipped_are_reported(self) -> None:
        begin = {**BEGIN, "planned": 4}
        assert judged([begin, *HELD[1:]])[1] == "1 faults fired, 1 checks passed; the job ended before 3 planned faults"

    def test_a_failed_check_is_a_violation_in_any_case(self) -> None:
        assert judged([*HELD, check(passed=False)], "the job failed") == ("violated", "tables: 3 lost; 3 missing")

    def test_a_run_without_a_regular_end_proves_nothing(self) -> None:
        assert judged(HELD, "the job failed") == ("not_proven", "the job failed")

    def test_a_run_with_an_armed_fault_that_never_fired_proves_nothing(self) -> None:
        assert judged([*HELD[:6], fault("armed", 2), EPOCH, check()]) == (
            "not_proven",
            "worker-kill (2) was armed and never fired",
        )

    def test_a_run_with_a_kind_that_never_fired_proves_nothing(self) -> None:
        both = {**BEGIN, "faults": ["worker-kill", "driver-kill"]}
        assert judged([both, *HELD[1:]])[1].endswith("never fired: driver-kill")

    def test_an_epoch_has_to_be_completed_after_the_last_fault(self) -> None:
        early = [EPOCH, *HELD[:4], READ, check()]
        assert judged(early) == ("not_proven", "no epoch was completed after the last fault")

    def test_a_job_that_read_nothing_after_the_first_fault_proves_nothing(self) -> None:
        idle = [each if each is not READ else sample(7) for each in HELD]
        assert judged(idle) == ("not_proven", IDLE)
        assert judged([*idle, fault("armed", 2), fault("fired", 2), READ, EPOCH])[0] == "held"
        assert judged([*idle, sample(None)]) == ("not_proven", IDLE)

    def test_records_read_before_the_first_fault_do_not_count_as_work_under_faults(self) -> None:
        early = [BEGIN, sample(7), sample(9), *HELD[2:5], READ, check()]
        assert judged(early) == ("not_proven", IDLE)

    def test_the_number_of_records_read_must_be_known(self) -> None:
        unknown = "whether a record was read under faults is unknown"
        assert judged([each for each in HELD if each["kind"] != "sample"]) == ("not_proven", unknown)
        assert judged([each for each in HELD if each is not READ]) == ("not_proven", unknown)

    def test_checks_of_the_run_itself_do_not_check_its_results(self) -> None:
        assert judged([*HELD[:6], check(name="epochs")]) == ("not_proven", "the check compared nothing")


def ended(found: str, failed: str | None = None) -> dict[str, Any]:
    return line("end", verdict=found, reason="", failed=failed)


class TestOneJudge:
    @pytest.mark.parametrize(
        "lines",
        [
            HELD,
            HELD[:6],
            HELD[:5],
            [*HELD[:4], READ, check()],
            [*HELD[:6], check(name="epochs")],
            [*HELD, check(passed=False)],
            [*HELD, fault("armed", 2)],
            [BEGIN, EPOCH, check()],
            [{**BEGIN, "faults": ["worker-kill", "x"]}, *HELD[1:]],
        ],
    )
    def test_the_report_and_the_run_give_the_same_verdict(self, lines: list[dict[str, Any]]) -> None:
        own = verdict.of(lines, None)
        found, reasons = verdict.judge(of_lines([*lines, line("end", verdict=own.verdict, reason=own.reason)]))
        assert (found, "; ".join(reasons)) == (own.verdict, "" if found == "held" else own.reason)

    def test_a_claim_that_the_journal_does_not_support_is_rejected(self) -> None:
        for lines in (HELD[:6], [*HELD[:4], READ, check()], [*HELD[:6], check(name="epochs")], [*HELD[:5], check()]):
            assert verdict.judge(of_lines([*lines, ended("held")]))[0] == "not_proven"


def status(folder: Path, *lines: dict[str, Any]) -> int:
    journal = folder / "journal.jsonl"
    journal.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return exit_status(page.read(journal))


class TestExitStatus:
    @pytest.mark.parametrize(("found", "expected"), [("held", 0), ("violated", 4), ("not_proven", 1)])
    def test_each_verdict_has_its_own_exit_status(self, tmp_path: Path, found: str, expected: int) -> None:
        assert status(tmp_path, *HELD, ended(found)) == expected

    def test_a_failed_job_has_its_own_exit_status_however_its_driver_ended(self, tmp_path: Path) -> None:
        segfault = line("driver", phase="ended", pid=1, exit=-11)
        assert status(tmp_path, segfault, ended("not_proven", "job")) == 7

    def test_a_failure_of_the_harness_is_not_a_failed_job(self, tmp_path: Path) -> None:
        refused = line("driver", phase="ended", pid=1, exit=7)
        assert status(tmp_path, refused, ended("not_proven", "harness")) == 1

    def test_a_driver_that_was_killed_and_restarted_is_not_a_failed_job(self, tmp_path: Path) -> None:
        killed = line("driver", phase="ended", pid=1, exit=-9)
        assert status(tmp_path, killed, ended("not_proven")) == 1

    def test_a_journal_without_an_end_proves_nothing(self, tmp_path: Path) -> None:
        assert status(tmp_path, *HELD) == 1
