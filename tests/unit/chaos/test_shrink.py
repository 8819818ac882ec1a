from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chaos.explore.shrink import Reduction, parsed, rule_of, shrink


@dataclass(frozen=True)
class Played:
    violations: tuple[str, ...]
    events: int = 100


def fails_with(*needed: int, rule: str = "I1 loss", otherwise: str = "") -> Callable[[Reduction], Played]:
    """A run that breaks a rule if all these strikes happen, and perhaps another rule if not."""

    def play(reduction: Reduction) -> Played:
        strikes = range(100) if reduction.strikes is None else reduction.strikes
        broken = rule if set(needed) <= set(strikes) else otherwise
        return Played((f"{broken}: a row",) if broken else ())

    return play


WHOLE = Played(("I1 loss: another row",))


class TestShrinking:
    def test_only_the_necessary_strikes_are_left(self) -> None:
        kinds = ["lost"] * 20 + ["killed"] * 20
        assert shrink(WHOLE, kinds, (), fails_with(7, 31)).reduction.strikes == (7, 31)

    def test_a_failure_without_any_fault_needs_no_strike(self) -> None:
        assert shrink(WHOLE, ["lost"] * 9, (), fails_with()).reduction.strikes == ()

    def test_a_step_that_breaks_another_rule_does_not_count(self) -> None:
        play = fails_with(3, otherwise="I2 duplicate")
        assert shrink(WHOLE, ["lost"] * 9, (), play).reduction.strikes == (3,)

    def test_quantities_that_do_not_matter_are_minimised(self) -> None:
        reduction = shrink(WHOLE, ["lost"], ("rewinds", "folders"), fails_with()).reduction
        assert reduction == Reduction((), 1, 1, 0.5, ("rewinds", "folders"))

    def test_quantities_that_matter_are_kept(self) -> None:
        def play(reduction: Reduction) -> Played:
            enough = (reduction.records or 9) >= 3 and (reduction.workers or 9) >= 2 and not reduction.without
            return Played(("I1 loss: a row",) if enough else ())

        reduction = shrink(WHOLE, [], ("rewinds",), play).reduction
        assert (reduction.records, reduction.workers, reduction.without) == (3, 2, ())

    def test_a_feature_stays_if_the_run_is_longer_without_it(self) -> None:
        def play(reduction: Reduction) -> Played:
            return Played(("I1 loss: a row",), events=200 if reduction.without else 50)

        assert shrink(WHOLE, [], ("rewinds",), play).reduction.without == ()

    @given(st.integers(0, 60), st.sets(st.integers(0, 39), max_size=5))
    def test_the_number_of_runs_is_limited_and_the_result_still_fails(self, most: int, needed: set[int]) -> None:
        played: list[Reduction] = []

        def play(reduction: Reduction) -> Played:
            played.append(reduction)
            return fails_with(*needed)(reduction)

        shrunk = shrink(WHOLE, ["lost"] * 40, (), play, replays_max=most)
        assert shrunk.replays == len(played) <= most
        assert rule_of(fails_with(*needed)(shrunk.reduction)) == "I1 loss"


class TestReductionAsText:
    @pytest.mark.parametrize("text", ["workers=0", "records=0", "heal_at=-1", "heal_at=nan", "strikes=1/workers=-2"])
    def test_a_reduction_that_leaves_nothing_to_play_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="leaves nothing to play"):
            parsed(text)

    @given(
        st.builds(
            Reduction,
            st.none() | st.lists(st.integers(0, 99)).map(tuple),
            st.none() | st.integers(1, 9),
            st.none() | st.integers(1, 3),
            st.none() | st.sampled_from((0.5, 2.0)),
            st.lists(st.sampled_from(("rewinds", "folders")), unique=True).map(tuple),
        )
    )
    def test_a_reduction_is_read_back_from_its_text(self, reduction: Reduction) -> None:
        assert parsed(str(reduction)) == reduction

    def test_a_text_that_is_no_reduction_is_refused(self) -> None:
        with pytest.raises(ValueError, match="is not part of a schedule"):
            parsed("strikes=1/colour=red")
