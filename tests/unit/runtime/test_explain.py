"""What `holdfast explain` finds in a status: causes first, each with a next step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from master_runs import A, B, Run, completed, opened, running, staged

import holdfast as hf
from holdfast.model import DriverProcess
from holdfast.runtime.cli.operate.status import render
from holdfast.runtime.job import status
from holdfast.runtime.job.explain import GOOD, findings
from holdfast.runtime.job.live import from_json
from holdfast.runtime.job.waiting import EPOCHS_MEASURED
from holdfast.runtime.wire import messages as m


def shown(run: Run, **changed: Any) -> dict[str, Any]:
    """Return the status in JSON, as `live.json` holds it."""
    driver = DriverProcess(host="here", pid=1, at=1_000_000)
    reported = status.of_run(run.state, "/data/job", "continuous", driver).as_json()
    if reported["checkpoint"] is not None:
        reported["checkpoint"]["age_ms"] = 400
    found: dict[str, Any] = msgspec.to_builtins(reported | changed)
    return found


def codes(reported: dict[str, Any]) -> list[str]:
    found = findings(from_json(reported))
    assert all(each.next for each in found if each.code not in GOOD), "a finding without a next step"
    return [each.code for each in found]


def text(reported: dict[str, Any], code: str) -> str:
    return next(each.what for each in findings(from_json(reported)) if each.code == code)


class TestDeadLetters:
    def test_are_reported_and_block_nothing(self) -> None:
        run = running()
        completed(run)
        rows = [{"name": "lines", "dlq": 2}, {"name": "map parse", "dlq": 1_000}, {"name": "counts", "dlq": None}]
        reported = shown(run, operators=rows)
        assert codes(reported) == ["progress", "dead_letters"]
        assert "1,002 dead letters since the last start" in text(reported, "dead_letters")
        assert "2 at lines, 1,000 at map parse" in text(reported, "dead_letters")


class TestUnreadableRequest:
    def test_is_named_with_its_object(self) -> None:
        refused = status.unreadable_requests("/data/job", {"requests/a.json": "reading it failed: Permission denied"})
        reported = shown(running(), problems=refused)
        assert codes(reported) == ["request_unreadable"]
        assert "Permission denied" in text(reported, "request_unreadable")
        assert "/data/job/requests/a.json" in str(refused[0].next)


class TestFinishing:
    def test_unread_records_are_reported_with_the_way_to_drop_them(self) -> None:
        run = running()
        completed(run)
        rows = [{"name": "s", "partition": p, "offset": 5, "lag": lag} for p, lag in ((0, 1_200), (1, None), (2, 0))]
        reported = shown(run, sources=rows, ending="finish")
        assert codes(reported) == ["progress", "draining"]
        assert "up to 1,200 records" in text(reported, "draining")
        assert codes(reported | {"ending": None}) == ["progress"]

    def test_unread_text_is_counted_in_bytes(self) -> None:
        run = running()
        completed(run)
        rows = [
            {"name": "s", "partition": 0, "offset": 5, "lag": 7},
            {"name": "lines", "partition": 0, "offset": 5, "lag": 12_767_972, "unit": "bytes"},
        ]
        reported = shown(run, sources=rows, ending="finish")
        assert "up to 7 records and 12,767,972 bytes of text" in text(reported, "draining")


class TestFindings:
    def test_a_running_job_is_reported_as_running(self) -> None:
        run = running()
        completed(run)
        assert codes(shown(run)) == ["progress"]
        assert "last checkpoint 400 ms ago" in text(shown(run), "progress")

    @pytest.mark.parametrize(
        ("state", "code"),
        [("finished", "finished"), ("stopped", "stopped"), ("failed", "failed"), ("unreachable", "driver_silent")],
    )
    def test_a_job_that_is_not_running_has_one_finding(self, state: str, code: str) -> None:
        assert codes(shown(running(), state=state, reason="so it is")) == [code]

    def test_a_target_that_is_not_repaired_after_a_rewind_is_reported(self) -> None:
        reported = shown(running(), repairing=[{"sink": "out", "error": "database is locked"}])
        assert codes(reported) == ["repairing"]
        assert "sink out is not repaired yet: database is locked" in text(reported, "repairing")

    def test_missing_workers_are_reported(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A)
        assert codes(shown(run)) == ["workers_coming"]
        run.pass_time(15.0)
        assert codes(shown(run)) == ["no_slots"]
        assert "0 of 2 subtasks have a worker" in text(shown(run), "no_slots")

    def test_a_worker_that_is_not_ready_is_reported(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A, B)
        run.ready(A)
        assert codes(shown(run)) == ["restoring"]
        assert "worker b (subtask 1)" in text(shown(run), "restoring")

    def test_the_backoff_after_failures_names_the_last_failure(self) -> None:
        run = opened()
        run.pass_time(0.0)
        for number in (1, 2, 3):
            run.end_launch(number, "disk full")
            run.pass_time(0.0)
        run.register(A)
        assert "backoff" in codes(shown(run))
        assert any("disk full" in (each.next or "") for each in findings(from_json(shown(run))))

    def test_subtasks_that_did_not_ack_are_named_with_their_worker(self) -> None:
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        run.pass_time(5.0)
        assert codes(shown(run)) == ["progress"]  # three intervals are not over
        run.pass_time(24.0)
        run.pass_time(0.9)
        reported = shown(run, checkpoint_every_ms=1_000)
        assert codes(reported) == ["not_acked"]
        assert "epoch 1 has been open for 29.9 s: subtask 1 (worker b)" in text(reported, "not_acked")

    def test_an_epoch_that_is_being_written_is_reported(self) -> None:
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        run.ack(B, 1)
        run.pass_time(5.0)
        assert codes(shown(run, checkpoint_every_ms=1_000)) == ["log_slow"]

    @pytest.mark.parametrize(
        ("mode", "every_ms", "found"),
        [
            ("microbatch", 1_000, ["trigger_short"]),
            ("microbatch", 2_500, ["progress"]),
            ("continuous", 1_000, ["progress"]),
        ],
    )
    def test_epochs_that_take_longer_than_their_trigger_are_reported(
        self, mode: str, every_ms: int, found: list[str]
    ) -> None:
        run = running()
        for number in range(1, EPOCHS_MEASURED + 1):
            run.pass_time(10.0)
            run.ack(A, number)
            run.pass_time(2.1)
            run.ack(B, number)
            run.store()
            run.append()
            if number < EPOCHS_MEASURED:
                assert codes(shown(run, mode="microbatch", checkpoint_every_ms=1_000)) == ["progress"]
        reported = shown(run, mode=mode, checkpoint_every_ms=every_ms)
        assert codes(reported) == found
        if found == ["trigger_short"]:
            finding = next(each for each in findings(from_json(reported)) if each.code == "trigger_short")
            assert "at least 2.1 s, longer than the checkpoint interval of 1.0 s" in finding.what
            assert "--every 3s" in str(finding.next)

    def test_a_silent_worker_is_reported(self) -> None:
        run = running()
        run.pass_time(3.0, alive=(A,))
        assert codes(shown(run)) == ["worker_silent"]

    def test_a_sink_with_an_error_is_reported_with_its_backlog(self) -> None:
        run = running()
        completed(run, staged={"out": staged("x")})
        sinks = [{"name": "out", "staged_epoch": 1, "delivered_epoch": None, "error": "no such table"}]
        assert codes(shown(run, sinks=sinks)) == ["sink_error"]
        assert text(shown(run, sinks=sinks), "sink_error") == (
            "sink out cannot deliver: no such table; 1 row of 1 epoch waiting, the oldest is 1"
        )

    def test_a_lagging_sink_is_reported(self) -> None:
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
    def test_each_reason_that_blocks_sources_is_reported(self, reason: str, code: str) -> None:
        reported = shown(running())
        reported["waiting"][0]["held_by"] = [reason]
        assert codes(reported) == [code]

    def test_a_throttle_is_reported_only_while_there_are_unread_records(self) -> None:
        row = {"name": "s", "partition": 0, "offset": 5, "end_offset": 9, "lag": 4}
        reported = shown(running(), sources=[row])
        reported["waiting"][0]["held_by"] = ["throttle"]
        assert codes(reported) == ["throttled"]
        assert codes(reported | {"sources": [row | {"lag": 0}]}) == ["progress", "caught_up"]

    def test_sources_that_are_read_to_their_end_are_reported(self) -> None:
        row = {"name": "s", "partition": 0, "offset": 9, "end_offset": 9, "lag": 0}
        reported = shown(running(), sources=[row], ended=[{"source": "s", "partition": 0}])
        assert text(reported, "caught_up") == "every source is read to its end"

    def test_a_status_with_fewer_fields_is_understood(self) -> None:
        run = running()
        less = {k: v for k, v in shown(run).items() if k not in ("waiting", "open_epoch", "backlog", "parallelism")}
        assert codes(less) == ["progress"]


MINUTE_US = 60_000_000


def source(partition: int, watermark: int | None, holds: bool | None = True, **more: Any) -> dict[str, Any]:
    row = {"name": "bids", "partition": partition, "offset": 7, "end_offset": 7, "lag": 0, "watermark": watermark}
    return row | {"idle_ms": 12_000, "holds_time": holds} | more


class TestHeldEventTime:
    def reported(self, *rows: dict[str, Any], state: str = "running") -> dict[str, Any]:
        run = running()
        completed(run)
        return shown(run, sources=list(rows), state=state)

    def test_is_named_with_its_partition_and_how_far_the_others_are(self) -> None:
        reported = self.reported(source(0, 90 * MINUTE_US), source(3, 30 * MINUTE_US))
        assert codes(reported) == ["event_time_held", "caught_up"]
        assert text(reported, "event_time_held") == (
            "event time of source bids is at 1970-01-01 00:30:00Z: partition 3 holds it back and has had no records "
            "for 12.0 s; another partition is at 1970-01-01 01:30:00Z"
        )

    def test_a_partition_without_any_record_is_reported_as_such(self) -> None:
        reported = self.reported(source(0, 90 * MINUTE_US), source(3, None))
        assert "has not begun: partition 3 holds it back" in text(reported, "event_time_held")
        assert "idle_after" in str(findings(from_json(reported))[0].next)

    @pytest.mark.parametrize(
        "rows",
        [
            [source(0, 90 * MINUTE_US), source(3, 30 * MINUTE_US, holds=False)],
            [source(0, 90 * MINUTE_US), source(3, 30 * MINUTE_US, lag=5)],
            [source(0, 90 * MINUTE_US), source(3, 90 * MINUTE_US - 5)],
            [source(0, None), source(3, None)],
            [source(0, None, holds=None), source(3, None, holds=None)],
        ],
        ids=["idle", "being read", "level", "nothing yet", "no event time"],
    )
    def test_is_not_reported_if_no_partition_holds_it_back(self, rows: list[dict[str, Any]]) -> None:
        assert "event_time_held" not in codes(self.reported(*rows))

    def test_is_reported_even_after_a_run_to_fixed_ends(self) -> None:
        reported = self.reported(
            source(0, 90 * MINUTE_US, None), source(3, 30 * MINUTE_US, None), source(1, None, None), state="stopped"
        )
        assert codes(reported) == ["stopped", "event_time_held"]
        assert "partition 3 holds it back" in text(reported, "event_time_held")

    def test_the_table_of_status_marks_it(self) -> None:
        reported = self.reported(source(0, 90 * MINUTE_US), source(3, 30 * MINUTE_US))
        lines = [line for line in render(from_json(reported)).splitlines() if line.startswith("  bids")]
        assert "01:30:00Z" in lines[0] and "holds" not in lines[0]
        assert "00:30:00Z, holds time back" in lines[1]


class TestFullDisks:
    """A full disk is named, and is not reported as unreachable."""

    def test_a_full_target_is_a_problem_with_its_own_advice(self) -> None:
        run = running()
        full, advice = "SQLite /out.db: the disk of the file is full", "free space on the disk of this file"
        progress = m.WorkerProgress(sink_errors={"out": full}, sink_advice={"out": advice})
        run.hear(m.Heartbeat(A, run.generation, False, False, (), progress))
        reported = shown(run)
        assert reported["problems"] == [
            {"code": "sink_refused", "what": f"sink out cannot deliver: {full}", "next": advice}
        ]
        (found,) = [each for each in findings(from_json(reported)) if each.code == "sink_error"]
        assert full in found.what and found.next == advice

    def test_a_full_root_is_reported_by_the_driver(self) -> None:
        error = hf.Unavailable("the disk of /root is full: writing it failed", next_step="free space on it")
        reported = shown(running(), problems=[status.root_refused(error)])
        assert "root_refused" in codes(reported)
        assert "the disk of /root is full" in text(reported, "root_refused")

    def test_a_driver_that_cannot_report_to_a_full_root_is_not_called_silent(self) -> None:
        problem = {"code": status.ROOT_REFUSED, "what": "the disk of /root is full", "next": "free space on it"}
        assert codes(shown(running(), state="unreachable", reason="full", problems=[problem])) == ["root_refused"]
