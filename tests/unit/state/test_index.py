from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.state.keys.keygroups import splitmix64
from holdfast.state.tables.index import MOVED_MIN, Index, Rows, Same


class Dictionary:
    """An index over Python keys whose hashes collide on purpose."""

    def __init__(self, distinct_hashes: int) -> None:
        self.index = Index()
        self.keys: list[int] = []
        self.distinct_hashes = distinct_hashes

    def slots(self, keys: list[int]) -> list[int]:
        hashes = np.array([key % self.distinct_hashes for key in keys], np.uint64)
        slots: list[int] = self.index.slots(hashes, self._same(keys), lambda rows: self._store(keys, rows)).tolist()
        return slots

    def find(self, keys: list[int]) -> list[int]:
        hashes = np.array([key % self.distinct_hashes for key in keys], np.uint64)
        slots: list[int] = self.index.find(hashes, self._same(keys)).tolist()
        return slots

    def _same(self, keys: list[int]) -> Same:
        def same(rows: Rows, slots: Rows) -> NDArray[np.bool_]:
            pairs = zip(rows.tolist(), slots.tolist(), strict=True)
            return np.array([keys[row] == self.keys[slot] for row, slot in pairs], np.bool_)

        return same

    def _store(self, keys: list[int], rows: Rows) -> None:
        self.keys += [keys[row] for row in rows.tolist()]


class TestIndex:
    @settings(deadline=None)
    @given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=8), st.sampled_from([1, 2, 7, 41]))
    def test_tells_keys_apart_whose_hashes_collide(self, batches: list[list[int]], distinct_hashes: int) -> None:
        index, known = Dictionary(distinct_hashes), dict[int, int]()
        for keys in batches:
            assert index.find(keys) == [known.get(key, -1) for key in keys]
            for key, slot in zip(keys, index.slots(keys), strict=True):
                assert known.setdefault(key, slot) == slot
        assert sorted(known.values()) == list(range(len(known)))
        assert index.index.count == len(known) == len(index.keys)

    def test_gives_a_key_that_occurs_often_in_one_batch_one_slot(self) -> None:
        index = Index()
        assert index.slots(np.array([9, 9, 4, 9, 4], np.uint64), None).tolist() == [0, 0, 1, 0, 1]

    def test_numbers_new_keys_densely_in_the_order_in_which_they_are_stored(self) -> None:
        index, born = Index(), list[int]()
        slots = index.slots(splitmix64(np.arange(1_000)), None, lambda rows: born.extend(rows.tolist()))
        assert slots[born].tolist() == list(range(1_000))

    def test_knows_the_hash_that_an_empty_entry_looks_like(self) -> None:
        index = Index()
        nothing = np.zeros(1, np.uint64)
        assert index.find(nothing, None).tolist() == [-1]
        assert index.slots(nothing, None).tolist() == [0]
        assert index.find(nothing, None).tolist() == [0]

    def test_of_no_keys_finds_nothing(self) -> None:
        assert Index().slots(np.empty(0, np.uint64), None).size == 0


class TestGrowth:
    def test_finds_every_key_while_a_generation_is_moving(self) -> None:
        index, met_moving = Index(), 0
        hashes, slots = splitmix64(np.arange(300_000)), np.empty(300_000, np.int64)
        for first in range(0, hashes.size, 10_000):
            end = first + 10_000
            slots[first:end] = index.slots(hashes[first:end], None)
            met_moving += index.moving
            assert (index.find(hashes[:end:997], None) == slots[:end:997]).all()
        assert met_moving > 0
        assert np.sort(slots).tolist() == list(range(300_000))

    def test_goes_on_with_look_ups_alone(self) -> None:
        index = Index()
        hashes = splitmix64(np.arange(140_000))
        slots = [index.slots(part, None) for part in (hashes[:130_000], hashes[130_000:])]
        was_moving = index.moving
        for _ in range(hashes.size // MOVED_MIN + 1):
            index.slots(hashes[:1], None)
        assert (was_moving, index.moving) == (True, False)
        assert (index.find(hashes, None) == np.concatenate(slots)).all()

    def test_bears_a_batch_larger_than_everything_before(self) -> None:
        index = Index()
        hashes = splitmix64(np.arange(100_000))
        for end in (100, 40_000, 41_000):
            index.slots(hashes[:end], None)
        assert sorted(index.slots(hashes, None).tolist()) == list(range(100_000))
