"""How threads hand events to a loop, and how a loop hands work to threads.

A loop owns its state alone: other threads only post to its mailbox, and what they post is run by
the loop between turns, in order.

Invariants
    - What is posted by one thread is run in the order of posting.
    - A lane runs one job at a time; results are posted in the order of submission.

Source: DESIGN section 3 (threads of a worker).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from holdfast.ports import Lane


class Mailbox:
    """Events from other threads, for one loop."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()

    def post(self, event: Callable[[], None]) -> None:
        """Let the loop run this between turns."""
        self._posted.append(event)
        self._wake.set()

    def wake(self) -> None:
        """Let a waiting loop look again."""
        self._wake.set()

    def drain(self) -> bool:
        """Run what was posted up to now; return whether there was anything."""
        count = len(self._posted)
        for _ in range(count):
            self._posted.popleft()()
        return count > 0

    def wait(self, seconds: float) -> None:
        """Sleep until something is posted or the loop is woken, at most this long."""
        self._wake.wait(seconds)
        self._wake.clear()


class ThreadLanes:
    """Lanes with a thread each; results go to the loop's mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lanes: dict[str, _ThreadLane] = {}

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; its thread starts at the first use."""
        if name not in self._lanes:
            self._lanes[name] = _ThreadLane(name, self._mailbox)
        return self._lanes[name]

    def close(self) -> None:
        """Let every lane end after what it has to do; results are no longer handed over."""
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
            work, done = job
            result: object
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to the loop, which decides; panics are no Exception
                result = error
            self._mailbox.post(lambda done=done, result=result: done(result))  # type: ignore[misc]
