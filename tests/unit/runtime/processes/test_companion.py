"""The companion process of a worker beside a real driver: when it reports, and when it ends its worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import msgspec
import psutil
import pytest
from patience import WALL_S, wait

from holdfast.model import WorkerId
from holdfast.runtime.processes import control
from holdfast.runtime.processes.companion import Board, CompanionHandle, _is_stopped, _Process
from holdfast.runtime.processes.control import ControlClient, ControlServer
from holdfast.runtime.processes.streams import StreamClosed, connect
from holdfast.runtime.processes.tls import Credentials, make_credentials
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.vitals import CompanionLimits

WORKER = WorkerId("w")
MARKS = ("source: s", "function: map parse")
QUICK = CompanionLimits(every=0.05, hung_after=60.0, session_timeout=60.0)

# A worker of its own process: registers, starts its companion, marks a function, and then obeys commands.
WORKER_PROGRAM = """
import json, os, sys, msgspec, threading, time
from holdfast.runtime.wire import messages as m
from holdfast.runtime.processes.companion import Board, CompanionHandle
from holdfast.runtime.processes.control import ControlClient
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire.vitals import CompanionLimits

port, secret, limits, marks = json.loads(sys.argv[1])
address, credentials = ("127.0.0.1", port), Credentials(bytes.fromhex(secret))
register = m.Register("w", 1, "here", os.getpid(), "boot", ("here", 1))
client = ControlClient(address, credentials, register, lambda message: None, lambda why: None)
client.start()
board = Board(marks)
hello = msgspec.msgpack.encode(m.Companion("w"))
companion = CompanionHandle(board, address, credentials, hello, CompanionLimits(**limits))
print(companion.pid, flush=True)
board.mark(marks[1])
board.beat()
command = sys.stdin.readline().strip()  # and no beat follows
if command == "exit":
    os._exit(3)
threading.Event().wait()
"""


class Driver:
    """The driver's end, and the messages it received, in order."""

    def __init__(self, credentials: Credentials) -> None:
        self.heard: list[Any] = []
        self.server = ControlServer(
            "127.0.0.1", credentials, self.heard.append, lambda worker, why: self.heard.append((worker, why))
        )

    def said(self, kind: type) -> list[Any]:
        return [each for each in list(self.heard) if isinstance(each, kind)]

    def register(self, credentials: Credentials) -> ControlClient:
        register = m.Register(WORKER, 1, "here", os.getpid(), "boot", ("here", 1))
        client = ControlClient(self.server.address, credentials, register, lambda _: None, lambda _: None)
        wait(lambda: WORKER in self.server._streams and self.said(m.Register), "the worker")
        return client


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def credentials(request: pytest.FixtureRequest) -> Credentials:
    return make_credentials(request.param)


@pytest.fixture
def driver(credentials: Credentials) -> Iterator[Driver]:
    made = Driver(credentials)
    yield made
    made.server.close()


@pytest.fixture
def plain() -> Iterator[Driver]:
    made = Driver(Credentials(b"s" * 32))
    yield made
    made.server.close()


class Worker:
    """A worker process."""

    def __init__(self, driver: Driver, limits: CompanionLimits = QUICK) -> None:
        task = [driver.server.address[1], (b"s" * 32).hex(), asdict(limits), MARKS]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER_PROGRAM, msgspec.json.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.companion = int(self.process.stdout.readline())

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def working(plain: Driver) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def start(limits: CompanionLimits = QUICK) -> Worker:
        made.append(Worker(plain, limits))
        return made[-1]

    yield start
    for each in made:
        each.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


