"""A worker exits when the driver is silent for too long, but not when it could not read its messages."""

from __future__ import annotations

import os
import threading
from typing import cast

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.model import Generation, WorkerId
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.processes.host import EXIT_SESSION_LOST, WorkerSession, WorkerTask
from holdfast.runtime.processes.tls import make_credentials
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.mailbox import Mailbox
from holdfast.runtime.worker.loop import WorkerLoop
from holdfast.sinks.memory.sink import MemorySink

HEARTBEAT_S, TIMEOUT_S = 0.5, 10.0


class Left(BaseException):
    """The process would have ended with this status."""


class Once(threading.Event):
    """Is over at the second look."""

    looks = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.looks += 1
        return self.looks > 1


class Idle:
    """A loop with nothing to do."""

    left: str | None = None
    advanced_at = 0.0

    def at_work(self) -> str | None:
        return None

    def heartbeat(self) -> m.Heartbeat:
        return m.Heartbeat(WorkerId("w"), Generation(1), False, False, (), m.WorkerProgress())

    def take_stock(self) -> None:
        pass

    def leave(self, reason: str) -> None:
        self.left = reason


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0


class Watched:
    """A session whose thread is woken by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = hf.App("watched")
        source = hf.Generator(pa.schema([("k", pa.int64())]), lambda i: {"k": i}, count=1)
        app.source("s", source).sink("out", MemorySink())
        flags = {"heartbeat_ms": HEARTBEAT_S * 1000, "session_timeout_ms": TIMEOUT_S * 1000}
        settings = resolve(app, {name: int(value) for name, value in flags.items()})
        task = WorkerTask(app.plan(), "root", ("here", 1), make_credentials(False), settings)
        self.clock, self.mailbox, self.loop, self.beats = Clock(), Mailbox(), Idle(), 0
        self.sent: list[m.FromWorker] = []
        self.session = WorkerSession(task, cast(WorkerLoop, self.loop), self.mailbox, self.clock, self._beat)
        monkeypatch.setattr(os, "_exit", self._exit)

    def _beat(self) -> None:
        self.beats += 1

    def _exit(self, status: int) -> None:
        raise Left(status)

    def send(self, message: m.FromWorker) -> None:
        self.sent.append(message)

    def wake(self, after_s: float = HEARTBEAT_S, *, heard: bool = False) -> None:
        """Let the thread that watches wake up once, so long after the last time."""
        self.clock.now += after_s
        if heard:
            self.session.received(m.Pulse())
        self.session.over = Once()
        self.session.watch(self)  # type: ignore[arg-type]
        self.mailbox.drain()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


class TestWorkerOfASilentDriver:
    def test_exits_after_the_session_timeout_and_not_before(self, watched: Watched) -> None:
        for _ in range(20):
            watched.wake()
        with pytest.raises(Left, match=str(EXIT_SESSION_LOST)):
            watched.wake()

    def test_keeps_running_while_the_driver_sends_messages(self, watched: Watched) -> None:
        for _ in range(200):
            watched.wake(heard=True)
        assert len(watched.sent) == 200

    def test_exits_one_session_timeout_after_the_last_message(self, watched: Watched) -> None:
        for _ in range(50):
            watched.wake(heard=True)
        for _ in range(20):
            watched.wake()
        with pytest.raises(Left):
            watched.wake()

    def test_exits_even_if_each_check_is_slightly_late(self, watched: Watched) -> None:
        with pytest.raises(Left):
            for _ in range(8):
                watched.wake(3 * HEARTBEAT_S)

    def test_exits_when_the_stream_ends(self, watched: Watched) -> None:
        watched.session.closed("its process ended, or the network cut the connection")
        watched.mailbox.drain()
        assert watched.loop.left == "the driver closed the stream: its process ended, or the network cut the connection"


class TestWorkerThatCouldNotRead:
    def test_does_not_exit_before_it_has_read_waiting_messages(self, watched: Watched) -> None:
        """A function held the interpreter: the driver's words wait in the socket."""
        watched.wake(heard=True)
        watched.wake(60.0)
        watched.wake(heard=True)
        assert len(watched.sent) == 3

    def test_exits_after_the_session_timeout_without_a_message(self, watched: Watched) -> None:
        watched.wake(heard=True)
        watched.wake(60.0)
        with pytest.raises(Left):
            for _ in range(20):
                watched.wake()


class TestBeats:
    def test_are_written_at_every_check(self, watched: Watched) -> None:
        for _ in range(3):
            watched.wake(heard=True)
        assert watched.beats == 3


class TestLoopInOneLongTimeSlice:
    def busy(self, watched: Watched, seconds: int, *, advances: bool) -> list[m.FromWorker]:
        """Look at the loop twice a second; it takes nothing from its mailbox."""
        for _ in range(2 * seconds):
            watched.clock.now += HEARTBEAT_S
            if advances:
                watched.loop.advanced_at = watched.clock.now
            watched.session.show_life(watched.send)
        return watched.sent

    def test_counts_as_hung_after_the_limit(self, watched: Watched) -> None:
        sent = self.busy(watched, 121, advances=False)
        assert isinstance(sent[-1], m.Failed) and "busy with one operation" in sent[-1].error.what

    def test_does_not_count_as_hung_while_a_restore_advances(self, watched: Watched) -> None:
        sent = self.busy(watched, 600, advances=True)
        assert len(sent) == 1_200 and all(isinstance(message, m.Heartbeat) for message in sent)

    def test_counts_as_hung_once_the_restore_no_longer_advances(self, watched: Watched) -> None:
        self.busy(watched, 600, advances=True)
        assert isinstance(self.busy(watched, 121, advances=False)[-1], m.Failed)
