"""A small process beside every worker that reports to the driver when the worker cannot (runtime/wire/vitals.py).

It shares a page of memory with the worker, and has its own control stream to the driver, authenticated like all others.
It holds no state of the job. A Spark task starts it as a new process, which imports only the standard library and the
modules of the handshake, in about 50 ms; a process of this machine forks it before it reads its task and has threads.

Invariants
    - The run's secret reaches the process through a pipe, never through arguments, environment or files.
    - The process ends when the worker ends or closes it; it never outlives that by more than a connection attempt.
    - A worker also runs without it; it is then only silent while its interpreter is held.

Source: docs/decisions/0026-vitals.md; pidfd_open(2), proc(5).
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import holdfast
from holdfast import children
from holdfast.errors import Unavailable
from holdfast.runtime.processes.streams import VITALS, PeerStream, StreamClosed, connect
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire.vitals import At, CompanionLimits, Observation, State, VitalsWatch, look

_BEATS, _MARK, _ROWS, _PARTITION, _OFFSET, _FOLLOWING, _DIGEST = range(7)
_BYE = b"."
_ENDS_WITHIN_S, _ENDED_POLL_S = 1.0, 0.002
_CONNECT_AGAIN_S = 0.3
_PROGRAM = """
import json, os, sys
size, data = int.from_bytes(os.read(0, 8), "big"), b""
while len(data) < size:
    data += os.read(0, size - len(data)) or sys.exit(0)
task = json.loads(data)
sys.path[:0] = task["paths"]
from holdfast.runtime.processes.companion import accompany
accompany(task)
"""
_log = logging.getLogger("holdfast.worker")


class Board:
    """A page of memory that the worker writes and its companion reads.

    Args:
        marks: All possible marks.
        descriptor: File descriptor of the page, if the companion was forked with it; None: the page is created.
    """

    def __init__(self, marks: Sequence[str], descriptor: int | None = None) -> None:
        self.marks = tuple(marks)
        self._numbers = {mark: number for number, mark in enumerate(self.marks, 1)}
        self.descriptor = _page() if descriptor is None else descriptor
        self._page = memoryview(mmap.mmap(self.descriptor, mmap.PAGESIZE)).cast("Q")

    def beat(self) -> None:
        """Record that the worker's threads run."""
        self._page[_BEATS] += 1

    def mark(self, mark: str | None, at: At | None = None, /) -> None:
        """Record the function that the loop's thread is about to call, and its rows; None after the call."""
        page = self._page
        if mark is None:
            children.end_if_child()
            page[_MARK] = 0
            return
        if at is None:
            page[_ROWS] = 0
        else:
            page[_ROWS], page[_PARTITION], page[_DIGEST] = at.rows, at.partition + 1, at.digest
            page[_OFFSET], page[_FOLLOWING] = max(at.offset, 0), max(at.following, 0)
        page[_MARK] = self._numbers.get(mark, 0)

    def noted(self) -> tuple[str, At | None] | None:
        """Return the marked function and its rows; None if none is marked."""
        return _noted(self._page, self.marks)

    def close(self) -> None:
        """Close the descriptor; the page stays for threads that still beat."""
        os.close(self.descriptor)


def _noted(page: memoryview, marks: Sequence[str]) -> tuple[str, At | None] | None:
    if not 0 < (number := page[_MARK]) <= len(marks):
        return None
    at = At(page[_ROWS], page[_PARTITION] - 1, page[_OFFSET], page[_FOLLOWING], page[_DIGEST])
    return marks[number - 1], at if at.rows else None


