"""What a job may do with a damaged object of its newest checkpoint."""

from __future__ import annotations

import pytest

from holdfast.chaos.judge.refusals import REFUSED_WITHIN_S, Refusals

SAID = "starting Spark\nholdfast: job 'j' failed: object segments/7 differs from what was written"
BEFORE = 50.0
"""When the newest epoch was found complete: before the damage."""


def damaged() -> Refusals:
    refusals = Refusals()
    refusals.damaged("segments/7", 100.0)
    return refusals


class TestRefusals:
    @pytest.mark.parametrize("status", [4, 7])
    def test_a_driver_that_names_the_damaged_object_is_excused(self, status: int) -> None:
        refusals = damaged()
        assert refusals.excuses(status, SAID, 101.0, 105.0) and refusals.drivers == 1
        assert refusals.shown(BEFORE) and refusals.finding(BEFORE) is None

    @pytest.mark.parametrize(("status", "said"), [(7, SAID.replace("7", "8")), (4, "holdfast: damaged"), (5, SAID)])
    def test_a_driver_that_ends_for_another_reason_is_not_excused(self, status: int, said: str) -> None:
        refusals = damaged()
        assert not refusals.excuses(status, said, 101.0, 105.0) and not refusals.shown(BEFORE)

    def test_a_driver_is_excused_only_around_the_time_of_the_damage(self) -> None:
        refusals = damaged()
        refusals.healed(110.0)
        assert refusals.excuses(7, SAID, 109.0, 115.0)
        assert not refusals.excuses(7, SAID, 111.0, 115.0)
        assert not refusals.excuses(7, SAID, 109.0, 110.0 + REFUSED_WITHIN_S)

    def test_no_driver_is_excused_before_any_damage(self) -> None:
        assert not Refusals().excuses(7, SAID, 1.0, 2.0)

    def test_a_job_that_completes_an_epoch_did_not_need_the_object(self) -> None:
        assert damaged().shown(101.0) and damaged().finding(101.0) is None

    def test_a_job_that_neither_refuses_nor_completes_an_epoch_is_a_violation(self) -> None:
        finding = damaged().finding(BEFORE)
        assert finding is not None and (finding.passed, finding.invariant) == (False, "I12")
        assert "segments/7" in finding.detail
