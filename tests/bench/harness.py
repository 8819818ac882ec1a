"""The tools of a benchmark: sizes for a smoke run or a full one, a stopwatch, and a report that checks the work.

The smoke size runs in `make test` like other tests, so that no benchmark rots; `make bench` uses the full one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Bench:
    """One running benchmark. Times are meaningful only at full size."""

    def __init__(self, name: str, full: bool) -> None:
        self.name, self.full = name, full
        self.sizes: dict[str, int] = {}
        self.seconds: float | None = None
        self.line: str | None = None
        self.notes: list[str] = []

    def size(self, what: str, *, smoke: int, full: int) -> int:
        """Return how much work to do, and record it for the report."""
        self.sizes[what] = full if self.full else smoke
        return self.sizes[what]

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the block, once."""
        assert self.seconds is None, "one timed block per benchmark"
        start = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - start

    def note(self, line: str) -> None:
        """Add a line below the report."""
        self.notes.append(line)

    def report(self, *, per: int, unit: str, check: int) -> None:
        """Record the result: `per` units were done, and `check` is a number computed from them."""
        assert self.seconds is not None, "nothing was timed"
        assert per > 0
        sizes = ", ".join(f"{what} {count:,}" for what, count in self.sizes.items())
        rate = f"{per / self.seconds:,.0f} {unit}s/s, {self.seconds / per * 1e6:.3f} us each"
        self.line = f"{self.name}: {rate} ({sizes}; check {check:,})"
