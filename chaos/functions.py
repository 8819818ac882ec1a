"""Python functions in the simulated job that fail whenever the world says so, and in some seeds take their time.

Plans are shared by worlds, so a plan holds a stand-in, which passes every row; each worker calls one of its own in its
place, which asks the world before every row. A run that ends as failed with such an error has kept the promise; the
next run must go on as if nothing had been done with the batch. Aims wait here for a call by a worker at their point:
what a function fails at is decided within an event, not between two. A slow function moves its worker's clock on, so
that turns are over midway in a batch, and barriers, stops and failures come while rows wait for it.

Invariants
    - A failure explains the end of one run: what is told again elsewhere is a finding.
    - A job without the stand-in runs as ever.

Source: research F6; docs/design/0019-coverage.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.chaos.aims import Aim
from holdfast.chaos.faults import Fault, Faults, Strike
from holdfast.chaos.points import Point
from holdfast.errors import JobFailed
from holdfast.runtime.dataflow import Stream
from holdfast.runtime.steps import Call, Fragment, Plan, Step


class FunctionFailed(Exception):
    """What a function raises; the text is another one each time."""


def passes(row: Any) -> bool:
    """Let every row pass: the stand-in."""
    return True


def calling(stream: Stream, functions: bool) -> Stream:
    """Return the stream behind a function, or as it is."""
    return stream.filter(passes) if functions else stream


class Functions:
    """The functions of one run, and how often they have failed.

    Args:
        aims: Each waits for the so-many-th call by a worker that is at its point.
        call_s: Seconds that every third call takes; so batches grow again between two that are left off.
    """

    def __init__(self, faults: Faults, aims: Iterable[Aim], call_s: float) -> None:
        self._faults, self._call_s = faults, call_s
        self._aims = [(number, aim) for number, aim in enumerate(aims) if aim.fault is Fault.FUNCTION_FAILED]
        self._calls: Counter[Point] = Counter()
        self._failures = self._made = 0
        self._unexplained: set[str] = set()
        """What was raised and has not ended a run yet."""

    def bound(
        self, plan: Plan, who: str, at: Callable[[], Iterable[Point]], spend: Callable[[float], None]
    ) -> Plan:
        """Return the plan with functions that fail in the hands of this worker.

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

        def bound_step(step: Step) -> Step:
            if isinstance(step.kind, Call) and step.kind.function is passes:
                return replace(step, kind=replace(step.kind, function=passes_or_fails))
            return step

        def bound_fragment(fragment: Fragment) -> Fragment:
            return replace(fragment, steps=tuple(map(bound_step, fragment.steps)))

        return replace(plan, fragments=tuple(map(bound_fragment, plan.fragments)))

    def explains(self, error: Mapping[str, Any] | None) -> bool:
        """Return whether a run that failed with this error says which function has failed, and one has, and how."""
        if error is None or error.get("kind") != JobFailed.kind:
            return False
        what = str(error.get("what"))
        told = {text for text in self._unexplained if f"raised FunctionFailed: {text} at " in what}
        self._unexplained -= told
        return bool(told) and str(error.get("operator")).startswith(f"filter {passes.__name__}")

    def _aimed(self, at: Callable[[], Iterable[Point]]) -> bool:
        """Return whether this call is aimed at."""
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