def _page() -> int:
    descriptor = os.memfd_create("holdfast-vitals", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor


class _Process:
    """A companion's process, which waits for its task on a pipe.

    Args:
        pipe: The end that this process writes to.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self._pipe = pid, pipe
        self.returncode: int | None = None

    def write(self, data: bytes) -> None:
        """Write all of it. Raises OSError: the process has ended."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._pipe, view) :]

    def end(self) -> None:
        """Let the process end; kill it if it does not."""
        with contextlib.suppress(OSError):
            self.write(_BYE)
        deadline = time.monotonic() + _ENDS_WITHIN_S
        with contextlib.suppress(ChildProcessError):  # a function ignores SIGCHLD, or has reaped it
            while (wait_result := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                time.sleep(_ENDED_POLL_S)
            self.returncode = os.waitstatus_to_exitcode(wait_result[1])
        os.close(self._pipe)


class ForkedCompanion:
    """A companion that was forked from a worker which has no threads yet: it imports nothing and shares its memory."""

    def __init__(self) -> None:
        self.board = _page()
        read_end = write = -1
        try:
            read_end, write = os.pipe()
            pid = os.fork()
        except OSError:
            for each in (self.board, read_end, write):
                if each >= 0:
                    os.close(each)
            raise
        if pid == 0:
            try:
                os.dup2(read_end, 0)
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                _close_all_but(0, 1, 2, self.board)
                _accompany_when_told()
            finally:
                os._exit(0)
        os.close(read_end)
        self.process = _Process(pid, write)


class CompanionHandle:
    """The worker's end: starts the process, and ends it.

    Args:
        address: Where the driver accepts control streams.
        hello: Names the companion's worker to the driver.
        forked: A process with this board that waits for its task; None: one is started.
    """

    def __init__(
        self,
        board: Board,
        address: tuple[str, int],
        credentials: Credentials,
        hello: bytes,
        limits: CompanionLimits,
        forked: ForkedCompanion | None = None,
    ) -> None:
        self._board = board
        self._process = None if forked is None else forked.process
        task = {
            "paths": [str(Path(holdfast.__file__).absolute().parent.parent)],
            "pid": os.getpid(),
            "board": board.descriptor,
            "marks": board.marks,
            "address": address,
            "limits": asdict(limits),
            "hello": _text(hello),
            "credentials": list(map(_text, (credentials.secret, credentials.certificate, credentials.private_key))),
        }
        data = json.dumps(task).encode()
        try:
            self._process = self._process or _started(board)
            self._process.write(len(data).to_bytes(8, "big") + data)
        except OSError as error:
            _log.warning("no companion process (%s): a function that holds the interpreter silences the worker", error)

    @property
    def pid(self) -> int | None:
        """Return the process id, None if it did not start."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Let the process end."""
        if self._process is not None:
            self._process.end()
        self._board.close()


def _started(board: Board) -> _Process:
    """Start a separate process. Raises OSError."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(board.descriptor,),
    )
    process.returncode = 0  # reaped by `end`
    assert process.stdin is not None
    pipe = os.dup(process.stdin.fileno())
    process.stdin.close()
    return _Process(process.pid, pipe)


# In the companion process


def _accompany_when_told() -> None:
    """Read the task from the pipe; return if the worker ends before it has written it."""
    size, data = int.from_bytes(os.read(0, 8), "big"), b""
    while len(data) < size:
        if not (part := os.read(0, size - len(data))):
            return
        data += part
    if size:
        accompany(json.loads(data))


def _close_all_but(*descriptors: int) -> None:
    """Close inherited descriptors: an open copy of a socket would hide the end of the worker from its peer."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in descriptors:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


def accompany(task: dict[str, Any]) -> None:
    """Run the companion until the worker ends or closes it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the worker; the companion ends with it
        signal.signal(number, signal.SIG_IGN)
    _Accompanying(task).run()


class _Accompanying:
    def __init__(self, task: dict[str, Any]) -> None:
        self._pid, self._marks = int(task["pid"]), task["marks"]
        self._address, self._hello = task["address"], base64.b64decode(task["hello"])
        secret, certificate, private_key = task["credentials"]
        self._credentials = Credentials(base64.b64decode(secret), _bytes(certificate), _bytes(private_key))
        self._limits = CompanionLimits(**task["limits"])
        self._page = memoryview(mmap.mmap(int(task["board"]), mmap.PAGESIZE, prot=mmap.PROT_READ)).cast("Q")
        self._process = _opened(self._pid)
        self._stream: PeerStream | None = None
        self._was_linked, self._connect_at = False, 0.0

    def run(self) -> None:
        watch, pipe = VitalsWatch(time.monotonic()), [0]
        while True:
            self._link()
            oom_kills = _oom_kills()
            waited = [*pipe, *([] if self._process is None else [self._process])]
            waited += [] if self._stream is None else [self._stream.fileno()]
            ready, _, _ = select.select(waited, [], [], self._limits.every)
            if 0 in ready:
                if os.read(0, 1) == _BYE:
                    return
                pipe = []  # the worker has ended or only closed its pipe: its process descriptor shows which
            if self._stream is not None and self._stream.fileno() in ready:
                self._unlink()  # a driver never sends anything here: it dismissed the worker, or has ended
            alive = os.getppid() == self._pid and not (self._process in ready)
            stopped = alive and _is_stopped(self._pid)
            seen = Observation(time.monotonic(), self._page[_BEATS], alive, stopped, self._stream is not None)
            watch, state = look(watch, seen, self._limits)
            if state is not None:
                self._say(state, watch.held, _oom_kills() > oom_kills)
            if state == "ended":
                return
            if state in ("hung", "lost"):
                os.kill(self._pid, signal.SIGKILL)

    def _say(self, state: State, held: float, memory: bool) -> None:
        """Report to the driver if it is reachable."""
        self._link(at_last=state == "ended")
        if self._stream is None:
            return
        mark, at = _noted(self._page, self._marks) or (None, None)
        memory = memory and state == "ended"
        said = {"state": state, "mark": mark, "for_ms": round(held * 1000), "memory": memory, "at": at}
        try:
            self._stream.hurry(time.monotonic() + self._limits.every)
            self._stream.send(VITALS, json.dumps(said).encode())
        except StreamClosed:
            self._unlink()

    def _link(self, at_last: bool = False) -> None:
        """Connect, unless that failed a moment ago; a closed stream is not reopened."""
        if self._stream is not None or self._was_linked or (time.monotonic() < self._connect_at and not at_last):
            return
        try:
            self._stream = connect(self._address, self._credentials, self._hello)
            self._was_linked = True
        except Unavailable:
            self._connect_at = time.monotonic() + _CONNECT_AGAIN_S

    def _unlink(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _opened(pid: int) -> int | None:
    """Return a descriptor that is readable when the process ends; None if the system has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")


def _oom_kills() -> int:
    """Return how many processes of this machine the system has killed because memory ran out."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/vmstat").read_bytes().splitlines()
        return int(next(line for line in lines if line.startswith(b"oom_kill ")).split()[1])
    return 0


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")
