"""Sketches: their errors at every size, and states that follow from the values alone."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import holdfast as hf
from holdfast.runtime.functions.cardinality import LISTED_MAX, REGISTERS, Sketch, hashes_of
from holdfast.runtime.functions.contract import AggregateFunction, State
from holdfast.runtime.functions.membership import BloomFilter, Member
from holdfast.runtime.functions.quantiles import Histogram, buckets_of, middles_of
from holdfast.state.tables.spec import ColumnSpec
from holdfast.state.tables.values import default_of


def empty(function: AggregateFunction, groups: int) -> State:
    return {
        role: default_of(ColumnSpec(role, column.dtype, column.default, nullable=column.nullable), groups)
        for role, column in function.columns.items()
    }


def folded(function: AggregateFunction, values: pa.Array, groups: NDArray[np.int64], count: int) -> State:
    return function.fold(empty(function, count), [values], groups)


class TestApproxDistinct:
    @pytest.mark.parametrize("size", [1, 10, 500, 1_000, 2_000, 5_000, 20_000, 100_000, 1_000_000])
    @pytest.mark.parametrize("make", [lambda n: pa.array(np.arange(n) * 1_000), lambda n: pa.array(map(str, range(n)))])
    def test_the_error_is_a_few_times_the_standard_error_at_most(self, size: int, make: Any) -> None:
        values = make(min(size, 100_000) if make(1).type == pa.string() else size)
        [found] = Sketch().results(folded(Sketch(), values, np.zeros(len(values), np.int64), 1)).to_pylist()
        assert abs(found - len(values)) <= max(0.05 * len(values), 0.5)

    def test_a_state_follows_from_the_values_in_whatever_order_and_parts(self) -> None:
        values, groups = np.arange(30_000) % 9_001, np.arange(30_000) % 3
        whole = folded(Sketch(), pa.array(values), groups, 3)
        state = empty(Sketch(), 3)
        for part in np.array_split(np.random.default_rng(1).permutation(30_000), 7):
            state = Sketch().fold(state, [pa.array(values[part])], groups[part])
        assert state["sketch"].equals(whole["sketch"])

    def test_lists_become_registers_where_they_would_be_as_long(self) -> None:
        sizes = [LISTED_MAX // 2, 50_000, 0, LISTED_MAX * 2]
        values = pa.array(np.concatenate([np.arange(size) for size in sizes]))
        states = folded(Sketch(), values, np.repeat(np.arange(4), sizes), 4)["sketch"]
        lengths = pa.compute.binary_length(states).to_pylist()
        assert lengths[0] < REGISTERS and lengths[1] == REGISTERS and lengths[2] == 0 and lengths[3] == REGISTERS
        estimates = Sketch().results({"sketch": states}).to_pylist()
        assert all(abs(found - size) <= 0.06 * size for found, size in zip(estimates, sizes, strict=True))

    def test_a_batch_that_sets_exactly_as_many_registers_as_end_a_list(self) -> None:
        places = hashes_of(pa.array(np.arange(2_000))) >> np.uint64(52)
        size = next(n for n in range(2_000) if np.unique(places[:n]).size == LISTED_MAX)
        [found] = Sketch().results(folded(Sketch(), pa.array(np.arange(size)), np.zeros(size, np.int64), 1)).to_pylist()
        assert abs(found - size) <= 0.05 * size

    def test_more_groups_than_are_unpacked_together(self) -> None:
        groups = np.repeat(np.arange(2_500), 4)
        states = folded(Sketch(), pa.array(np.arange(10_000)), groups, 2_500)
        merged = Sketch().combine(states, np.arange(2_500) // 2, 1_250)
        assert sum(abs(found - 4) for found in Sketch().results(states).to_pylist()) <= 20  # some share a register
        assert sum(abs(found - 8) for found in Sketch().results(merged).to_pylist()) <= 20

    def test_hashes_are_a_part_of_the_format(self) -> None:
        assert hashes_of(pa.array([0, 1, -1])).tolist() == hashes_of(pa.array([0, 1, -1], pa.int16())).tolist()
        zeros, nans = hashes_of(pa.array([0.0, -0.0])), hashes_of(pa.array([np.nan, -np.nan]))
        assert zeros[0] == zeros[1] and nans[0] == nans[1] != zeros[0]


def filter_of(kind: pa.DataType, expected: int, error: float = 0.01) -> BloomFilter:
    function = Member(expected, error).over([pa.field("v", kind)], True)
    assert isinstance(function, BloomFilter)
    return function


class TestMember:
    @pytest.mark.parametrize(("expected", "error"), [(100, 0.1), (1_000, 0.01), (5_000, 0.001)])
    def test_members_are_found_and_others_as_seldom_as_was_asked(self, expected: int, error: float) -> None:
        function, values = filter_of(pa.int64(), expected, error), pa.array(np.arange(expected) * 7)
        [members] = function.results(folded(function, values, np.zeros(expected, np.int64), 1)).to_pylist()
        assert all(hf.may_contain(members, value) for value in values.to_pylist()[:500])
        others = 3_000
        wrong = sum(hf.may_contain(members, -1 - value) for value in range(others))
        assert wrong <= 2 * error * others + 3

    def test_a_state_follows_from_the_values_in_whatever_order_and_parts(self) -> None:
        function, values, groups = filter_of(pa.int64(), 800), np.arange(3_000) % 901, np.arange(3_000) % 3
        whole = folded(function, pa.array(values), groups, 3)
        state = empty(function, 3)
        for part in np.array_split(np.random.default_rng(1).permutation(3_000), 9):
            state = function.fold(state, [pa.array(values[part])], groups[part])
        assert state["filter"].equals(whole["filter"])

    def test_a_filter_with_few_members_is_short_and_grows_to_its_size(self) -> None:
        function, size = filter_of(pa.string(), 1_000), filter_of(pa.string(), 1_000).size // 8
        for count in (1, 5, *range(36, 46), 500):
            values = pa.array([str(value) for value in range(count)])
            state = folded(function, values, np.zeros(count, np.int64), 1)
            [members] = function.results(state).to_pylist()
            assert all(hf.may_contain(members, str(value)) for value in range(count))
            assert len(state["filter"][0].as_py()) <= min(size, 4 * function.per_value * count)

    def test_results_of_one_type_answer_values_of_python(self) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        seen: list[tuple[pa.DataType, Any, Any]] = [
            (pa.int16(), 7, 8), (pa.uint64(), 2**63, 1), (pa.float32(), 0.1, 0.2), (pa.float64(), -0.0, 1.0),
            (pa.bool_(), True, False), (pa.string(), "a", "b"), (pa.binary(), b"a", b"b"),
            (pa.decimal128(9, 2), Decimal("1.50"), Decimal("1.51")), (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
            (pa.timestamp("us", "UTC"), at, at.replace(hour=1)),
            (pa.timestamp("ms", "Asia/Tokyo"), at, at.replace(day=2)),
        ]  # fmt: skip
        for kind, member, other in seen:
            function = filter_of(kind, 50, 1e-6)
            [members] = function.results(
                folded(function, pa.array([member], kind), np.zeros(1, np.int64), 1)
            ).to_pylist()
            assert (hf.may_contain(members, member), hf.may_contain(members, other)) == (True, False), kind
            assert not hf.may_contain(members, None) and not hf.may_contain(None, member)

    def test_a_wrong_question_is_an_error(self) -> None:
        function = filter_of(pa.int64(), 50)
        [members] = function.results(folded(function, pa.array([1]), np.zeros(1, np.int64), 1)).to_pylist()
        with pytest.raises(hf.ConfigError, match="'x' is not a value of type int64"):
            hf.may_contain(members, "x")
        for given in (b"", b"\x01", members[:9], b"\x02" + members[1:], members[:5]):
            with pytest.raises(hf.ConfigError, match="is not a result of hf.member"):
                hf.may_contain(given, 1)

    @pytest.mark.parametrize("given", [{"expected": 0}, {"expected": 2_000_000}, {"expected": 1.5}, {"expected": True}])
    def test_an_unfit_number_of_values_is_refused(self, given: Any) -> None:
        with pytest.raises(hf.ConfigError, match="expected is not a number between 1 and 1,000,000"):
            hf.member("v", **given)

    @pytest.mark.parametrize("error", [0, 0.0, 1.0, 1e-7, "1 %"])
    def test_an_unfit_share_of_errors_is_refused(self, error: Any) -> None:
        with pytest.raises(hf.ConfigError, match="error is not a share"):
            hf.member("v", error=error)


class TestQuantile:
    @pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.99, 1.0])
    def test_the_relative_error_is_below_one_in_128(self, q: float) -> None:
        draw = np.random.default_rng(2)
        for values in (draw.lognormal(0, 9, 5_001), -draw.lognormal(0, 3, 100), draw.normal(0, 1e-9, 999)):
            state = folded(Histogram(q), pa.array(values), np.zeros(values.size, np.int64), 1)
            [found] = Histogram(q).results(state).to_pylist()
            exact = np.sort(values)[int(np.floor(q * (values.size - 1)))]
            assert abs(found - exact) <= abs(exact) / 128

    def test_buckets_are_in_the_order_of_their_numbers_and_contain_their_middle(self) -> None:
        numbers = np.array([-np.inf, -1e300, -2.0, -1.0, -1e-310, 0.0, 1e-310, 1.0, 1.5, 1e300, np.inf, np.nan])
        buckets = buckets_of(numbers)
        assert (np.diff(buckets) >= 0).all()
        middles = middles_of(buckets)
        assert middles[0] == -np.inf and middles[-2] == np.inf and np.isnan(middles[-1]) and middles[5] == 0
        assert (buckets_of(middles[1:-2]) == buckets[1:-2])[[0, 1, 2, 6, 7, 8]].all()
        assert buckets_of(np.array([-0.0]))[0] == buckets_of(np.array([0.0]))[0]

    def test_integers_of_64_bits_are_taken(self) -> None:
        state = folded(Histogram(1.0), pa.array([2**63 - 1, 5]), np.zeros(2, np.int64), 1)
        [found] = Histogram(1.0).results(state).to_pylist()
        assert abs(found - 2**63) <= 2**63 / 128
