"""SIGINT and SIGTERM as a request to stop a run: the first is noted, the second interrupts.

Python runs a signal handler in the main thread between any two instructions, also inside `Event.wait`, which holds a
lock that is not reentrant. A handler that posts to a mailbox waits there for itself. So the handler only counts, and
the loop looks at the count.

Invariants
    - The handler takes no lock and calls nothing that takes one.

Source: signal(7); the `signal` and `threading` modules of the standard library.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Takes the signals that end a process, for as long as the run lasts; in the main thread."""

    def __init__(self) -> None:
        self._count = self._noticed = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arrived(self) -> bool:
        """Return whether a signal has come since the last call; True once."""
        noticed, self._noticed = self._noticed, self._count
        return self._noticed > noticed

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
