from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.model import KEY_GROUPS_MAX
from holdfast.state.keys.keygroups import key_groups_of, key_of_group, owners, range_of, splitmix64, splitmix64_inverse

int64s = st.integers(-(1 << 63), (1 << 63) - 1)


class TestHashOfAnInteger:
    @settings(deadline=None)
    @given(st.lists(int64s, max_size=50))
    def test_leads_back_to_the_integer(self, values: list[int]) -> None:
        column = np.array(values, np.int64)
        assert splitmix64_inverse(splitmix64(column)).tolist() == values

    def test_leaves_its_input_alone(self) -> None:
        column = np.arange(3)
        splitmix64(column)
        assert column.tolist() == [0, 1, 2]


class TestKeyGroup:
    @settings(deadline=None)
    @given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1), st.integers(1, 32_768))
    def test_is_the_high_half_of_the_hash_scaled_to_the_count(self, hashes: list[int], count: int) -> None:
        groups = key_groups_of(np.array(hashes, np.uint64), count)
        assert groups.dtype == np.uint16
        assert groups.tolist() == [(value >> 32) * count >> 32 for value in hashes]

    def test_spreads_consecutive_integers_evenly(self) -> None:
        sizes = np.bincount(key_groups_of(splitmix64(np.arange(128_000)), 128), minlength=128)
        assert 850 < sizes.min() and sizes.max() < 1_150

    @pytest.mark.parametrize("count", [0, -1, 32_769])
    def test_count_out_of_range_is_refused(self, count: int) -> None:
        with pytest.raises(ConfigError, match="key_groups"):
            key_groups_of(np.zeros(1, np.uint64), count)


class TestOwnership:
    @settings(deadline=None)
    @given(st.integers(1, 300), st.integers(1, 300))
    def test_ranges_cover_every_key_group_once_in_order(self, parallelism: int, count: int) -> None:
        ranges = [range_of(subtask, parallelism, count) for subtask in range(parallelism)]
        assert [group for first, end in ranges for group in range(first, end)] == list(range(count))
        assert max(end - first for first, end in ranges) - min(end - first for first, end in ranges) <= 1

    @settings(deadline=None)
    @given(st.integers(1, 50), st.integers(1, 200))
    def test_owners_agree_with_the_ranges(self, parallelism: int, count: int) -> None:
        table = owners(parallelism, count)
        for subtask in range(parallelism):
            first, end = range_of(subtask, parallelism, count)
            assert (table[first:end] == subtask).all()


class TestKeysOfGroups:
    @settings(deadline=None)
    @given(st.integers(1, KEY_GROUPS_MAX))
    def test_every_group_has_a_key_of_its_own(self, count: int) -> None:
        groups = np.arange(count)
        assert np.array_equal(key_groups_of(splitmix64(key_of_group(groups, count)), count), groups)
