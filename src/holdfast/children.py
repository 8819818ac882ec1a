"""Keeps processes that users' functions fork away from this process's work: its loop, sockets and locks.

A fork copies everything. A child that returns from the function would go on as a second worker of the same name. One
that lives on keeps sockets open, so that a peer does not see that the worker has ended, and locks held.

So a forked child has the null device in place of each descriptor that was registered here, and of each socket that was
open before the first function was called. It ends when it returns to code of this package. Children that never return
are not affected: those of `multiprocessing`, and those that end with `os._exit` or replace themselves.

Invariants
    - No child of a guarded process runs code of this package after the call that forked it.
    - A child ends by SIGTERM, unless it decides otherwise.
    - The process itself pays nothing for it, but its own number per call of a function.

Source: fork(2), flock(2); os.register_at_fork, sys.settrace.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol
from weakref import WeakSet

_PACKAGE = os.path.join(os.path.dirname(__file__), "")
"""As the code of the package names its files: not resolved."""
_STANDARD = 2
"""Standard error, and the descriptors below it, stay: output of a child is shown."""


class HasDescriptor(Protocol):
    """A socket or a file."""

    def fileno(self) -> int:
        """Return the descriptor; negative, or ValueError, if it is closed."""


class _ProcessState:
    def __init__(self) -> None:
        self.kept: WeakSet[HasDescriptor] = WeakSet()
        self.numbers: set[int] = set()
        self.guarded = 0
        """The number of the process that runs functions; 0: none does."""
        self.sockets: dict[int, int] = {}
        """The sockets that were open when that began, such as those of Spark, with their inodes."""


_process = _ProcessState()


def keep(thing: HasDescriptor) -> None:
    """Keep this socket or file from children that are forked from now on."""
    _process.kept.add(thing)


@contextmanager
def kept(number: int) -> Iterator[None]:
    """Keep a descriptor from children that are forked within the block; it is closed after it."""
    _process.numbers.add(number)
    try:
        yield
    finally:
        _process.numbers.discard(number)


def guard() -> None:
    """From now on, end each child that returns to code of this package; for processes that run users' functions."""
    if _process.guarded != (pid := os.getpid()):
        _process.guarded, _process.sockets = pid, _open_sockets()


def end_if_child() -> None:
    """End this process if a guarded one has forked it: it has come back to where only that one belongs."""
    if _process.guarded and os.getpid() != _process.guarded:
        _end()


def _end() -> None:
    os.write(2, b"holdfast: a process that a function forked came back from the function, and was ended\n")
    os._exit(0)


def _in_child() -> None:
    _give_up()
    if not _process.guarded:
        return
    if callable(signal.getsignal(signal.SIGTERM)):  # a worker takes no notice of it; multiprocessing ends children so
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is not None:
        frame.f_trace, frame.f_trace_lines = _came_back, True
        sys.settrace(_trace_no_other)
        if (util := sys.modules.get("multiprocessing.util")) is not None:  # its children never return
            util.register_after_fork(_process, _trace_nothing)


def _trace_nothing(_: object) -> None:
    """Give the child its full speed back: a function that looks at each call takes three times as long."""
    sys.settrace(None)


def _open_sockets() -> dict[int, int]:
    inodes = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and int(name) > _STANDARD:
                inodes[int(name)] = status.st_ino
    return inodes


def _give_up() -> None:
    with suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        numbers = set(_process.numbers)
        for thing in list(_process.kept):
            with suppress(OSError, ValueError):
                numbers.add(thing.fileno())
        for number, inode in _process.sockets.items():
            with suppress(OSError):
                numbers |= {number} if os.fstat(number).st_ino == inode else set()
        for number in numbers:
            if number >= 0:
                os.dup2(null, number, inheritable=False)
        os.close(null)


def _trace_no_other(frame: FrameType, event: str, argument: Any) -> None:
    """Frames that begin in the child are its own."""


def _came_back(frame: FrameType, event: str, argument: Any) -> Any:
    if event != "exception":
        _end()
    error = argument[1]
    if not isinstance(error, SystemExit):
        traceback.print_exception(*argument)
        os._exit(1)
    os._exit(error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None))


os.register_at_fork(after_in_child=_in_child)
