"""How long the work of a worker on its targets has been under way.

A target that refuses says so. One that takes a connection and never answers, because its process is stopped or its
host is unreachable, says nothing: a delivery may then wait as long as its client library does, perhaps indefinitely.

Pure: the clock is given.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from holdfast.errors import HoldfastError, Unavailable
from holdfast.ports import Clock

SLOW_AFTER_S = 30.0
"""Work that has been under way for so long is reported. Most deliveries take below a second."""


class UnderWay:
    """The calls that a worker has begun on the targets of its sinks, and not ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._numbers = clock, count()
        self._began: dict[int, tuple[str, float]] = {}

    def begin(self, sink: str) -> Callable[[], None]:
        """Note that work on a target of this sink begins; return what notes that it has ended."""
        number = next(self._numbers)
        self._began[number] = (sink, self._clock.monotonic())

        def end() -> None:
            del self._began[number]

        return end

    def slow(self) -> dict[str, HoldfastError]:
        """Return an error for every sink whose target has not answered for `SLOW_AFTER_S`.

        Its text does not change as time goes on, so that it is reported once.
        """
        before = self._clock.monotonic() - SLOW_AFTER_S
        return {sink: _no_answer() for sink, began in self._began.values() if began <= before}


def _no_answer() -> HoldfastError:
    return Unavailable(
        f"its target has not answered for more than {SLOW_AFTER_S:g} s",
        not_done="the outcome of the delivery is unknown; still waiting for the reply",
        next_step="look whether the target answers other programs, and end what keeps it from answering; if it is only "
        "slow, nothing: the delivery continues",
    )
