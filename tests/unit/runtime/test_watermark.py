"""Watermarks: the minimum of what is not idle, never going back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.watermark import LAST_US, NEVER_US, Minimum, Watermark, begin, told


def after(*said: tuple[str, int, bool], parts: str = "ab") -> Minimum[str]:
    state = begin(parts)
    for part, at_us, idle in said:
        state, _ = told(state, part, Watermark(at_us, idle))
    return state


class TestMinimum:
    def test_before_every_part_has_spoken_there_is_none(self) -> None:
        assert after(("a", 5, False)).now == Watermark(NEVER_US)

    def test_it_is_that_of_the_part_that_is_furthest_behind(self) -> None:
        assert after(("a", 5, False), ("b", 3, False)).now == Watermark(3)

    def test_an_idle_part_holds_nothing_back(self) -> None:
        assert after(("a", 5, False), ("b", 3, True)).now == Watermark(5)

    def test_it_holds_when_all_are_idle(self) -> None:
        assert after(("a", 5, False), ("b", 3, False), ("b", 3, True), ("a", 9, True)).now == Watermark(5, idle=True)

    def test_a_part_that_wakes_does_not_pull_it_back(self) -> None:
        assert after(("b", 3, True), ("a", 5, False), ("b", 3, False)).now == Watermark(5)

    def test_a_subtask_that_reads_nothing_is_idle_from_the_start(self) -> None:
        assert begin("").now == Watermark(NEVER_US, idle=True)

    def test_the_last_watermark_ends_idleness(self) -> None:
        assert after(("a", 5, True), ("b", 3, True), ("a", LAST_US, False), ("b", LAST_US, False)).now.at_us == LAST_US

    def test_a_change_is_told_from_none(self) -> None:
        state = after(("a", 5, False), ("b", 3, False))
        assert told(state, "a", Watermark(7))[1] is False
        assert told(state, "b", Watermark(4))[1] is True

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9), st.booleans())))
    def test_it_never_goes_back_and_never_passes_a_part_that_is_not_idle(
        self, said: list[tuple[str, int, bool]]
    ) -> None:
        state = begin("abc")
        for part, at_us, idle in said:
            following, changed = told(state, part, Watermark(at_us, idle))
            assert following.now.at_us >= state.now.at_us
            assert changed == (following.now != state.now)
            lowest = min((p.at_us for p in following.parts.values() if not p.idle), default=LAST_US)
            assert following.now.at_us <= max(lowest, state.now.at_us)
            state = following
