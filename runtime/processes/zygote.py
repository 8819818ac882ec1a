"""The process that forks the workers of a local run: it has imported their modules, so that they import none.

The driver sends packets over a socket pair: a task (an anonymous file), and launches and kills by number. The zygote
answers with the end of each launch. It has no threads of its own, so a fork copies a whole process.

Invariants
    - Only the zygote signals workers, and only those that it has not reaped: no other process can have their number.
    - No worker outlives the zygote, and the zygote does not outlive the driver.
    - User code is imported in workers only.

Source: docs/decisions/0113-local-processes.md; fork(2), prctl(2), unix(7).
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec

from holdfast import children
from holdfast.errors import ConfigError
from holdfast.runtime.processes.companion import ForkedCompanion
from holdfast.runtime.wire.processes import die_with_parent

PACKET_BYTES_MAX = 64 * 1024
ERROR_CHARS_MAX = 2_000
SHARED = ("encodings.idna", "pyarrow.compute", "pyarrow.ipc", "cloudpickle", "holdfast.runtime.processes.host")
"""Modules that a driver needs too: imported before the zygote is forked from it."""
PRELOADED = (
    *SHARED,
    "polars_hash",
    "holdfast.runtime.api.app",
    "holdfast.runtime.sources.log",
    "holdfast.sinks.log.sink",
    "holdfast.sinks.sqlite.sink",
    "holdfast.state.compiled.planes",
    "holdfast.state.keys.hashing",
    "holdfast.state.keys.ordering",
    "holdfast.state.tables.kernels.index",
    "holdfast.state.tables.kernels.merging",
    "holdfast.state.tables.kernels.reordering",
    "holdfast.state.tables.kernels.rows",
    "holdfast.state.tables.kernels.slots",
    "holdfast.state.tables.kernels.tree",
)
"""Imported before the first worker is forked, never used there: Polars or RocksDB in use would hang in a fork."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent to all processes of a job by a terminal, `timeout` or systemd; the driver ends its workers itself."""
_FAILED = 1


class Task(msgspec.Struct, frozen=True, tag="task"):
    """The task of all launches that follow; its descriptor travels beside the packet."""


class ForkWorker(msgspec.Struct, frozen=True, tag="launch"):
    """Fork a worker."""

    number: int


class KillWorker(msgspec.Struct, frozen=True, tag="kill"):
    """End the worker of a launch with SIGKILL, if it has not ended."""

    number: int


class ZygoteReady(msgspec.Struct, frozen=True, tag="ready"):
    """All is imported: launches from now on take milliseconds."""


class Error(msgspec.Struct, frozen=True, tag="error"):
    """A worker is about to end with this error."""

    number: int
    text: str


class WorkerEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The process of a launch has ended.

    Args:
        status: As of `os.waitstatus_to_exitcode`: negative for a signal.
    """

    number: int
    status: int


class _Surrounded(msgspec.Struct, frozen=True):
    """A task, and the environment that a process needs before it can read the task."""

    environment: dict[bytes, bytes]
    folder: bytes
    path: list[bytes]
    umask: int
    task: bytes


Run: TypeAlias = Callable[[int, ForkedCompanion | None], object]
"""Runs the worker of a launch in a separate process, beside its companion, unless that could not be forked."""
FromDriver: TypeAlias = Task | ForkWorker | KillWorker
FromZygote: TypeAlias = ZygoteReady | Error | WorkerEnded
FROM_DRIVER: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)
_SURROUNDED: msgspec.msgpack.Decoder[_Surrounded] = msgspec.msgpack.Decoder(_Surrounded)
FROM_ZYGOTE: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)


def preload(names: Sequence[str] = PRELOADED) -> None:
    """Import these modules, and exempt them from garbage collection: they stay for the life of the process."""
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


def serve(connection: socket.socket) -> NoReturn:
    """Fork workers until the driver closes its end; then end the process, and with it all workers."""
    die_with_parent()
    for number in IGNORED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` starts a command, and all that it starts
            signal.signal(number, _take_no_notice)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    _show_what_is_printed()
    preload()
    _convert()
    _Zygote(connection).run()


def _convert() -> None:
    """Make the first conversion from NumPy to Arrow, which imports pandas if it is installed."""
    import numpy
    import pyarrow

    pyarrow.array(numpy.zeros(1))


def _show_what_is_printed() -> None:
    """Flush output of functions line by line: a worker lives long, and its end may leave no time to write the rest."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _take_no_notice(number: int, frame: object) -> None:
    """A handler, unlike SIG_IGN, is not inherited by programs that functions start."""


