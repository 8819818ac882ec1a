"""Which records make one session.

Source: docs/decisions/0063-sessions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast.chaos.sim.jobs.oracle import Input

GAP_US, LATENESS_US = 2_000_000, 1_000_000


class ExpectedSession(NamedTuple):
    """One session; times in microseconds."""

    bucket: int
    start: int
    end: int
    total: int

    def touches(self, record: Input) -> bool:
        """Return whether a record of the same bucket belongs to the session, or would make it longer."""
        return record.at <= self.end and self.start <= record.at + GAP_US


def session_of(records: Sequence[Input]) -> ExpectedSession | None:
    """Return the session of exactly these records; None if they do not make one."""
    times = sorted(record.at for record in records)
    if len({record.bucket for record in records}) != 1 or any(b - a > GAP_US for a, b in pairwise(times)):
        return None
    return ExpectedSession(records[0].bucket, times[0], times[-1] + GAP_US, sum(record.value for record in records))
