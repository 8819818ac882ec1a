"""When delivered rows count as equal."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.chaos.cases.in_memory import unmatched

TIE = ({"k": 1, "sum": 12345678.05}, {"k": 1, "sum": 12345678.049999999})


class TestUnmatched:
    def test_floats_on_both_sides_of_a_tie_are_equal(self) -> None:
        assert unmatched([TIE[0]], [TIE[1]]) == ([], [])
        assert unmatched([TIE[0]] * 2, list(TIE)) == ([], [])

    def test_floats_that_differ_more_are_not_equal(self) -> None:
        assert unmatched([{"sum": 1.0}], [{"sum": 1.00001}]) == ([{"sum": 1.0}], [{"sum": 1.00001}])

    def test_nothing_but_floats_may_differ(self) -> None:
        for other in ({"k": 2, "sum": 12345678.05}, {"k": 1, "sum": None}, {"k": 1.0, "sum": 12345678.05}):
            assert unmatched([TIE[0]], [other]) == ([TIE[0]], [other])

    def test_a_row_counts_as_often_as_it_occurs(self) -> None:
        row = {"words": ["a"], "n": 1}
        assert unmatched([row, row, row], [row]) == ([row, row], [])
        assert unmatched([row], [row, row]) == ([], [row])

    def test_nan_infinity_and_sums_that_cancel_are_equal(self) -> None:
        rows = [{"x": math.nan}, {"x": 0.0}, {"x": -math.inf}]
        assert unmatched(rows, [{"x": math.nan}, {"x": 5e-17}, {"x": -math.inf}]) == ([], [])

    @given(st.lists(st.integers(1, 10**8)), st.randoms())
    def test_order_and_last_digits_do_not_matter(self, values: list[int], rng: random.Random) -> None:
        changed = [{"k": n % 3, "x": value * (1 + 1e-15)} for n, value in enumerate(values)]
        rng.shuffle(changed)
        assert unmatched([{"k": n % 3, "x": float(value)} for n, value in enumerate(values)], changed) == ([], [])
