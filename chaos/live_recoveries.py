"""Recoveries of a job, made of attempts: one for each epoch that was completed after something had failed.

While a fault lasts, a job may be ready for a moment again and again. What counts is when records were made durable
again, so all attempts between two completed epochs are one recovery: from when the first failure was noticed to when
the last attempt was ready, and to the epoch.

Invariants
    - A completed epoch closes one recovery at most.
    - What is not known is None: an attempt of which nobody knows when it began gives no times.

Pure: is told the times.
Source: docs/design/0016-live-chaos.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

US_PER_MS = 1_000


@dataclass
class Attempt:
    """The job was ready once."""

    cause: str
    recovery_ms: int
    logged_us: float | None
    """Wall clock: after the failure, before the attempt was ready; None: unknown, and before whatever comes next."""
    began_us: float | None = None
    """Wall clock when the failure was noticed; None as long as it is unknown."""
    first_record_us: float | None = None
    """Wall clock when the last of the restored workers took its first record; None if unknown."""


@dataclass(frozen=True)
class _Completed:
    epoch: int
    at_us: float
    seen_ms: float


class Recoveries:
    """Gathers attempts and epochs, in whatever order they are heard of."""

    def __init__(self) -> None:
        self.open: list[Attempt] = []
        """Attempts that are part of no recovery yet."""
        self._completed: list[_Completed] = []

    def completed(self, epoch: int, at_us: float, seen_ms: float) -> None:
        """An epoch was completed, by the wall clock and by that of the journal."""
        self._completed.append(_Completed(epoch, at_us, seen_ms))

    def closed(self, epoch: int | None) -> list[dict[str, Any]]:
        """Return the recoveries up to this epoch, of whose time every attempt has been told; None: up to the newest."""
        found = []
        while self._completed and (epoch is None or self._completed[0].epoch <= epoch):
            done = self._completed.pop(0)
            over = [each for each in self.open if each.logged_us is None or each.logged_us < done.at_us]
            self.open = [each for each in self.open if each not in over]
            if over:
                found.append(_recovery(over, done))
        return found

    def rest(self) -> list[dict[str, Any]]:
        """Return what no epoch followed, as one recovery; nothing if there is none."""
        over, self.open = self.open, []
        return [_recovery(over, None)] if over else []


def _recovery(attempts: list[Attempt], done: _Completed | None) -> dict[str, Any]:
    """Return the fields of the journal's line."""
    attempts = sorted(attempts, key=lambda attempt: attempt.logged_us or 0)
    first, last = attempts[0], attempts[-1]
    causes = Counter(each.cause for each in attempts)
    told: dict[str, Any] = {
        "cause": "; ".join(cause if times == 1 else f"{cause} ({times} times)" for cause, times in causes.items()),
        "attempts": len(attempts),
    }
    if first.began_us is None or last.began_us is None:
        return told | ({"recovery_ms": last.recovery_ms} if len(attempts) == 1 else {"recovery_ms": None})
    told["recovery_ms"] = last.recovery_ms + round((last.began_us - first.began_us) / US_PER_MS)
    if last.first_record_us is not None:
        told["first_record_ms"] = round((last.first_record_us - first.began_us) / US_PER_MS)
    if done is not None:
        told["next_epoch_ms"] = round((done.at_us - first.began_us) / US_PER_MS)
        told["since_ms"] = round(done.seen_ms - told["next_epoch_ms"])
    return told
