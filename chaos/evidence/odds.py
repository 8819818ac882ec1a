"""An upper bound for the rate of violations, given how many were seen in how many trials.

A finite number of trials proves no rate; it gives an upper bound: if the true rate were higher, at least 95 of 100 such
series would have shown more violations. If no violation was seen, the bound is the rule of three: 3/N. The trials are
assumed to be alike and independent of each other.

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
    """Return the upper bound of the mean number of violations in such a series.

    Args:
        violations: How many were seen. For 0 the answer is 3: the exact limit, 2.996, rounded.
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
    """Return the upper bound of the rate per trial; None without trials."""
    assert trials >= 0
    return None if trials == 0 else min(1.0, upper_count(violations) / trials)


def source_of(violations: int) -> str:
    """Return the rule behind the bound."""
    return RULE_OF_THREE if violations == 0 else EXACT_POISSON


def _at_most(violations: int, mean: float) -> float:
    """Return the probability of at most this many events, given their mean."""
    log_mean = math.log(mean)
    return math.fsum(math.exp(k * log_mean - mean - math.lgamma(k + 1)) for k in range(violations + 1))
