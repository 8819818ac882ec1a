"""How often something may still go wrong that was seen so many times in so many trials.

Nothing that was tried a finite number of times is proven; what can be said is a rate that, were it true, would have
shown more violations than were seen in 95 of 100 such series. For none seen that is the rule of three: 3/N. It takes
the trials to be alike and independent of each other.

Invariants
    - The bound never falls when a violation is added, and never rises when a trial is.

Pure.
Source: Hanley and Lippman-Hand, If Nothing Goes Wrong, Is Everything All Right?, 1983 (rule of three); Garwood,
Fiducial Limits for the Poisson Distribution, 1936 (the exact upper limit, of which 3 is the rounded case of none).
"""

from __future__ import annotations

import math

CONFIDENCE = 0.95
RULE_OF_THREE = "rule of three, Hanley and Lippman-Hand 1983"
EXACT_POISSON = "exact Poisson limit, Garwood 1936"
STEPS = 60


def upper_count(violations: int) -> float:
    """Return how many violations such a series may have on average, at most, given what was seen of it.

    Args:
        violations: How many were seen. For 0 the answer is 3, which is what the exact limit, 2.996, is rounded to.
    """
    assert violations >= 0
    if violations == 0:
        return 3.0
    low, high = float(violations), 2.0 * violations + 20.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(violations, middle) > 1 - CONFIDENCE else (low, middle)
    return high


def upper_bound(violations: int, trials: int) -> float | None:
    """Return the rate per trial that the series leaves possible; None if it says nothing at all."""
    assert trials >= 0
    return None if trials == 0 else min(1.0, upper_count(violations) / trials)


def source_of(violations: int) -> str:
    """Return by which rule the bound was made."""
    return RULE_OF_THREE if violations == 0 else EXACT_POISSON


def _at_most(violations: int, mean: float) -> float:
    """Return how likely no more than so many events are, if that many come on average."""
    log_mean = math.log(mean)
    return math.fsum(math.exp(k * log_mean - mean - math.lgamma(k + 1)) for k in range(violations + 1))
