"""What `holdfast explain` finds in a status: causes first, each with a next step."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime import status
from holdfast.runtime.explain import GOOD, findings
from tests.unit.runtime.test_master import A, B, Run, completed, opened, running, staged


def shown(run: Run, **changed: Any) -> dict[str, Any]:
    driver = {"host": "here", "pid": 1, "seen_ms": 0, "at": 1_000_000}
    told = status.of_run(run.state, "/data/job", "continuous", driver)
    if told["checkpoint"] is not None:
        told["checkpoint"]["age_ms"] = 400
    return told | changed


def codes(told: dict[str, Any]) -> list[str]:
    found = findings(told)
    assert all(each.next for each in found if each.code not in GOOD), "a finding without a next step"
    return [each.code for each in found]


def text(told: dict[str, Any], code: str) -> str:
    return next(each.what for each in findings(told) if each.code == code)


class TestDeadLetters:
    def test_are_told_and_hold_nothing_up(self) -> None:
        run = running()
        completed(run)
        rows = [{"name": "lines", "dlq": 2}, {"name": "map parse", "dlq": 1_000}, {"name": "counts", "dlq": None}]
        told = shown(run, operators=rows)
        assert codes(told) == ["progress", "dead_letters"]
        assert "1,002 records became dead letters" in text(told, "dead_letters")
        assert "2 at lines, 1,000 at map parse" in text(told, "dead_letters")


class TestARequestThatCannotBeRead:
    def test_is_named_with_its_object(self) -> None:
        refused = status.unreadable_requests("/data/job", {"requests/a.json": "reading it failed: Permission denied"})
        told = shown(running(), problems=refused)
        assert codes(told) == ["request_unreadable"]
        assert "Permission denied" in text(told, "request_unreadable")
        assert "/data/job/requests/a.json" in str(refused[0]["next"])


class TestFinishing:
    def test_what_is_left_to_read_is_reported_with_the_way_to_leave_it_out(self) -> None:
        run = running()
        completed(run)
        rows = [{"name": "s", "partition": p, "offset": 5, "lag": lag} for p, lag in ((0, 1_200), (1, None), (2, 0))]
        told = shown(run, sources=rows, ending="finish")
        assert codes(told) == ["progress", "draining"]
        assert "up to 1,200 records" in text(told, "draining")
        assert codes(told | {"ending": None}) == ["progress"]


class TestOneLook:
    def test_a_job_that_runs_is_told_to_run(self) -> None:
        run = running()
        completed(run)
        assert codes(shown(run)) == ["progress"]
        assert "last checkpoint 400 ms ago" in text(shown(run), "progress")

    @pytest.mark.parametrize(
        ("state", "code"),
        [("finished", "finished"), ("stopped", "stopped"), ("failed", "failed"), ("unreachable", "driver_silent")],
    )
    def test_one_that_does_not_run_has_one_finding(self, state: str, code: str) -> None:
        assert codes(shown(running(), state=state, reason="so it is")) == [code]

    def test_a_target_that_is_not_repaired_after_a_rewind(self) -> None:
        told = shown(running(), repairing=[{"sink": "out", "error": "database is locked"}])
        assert codes(told) == ["repairing"]
        assert "sink out is not repaired yet: database is locked" in text(told, "repairing")

    def test_workers_that_have_not_come_yet(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A)
        assert codes(shown(run)) == ["workers_coming"]
        run.pass_time(15.0)
        assert codes(shown(run)) == ["no_slots"]
        assert "0 of 2 subtasks have a worker" in text(shown(run), "no_slots")

    def test_a_worker_that_is_not_ready(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A, B)
        run.ready(A)
        assert codes(shown(run)) == ["restoring"]
        assert "worker b (subtask 1)" in text(shown(run), "restoring")

    def test_the_backoff_after_failures_tells_the_last_one(self) -> None:
        run = opened()
        run.pass_time(0.0)
        for number in (1, 2, 3):
            run.end_launch(number, "disk full")
            run.pass_time(0.0)
        run.register(A)
        assert "backoff" in codes(shown(run))
        assert any("disk full" in (each.next or "") for each in findings(shown(run)))

    def test_subtasks_that_did_not_ack_are_named_with_their_worker(self) -> None:
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        run.pass_time(5.0)
        assert codes(shown(run)) == ["progress"]  # three intervals are not over
        run.pass_time(24.0)
        run.pass_time(0.9)
        told = shown(run, checkpoint_every_ms=1_000)
        assert codes(told) == ["not_acked"]
        assert "epoch 1 is open for 29.9 s: subtask 1 (worker b)" in text(told, "not_acked")

    def test_an_epoch_that_is_being_written(self) -> None:
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        run.ack(B, 1)
        run.pass_time(5.0)
        assert codes(shown(run, checkpoint_every_ms=1_000)) == ["log_slow"]

    def test_a_worker_that_is_silent(self) -> None:
        run = running()
        run.pass_time(3.0, alive=(A,))
        assert codes(shown(run)) == ["worker_silent"]

    def test_a_sink_with_an_error_and_what_waits_for_it(self) -> None:
        run = running()
        completed(run, staged={"out": staged("x")})
        sinks = [{"name": "out", "staged_epoch": 1, "delivered_epoch": None, "error": "no such table"}]
        assert codes(shown(run, sinks=sinks)) == ["sink_error"]
        assert text(shown(run, sinks=sinks), "sink_error") == (
            "sink out cannot deliver: no such table; 1 rows of 1 epochs wait, the oldest is 1"
        )

    def test_a_sink_that_falls_behind(self) -> None:
        run = running()
        for epoch in range(1, 6):
            completed(run, epoch, staged={"out": staged(f"x{epoch}")})
        assert codes(shown(run)) == ["sink_backlog"]

    @pytest.mark.parametrize(
        ("reason", "code"),
        [
            ("delivery", "delivery_full"),
            ("channel", "backpressure"),
            ("last barrier", "ending"),
            ("function: map parse", "slow_function"),
        ],
    )
    def test_what_keeps_sources_from_being_read(self, reason: str, code: str) -> None:
        told = shown(running())
        told["waiting"][0]["held_by"] = [reason]
        assert codes(told) == [code]

    def test_a_throttle_counts_only_while_there_is_something_to_read(self) -> None:
        row = {"name": "s", "partition": 0, "offset": 5, "end_offset": 9, "lag": 4}
        told = shown(running(), sources=[row])
        told["waiting"][0]["held_by"] = ["throttle"]
        assert codes(told) == ["throttled"]
        assert codes(told | {"sources": [row | {"lag": 0}]}) == ["progress", "caught_up"]

    def test_sources_that_are_read_to_their_end(self) -> None:
        row = {"name": "s", "partition": 0, "offset": 9, "end_offset": 9, "lag": 0}
        told = shown(running(), sources=[row], ended=[{"source": "s", "partition": 0}])
        assert text(told, "caught_up") == "every source is read to its end"

    def test_a_status_of_a_driver_that_tells_less_is_read_too(self) -> None:
        run = running()
        less = {k: v for k, v in shown(run).items() if k not in ("waiting", "open_epoch", "backlog", "parallelism")}
        assert codes(less) == ["progress"]