class _Zygote:
    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._own = connection, os.getpid()
        self._task = -1
        self._pids: dict[int, int] = {}
        """Process ids of the launches that have not ended."""
        self._woken, self._waking = os.pipe()
        for end in (self._woken, self._waking):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _take_no_notice)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        self._send(ZygoteReady())
        while True:
            ready, _, _ = select.select([self._connection.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._connection.fileno() in ready:
                data, descriptors, _, _ = socket.recv_fds(self._connection, PACKET_BYTES_MAX, 1)
                if not data:
                    self._end()
                self._take(FROM_DRIVER.decode(data), descriptors)

    def _end(self) -> NoReturn:
        """End all workers, then this process."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        os._exit(0)

    def _take(self, packet: FromDriver, descriptors: list[int]) -> None:
        match packet:
            case Task():
                if self._task >= 0:
                    os.close(self._task)
                (self._task,) = descriptors
            case ForkWorker(number):
                self._launch(number)
            case KillWorker(number):
                if number in self._pids:
                    os.kill(self._pids[number], signal.SIGKILL)

    def _launch(self, number: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes: the driver launches again
            self._send(Error(number, f"no process could be forked: {error}"))
            self._send(WorkerEnded(number, _FAILED))
            return
        if pid == 0:
            self._become_worker(number)
        self._pids[number] = pid

    def _become_worker(self, number: int) -> NoReturn:
        """Run the worker of a launch; never returns to the zygote's loop."""
        status = _FAILED
        try:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._woken)
            os.close(self._waking)
            faulthandler.enable(2)
            children.keep(self._connection)
            work(self._task, number)
            status = 0
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process ends here and reports it
            self._send(Error(number, _described(error)))
        finally:
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
            os._exit(status)

    def _reap(self) -> None:
        """Report every process that has ended."""
        numbers = {pid: number for number, pid in self._pids.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (number := numbers.get(pid)) is not None:
                del self._pids[number]
                self._send(WorkerEnded(number, os.waitstatus_to_exitcode(status)))

    def _send(self, packet: FromZygote) -> None:
        try:
            self._connection.send(msgspec.msgpack.encode(packet))
        except OSError:
            if os.getpid() != self._own:
                return  # a worker, which the driver can no longer hear
            self._end()


def packed(run: Run) -> bytes:
    """Return a task with the environment of this process, which a worker needs before it can read the task.

    Args:
        run: Runs the worker of a launch. Functions of the job's file are in it by value.

    Raises:
        ConfigError: it cannot be serialized.
    """
    from cloudpickle import dumps

    try:
        task: bytes = dumps(run)
    except Exception as error:  # of any object that a function of the user holds
        raise ConfigError(
            f"the job cannot be sent to workers: {_described(error)}",
            not_done="no record was read; missing targets were created and are empty",
            next_step="create what cannot be pickled, such as locks, clients and open files, inside the function that "
            "uses it; or keep it in an installed module",
        ) from error
    path = list(map(os.fsencode, module_path()))
    return msgspec.msgpack.encode(_Surrounded(dict(os.environb), os.getcwdb(), path, _umask(), task))


def module_path() -> list[str]:
    """Return the module path of this process without entries that are not text, which Python ignores."""
    return [each for each in sys.path if isinstance(each, str)]


def _umask() -> int:
    """Return the umask of this process; os.umask() returns it only by changing it, for all threads."""
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))


def work(descriptor: int, number: int) -> None:
    """Run the task in this process, with the environment, working directory and module path of the driver."""
    from cloudpickle import loads

    companion = _companion()  # now: the task may start threads
    surroundings = _SURROUNDED.decode(_content(descriptor))
    os.environb.clear()
    os.environb.update(surroundings.environment)
    time.tzset()
    os.umask(surroundings.umask)
    os.chdir(surroundings.folder)
    sys.path[:] = map(os.fsdecode, surroundings.path)
    run: Run = loads(surroundings.task)  # code of the user, from the driver alone
    run(number, companion)


def _companion() -> ForkedCompanion | None:
    try:
        return ForkedCompanion()
    except OSError:  # no memory, too many processes or files: the worker tries again, and can do without
        return None


def _content(descriptor: int) -> bytes:
    """Read an anonymous file that other processes read too: by position, not from a shared one."""
    size, parts, position = os.fstat(descriptor).st_size, [], 0
    while position < size:
        parts.append(os.pread(descriptor, size - position, position))
        position += len(parts[-1])
    return b"".join(parts)


def _described(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()[:ERROR_CHARS_MAX]
    return text.encode("utf-8", "backslashreplace").decode()  # a message may quote bytes that are not text: file names


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return  # closed, or the reader has ended


def main(descriptor: int) -> NoReturn:
    """Run a zygote in a new process, on the socket with this number."""
    serve(socket.socket(fileno=descriptor))
