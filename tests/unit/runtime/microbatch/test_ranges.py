"""How far an epoch reads."""

from __future__ import annotations

import pytest

from holdfast.runtime.microbatch.ranges import ROWS_FIRST, ROWS_MIN, Pace, ends_of_epoch

A, B = ("in", 0), ("in", 1)


class TestEnds:
    def test_are_those_of_the_sources_if_there_is_little_to_read(self) -> None:
        assert ends_of_epoch({A: 5, B: 0}, {A: 9, B: 4}, 8) == {A: 9, B: 4}

    def test_share_the_rows_in_proportion_to_what_is_left(self) -> None:
        assert ends_of_epoch({A: 100, B: 0}, {A: 400, B: 100}, 40) == {A: 130, B: 10}

    def test_every_partition_with_records_advances(self) -> None:
        assert ends_of_epoch({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 10, B: 1}

    @pytest.mark.parametrize("ends", [{}, {A: 3, B: 2}])
    def test_never_lie_before_the_beginning(self, ends: dict[tuple[str, int], int]) -> None:
        assert ends_of_epoch({A: 5, B: 2}, ends, 8) == {A: 5, B: 2}


class TestPace:
    def test_doubles_while_full_epochs_take_less_than_half_of_the_time(self) -> None:
        assert Pace(1.0).took(ROWS_FIRST, 0.4).rows == 2 * ROWS_FIRST

    def test_stays_if_epochs_are_not_full(self) -> None:
        assert Pace(1.0).took(10, 0.1).rows == ROWS_FIRST

    def test_shrinks_to_what_fits_the_time(self) -> None:
        assert Pace(1.0, overhead_s=0.1).took(ROWS_FIRST, 4.0).rows == ROWS_FIRST // 4

    def test_never_shrinks_to_nothing(self) -> None:
        assert Pace(0.1, rows=ROWS_MIN, overhead_s=0.1).took(ROWS_MIN, 30.0).rows == ROWS_MIN

    def test_what_a_job_takes_without_records_is_not_taken_for_their_cost(self) -> None:
        pace = Pace(1.0)
        for _ in range(20):
            pace = pace.took(10, 1.5)
        assert pace.rows == ROWS_FIRST
        assert pace.took(ROWS_FIRST, 2.5).rows == ROWS_FIRST
        assert pace.took(ROWS_FIRST, 6.0).rows == ROWS_FIRST // 2

    def test_shrinks_to_what_fits_the_memory_for_changes(self) -> None:
        assert Pace(1.0).took(ROWS_FIRST, 0.4, filled=1.25).rows == ROWS_FIRST * 4 // 5

    def test_shrinks_by_no_more_than_half_as_closing_windows_fill_memory_too(self) -> None:
        assert Pace(1.0).took(10, 0.1, filled=30.0).rows == ROWS_FIRST // 2
        assert Pace(1.0, rows=ROWS_MIN).took(ROWS_MIN, 0.1, filled=30.0).rows == ROWS_MIN

    def test_keeps_to_the_time_too_when_it_exceeds_the_memory(self) -> None:
        assert Pace(1.0, overhead_s=0.3).took(ROWS_FIRST, 20.0, filled=1.01).rows == ROWS_FIRST // 20

    def test_does_not_double_into_memory_that_it_has_half_filled(self) -> None:
        assert Pace(1.0).took(ROWS_FIRST, 0.4, filled=0.51).rows == ROWS_FIRST
        assert Pace(1.0).took(ROWS_FIRST, 0.4, filled=0.5).rows == 2 * ROWS_FIRST

    def test_keeps_to_the_rate(self) -> None:
        assert Pace(1.0, rate=500.0).rows_max(2.0) == 1_000
        assert Pace(1.0, rate=500.0).rows_max(1_000_000.0) == ROWS_FIRST
        assert Pace(1.0, rate=0.5).rows_max(0.0) == 1
