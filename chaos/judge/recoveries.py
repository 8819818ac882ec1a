"""Groups a job's restart attempts into recoveries: one for each epoch completed after a failure.

While a fault lasts, a job may become ready for a moment again and again. The recovery ends when records become durable
again, so all attempts between two completed epochs are one recovery: from the time at which the first failure was
noticed to the time at which the last attempt was ready, and to the epoch.

Invariants
    - A completed epoch closes at most one recovery.
    - Unknown values are None: an attempt with an unknown beginning gives no times.

Pure: receives the times.
Source: docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

US_PER_MS = 1_000


@dataclass
class RecoveryAttempt:
    """The job became ready once."""

    cause: str
    recovery_ms: int
    logged_us: float | None
    """Wall clock: after the failure, before the attempt was ready; None: unknown, and before the next event."""
    began_us: float | None = None
    """Wall clock when the failure was noticed; None while unknown."""
    first_record_us: float | None = None
    """Wall clock when the last of the restored workers took its first record; None if unknown."""


@dataclass(frozen=True)
class _Completed:
    epoch: int
    at_us: float
    seen_ms: float


class Recoveries:
    """Collects attempts and epochs, in any order."""

    def __init__(self) -> None:
        self.open: list[RecoveryAttempt] = []
        """Attempts that belong to no recovery yet."""
        self._completed: list[_Completed] = []

    def completed(self, epoch: int, at_us: float, seen_ms: float) -> None:
        """An epoch was completed; its time on the wall clock and on the journal's clock."""
        self._completed.append(_Completed(epoch, at_us, seen_ms))

    def closed(self, epoch: int | None) -> list[dict[str, Any]]:
        """Return the recoveries up to this epoch whose attempts have all been reported; None: up to the newest."""
        recoveries = []
        while self._completed and (epoch is None or self._completed[0].epoch <= epoch):
            completion = self._completed.pop(0)
            over = [each for each in self.open if each.logged_us is None or each.logged_us < completion.at_us]
            self.open = [each for each in self.open if each not in over]
            if over:
                recoveries.append(_recovery(over, completion))
        return recoveries

    def rest(self) -> list[dict[str, Any]]:
        """Return the attempts that no epoch followed, as one recovery, if there are any."""
        over, self.open = self.open, []
        return [_recovery(over, None)] if over else []


def _recovery(attempts: list[RecoveryAttempt], done: _Completed | None) -> dict[str, Any]:
    """Return the fields of the journal's line."""
    attempts = sorted(attempts, key=lambda attempt: attempt.logged_us or 0)
    first, last = attempts[0], attempts[-1]
    causes = Counter(each.cause for each in attempts)
    fields: dict[str, Any] = {
        "cause": "; ".join(cause if times == 1 else f"{cause} ({times} times)" for cause, times in causes.items()),
        "attempts": len(attempts),
    }
    if first.began_us is None or last.began_us is None:
        return fields | ({"recovery_ms": last.recovery_ms} if len(attempts) == 1 else {"recovery_ms": None})
    fields["recovery_ms"] = last.recovery_ms + round((last.began_us - first.began_us) / US_PER_MS)
    if last.first_record_us is not None:
        fields["first_record_ms"] = round((last.first_record_us - first.began_us) / US_PER_MS)
    if done is not None:
        fields["next_epoch_ms"] = round((done.at_us - first.began_us) / US_PER_MS)
        fields["since_ms"] = round(done.seen_ms - fields["next_epoch_ms"])
    return fields
