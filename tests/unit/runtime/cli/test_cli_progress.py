"""Progress: totals that continue over restarts, rates over the last seconds, and unknown values as unknown."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from msgspec.structs import replace
from patience import WALL_S

from holdfast.runtime.cli.start.progress import ProgressWriter, Tally, line
from holdfast.runtime.cli.start.starting import Starting
from holdfast.runtime.job.live import Status
from tests.unit.runtime.statuses import status_with


def status(*offsets: int, state: str = "running", lag: int | None = 10, **changed: Any) -> Status:
    sources = [{"name": "words", "partition": i, "offset": at, "lag": lag} for i, at in enumerate(offsets)]
    worker = {"id": "w1", "pid": 7, "subtasks": [0], "how": "restored", "host": "vm", "role": "worker"}
    checkpoint = {"epoch": 5, "at": 0, "age_ms": 0, "duration_ms": 1, "bytes": 1}
    known = {"state": state, "sources": sources, "checkpoint": checkpoint, "generation": 2, "workers": [worker]}
    return status_with(**{**known, **changed})


class TestTally:
    def test_records_are_the_sum_of_the_next_offsets(self) -> None:
        assert Tally({}).take(status(700, 50), 0.0)["records_in"] == 750

    def test_records_do_not_decrease_while_a_recovery_reads_again(self) -> None:
        tally = Tally({})
        tally.take(status(700, 50), 0.0)
        assert tally.take(status(600, 60), 1.0)["records_in"] == 760

    def test_partitions_of_a_lost_worker_still_count(self) -> None:
        tally = Tally({})
        tally.take(status(700, 50), 0.0)
        assert tally.take(status(710), 1.0)["records_in"] == 760

    def test_records_of_this_run_begin_at_the_last_checkpoint(self) -> None:
        tally = Tally({("words", 0): 400, ("words", 1): 40})
        tally.take(status(700, 50), 0.0)
        assert tally.records == 310

    def test_records_are_unknown_before_the_first_report(self) -> None:
        shown = Tally({}).take(status(), 0.0)
        assert (shown["records_in"], shown["records_per_s"], shown["lag"]) == (None, None, None)

    def test_an_offset_that_is_not_decided_yet_gives_unknown_records(self) -> None:
        assert Tally({}).take(status(-1), 0.0)["records_in"] is None

    def test_the_rate_is_that_of_the_last_seconds(self) -> None:
        tally = Tally({})
        for second in range(20):
            rate = tally.take(status(1_000 * second if second < 10 else 10_000), float(second))["records_per_s"]
        assert rate == 0

    def test_a_partition_seen_for_the_first_time_does_not_raise_the_rate(self) -> None:
        tally = Tally({})
        tally.take(status(1_000), 0.0)
        tally.take(status(1_100), 1.0)
        assert tally.take(status(1_200, 1_000_000), 2.0)["records_per_s"] is None

    def test_lag_is_unknown_if_one_partition_has_an_unknown_lag(self) -> None:
        first, second = status(1, 2).sources
        shown = replace(status(1, 2), sources=(first, replace(second, lag=None)))
        assert Tally({}).take(shown, 0.0)["lag"] is None

    def test_lag_is_unknown_while_a_known_partition_is_unassigned(self) -> None:
        tally = Tally({})
        assert tally.take(status(700, 50), 0.0)["lag"] == 20
        assert tally.take(status(710), 1.0)["lag"] is None
        assert tally.take(status(710, 60), 2.0)["lag"] == 20

    def test_lag_is_unknown_until_every_partition_of_the_checkpoint_is_reported(self) -> None:
        assert Tally({("words", 0): 400, ("words", 1): 40}).take(status(710), 0.0)["lag"] is None

    def test_lag_does_not_wait_for_a_removed_source(self) -> None:
        assert Tally({("words", 0): 400, ("older", 0): 40}).take(status(710), 0.0)["lag"] == 10

    def test_a_restart_is_shown_with_its_time_in_the_log(self) -> None:
        restart = {"at": 490_000_000, "cause": "killed", "generation": 2, "recovery_ms": 600}
        shown = Tally({}).take(status(1, restarts=[restart]), 100.0)["restarts"]
        assert shown == [{"at": 490_000_000, "cause": "killed", "recovery_ms": 600, "rewind": False}]


class TestLine:
    def test_a_running_job_is_shown_in_one_line(self) -> None:
        tally = Tally({})
        tally.take(status(700_000, 50), 0.0)
        assert line(tally.take(status(1_234_517, 50), 1.0)) == (
            "epoch 5 | 1,234,567 records | 534,517/s | lag 20 | 1 worker | generation 2"
        )

    def test_sources_that_count_bytes_are_shown_in_bytes(self) -> None:
        tally = Tally({}, ["words"])
        tally.take(status(1 << 20, 50), 0.0)
        shown = tally.take(status(3 << 20, 50), 1.0)
        assert line(shown) == ("epoch 5 | 3.0 MiB of text | 2.0 MiB/s | lag 20 B | 1 worker | generation 2")
        assert (shown["records_in"], shown["bytes_in"], tally.records) == (None, (3 << 20) + 50, 0)

    def test_records_and_bytes_of_several_sources_are_not_added(self) -> None:
        tally = Tally({("lines", 0): 1_000, ("words", 0): 5}, ["lines"])
        assert line(tally.take(status(7), 0.0)).startswith("epoch 5 | 7 records | -/s | lag 10 | 1000 B of text | -/s")

    def test_late_records_and_dead_letters_are_shown_once_there_are_any(self) -> None:
        operators = [{"name": "hot", "late": 1_200, "dlq": 0}, {"name": "words", "late": None, "dlq": 1}]
        shown = Tally({}).take(status(7, operators=operators), 0.0)
        assert (
            line(shown) == "epoch 5 | 7 records | -/s | lag 10 | 1,200 late | 1 dead letter | 1 worker | generation 2"
        )
        none = Tally({}).take(status(7, operators=[{"name": "hot", "late": 0, "dlq": 0}]), 0.0)
        assert "late" not in line(none) and "dead" not in line(none)

    def test_a_state_other_than_running_is_shown_first_with_its_reason(self) -> None:
        shown = Tally({}).take(status(7, state="recovering", reason="w1 was killed"), 0.0)
        assert line(shown).startswith("recovering: w1 was killed | epoch 5 | 7 records | -/s")

    def test_before_records_are_known_only_the_state_is_shown(self) -> None:
        assert line(Tally({}).take(status(state="starting", reason="0 of 2"), 0.0)) == "starting: 0 of 2"


FULL = "the receiver cannot take rows now (HTTP 503)"
BACKLOG = {"sink": "out", "epochs": 1, "oldest_epoch": 6, "rows": 20}


def stopping(error: str | None = None, **changed: Any) -> Status:
    """Return the status of a job that was asked to stop, and has output for a sink."""
    sink = {"name": "out", "staged_epoch": 6, "delivered_epoch": 5, "error": error}
    problems = (
        [] if error is None else [{"code": "sink_refused", "what": f"sink out cannot deliver: {error}", "next": "look"}]
    )
    return status(7, **{"ending": "stop", "sinks": [sink], "backlog": [BACKLOG], "problems": problems, **changed})


def waits(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines since the last call that say what a stop waits for."""
    return [text for text in capsys.readouterr().err.splitlines() if text.startswith("the stop waits: ")]


