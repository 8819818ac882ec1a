"""When a fault of the simulated world counts as struck."""

from __future__ import annotations

import random

import pytest

from holdfast.chaos.sim.faults.faults import OUTAGES, PER_PROCESS, Fault, Faults, Strike
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Schedule

AT = (Point.COMMIT,)


def armed(*faults: Fault) -> Faults:
    return Faults(dict.fromkeys(faults, 1.0), random.Random(1), Schedule())


class TestFaults:
    def test_an_immediate_fault_has_struck_when_it_is_drawn(self) -> None:
        faults = armed(Fault.MESSAGE_LOST)
        assert faults.strikes(Fault.MESSAGE_LOST, lambda: AT)
        assert faults.fired == {Fault.MESSAGE_LOST: 1}

    @pytest.mark.parametrize("fault", PER_PROCESS)
    def test_a_process_that_will_crash_has_not_crashed_yet(self, fault: Fault) -> None:
        faults = armed(fault)
        assert faults.strikes(fault, tuple, "w1")
        assert not faults.fired[fault] and len(faults.made) == 1
        faults.hit(fault, AT)
        assert faults.fired[fault] == 1

    @pytest.mark.parametrize("fault", OUTAGES)
    def test_an_outage_strikes_when_it_refuses_its_first_request(self, fault: Fault) -> None:
        faults = armed(fault)
        faults.struck(Strike(fault, "world", 0), ())
        faults.outage(fault, begins=True)
        assert not faults.fired[fault]
        for _ in range(3):
            faults.hit(fault, AT)
        assert faults.fired[fault] == 1

    def test_a_store_that_is_unreachable_for_another_reason_is_not_down(self) -> None:
        faults = armed(Fault.STORE_DOWN)
        faults.hit(Fault.STORE_DOWN, AT)
        assert not faults.fired[Fault.STORE_DOWN] and faults.hits["F7", Point.COMMIT] == 1
