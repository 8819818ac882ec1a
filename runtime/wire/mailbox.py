"""How threads hand events to a loop, and how a loop hands work to threads.

Only the loop touches its state. Other threads post events to its mailbox, and the loop runs them
between turns, in order.

Invariants
    - The events of one thread run in the order of posting.
    - A lane runs one job at a time; results are posted in the order of submission.

Source: DESIGN section 3 (threads of a worker).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.ports import Lane

QUIET_AFTER_S = 3.0


class Mailbox:
    """Events from other threads, for one loop."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()

    def post(self, event: Callable[[], None]) -> None:
        """Have the loop run this event between turns."""
        self._posted.append(event)
        self._wake.set()

    def wake(self) -> None:
        """Wake the loop if it waits."""
        self._wake.set()

    def drain(self) -> bool:
        """Run the events posted so far; return whether there were any."""
        count = len(self._posted)
        for _ in range(count):
            self._posted.popleft()()
        return count > 0

    def wait(self, seconds: float) -> None:
        """Sleep until an event is posted or the loop is woken, at most this long."""
        self._wake.wait(seconds)
        self._wake.clear()


@dataclass
class Rest:
    """How long a loop sleeps that finds nothing to do: longer once that has been so for `QUIET_AFTER_S`.

    An event that is posted ends each sleep; only what the loop has to look for comes later.

    Args:
        short_s: While there was work lately.
        long_s: Afterwards.
    """

    short_s: float
    long_s: float
    clock: Callable[[], float] = time.monotonic
    _worked_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.worked()  # a start waits for processes and files

    def worked(self) -> None:
        """The loop has done something."""
        self._worked_at = self.clock()

    def sleep_s(self) -> float:
        """Return how long to sleep, in seconds."""
        return self.short_s if self.clock() - self._worked_at < QUIET_AFTER_S else self.long_s


class ThreadLanes:
    """Lanes with one thread each; results go to the loop's mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lanes: dict[str, _ThreadLane] = {}

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; its thread starts at the first use."""
        if name not in self._lanes:
            self._lanes[name] = _ThreadLane(name, self._mailbox)
        return self._lanes[name]

    def close(self) -> None:
        """End every lane after its queued work; the loop takes no more results."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes = {}


class _ThreadLane:
    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], object], Callable[[object], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._mailbox = mailbox
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._jobs.put((work, done))

    def close(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, callback = job
            result: object
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the loop decides; an extension's panic is not an Exception
                result = error
            self._mailbox.post(lambda done=callback, result=result: done(result))  # type: ignore[misc]