class TestStopping:
    def test_names_the_sink_that_it_waits_for_and_what_ends_it_once_per_wait(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        progress = ProgressWriter("plain", Tally({}))
        for attempt in (FULL, f"{FULL}, again"):
            progress.update(stopping(attempt))
        (said,) = waits(capsys)
        assert said == (
            f"the stop waits: sink out cannot deliver: {FULL}; 20 rows of 1 epoch waiting, the oldest is 6. Next: look."
            " To end the run without waiting: a second Ctrl-C, or holdfast stop hot --now. Nothing is lost: the next "
            "run reads uncommitted records again, and delivers committed output"
        )

    def test_is_part_of_the_line(self) -> None:
        assert line(Tally({}).take(stopping(), 0.0)).startswith("stopping | epoch 5 | 7 records")
        assert line(Tally({}).take(status(7), 0.0)).startswith("epoch 5 | ")

    def test_with_a_sink_that_is_only_slow_is_explained_when_it_lasts(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        progress = ProgressWriter("json", Tally({}))
        progress.update(stopping())
        assert waits(capsys) == []
        monkeypatch.setattr("holdfast.runtime.cli.start.progress.STOP_SLOW_S", 0.0)
        progress.update(stopping())
        (said,) = waits(capsys)
        assert said.startswith("the stop waits: output is being delivered: 20 rows of 1 epoch for out. Next: wait. ")

    def test_with_workers_that_do_not_answer_names_them(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.cli.start.progress.STOP_SLOW_S", 0.0)
        silent = {"worker": "w1", "subtask": 0, "ready": True, "ended": False, "silent_ms": 9_000, "held_by": []}
        ProgressWriter("plain", Tally({})).update(stopping(backlog=[], waiting=[silent]))
        (said,) = waits(capsys)
        assert "worker w1 (subtask 0) was last heard from 9.0 s ago" in said

    def test_a_job_that_runs_on_waits_for_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("plain", Tally({}))
        progress.update(stopping(FULL, ending="once"))
        progress.update(stopping(FULL, state="stopped"))
        assert waits(capsys) == []


class TestProgress:
    def test_json_is_an_object_per_line_and_ends_with_how_the_run_ended(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        progress = ProgressWriter("json", Tally({}))
        progress.update(status(700))
        progress.update(status(800, state="finished"))
        progress.end(status(800, state="finished"), "finished")
        lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
        assert [each["state"] for each in lines] == ["running", "finished"]
        assert lines[-1]["records_in"] == 800
        assert set(lines[0]) >= {
            "state",
            "records_in",
            "records_per_s",
            "epoch",
            "lag",
            "generation",
            "workers",
            "restarts",
        }
        assert lines[0]["workers"] == [{"id": "w1", "pid": 7, "subtasks": [0], "how": "restored"}]

    def test_a_recovery_is_shown_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("plain", Tally({}))
        restart = {"at": 0, "cause": "w1 was killed", "generation": 2, "recovery_ms": 600}
        progress.update(status(7, restarts=[restart]))
        progress.update(status(8, restarts=[restart]))
        assert capsys.readouterr().err.splitlines().count("recovered in 600 ms: w1 was killed") == 1

    def test_a_problem_is_reported_when_it_begins_and_when_it_is_over(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("plain", Tally({}))
        for attempt in (1, 2):
            problem = {"code": "root_refused", "what": f"the root refuses it ({attempt})", "next": "look"}
            progress.update(status(7, problems=[problem]))
        said = capsys.readouterr().err.splitlines()
        assert [text for text in said if "root" in text] == ["problem: the root refuses it (1). Next: look"]
        progress.update(status(8))
        progress.update(status(9))
        assert capsys.readouterr().err.splitlines().count("resolved: the root refuses it (1)") == 1

    def test_problems_are_part_of_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        problem = {"code": "root_refused", "what": "the root refuses it", "next": "look"}
        ProgressWriter("json", Tally({})).update(status(7, problems=[problem]))
        assert json.loads(capsys.readouterr().out)["problems"] == [problem]

    def test_a_slow_start_is_shown_only_when_it_changes(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.cli.start.progress.SHOW_EVERY_S", 0.0)
        progress = ProgressWriter("plain", Tally({}))
        for begun in (0, 0, 0, 1, 1):
            progress.update(status(state="starting", reason=f"{begun} of 2 workers have started"))
        assert capsys.readouterr().err.splitlines() == [
            "starting: 0 of 2 workers have started",
            "starting: 1 of 2 workers have started",
        ]

    def test_progress_none_shows_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("none", Tally({}))
        progress.note("starting Spark")
        progress.update(status(7))
        progress.end(status(7), "stopped")
        assert capsys.readouterr() == ("", "")


UNTIL = {"words": {0: 1_000, 1: 1_000}}


class TestShareOfARunWithAnEnd:
    """`run --once`: the ends of its sources are known."""

    def test_is_a_bar_and_the_time_left_at_the_present_rate(self) -> None:
        tally = Tally({("words", 0): 0, ("words", 1): 0}, until=UNTIL)
        tally.take(status(0, 0), 0.0)
        shown = tally.take(status(300, 200), 5.0)
        assert line(shown).startswith("[#####---------------] 25% | 15.0 s left | epoch 5 | 500 records | 100/s")
        assert (shown["done"], shown["left_ms"]) == (0.25, 15_000)

    def test_begins_where_the_run_begins(self) -> None:
        tally = Tally({("words", 0): 600, ("words", 1): 1_000}, until=UNTIL)
        assert tally.take(status(700, 1_000), 0.0)["done"] == 0.25

    def test_the_share_of_a_new_partition_begins_with_its_first_report(self) -> None:
        tally = Tally({}, until={"words": {0: 1_000}})
        tally.take(status(900), 0.0)
        assert tally.take(status(950), 1.0)["done"] == 0.5

    def test_is_unknown_until_every_partition_is_reported(self) -> None:
        tally = Tally({}, until=UNTIL)
        shown = tally.take(status(100), 0.0)
        assert (shown["done"], shown["left_ms"]) == (None, None)
        assert line(shown).startswith("epoch 5 | 100 records")

    def test_the_share_of_records_and_bytes_is_that_of_the_slower_source(self) -> None:
        tally = Tally({("words", 0): 0, ("lines", 0): 0}, ["lines"], {"words": {0: 10}, "lines": {0: 1_000_000}})
        assert tally.take(status(9), 0.0)["done"] == 0

    def test_shows_no_time_left_while_nothing_is_read(self) -> None:
        tally = Tally({("words", 0): 0}, until={"words": {0: 1_000}})
        tally.take(status(500), 0.0)
        assert line(tally.take(status(500), 5.0)).startswith("[##########----------] 50% | epoch 5")

    def test_is_complete_where_there_is_nothing_to_read(self) -> None:
        shown = Tally({("words", 0): 1_000}, until={"words": {0: 1_000}}).take(status(1_000), 0.0)
        assert line(shown).startswith("[####################] 100% | epoch 5")

    def test_a_run_without_an_end_shows_no_share(self) -> None:
        assert line(Tally({("words", 0): 0}).take(status(1), 0.0)).startswith("epoch 5")


class TestExplanations:
    """Numbers that look like faults."""

    def test_a_jump_of_epochs_is_explained_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("plain", Tally({}))
        for epoch in (4, 105, 206):
            progress.update(status(7, checkpoint={"epoch": epoch, "at": 0, "age_ms": 0, "duration_ms": 1, "bytes": 1}))
        (said,) = [text for text in capsys.readouterr().err.splitlines() if "follows" in text]
        assert said == (
            "epoch 105 follows epoch 4: each restart leaves out 100 numbers, which the processes before it may have "
            "used. Nothing is lost"
        )

    def test_records_that_stay_0_during_the_first_microbatch_are_explained(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        progress = ProgressWriter("plain", Tally({}))
        for _ in range(2):
            progress.update(status(0, checkpoint=None, mode="microbatch"))
        assert capsys.readouterr().err.count("in microbatch mode records count when their epoch is complete") == 1

    def test_numbers_of_a_continuous_run_need_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("plain", Tally({}))
        progress.update(status(0, checkpoint=None, mode="continuous"))
        progress.update(status(7, mode="continuous"))
        assert not [said for said in capsys.readouterr().err.splitlines() if not said.startswith("epoch ")]


class Clock:
    """A clock that a test sets."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


class TestStarting:
    def test_each_step_shows_the_time_since_the_start(self) -> None:
        shown: list[tuple[str, bool]] = []
        clock = Clock()
        starting = Starting(lambda words, begins: shown.append((words, begins)), 1e6, clock)
        starting.step("starting Spark: its Java process")
        clock.at = 2.5
        starting.step("starting Spark: its context on local[3]")
        starting.end()
        assert shown == [
            ("starting Spark: its Java process", True),
            ("starting Spark: its context on local[3] | 2.5 s", True),
        ]

    def test_a_step_that_lasts_is_shown_again_until_the_run_has_begun(self) -> None:
        clock, again = Clock(), threading.Event()

        def show(words: str, begins: bool) -> None:
            if not begins:
                assert words == "starting 2 workers | 7.0 s"
                again.set()

        starting = Starting(show, 0.001, clock)
        clock.at = 7.0
        starting.step("starting 2 workers")
        assert again.wait(WALL_S)
        starting.end()

    def test_a_run_that_cannot_begin_ends_the_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = ProgressWriter("plain", Tally({}))
        progress.note("starting Spark: its Java process")
        progress.close()
        progress.note("after it")
        assert capsys.readouterr().err.splitlines() == ["starting Spark: its Java process", "after it"]
