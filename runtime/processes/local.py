"""Starts worker processes on this machine, through a zygote (zygote.py).

Invariants
    - Each launch is reported as ended exactly once, however it ends: also if the zygote dies.
    - After `close` no process that was started here is alive.

Source: docs/decisions/0113-local-processes.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from holdfast.errors import Unavailable
from holdfast.runtime.driver.state import Site
from holdfast.runtime.processes import zygote
from holdfast.runtime.wire.standard import fill_standard_streams

LEAVE_WITHIN_S = 10.0
"""How long the end of a run waits for workers to leave: they close their local state."""
END_WITHIN_S = 5.0
"""How long a killed process may take to disappear."""
NOTED_AFTER_S = 3.0
"""The imports take less than a second."""
POLL_S = 0.002
_STDERR = 2
_PROGRAM = """
import json, socket, sys
number = int(sys.argv[1])
with socket.socket(fileno=number) as connection:
    sys.path[:] = json.loads(connection.recv(1 << 16))
    connection.detach()
from holdfast.runtime.processes.zygote import main
main(number)
"""
_log = logging.getLogger(__name__)

Ended: TypeAlias = Callable[[int, str | None], None]
"""Called with the number of a launch and why it ended, None if it left as it should; from a thread of this module."""


class Zygote:
    """The driver's end of a zygote.

    Args:
        connection: The other end of the zygote's socket.
        pid: Its process, a child of this one.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid
        self._reaped, self._reaping = False, threading.Lock()

    @classmethod
    def fork(cls) -> Zygote:
        """Fork one from this process, which has no threads of its own yet, after the imports that both need."""
        assert threading.active_count() == 1, "a fork copies one thread only"
        fill_standard_streams()
        zygote.preload(zygote.SHARED)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, zygote.IGNORED)  # until the zygote handles them
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    os.setsid()
                    here.close()
                    _redirect()
                    zygote.serve(there)
                finally:  # this process must not become a second driver
                    os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        return cls(here, pid)

    @classmethod
    def start(cls) -> Zygote:
        """Start one as a new process; the calling thread has to outlive the run."""
        fill_standard_streams()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            here.send(json.dumps(zygote.module_path()).encode())
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                pass_fds=(there.fileno(),),
                start_new_session=True,
            )
        process.returncode = 0  # reaped by `reaped`, not by the collector of garbage
        return cls(here, process.pid)

    def wait_until_ready(self, slow: Callable[[], None]) -> None:
        """Wait until the zygote has imported everything, which includes compilation in a new installation.

        Args:
            slow: Called once if it takes longer than NOTED_AFTER_S.

        Raises:
            Unavailable: it has ended instead.
        """
        if not select.select([self._connection.fileno()], [], [], NOTED_AFTER_S)[0]:
            slow()
        if self.receive() != zygote.ZygoteReady():
            raise Unavailable(
                "the process that starts workers has ended before it was ready",
                not_done="no record was read; missing targets were created and are empty",
                next_step="see the messages above; holdfast doctor checks the packages",
            )

    def send(self, packet: zygote.FromDriver, descriptors: Sequence[int] = ()) -> None:
        """Send a packet. Raises OSError: the zygote has ended."""
        socket.send_fds(self._connection, [msgspec.msgpack.encode(packet)], list(descriptors))

    def receive(self) -> zygote.FromZygote | None:
        """Return the next packet; None if the zygote has ended."""
        try:
            data = self._connection.recv(zygote.PACKET_BYTES_MAX)
        except OSError:
            return None
        return zygote.FROM_ZYGOTE.decode(data) if data else None

    def close(self) -> None:
        """End the zygote and its workers."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + END_WITHIN_S
        while not self.reaped():
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(POLL_S)
        self._connection.close()

    def reaped(self) -> bool:
        """Return whether the process has ended; its number may be reused from then on."""
        with self._reaping:
            try:
                self._reaped = self._reaped or os.waitpid(self.pid, os.WNOHANG) != (0, 0)
            except ChildProcessError:  # the program ignores SIGCHLD, or has reaped it
                self._reaped = True
            return self._reaped


class LocalHost:
    """Launches and cancels the worker processes of one run.

    Args:
        run: Runs the worker of a launch, in its process.
        ended: Called at the end of each launch.
        ready: A zygote that is ready; None: one is started.
    """

    def __init__(self, run: zygote.Run, ended: Ended, ready: Zygote | None = None) -> None:
        try:
            self._task = _anonymous(zygote.packed(run))
        except BaseException:  # also an interrupt of a program that continues
            if ready is not None:
                ready.close()
            raise
        self._ended, self._ready = ended, ready
        self._zygote: Zygote | None = None
        self._alive: dict[int, str | None] = {}
        """Launches that have not ended, with the error that their process has reported."""
        self._changed = threading.Condition()

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Start one worker; the end of its process is reported, whatever the cause. There is one machine."""
        with self._changed:
            self._alive[number] = None
        try:
            self._running().send(zygote.ForkWorker(number))
        except OSError as error:
            self._end(number, f"the process that starts workers has ended: {error}")

    def cancel(self, number: int) -> None:
        """Kill the worker of a launch, if it has not ended."""
        try:
            if self._zygote is not None and number in self._alive:
                self._zygote.send(zygote.KillWorker(number))
        except OSError as error:
            _log.info("launch %d was not cancelled, its process ends with the zygote: %s", number, error)

    def warm_up(self, workers: int) -> None:
        """The zygote is all that a launch waits for."""

    def close(self, *, hurry: bool) -> None:
        """End all processes; without `hurry` those that are leaving are waited for, LEAVE_WITHIN_S at most."""
        try:
            with self._changed:
                if not hurry:
                    self._changed.wait_for(lambda: not self._alive, LEAVE_WITHIN_S)
        finally:  # also after an interrupt of a program that continues
            for each in (self._zygote, self._ready):
                if each is not None:
                    each.close()
            os.close(self._task)

    def _running(self) -> Zygote:
        """Return the zygote, a new one if there is none."""
        with self._changed:
            running = self._zygote
        if running is None:
            running, self._ready = self._ready or Zygote.start(), None
            try:
                running.send(zygote.Task(), [self._task])
            except OSError:
                running.close()
                raise
            with self._changed:
                self._zygote = running
            threading.Thread(target=self._listen, args=(running,), name="zygote", daemon=True).start()
        return running

    def _listen(self, running: Zygote) -> None:
        """Forward the reports of this zygote; at its end, report the end of all launches."""
        while (packet := running.receive()) is not None:
            match packet:
                case zygote.Error(number, text):
                    with self._changed:
                        if number in self._alive:
                            self._alive[number] = text
                case zygote.WorkerEnded(number, status):
                    self._end(number, how_it_ended(status))
        running.close()
        with self._changed:
            left = list(self._alive)
            if self._zygote is running:
                self._zygote = None
        for number in left:
            self._end(number, "its process was killed with the process that starts workers")

    def _end(self, number: int, how: str | None) -> None:
        with self._changed:
            if number not in self._alive:
                return
            error = self._alive.pop(number)
            self._changed.notify_all()
        self._ended(number, error or how)


def how_it_ended(status: int) -> str | None:
    """Return how a process ended; None if it left as it should."""
    if status == 0:
        return None
    if status > 0:
        return f"its process ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was killed by {name}"


def _anonymous(data: bytes) -> int:
    """Return the descriptor of a file that has no name and holds this data."""
    descriptor = os.memfd_create("holdfast-task", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def _redirect() -> None:
    """Give this process and its children an empty input, and redirect their output to stderr."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(_STDERR, 1)
    os.close(null)
