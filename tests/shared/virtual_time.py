"""Threads in virtual time: one runs at a time, and time passes only where all of them wait. The same run every time."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence

from patience import WALL_S


class VirtualTime:
    """A clock for the threads of one `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let others run until this time has passed; only threads of `run` call this."""
        awake = threading.Event()
        self._wait(seconds, awake)
        self._next()
        assert awake.wait(WALL_S)

    def run(self, works: Sequence[Callable[[], object]]) -> None:
        """Run each of these in a thread of its own, to its end; raise the first error."""
        errors, over = list[BaseException](), threading.Event()
        left = len(works)

        def one(work: Callable[[], object], begins: threading.Event) -> None:
            nonlocal left
            assert begins.wait(WALL_S)
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
                errors.append(error)
            left -= 1
            if left:
                self._next()
            else:
                over.set()

        for work in works:
            begins = threading.Event()
            self._wait(0.0, begins)
            threading.Thread(target=one, args=(work, begins), daemon=True).start()
        self._next()
        assert over.wait(WALL_S)
        if errors:
            raise errors[0]

    def _wait(self, seconds: float, awake: threading.Event) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (self.now + seconds, self._count, awake))

    def _next(self) -> None:
        at, _, awake = heapq.heappop(self._waiting)
        self.now = max(self.now, at)
        awake.set()
