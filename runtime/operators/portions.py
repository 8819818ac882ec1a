"""The portions in which an operator handles events: how many together, and at which time of the clock.

A user's function is called with as many records as a turn has time for, and it may be shown the time. Neither follows
from the records, so a replay needs both. A portion in which no function was shown the time counts only as events: those
of several such portions come to the same together, and are added up.

Invariants
    - Followed portions take the events of the recorded ones, at the times that were shown then; if fewer events are
      there, the rest of the portion is taken with the next ones, at the same time.

Pure.
Source: docs/decisions/0131-recorded-order.md, 0078-processing-time.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

UNSHOWN, _BACK = -1, -2
"""The first stands for the time of events for which no function was shown one; from the second down, for a time that is
before the last one."""


class Portions:
    """Portions that nothing records: as many events as asked for, at the time of the clock."""

    exact: ClassVar[bool] = False
    """Whether a replay has to give the same rows in the same order: nothing may depend on where state is in memory."""

    def begin(self, most: int, clock: Callable[[], int]) -> tuple[int, int]:
        """Return how many events the next portion has at most, and the time to show.

        Args:
            most: As many as there is time for.
            clock: Looks at the clock; microseconds since 1970.
        """
        return most, clock()

    def end(self, events: int, shown_us: int | None) -> None:
        """Note how many events the portion had, and the time that functions were shown; None: none was."""

    def time(self, now_us: int) -> int:
        """Return the time of the clock, which decides without a portion."""
        return now_us


class RecordedPortions(Portions):
    """Keeps what an operator was given in an epoch, as pairs of numbers.

    A pair is a number of events and the time that was shown, `UNSHOWN` if none was. A pair without events is a time
    alone. Times are differences from the time before.
    """

    exact = True

    def __init__(self) -> None:
        self._runs: list[int] = []
        self._before_us = 0

    def end(self, events: int, shown_us: int | None) -> None:
        runs = self._runs
        if shown_us is not None:
            runs += (events, shown_us - self._before_us if shown_us >= self._before_us else _BACK - shown_us)
            self._before_us = shown_us
        elif runs and runs[-1] == UNSHOWN and runs[-2]:
            runs[-2] += events
        else:
            runs += (events, UNSHOWN)

    def time(self, now_us: int) -> int:
        self.end(0, now_us)
        return now_us

    def take(self) -> list[int]:
        """Return the pairs since the last call, and begin again."""
        runs, self._runs, self._before_us = self._runs, [], 0
        return runs


class FollowedPortions(Portions):
    """Gives an operator what it was given when the record was made; behind its end, what the present has.

    Args:
        runs: Pairs as `RecordedPortions.take` returns them, those of one epoch after those of another.
    """

    exact = True

    def __init__(self, runs: Iterable[Sequence[int]]) -> None:
        self._left = [pair for each in runs for pair in _absolute(each)]
        self._at = 0

    def begin(self, most: int, clock: Callable[[], int]) -> tuple[int, int]:
        if self._at == len(self._left) or not self._left[self._at][0]:
            return most, clock()
        events, shown_us = self._left[self._at]
        return (min(most, events), 0) if shown_us is None else (events, shown_us)

    def end(self, events: int, shown_us: int | None) -> None:
        while events and self._at < len(self._left):
            left, at_us = self._left[self._at]
            if left > events:
                self._left[self._at] = left - events, at_us
                return
            events -= left
            self._at += 1

    def time(self, now_us: int) -> int:
        if self._at == len(self._left) or self._left[self._at][0]:
            return now_us
        self._at += 1
        at_us = self._left[self._at - 1][1]
        return now_us if at_us is None else at_us


def _absolute(runs: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return pairs with times instead of differences; None: no time was shown."""
    pairs: list[tuple[int, int | None]] = []
    before_us = 0
    for events, code in zip(runs[::2], runs[1::2], strict=True):
        if code == UNSHOWN:
            pairs.append((events, None))
            continue
        before_us = before_us + code if code >= 0 else _BACK - code
        pairs.append((events, before_us))
    return pairs
