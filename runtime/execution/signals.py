"""SIGINT, SIGTERM and SIGHUP as a request to stop a run: the first is counted, the second interrupts.

`timeout` and service managers signal a process and then its group, so the process gets the same signal twice within a
moment: that is one request.

Python runs a signal handler in the main thread between any two instructions, even inside `Event.wait`, which holds a
lock that is not reentrant. A handler that posted to a mailbox there would deadlock with its own thread. So the handler
only counts, and the loop polls the count.

Invariants
    - The handler takes no lock and calls nothing that takes one.

Source: signal(7); the `signal` and `threading` modules of the standard library.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

NEXT_RUN = "the next run reads uncommitted records again, and delivers committed output"
STOPPING = (
    "stopping: a last checkpoint is taken and delivered. A second Ctrl-C or SIGTERM ends the run immediately. Nothing "
    f"is lost then: {NEXT_RUN}"
)
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_WITHIN_S = 0.3
"""A person who presses Ctrl-C again takes longer."""


class StopSignals:
    """Handles the signals that end a process for the duration of the run.

    Python delivers signals to the main thread only: a run in another thread leaves them to the program.
    """

    def __init__(self) -> None:
        self._count = self._noticed = 0
        self._counted_at = -math.inf
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as `nohup` starts a command
            numbers = [number for number in NUMBERS if number != signal.SIGHUP or not ignored]
            self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arrived(self) -> bool:
        """Return whether a signal has arrived since the last call."""
        noticed, self._noticed = self._noticed, self._count
        return self._noticed > noticed

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._counted_at < SAME_WITHIN_S:
            return
        self._counted_at = now
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt(NEXT_RUN)
