"""Python functions in the simulated job that fail when the world decides, and are slow in some seeds.

Worlds share plans, so a plan holds a stand-in, which passes every row; each worker replaces it by its own function,
which asks the world before every row. A run that fails with such an error has kept the promise; the next run must
resume as if the batch had never been touched. Aims wait here for a call by a worker at their point, because a
function's failure is decided within an event, not between two. A slow function advances its worker's clock, so that
turns end in the middle of a batch, and barriers, stops and failures arrive while rows wait.

Invariants
    - A failure explains the end of one run: the same failure reported by another run is a finding.
    - A job without the stand-in runs unchanged.

Source: research F6; docs/decisions/0019-coverage.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from holdfast.chaos.sim.faults.aims import Aim
from holdfast.chaos.sim.faults.faults import Fault, Faults, Strike
from holdfast.chaos.sim.faults.points import Point
from holdfast.errors import ErrorReport, JobFailed
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.operators.contract import Placed
from holdfast.runtime.plan.model import Fragment, Plan


class FunctionFailed(Exception):
    """Raised by a function, each time with a different text."""


def passes(row: Any) -> bool:
    """Let every row pass: the stand-in."""
    return True


def calling(stream: Stream, functions: bool) -> Stream:
    """Return the stream after a function, or unchanged."""
    return stream.filter(passes) if functions else stream


class Functions:
    """The functions of one run, and the count of their failures.

    Args:
        aims: Each waits for its n-th call by a worker at its point.
        call_s: Seconds that every third call takes, so that batches can grow again between two interrupted ones.
    """

    def __init__(self, faults: Faults, aims: Iterable[Aim], call_s: float) -> None:
        self._faults, self._call_s = faults, call_s
        self._aims = [(number, aim) for number, aim in enumerate(aims) if aim.fault is Fault.FUNCTION_FAILED]
        self._calls: Counter[Point] = Counter()
        self._failures = self._made = 0
        self._unexplained: set[str] = set()
        """Errors that were raised and have not ended a run yet."""

    def bound(self, plan: Plan, who: str, at: Callable[[], Iterable[Point]], spend: Callable[[float], None]) -> Plan:
        """Return the plan with failing functions for this worker.

        Args:
            at: Returns the protocol points at which the worker is.
            spend: Lets time pass for this worker.
        """

        def passes_or_fails(row: Any) -> bool:
            self._made += 1
            spend(self._call_s if self._made % 3 == 0 else 0.0)
            if self._faults.strikes(Fault.FUNCTION_FAILED, at, who) or self._aimed(at):
                raise self._failure(who)
            return passes(row)

        def bound_step(placed: Placed) -> Placed:
            step = placed.step.rebound(lambda function: passes_or_fails if function is passes else function)
            return replace(placed, step=step)

        def bound_fragment(fragment: Fragment) -> Fragment:
            return replace(fragment, steps=tuple(map(bound_step, fragment.steps)))

        return replace(plan, fragments=tuple(map(bound_fragment, plan.fragments)))

    def explains(self, error: ErrorReport | None) -> bool:
        """Return whether this error of a failed run names the function, and that function did fail in this way."""
        if error is None or error.kind != JobFailed.kind:
            return False
        reported = {text for text in self._unexplained if f"raised FunctionFailed: {text} at " in error.what}
        self._unexplained -= reported
        return bool(reported) and str(error.operator).startswith(f"filter {passes.__name__}")

    def _aimed(self, at: Callable[[], Iterable[Point]]) -> bool:
        """Return whether an aim strikes at this call."""
        if not self._aims or self._faults.healed:
            return False
        points = frozenset(at())
        self._calls.update(points)
        met = [number for number, aim in self._aims if aim.point in points and aim.nth == self._calls[aim.point]]
        return any(self._faults.struck(Strike(Fault.FUNCTION_FAILED, "aimed", number), points) for number in met)

    def _failure(self, who: str) -> FunctionFailed:
        self._failures += 1
        text = f"failure {self._failures}, met by {who}"
        self._unexplained.add(text)
        return FunctionFailed(text)
