from __future__ import annotations

import random

import pytest

from holdfast.chaos.sim.faults.damage import Damage
from holdfast.chaos.sim.faults.faults import Fault, Faults
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Schedule
from holdfast.errors import ErrorReport, NotFound

PATH = "segments/1/2/w.segment"


class Reader:
    """Reads one object; the fault strikes at every read, or at the first."""

    def __init__(self, fault: Fault, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.faults = Faults({fault: 1.0}, chance, Schedule())
        self.damage = Damage(self.faults, chance)

    def read(self, path: str = PATH) -> bytes | None:
        try:
            return self.damage.read(path, lambda: b"written", lambda: (Point.RESTORE,))
        except NotFound:
            return None

    def error(self, kind: str = "damaged", what: str = f"object {PATH} is missing") -> ErrorReport:
        return ErrorReport(kind=kind, what=what, not_done="nothing was read", next="restore it")


class TestDamage:
    @pytest.mark.parametrize("seed", range(9))
    def test_a_damaged_read_differs_from_the_written_bytes(self, seed: int) -> None:
        assert Reader(Fault.READ_DAMAGED, seed).read() != b"written"

    def test_an_object_is_intact_again_after_one_damaged_read(self) -> None:
        reader = Reader(Fault.READ_DAMAGED)
        reader.read()
        reader.faults.heal()
        assert reader.read() == b"written"

    def test_a_damaged_object_stays_damaged_until_it_is_rewritten(self) -> None:
        reader = Reader(Fault.OBJECT_DAMAGED)
        first = reader.read()
        reader.faults.heal()
        assert first == reader.read() != b"written"
        reader.damage.written(PATH)
        assert reader.read() == b"written"

    def test_log_records_have_their_own_damage_fault_and_are_never_missing(self) -> None:
        assert Reader(Fault.OBJECT_DAMAGED).read("log/1.json") == b"written"
        assert all(Reader(Fault.RECORD_DAMAGED, seed).read("log/1.json") not in (None, b"written") for seed in range(9))

    def test_a_run_may_fail_only_because_of_a_damaged_object_that_it_names(self) -> None:
        reader = Reader(Fault.READ_DAMAGED)
        assert not reader.damage.explains(reader.error())
        reader.read()
        assert reader.damage.explains(reader.error())
        assert not reader.damage.explains(reader.error("config"))
        assert not reader.damage.explains(reader.error(what="something is wrong"))
        assert not reader.damage.ended

    def test_the_job_has_ended_once_it_fails_because_of_a_damaged_object(self) -> None:
        reader = Reader(Fault.OBJECT_DAMAGED)
        reader.read()
        assert reader.damage.explains(reader.error()) and reader.damage.ended
