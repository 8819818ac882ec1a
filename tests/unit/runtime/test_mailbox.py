"""Lanes hand over whatever their work comes to."""

from __future__ import annotations

import signal
import threading

import polars as pl
import pytest
from patience import WALL_S

from holdfast.runtime.testing.lanes import InlineLane
from holdfast.runtime.wire.mailbox import Mailbox, ThreadLanes


class TestALane:
    def test_continues_after_a_panic_of_native_code(self) -> None:
        def panics() -> object:
            raise pl.exceptions.PanicException("index out of bounds")

        mailbox, results = Mailbox(), list[object]()
        lanes = ThreadLanes(mailbox)
        lanes.lane("upload").submit(panics, results.append)
        lanes.lane("upload").submit(lambda: "done", results.append)
        while len(results) < 2:
            mailbox.wait(WALL_S)
            assert mailbox.drain(), "the lane's thread is gone"
        lanes.close()
        assert isinstance(results[0], pl.exceptions.PanicException)
        assert results[1] == "done"


class TestAMailbox:
    def test_wakes_a_waiting_loop_when_a_call_is_posted(self) -> None:
        mailbox, woken = Mailbox(), threading.Event()

        def loop() -> None:
            mailbox.wait(WALL_S)
            woken.set()

        threading.Thread(target=loop, daemon=True).start()
        mailbox.post(lambda: None)
        assert woken.wait(WALL_S)

    def test_does_not_wait_if_a_call_was_already_posted(self) -> None:
        mailbox, woken = Mailbox(), threading.Event()
        mailbox.post(lambda: None)

        def loop() -> None:
            mailbox.wait(WALL_S)
            woken.set()

        threading.Thread(target=loop, daemon=True).start()
        assert woken.wait(WALL_S)

    def test_runs_the_calls_posted_so_far_in_order(self) -> None:
        mailbox, ran = Mailbox(), list[int]()

        def first() -> None:
            ran.append(1)
            mailbox.post(lambda: ran.append(3))

        mailbox.post(first)
        mailbox.post(lambda: ran.append(2))
        assert mailbox.drain() and ran == [1, 2]
        assert mailbox.drain() and ran == [1, 2, 3]
        assert not mailbox.drain()


class TestInlineLane:
    def test_delivers_a_panic_like_a_real_lane(self) -> None:
        def panics() -> object:
            raise pl.exceptions.PanicException("index out of bounds")

        lane, results = InlineLane(), list[object]()
        lane.submit(panics, results.append)
        lane.step()
        assert isinstance(results[0], pl.exceptions.PanicException)

    def test_lets_exceptions_for_the_test_through(self) -> None:
        def ends(_number: int, _frame: object) -> None:
            raise pytest.fail.Exception("Timeout")

        lane, results = InlineLane(), list[object]()
        lane.submit(lambda: signal.raise_signal(signal.SIGUSR1), results.append)
        before = signal.signal(signal.SIGUSR1, ends)
        try:
            with pytest.raises(pytest.fail.Exception):
                lane.step()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert results == []
