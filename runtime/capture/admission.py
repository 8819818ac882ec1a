"""Which requests are taken, and which of them are stored together: group commit with a bounded queue.

A request goes through this machine once: `admit` gives it room before its body is read, then either `withdraw` ends it
(it is refused for its content) or `arrived` puts it into the queue. Requests in the queue become a batch, one commit of
the log, when the oldest has waited `linger_ms` or the batch is full; there is one commit at a time, and requests that
arrive meanwhile are the next batch. So under load a batch grows to the requests that arrive during a commit.

Invariants
    - Every request that arrived gets exactly one answer.
    - STORED is answered only after a commit with the request's row, REPEATED only if the key's row is in the log.
    - At most one of the requests with the same key is in the queue or in the running commit; the others wait for it.
    - No more than `requests_max` requests and `bytes_max` bytes are held, those whose bodies are still read included.
    - After `stop` no request is admitted, and those that were admitted are stored without lingering.

Pure: no clock, thread or I/O. Driven by server.py. Source: docs/decisions/0085-webhooks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from holdfast.runtime.capture.keys import RecentKeys


@dataclass(frozen=True)
class AdmissionLimits:
    """How much is held, and how much is stored together."""

    linger_ms: int
    """How long the first request of a batch waits for others."""
    requests_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024
    """Limit for the bodies that are being read, wait, or are being stored."""
    batch_requests: int = 5_000
    batch_bytes: int = 4 * 1024 * 1024
    keys_max: int = 4_000_000
    """About 400 MB. Beyond it requests with new keys are refused, as a key is never forgotten early."""


class Verdict(Enum):
    """Outcome of a request."""

    STORED = "stored"
    REPEATED = "repeated"
    OVERLOADED = "overloaded"
    """There is no room for it now."""
    FULL = "full"
    """Too many keys are known."""
    UNREACHABLE = "unreachable"
    """The log could not be written: whether the request was stored is unknown."""
    STOPPING = "stopping"


@dataclass(frozen=True)
class Answer:
    """Answer this request."""

    request: int
    verdict: Verdict


@dataclass(frozen=True)
class CommitRequests:
    """Store these requests, in this order, in one commit; then call `committed` or `failed`."""

    requests: tuple[int, ...]


Effect: TypeAlias = Answer | CommitRequests


@dataclass(frozen=True)
class _Waiting:
    request: int
    key: bytes | None
    size: int
    at_ms: int


class Admission:
    """The requests of one log.

    Args:
        keys: Those that are in the log already, with their times by the monotonic clock of all methods.
    """

    def __init__(self, limits: AdmissionLimits, keys: RecentKeys) -> None:
        self._limits, self._keys = limits, keys
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._running: tuple[_Waiting, ...] = ()
        self._pending: dict[bytes, list[_Waiting]] = {}
        """By key that is in the queue or in the running commit: other requests with it."""
        self._held_requests = self._held_bytes = 0
        self._stopping = False

    @property
    def held(self) -> int:
        """How many requests were admitted and have no answer yet."""
        return self._held_requests

    @property
    def known(self) -> int:
        """How many keys are known."""
        return len(self._keys)

    def admit(self, size: int) -> Verdict | None:
        """Make room for a request, before its body is read; return why there is none, None if there is.

        Args:
            size: Bytes of its body, or of its beginning: see `grow`.
        """
        if self._stopping:
            return Verdict.STOPPING
        over = self._held_requests >= self._limits.requests_max or self._held_bytes + size > self._limits.bytes_max
        if over and self._held_requests:  # alone, a body of any accepted size fits
            return Verdict.OVERLOADED
        self._held_requests += 1
        self._held_bytes += size
        return None

    def grow(self, by: int) -> bool:
        """Make room for more of the body of a request that was admitted; return whether there is room."""
        if self._held_bytes + by > self._limits.bytes_max and self._held_requests > 1:
            return False
        self._held_bytes += by
        return True

    def shrink(self, size: int, to: int) -> None:
        """Note the size of a body that was admitted with a larger one, since its sender had not announced any."""
        assert to <= size
        self._held_bytes -= size - to

    def withdraw(self, size: int) -> None:
        """End a request that was admitted with this size and will not arrive."""
        self._held_requests -= 1
        self._held_bytes -= size
        assert self._held_requests >= 0 and self._held_bytes >= 0

    def arrived(self, request: int, key: bytes | None, size: int, now_ms: int) -> list[Effect]:
        """Take a request that was admitted with this size, and is complete and valid.

        Args:
            request: Its number, which no other request has.
            key: The digest of its key, None if it has none.
            now_ms: A monotonic clock, in milliseconds, as in all methods.
        """
        waiting = _Waiting(request, key, size, now_ms)
        if key is not None:
            if key in self._keys:
                return [self._answer(waiting, Verdict.REPEATED)]
            if (others := self._pending.get(key)) is not None:
                others.append(waiting)
                return []
            if len(self._pending) + len(self._keys) >= self._limits.keys_max:
                return [self._answer(waiting, Verdict.FULL)]
            self._pending[key] = []
        self._queue.append(waiting)
        self._queued_bytes += size
        return self.due(now_ms)

    def due(self, now_ms: int) -> list[Effect]:
        """Return the next commit if its time has come, and answers to requests that turned out to be repeated."""
        effects: list[Effect] = []
        while not self._running and self._is_due(now_ms):
            batch = self._next_batch()
            # Another process may have stored a key since its request arrived; it became known with the last commit.
            for each in batch:
                if each.key is not None and each.key in self._keys:
                    effects += self._answers(each, Verdict.REPEATED)
            self._running = tuple(each for each in batch if each.key is None or each.key not in self._keys)
            if self._running:
                effects.append(CommitRequests(tuple(each.request for each in self._running)))
        return effects

    def wake_ms(self) -> int | None:
        """Return when `due` may have a commit; None: not before something else happens."""
        if self._running or not self._queue:
            return None
        return self._queue[0].at_ms + self._limits.linger_ms

    def committed(
        self, at_us: int, repeated: frozenset[bytes], seen: Iterable[tuple[bytes, int]], now_ms: int
    ) -> list[Effect]:
        """Take the end of the running commit: all its rows are in the log, but those with repeated keys.

        Args:
            at_us: The time of the rows, by the log.
            repeated: Keys of the batch whose rows other processes had stored.
            seen: Keys that other processes stored, with the times of their rows.
        """
        effects: list[Effect] = []
        now_us = now_ms * 1_000
        for key, stored_us in seen:
            self._keys.add(key, now_us - max(0, at_us - stored_us))
        for each in self._ended():
            if each.key is not None and each.key not in repeated:
                self._keys.add(each.key, now_us)
            effects += self._answers(each, Verdict.REPEATED if each.key in repeated else Verdict.STORED)
        self._keys.forget(now_us)
        return [*effects, *self.due(now_ms)]

    def failed(self, now_ms: int) -> list[Effect]:
        """Take the end of the running commit: its outcome is unknown. No key of it becomes known."""
        effects: list[Effect] = []
        for each in self._ended():
            effects += self._answers(each, Verdict.UNREACHABLE)
        return [*effects, *self.due(now_ms)]

    def forget(self, now_ms: int) -> None:
        """Forget keys that are older than the horizon."""
        self._keys.forget(now_ms * 1_000)

    def stop(self, now_ms: int) -> list[Effect]:
        """Admit no request from now on; store the queue, and admitted requests when they arrive."""
        self._stopping = True
        return self.due(now_ms)

    def _is_due(self, now_ms: int) -> bool:
        if not self._queue:
            return False
        full = len(self._queue) >= self._limits.batch_requests or self._queued_bytes >= self._limits.batch_bytes
        return full or self._stopping or now_ms >= self._queue[0].at_ms + self._limits.linger_ms

    def _next_batch(self) -> list[_Waiting]:
        """Take the next batch from the queue: at least one request, and no more than fits."""
        batch, size = list[_Waiting](), 0
        while self._queue and len(batch) < self._limits.batch_requests:
            if batch and size + self._queue[0].size > self._limits.batch_bytes:
                break
            batch.append(self._queue.popleft())
            size += batch[-1].size
        self._queued_bytes -= size
        return batch

    def _ended(self) -> tuple[_Waiting, ...]:
        assert self._running, "a commit was running"
        ended, self._running = self._running, ()
        return ended

    def _answers(self, stored: _Waiting, verdict: Verdict) -> list[Effect]:
        """Answer a request and those that wait for it."""
        others = () if stored.key is None else self._pending.pop(stored.key)
        joined = Verdict.REPEATED if verdict is Verdict.STORED else verdict
        return [self._answer(stored, verdict), *(self._answer(each, joined) for each in others)]

    def _answer(self, waiting: _Waiting, verdict: Verdict) -> Answer:
        self.withdraw(waiting.size)
        return Answer(waiting.request, verdict)
