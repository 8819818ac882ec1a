"""The real clocks."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clocks; the only place of the runtime that reads them."""

    def monotonic(self) -> float:
        """Seconds; never goes backwards."""
        return time.monotonic()

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC; may jump."""
        return time.time_ns() // 1000
