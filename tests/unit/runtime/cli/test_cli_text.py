"""Numbers, times and tables for people."""

from __future__ import annotations

import pytest

from holdfast.runtime.cli import text


class TestTable:
    def test_numbers_are_right_aligned_and_words_left_aligned(self) -> None:
        assert text.table(("job", "lag"), [("hot", 5), ("late-bids", 1_200)]) == (
            "job          lag\nhot            5\nlate-bids  1,200"
        )

    def test_an_unknown_value_is_a_dash_and_zero_is_zero(self) -> None:
        assert text.table(("a", "b"), [(None, 0)]).splitlines()[1] == "-  0"

    def test_a_table_without_rows_has_headers(self) -> None:
        assert text.table(("a", "b"), []) == "a  b"


class TestUnits:
    @pytest.mark.parametrize(
        ("milliseconds", "shown"),
        [
            (None, "-"),
            (0, "0 ms"),
            (35, "35 ms"),
            (1_250, "1.2 s"),
            (240_000, "4 min"),
            (9_000_000, "2.5 h"),
            (864_000_000, "10.0 d"),
        ],
    )
    def test_a_duration_has_a_readable_unit(self, milliseconds: int | None, shown: str) -> None:
        assert text.span(milliseconds) == shown

    @pytest.mark.parametrize(
        ("size", "shown"), [(None, "-"), (0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 * 1024**5, "5120.0 TiB")]
    )
    def test_a_size_has_the_largest_unit_that_gives_at_least_one(self, size: int | None, shown: str) -> None:
        assert text.size(size) == shown

    def test_a_time_is_shown_in_utc(self) -> None:
        assert text.moment(1_795_217_581_861_244) == "2026-11-20 23:33:01Z"

    @pytest.mark.parametrize(("number", "shown"), [(1, "1 epoch"), (0, "0 epochs"), (1_200, "1,200 epochs")])
    def test_a_count_of_one_is_singular(self, number: int, shown: str) -> None:
        assert text.plural(number, "epoch") == shown
