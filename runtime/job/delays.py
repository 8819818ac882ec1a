"""Delays that a driver has measured in its run, as histograms: how long checkpoints and recoveries took.

Pure.
Source: docs/decisions/0033-metrics.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from holdfast.runtime.job.live import Delays, Measured, Number

BOUNDS_MS = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""Upper bounds of the buckets, inclusive; one more bucket counts longer delays."""


class DelayHistogram:
    """How many delays fell into each bucket, and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0

    def observe(self, delay_ms: Number) -> None:
        """Count one delay."""
        self._counts[bisect_left(BOUNDS_MS, delay_ms)] += 1
        self._sum_ms += round(delay_ms)

    def delays(self) -> Delays:
        """Return the counts."""
        return Delays(BOUNDS_MS, tuple(self._counts), self._sum_ms)


class DelaysOfRun:
    """Every checkpoint and recovery of one run, counted once.

    Args:
        base_epoch: The last epoch that was completed before the run.
    """

    def __init__(self, base_epoch: int) -> None:
        self._epoch, self._generations = base_epoch, set[int]()
        self._checkpoints, self._recoveries = DelayHistogram(), DelayHistogram()

    def checkpoints(self, completed: Iterable[tuple[int, Number]]) -> None:
        """Take epochs and how long each took, newest first; they are read up to one that was counted before."""
        newest = self._epoch
        for epoch, duration_ms in completed:
            if epoch <= self._epoch:
                break
            newest = max(newest, epoch)
            self._checkpoints.observe(duration_ms)
        self._epoch = newest

    def recoveries(self, restarts: Iterable[tuple[int, Number | None]]) -> None:
        """Take generations and how long each took to recover; None: the recovery has not ended yet."""
        for generation, recovery_ms in restarts:
            if recovery_ms is not None and generation not in self._generations:
                self._generations.add(generation)
                self._recoveries.observe(recovery_ms)

    def measured(self) -> Measured:
        """Return both histograms, for the status."""
        return Measured(self._checkpoints.delays(), self._recoveries.delays())
