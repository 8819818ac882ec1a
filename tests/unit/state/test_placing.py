from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.state.tables.placing import Reached, arrived, cut, distinct, order_of, parts, places_of
from holdfast.state.tables.slab import PLAIN, UNIT_BYTES, PlainMemory

RECORD = 112


class Small(PlainMemory):
    """It lets a part reach a given number of units of each array, and keeps what parts ask for."""

    def __init__(self, units_max: int) -> None:
        self.bytes_max = 4 * units_max * UNIT_BYTES
        self.asked: list[tuple[int, set[int], bool]] = []
        self.settled = 0

    def bring(self, address: int, units: Iterable[int], write: bool) -> None:
        """Keep the units."""
        self.asked.append((address, set(units), write))

    def settle(self) -> None:
        """Count."""
        self.settled += 1


@pytest.fixture
def offsets() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, 40 * UNIT_BYTES // RECORD, 5_000) * RECORD


class TestOrder:
    @pytest.mark.parametrize("places", [[3, 1, 3, 1, 2], [1 << 40, 7, 1 << 40, 7]], ids=["near", "far apart"])
    def test_is_stable(self, places: list[int]) -> None:
        order = order_of(np.array(places))
        assert order is not None
        assert order.tolist() == sorted(range(len(places)), key=lambda row: (places[row], row))

    def test_is_none_for_rows_that_are_in_order(self) -> None:
        assert order_of(np.array([1, 1, 2, 9])) is None
        assert order_of(np.array([], np.int64)) is None

    def test_is_undone(self) -> None:
        order = order_of(np.array([3, 1, 2]))
        assert order is not None
        assert arrived(np.array([1, 2, 3]), order).tolist() == [3, 1, 2]

    def test_large_arrays_are_ordered_by_larger_places_but_not_beyond_a_unit(self) -> None:
        assert places_of(np.array([4_095, 4_096, 8_192])).tolist() == [0, 1, 2]
        assert places_of(np.array([0, 1 << 30])).tolist() == [0, (1 << 30) >> 15]
        assert places_of(np.array([0, 1 << 50])).tolist() == [0, (1 << 50) // UNIT_BYTES]


class TestDistinct:
    @pytest.mark.parametrize("slots", [[], [4], [1, 5, 9], [5, 1, 9, 1, 5], [2, 2], [3, 3, 4, 4, 0]], ids=str)
    def test_slots_are_in_order_and_occur_once(self, slots: list[int]) -> None:
        assert distinct(np.array(slots, np.int64)).tolist() == sorted(set(slots))


class TestParts:
    @pytest.mark.parametrize("units_max", [1, 3])
    def test_hold_every_row_once_and_reach_a_bounded_number_of_units(
        self, offsets: NDArray[np.int64], units_max: int
    ) -> None:
        memory = Small(units_max)
        found = list(parts(memory, Reached(7, offsets, RECORD, write=True)))
        rows = np.concatenate([np.arange(offsets.size)[part] for part in found])
        assert sorted(rows.tolist()) == list(range(offsets.size))
        assert all(np.unique(offsets[part] // UNIT_BYTES).size <= units_max for part in found)
        assert memory.settled == len(found) == -(-40 // units_max)

    def test_ask_for_all_that_their_rows_reach_in_every_array(self, offsets: NDArray[np.int64]) -> None:
        memory, other = Small(2), offsets // 3
        for part in parts(memory, Reached(7, offsets, RECORD, write=False), Reached(8, other, 40, write=True)):
            for address, reached, size, write in ((7, offsets[part], RECORD, False), (8, other[part], 40, True)):
                asked = set[int]().union(*(units for at, units, how in memory.asked if (at, how) == (address, write)))
                assert set((reached // UNIT_BYTES).tolist()) <= asked
                assert int(reached.max() + size - 1) // UNIT_BYTES in asked
            memory.asked.clear()

    def test_without_a_budget_the_rows_are_one_part(self, offsets: NDArray[np.int64]) -> None:
        assert list(parts(PLAIN, Reached(7, offsets, RECORD, write=True))) == [slice(0, offsets.size)]
        assert list(parts(PLAIN, Reached(7, offsets[:0], RECORD, write=True))) == []

    def test_have_a_bounded_number_of_rows_if_asked_to(self) -> None:
        units = np.array([0, 0, 0, 1, 1, 2])
        assert list(cut(Small(2), units, 2)) == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)]