class TestACompanion:
    def test_reports_for_a_worker_that_does_not_beat_and_is_dismissed(
        self, driver: Driver, credentials: Credentials
    ) -> None:
        client, board = driver.register(credentials), Board(MARKS)
        hello = msgspec.msgpack.encode(m.Companion(WORKER))
        companion = CompanionHandle(board, driver.server.address, credentials, hello, QUICK)
        assert companion.pid is not None
        board.mark(MARKS[1])
        wait(lambda: len(driver.said(m.Vitals)) > 2, "a word of the companion")
        first, second, *_ = driver.said(m.Vitals)
        assert (first.worker, first.state, first.mark) == (WORKER, "held", MARKS[1])
        assert second.for_ms > first.for_ms > 0
        board.mark(None)
        wait(lambda: driver.said(m.Vitals)[-1].mark is None, "the mark to go")
        companion.close()
        assert gone(companion.pid)
        assert companion._process is not None and companion._process.returncode == 0  # by itself
        assert {each.state for each in driver.said(m.Vitals)} == {"held"}
        client.close()

    def test_reports_nothing_while_the_worker_beats(self, plain: Driver) -> None:
        secret = Credentials(b"s" * 32)
        client, board = plain.register(secret), Board(MARKS)
        hello = msgspec.msgpack.encode(m.Companion(WORKER))
        limits = CompanionLimits(every=0.2, hung_after=60.0, session_timeout=60.0)
        stop, pause = threading.Event(), 0.01

        def beat() -> None:
            while not stop.wait(pause):
                board.beat()

        threading.Thread(target=beat, daemon=True).start()
        companion = CompanionHandle(board, plain.server.address, secret, hello, limits)
        wait(lambda: WORKER in plain.server._companions, "the companion")
        looked = time.monotonic() + 5 * limits.every
        wait(lambda: time.monotonic() > looked, "some looks")
        assert plain.said(m.Vitals) == []
        stop.set()
        wait(lambda: plain.said(m.Vitals), "a word, once it does not beat")
        companion.close()
        client.close()

    def test_reports_the_last_mark_of_a_worker_that_ended(self, plain: Driver, working: Callable[..., Worker]) -> None:
        worker = working(CompanionLimits(every=5.0, hung_after=60.0, session_timeout=60.0))
        wait(lambda: WORKER in plain.server._companions, "the companion")
        worker.tell("exit")
        wait(lambda: plain.said(tuple), "the end of the stream")
        vitals, (_, why) = plain.heard[-2:]
        assert (vitals.state, vitals.mark) == ("ended", MARKS[1])
        assert "closed its stream" in why
        wait(lambda: gone(worker.companion), "the companion's end")

    def test_survives_the_signals_that_end_its_worker(self, plain: Driver, working: Callable[..., Worker]) -> None:
        """They go to the whole process group; only the companion can report what the worker was doing."""
        worker = working(CompanionLimits(every=5.0, hung_after=60.0, session_timeout=60.0))
        wait(lambda: WORKER in plain.server._companions, "the companion")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.companion, number)
        worker.tell("exit")
        wait(lambda: plain.said(tuple), "the end of the stream")
        assert [each.state for each in plain.said(m.Vitals)] == ["ended"]

    def test_is_awaited_if_its_worker_ended_right_after_it_connected(
        self, plain: Driver, working: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(control, "COMING_S", WALL_S)
        worker = working()
        worker.tell("exit")
        wait(lambda: plain.said(tuple), "the end of the stream")
        assert [each.mark for each in plain.said(m.Vitals) if each.state == "ended"] == [MARKS[1]]

    def test_does_not_report_for_a_worker_that_a_signal_stopped(
        self, plain: Driver, working: Callable[..., Worker]
    ) -> None:
        worker = working()
        wait(lambda: plain.said(m.Vitals), "a word of the companion")
        os.kill(worker.process.pid, signal.SIGSTOP)
        wait(lambda: _is_stopped(worker.process.pid), "the stop")
        several = time.monotonic() + 2 * QUICK.every  # one look may be under way
        wait(lambda: time.monotonic() > several, "a look")
        before = len(plain.said(m.Vitals))
        more = time.monotonic() + 10 * QUICK.every
        wait(lambda: time.monotonic() > more, "some looks")
        assert len(plain.said(m.Vitals)) == before
        os.kill(worker.process.pid, signal.SIGCONT)
        wait(lambda: len(plain.said(m.Vitals)) > before, "a word of the companion")

    def test_reports_and_ends_a_worker_that_holds_its_interpreter_too_long(
        self, plain: Driver, working: Callable[..., Worker]
    ) -> None:
        worker = working(CompanionLimits(every=0.05, hung_after=0.5, session_timeout=60.0))
        assert worker.process.wait(WALL_S) == -signal.SIGKILL
        wait(lambda: plain.said(tuple), "the end of the stream")
        said = [each for each in plain.said(m.Vitals) if each.state != "held"]
        assert (said[0].state, said[-1].state) == ("hung", "ended")
        assert {each.mark for each in said} == {MARKS[1]}
        assert said[0].for_ms >= 500

    def test_ends_a_dismissed_worker_that_cannot_exit(self, plain: Driver, working: Callable[..., Worker]) -> None:
        """A zombie that holds its interpreter does not notice that its stream is closed."""
        worker = working(CompanionLimits(every=0.05, hung_after=60.0, session_timeout=0.5))
        wait(lambda: WORKER in plain.server._companions, "the companion")
        plain.server.dismiss(WORKER)
        assert worker.process.wait(WALL_S) == -signal.SIGKILL
        wait(lambda: gone(worker.companion), "the companion's end")


class TestItsEnd:
    def test_is_no_error_if_a_function_ignores_the_ends_of_children(self) -> None:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them then
            try:
                process.kill()
                wait(lambda: not psutil.pid_exists(process.pid), "the end of the process")
                _Process(process.pid, os.dup(process.stdin.fileno())).end()
            finally:
                signal.signal(signal.SIGCHLD, before)


class TestDriverSide:
    def test_does_not_report_the_end_of_a_worker_that_it_has_dismissed(self, plain: Driver) -> None:
        client = plain.register(Credentials(b"s" * 32))
        (serving,) = [each for each in threading.enumerate() if each.name == "control"]
        plain.server.dismiss(WORKER)
        serving.join(WALL_S)
        assert not serving.is_alive()
        assert plain.said(tuple) == []
        client.close()

    def test_gives_up_a_worker_that_acknowledges_nothing_for_five_seconds(self, plain: Driver) -> None:
        client = plain.register(Credentials(b"s" * 32))
        stream = plain.server._streams[WORKER]
        assert stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        client.close()

    def test_does_not_wait_for_a_companion_that_has_sent_its_last_report(
        self, plain: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its stream may end before that of the worker is seen to end."""
        monkeypatch.setattr(control, "COMING_S", 2 * WALL_S)
        secret = Credentials(b"s" * 32)
        client = plain.register(secret)
        companion = connect(plain.server.address, secret, msgspec.msgpack.encode(m.Companion(WORKER)))
        wait(lambda: WORKER in plain.server._companions, "the companion")
        companion.close()
        wait(lambda: plain.server._companions[WORKER] is None, "its end")
        client.close()
        wait(lambda: plain.said(tuple), "the end of the worker's stream")

    def test_refuses_the_companion_of_an_unknown_worker(self, plain: Driver) -> None:
        board = Board(MARKS)
        secret = Credentials(b"s" * 32)
        hello = msgspec.msgpack.encode(m.Companion(WorkerId("stranger")))
        stranger = connect(plain.server.address, secret, hello)
        with pytest.raises(StreamClosed):
            stranger.receive()
        assert plain.heard == []
        board.close()

    def test_reports_the_end_of_a_worker_without_companion_after_a_short_wait(
        self, plain: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(control, "YOUNG_S", 0.0)
        monkeypatch.setattr(control, "COMING_S", 2 * WALL_S)
        plain.register(Credentials(b"s" * 32)).close()
        wait(lambda: plain.said(tuple), "the end of the stream")
        assert [type(each) for each in plain.heard] == [m.Register, tuple]

    def test_limits_the_wait_for_the_last_report(self, plain: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        """A companion that is still running does not report the worker's end."""
        monkeypatch.setattr(control, "LAST_WORDS_S", 0.05)
        client = plain.register(Credentials(b"s" * 32))
        hello = msgspec.msgpack.encode(m.Companion(WORKER))
        companion = connect(plain.server.address, Credentials(b"s" * 32), hello)
        wait(lambda: WORKER in plain.server._companions, "the companion")
        client.close()
        wait(lambda: plain.said(tuple), "the end of the stream")
        companion.close()

    def test_ignores_an_unreadable_companion(self, plain: Driver) -> None:
        client = plain.register(Credentials(b"s" * 32))
        companion = connect(plain.server.address, Credentials(b"s" * 32), msgspec.msgpack.encode(m.Companion(WORKER)))
        companion.send(4, b'{"state": "perfect", "mark": null, "for_ms": 1, "memory": false}')
        with pytest.raises(StreamClosed):
            companion.receive()
        assert plain.said(m.Vitals) == plain.said(tuple) == []
        client.close()
