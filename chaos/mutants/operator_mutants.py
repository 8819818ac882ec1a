"""Wrong versions of windows, which tests of whole jobs must catch.

The simulator plays tumbling windows and joins; these are of windows that share slices, and of sessions. They are
applied as those of mutants.py are; tests/unit/runtime/test_operator_mutants.py names the test that catches each.

Source: docs/design/0062, 0063.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.chaos.mutants.mutation import Mutant, Right, Swap
from holdfast.runtime.operators.aggregate import Folding
from holdfast.runtime.operators.windows import session, sliding, window
from holdfast.runtime.operators.windows.session import SessionOperator
from holdfast.runtime.operators.windows.sliding import SlidingOperator
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.runtime.rows.aggregates.ranges import Runs
from holdfast.runtime.worker.fragment import FragmentRuntime


def _counts_twice(right: Right) -> Right:
    def known_slices(operator: WindowOperator, *given: Any) -> Any:
        return tuple(np.repeat(each, 2) for each in right(operator, *given))

    return known_slices


def _forgets_the_last(right: Right) -> Right:
    def windows_between(ends: Any, after: Any, through: Any, windows: Any) -> Any:
        rows, found = right(ends, after, through, windows)
        kept = found < ends[rows] + max(windows.overlap - 1, 1) * windows.every_us
        return rows[kept], found[kept]

    return windows_between


def _over_with_the_first(right: Right) -> Right:
    def begin(operator: WindowOperator, step: Any, ctx: Any) -> None:
        right(operator, step, ctx)
        operator._reach_us = step.lateness_us

    return begin


def _touching_stay_apart(right: Right) -> Right:
    def merged(owners: Any, starts: Any, ends: Any) -> Any:
        found = right(owners, starts, ends - 1)
        return found._replace(ends=found.ends + 1)

    return merged


def _with_its_start(right: Right) -> Right:
    return lambda counts, times, owners, ends, size_us: right(counts, times, owners, ends, size_us + 1)


def _before_its_time(right: Right) -> Right:
    return lambda operator, first, last, old: right(operator, first, last + 1, old)


def _without_the_held(right: Right) -> Right:
    def behind(numbers: Any, count: int) -> Any:
        found = right(numbers, count)
        return found._replace(first=found.first + 1)

    return behind


OPERATOR_MUTANTS = (
    Mutant("slice-counted-twice", "design/0062", "a corrected window counts its slices twice",
           (Swap(WindowOperator, "_known_slices", _counts_twice),)),
    Mutant("last-window-of-a-slice-missing", "design/0062", "the last window that holds a slice is not emitted",
           (Swap(window, "windows_between", _forgets_the_last),)),
    Mutant("late-with-the-first-window", "design/0062", "a record is late, and a slice over, once its first window is",
           (Swap(WindowOperator, "__init__", _over_with_the_first),)),
    Mutant("session-merged-once-too-few", "design/0063", "sessions that are exactly the gap apart stay two",
           (Swap(session, "merged", _touching_stay_apart),)),
    Mutant("session-forgets-what-it-held", "design/0063", "a session with another start begins from nothing",
           (Swap(SessionOperator, "_move", lambda _: lambda *given: None),)),
    Mutant("merged-sum-not-checked", "design/0063", "the sum of sessions that became one may wrap later",
           (Swap(Folding, "forget", lambda _: lambda folding: None),)),
    Mutant("results-overtaken-by-time", "P11, design/0060", "the watermark passes results that are still to come",
           (Swap(FragmentRuntime, "leaving", lambda _: lambda fragment, at: at),)),
    Mutant("sliding-window-with-its-start", "design/0072", "a window has the records that are exactly its size older",
           (Swap(sliding, "windows_of", _with_its_start),)),
    Mutant("sliding-before-its-time", "design/0072", "a record is emitted while others of its event time may come",
           (Swap(SlidingOperator, "_between", _before_its_time),)),
    Mutant("running-from-nothing", "design/0072", "running aggregates begin again with every batch",
           (Swap(Runs, "behind", _without_the_held),)),
)  # fmt: skip
"""The wrong versions that the tests must catch; each names the rule that it negates."""
