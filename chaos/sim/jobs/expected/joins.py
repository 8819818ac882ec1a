"""Which pairs of records a join must find.

Source: docs/decisions/0060-joins.md.
"""

from __future__ import annotations

from holdfast.chaos.sim.jobs.oracle import Input

SECOND_US = 1_000_000
LOWER_S, UPPER_S = -1, 2


def fits(left: Input, right: Input) -> bool:
    """Return whether two records are a pair."""
    after = right.at - left.at
    return left.bucket == right.bucket and right.value % 2 == 0 and LOWER_S <= after / SECOND_US <= UPPER_S
