"""A signal that asks a run to stop may arrive at any instruction of the driver's loop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from holdfast.runtime.execution.signals import NUMBERS, SAME_WITHIN_S, StopSignals
from holdfast.runtime.wire.mailbox import Mailbox


@contextmanager
def struck_at(line: int) -> Iterator[None]:
    """Send SIGTERM to this process when so many lines of the `threading` module were run, under its lock or not."""
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != threading.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Clock:
    """The monotonic clock of the handler."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def not_ignored() -> Iterator[None]:
    """As if the tests were started without `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("holdfast.runtime.execution.signals.time", clock)
    return clock


class TestStopSignals:
    @pytest.mark.timeout(20)
    @pytest.mark.parametrize("line", range(1, 25))
    def test_a_signal_during_a_wait_of_the_loop_is_recorded_and_the_loop_continues(self, line: int) -> None:
        mailbox = Mailbox()
        with StopSignals() as signals:
            with struck_at(line):
                mailbox.wait(0.001)
                while not signals.arrived():
                    mailbox.wake()
                    mailbox.wait(0.001)
            assert not signals.arrived()

    @pytest.mark.parametrize("number", NUMBERS)
    def test_the_second_signal_interrupts(self, number: int, clock: Clock) -> None:
        with StopSignals() as signals:
            os.kill(os.getpid(), number)
            assert signals.arrived()
            clock.now += 2 * SAME_WITHIN_S
            with pytest.raises(KeyboardInterrupt, match="delivers committed output"):
                os.kill(os.getpid(), number)

    @pytest.mark.parametrize("number", NUMBERS)
    def test_the_same_signal_to_the_process_and_then_to_its_group_is_one_request(
        self, number: int, clock: Clock
    ) -> None:
        with StopSignals() as signals:
            for _ in range(3):
                os.kill(os.getpid(), number)
                clock.now += SAME_WITHIN_S / 4
            assert signals.arrived()
            assert not signals.arrived()

    def test_the_previous_handlers_are_restored_afterwards(self) -> None:
        before = [signal.getsignal(number) for number in NUMBERS]
        with StopSignals():
            assert [signal.getsignal(number) for number in NUMBERS] != before
        assert [signal.getsignal(number) for number in NUMBERS] == before

    def test_a_hangup_that_nohup_ignores_stops_nothing(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with StopSignals() as signals:
                os.kill(os.getpid(), signal.SIGHUP)
                assert not signals.arrived()
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_run_in_another_thread_leaves_signals_to_the_program(self) -> None:
        before, seen = signal.getsignal(signal.SIGINT), []

        def run() -> None:
            with StopSignals() as signals:
                seen.append((signals.arrived(), signal.getsignal(signal.SIGINT)))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [(False, before)]
