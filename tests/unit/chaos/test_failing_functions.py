from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.chaos.sim.faults.aims import Aim
from holdfast.chaos.sim.faults.faults import Fault, Faults
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Schedule
from holdfast.chaos.sim.jobs.functions import FunctionFailed, Functions, passes
from holdfast.chaos.sim.jobs.workload import plan_of
from holdfast.errors import ErrorReport, JobFailed
from holdfast.runtime.operators.call import Call
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.worker.fragment import FragmentRuntime

SHARED = plan_of(("by_key",), None, with_ledger=True, functions=True)


def functions_of(plan: Plan) -> list[Any]:
    return [p.step.function for fragment in plan.fragments for p in fragment.steps if isinstance(p.step, Call)]


class Played:
    """A world's functions, called by one worker at a given point."""

    def __init__(self, rate: float = 0.0, aims: tuple[Aim, ...] = (), call_s: float = 0.0) -> None:
        self.faults = Faults({Fault.FUNCTION_FAILED: rate}, random.Random(0), Schedule())
        self.functions = Functions(self.faults, aims, call_s)
        self.at, self.spent = Point.BETWEEN, 0.0
        self.plan = self.functions.bound(SHARED, "w1", lambda: (self.at,), self.spend)
        self.function = functions_of(self.plan)[0]

    def spend(self, seconds: float) -> None:
        self.spent += seconds

    def fails(self, at: Point) -> bool:
        self.at = at
        try:
            return not self.function(None)
        except FunctionFailed:
            return True

    def error(self) -> ErrorReport:
        """Return the error that a worker reports when the first function of the job fails."""
        [source] = self.plan.sources
        run = FragmentRuntime(self.plan.fragments[source.fragment], {}, lambda *_: None, lambda *_: None)
        record = {name: [1] for name in source.source.schema.names}
        with pytest.raises(JobFailed) as caught:
            run.on_batch(pa.RecordBatch.from_pydict(record, source.source.schema))
        return caught.value.report()


class TestFunctionsOfAWorld:
    def test_a_worker_replaces_the_placeholder_of_the_shared_plan(self) -> None:
        before, bound = functions_of(SHARED), functions_of(Played().plan)
        assert [new is old for new, old in zip(bound, before, strict=True)] == [old is not passes for old in before]
        assert before.count(passes) == 2
        assert functions_of(SHARED) == before

    def test_every_third_call_delays_its_worker(self) -> None:
        played = Played(call_s=0.25)
        for _ in range(6):
            played.function(None)
        assert played.spent == 0.5

    def test_a_failure_counts_at_the_protocol_point_of_its_worker(self) -> None:
        played = Played(rate=1.0)
        assert played.fails(Point.UPLOAD)
        assert played.faults.hits == {("F6", Point.UPLOAD): 1}

    def test_only_the_targeted_call_fails(self) -> None:
        played = Played(aims=(Aim(Fault.FUNCTION_FAILED, Point.ALIGN, 2, 0.0),))
        path = (Point.ALIGN, Point.BETWEEN, Point.ALIGN, Point.ALIGN)
        assert [played.fails(at) for at in path] == [False, False, True, False]

    def test_nothing_fails_after_the_world_has_healed(self) -> None:
        played = Played(1.0, (Aim(Fault.FUNCTION_FAILED, Point.ALIGN, 1, 0.0),))
        played.faults.heal()
        assert not played.fails(Point.ALIGN)


class TestRunsThatFail:
    def test_a_failure_explains_the_end_of_one_run(self) -> None:
        played = Played(rate=1.0)
        error = played.error()
        assert [played.functions.explains(error), played.functions.explains(error)] == [True, False]

    def test_nothing_else_explains_one(self) -> None:
        played = Played(rate=1.0)
        error = played.error()
        assert not played.functions.explains(None)
        assert not played.functions.explains(replace(error, kind="damaged"))
        assert not played.functions.explains(replace(error, what="a function failed"))
        assert not Played().functions.explains(error)
