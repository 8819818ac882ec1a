"""A capture of a table as a process: sessions that follow each other until a stop is requested.

A session is everything from a connection to its loss. It takes all that it has to know from the log's tag. So after an
error the next session begins with nothing but the log, as after SIGKILL.
"""

from __future__ import annotations

import logging
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from holdfast.errors import Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.capturer import Report
from holdfast.runtime.capture.target import Overtaken

WAIT_S = 0.25
"""No wait is longer, so that a stop is noticed."""
LOCK_EVERY_S = 0.5
"""How often a process asks whether another one has ended."""
RETRIES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits between sessions that fail one after the other; the last one repeats."""

_log = logging.getLogger("holdfast.capture")


class CaptureStopped(Exception):
    """A stop was requested while something was waited for."""


class StopRequest:
    """A request to stop. A plain flag: a lock could be held already when a handler of a signal wants it."""

    def __init__(self) -> None:
        self._made = False

    def set(self) -> None:
        """Make the request."""
        self._made = True

    def is_set(self) -> bool:
        """Return whether it was made."""
        return self._made

    def wait(self, seconds: float) -> None:
        """Wait for some time, or until it is made."""
        until_s = time.monotonic() + seconds
        while not self.is_set() and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, WAIT_S))


@dataclass
class CaptureCounts:
    """Counts of the records that a process has appended."""

    records: int = 0
    appends: int = 0


class Sessions(ABC):
    """Sessions of one process, for one table and its log.

    Args:
        report: Called with an event.
    """

    def __init__(
        self,
        store: ObjectStore,
        report: Report,
        stopping: StopRequest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._report, self._stopping, self._clock = store, report, stopping, clock
        self._worked = False
        """Whether a session has passed all checks: after that, sessions wait for unreachable servers."""
        self._failures = 0
        self.counts = CaptureCounts()

    def run(self) -> None:
        """Capture until a stop.

        Raises:
            ConfigError: the table, the database or the log do not fit, or a change cannot be captured.
            Damaged: the log was deleted, or restored from a copy.
            Unavailable: database or log were unreachable from the beginning.
        """
        while not self._stopping.is_set():
            try:
                self._session()
            except CaptureStopped:
                return
            except Overtaken:
                _log.warning("another process has appended to the log; starting again from where it is")
            except Unavailable as error:
                if not self._worked:
                    raise
                wait_s = RETRIES_S[min(self._failures, len(RETRIES_S) - 1)]
                self._failures += 1
                _log.warning("trying again in %.1f s: %s", wait_s, error.what)
                self._stopping.wait(wait_s)

    @abstractmethod
    def _session(self) -> None:
        """Capture until a stop. Raises: see run; Stopped, Overtaken."""

    def _take_lock(self, is_taken: Callable[[], bool]) -> None:
        """Take the lock of the log, or wait for the process that has it. Raises CaptureStopped."""
        waiting = False
        while not is_taken():
            if not waiting:
                self._report({"event": "waiting", "reason": "another process captures into this log"})
                waiting = self._worked = True
            self._pause()

    def _pause(self) -> None:
        self._stopping.wait(LOCK_EVERY_S)
        if self._stopping.is_set():
            raise CaptureStopped

    def _appended(self, records: int) -> None:
        """Note an append of changes."""
        self.counts.records += records
        self.counts.appends += 1
        self._failures = 0


def until_signal(make: Callable[[StopRequest], Sessions]) -> Mapping[str, int]:
    """Capture until SIGINT or SIGTERM; return counts of appended records. Raises: see Sessions.run."""
    stopping = StopRequest()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        sessions = make(stopping)
        sessions.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return asdict(sessions.counts)
