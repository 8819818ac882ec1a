"""Shows the steps of a run's start, and their duration: importing, Spark's Java process, its executors.

Each step is a line on stderr. On a terminal the line of the step under way shows the elapsed time, in place; elsewhere
a step that lasts is repeated with it from time to time. The first status of the run ends this.

Source: API.md, `holdfast run`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.runtime.cli import text

REPEAT_S = 5.0
"""Where lines cannot be changed, a step that lasts is repeated this often."""
IN_PLACE_S = 0.5


class Starting:
    """The steps of one start.

    Args:
        show: Shows a line, given whether a step begins with it; called from the thread of this object too.
        every_s: Time between two lines of a step.
        now: The monotonic clock.
    """

    def __init__(
        self, show: Callable[[str, bool], None], every_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._show, self._every_s, self._now, self._began = show, every_s, now, now()
        self._words: str | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        """Return whether the run has begun."""
        return self._over.is_set()

    def step(self, words: str) -> None:
        """Begin a step, which ends the one before."""
        with self._lock:
            if self._words is None:
                threading.Thread(target=self._repeat, name="starting", daemon=True).start()
            self._words = words
            self._show(self.line(words), True)

    def end(self) -> None:
        """The run has begun: show nothing more."""
        with self._lock:
            self._over.set()

    def line(self, words: str) -> str:
        """Return words with the time since the start, once that is more than a moment."""
        elapsed = self._now() - self._began
        return words if elapsed < 1 else f"{words} | {text.span(elapsed * 1000)}"

    def _repeat(self) -> None:
        while not self._over.wait(self._every_s):
            with self._lock:
                if self._words is not None and not self.is_over:
                    self._show(self.line(self._words), False)
