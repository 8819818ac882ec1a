"""`holdfast stop`: sends a request, waits for the end in the log, and reports a missing answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from holdfast.runtime.job.requests import Inbox
from holdfast.runtime.job.stopping import StopWaits

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]
    Begin = Callable[[str], History]


class TestStop:
    def test_the_command_ends_when_the_log_records_the_end(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        job.checkpoint(5)
        over = threading.Event()

        def driver() -> None:
            inbox = Inbox(job.store)
            while not (found := inbox.poll()) and not over.is_set():
                pass
            for request in found:
                inbox.answer(request, {"accepted": request.kind == "stop", "generation": request.generation})
            job.checkpoint(6)
            job.stop()

        answering = threading.Thread(target=driver)
        answering.start()
        try:
            ended = holdfast("stop", "hot")
        finally:
            over.set()
            answering.join()
        assert (ended.status, ended.out) == (0, "hot: stopped at epoch 6\n")
        assert "holdfast run" in ended.err

    def test_a_stopped_job_needs_no_stop(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.stop()
        ended = holdfast("stop", "hot")
        assert (ended.status, ended.out) == (0, "hot is not running: stopped at epoch 5; there was nothing to stop\n")
        assert Inbox(job.store).poll() == []

    def test_a_job_without_a_live_driver_is_unavailable(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live(at_us=time.time_ns() // 1000 - 60_000_000)
        ended = holdfast("stop", "hot")
        assert ended.status == 5
        assert "is unreachable" in ended.err
        assert "Not done: no request was made." in ended.err
        assert Inbox(job.store).poll() == []

    def test_a_request_is_kept_if_the_driver_does_not_answer_in_time(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        ended = holdfast("stop", "hot", "--timeout", "0ms", "--json")
        assert (ended.status, ended.json["kind"]) == (5, "unavailable")
        assert "has not answered" in ended.json["what"]
        [request] = Inbox(job.store).poll()
        assert (request.kind, request.generation) == ("stop", 1)

    def test_one_that_takes_too_long_names_the_sink_that_it_waits_for(self, holdfast: Holdfast, history: Begin) -> None:
        sink = {"name": "out", "staged_epoch": 6, "delivered_epoch": 5, "error": "the disk is full"}
        history("hot").live(sinks=[sink], ending="stop")
        ended = holdfast("stop", "hot", "--timeout", "0ms")
        assert ended.status == 5
        assert "has not answered the request, and waits: sink out cannot deliver: the disk is full" in ended.err

    def test_one_that_waits_for_a_function_says_so_and_how_to_end_at_once(
        self, holdfast: Holdfast, history: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.cli.operate.stop.DOT_EVERY_S", 0.0)
        monkeypatch.setattr("holdfast.runtime.cli.operate.stop.SAY_AFTER_S", 0.0)
        waiting = [{"worker": "w1", "subtask": 0, "ready": True, "ended": False, "silent_ms": 0,
                    "held_by": ["function: map f"]}]  # fmt: skip
        history("hot").live(ending="stop", waiting=waiting)
        ended = holdfast("stop", "hot", "--timeout", "1s")
        said = "waits: a worker is busy with the Python function of step 'map f', which takes seconds for one row"
        assert ended.status == 5 and ended.err.count(said) == 2, "once while it waits, once when it gives up"
        assert "To end it without waiting: holdfast stop hot --now" in ended.err

    def test_one_that_waits_for_two_things_in_turn_says_each_once(
        self, holdfast: Holdfast, history: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As for a function that is slow for some batches, and for output that is delivered between them."""
        turns = itertools.cycle(StopWaits(frozenset({each}), False, f"it is {each}", None) for each in ("up", "down"))
        monkeypatch.setattr("holdfast.runtime.cli.operate.stop.stop_waits", lambda _: next(turns))
        monkeypatch.setattr("holdfast.runtime.cli.operate.stop.DOT_EVERY_S", 0.0)
        monkeypatch.setattr("holdfast.runtime.cli.operate.stop.SAY_AFTER_S", 0.0)
        history("hot").live(ending="stop")
        said = holdfast("stop", "hot", "--timeout", "1s").err.partition("has not stopped")[0]
        assert (said.count("it is up"), said.count("it is down")) == (1, 1)

    def test_the_json_is_the_last_status(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.finish()
        assert holdfast("stop", "hot", "--json").json["state"] == "finished"

    @pytest.mark.parametrize("timeout", ["soon", "-1s", "1.5"])
    def test_an_invalid_timeout_is_refused(self, holdfast: Holdfast, history: Begin, timeout: str) -> None:
        history("hot").live()
        ended = holdfast("stop", "hot", f"--timeout={timeout}")
        assert ended.status == 2
        assert "--timeout" in ended.err
        assert "Not done: the job was not asked to stop." in ended.err

    def test_an_unknown_job_is_wrong_use(self, holdfast: Holdfast, history: Begin) -> None:
        history("hot")
        ended = holdfast("stop", "cold")
        assert ended.status == 2
        assert "jobs here: hot" in ended.err

    def test_records_dropped_by_a_finish_are_counted(self, holdfast: Holdfast, history: Begin) -> None:
        job = history("hot").live()
        heard: list[object] = []

        def driver() -> None:
            inbox = Inbox(job.store)
            while not (found := inbox.poll()) and not over.is_set():
                pass
            heard.extend(request.args for request in found)
            job.checkpoint(8)
            job.finish()

        over = threading.Event()
        answering = threading.Thread(target=driver)
        answering.start()
        try:
            ended = holdfast("stop", "hot", "--finish", "--drop-unread")
        finally:
            over.set()
            answering.join()
        assert (ended.status, ended.out) == (0, "hot: finished at epoch 8\n")
        assert heard == [{"how": "finish", "unread": "drop"}]
        assert "at least 200 records skipped" in ended.err  # partition 0: 800 of 1,000; of 1 no end is known

    @pytest.mark.parametrize("how", [[], ["--now"]])
    def test_only_a_finish_can_drop_unread_records(self, holdfast: Holdfast, history: Begin, how: list[str]) -> None:
        job = history("hot").live()
        ended = holdfast("stop", "hot", "--drop-unread", *how)
        assert ended.status == 2
        assert "without --finish" in ended.err
        assert Inbox(job.store).poll() == []
