"""Arrays that grow without moving."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.state.tables.slab import Slab


class TestSlab:
    def test_growing_beyond_the_reservation_keeps_the_values(self) -> None:
        slab = Slab(np.int64, reserved=4, first=4)
        slab.array[:4] = [1, 2, 3, 4]

        slab.hold(5)

        assert slab.array[:4].tolist() == [1, 2, 3, 4]
        assert slab.array.size >= 5

    def test_growing_copies_only_what_is_used(self) -> None:
        slab = Slab(np.int64, reserved=0, first=4)
        slab.array[:4] = [1, 2, 3, 4]

        slab.hold(8, used=2)

        assert slab.array[:2].tolist() == [1, 2]

    def test_room_is_reserved_once_a_few_elements_are_not_enough_and_values_move_once(self) -> None:
        slab = Slab(np.int64, reserved=1 << 20)
        first = slab.array.size
        assert first < 1 << 13
        slab.array[:] = np.arange(first)

        slab.hold(first + 1)

        reserved = slab.array
        assert (reserved.size, reserved[:first].tolist()) == (1 << 20, list(range(first)))
        slab.hold(1 << 20)
        assert slab.array is reserved

    def test_where_nothing_can_be_reserved_it_doubles(self) -> None:
        slab = Slab(np.int64, reserved=1 << 55)
        first = slab.array.size

        slab.hold(first + 1)

        assert slab.array.size == 2 * first

    @pytest.mark.parametrize("dtype", [np.int64, np.uint8])
    def test_begins_at_a_cache_line(self, dtype: type) -> None:
        slabs = [Slab(dtype, first=size) for size in (1, 9, 100, 10_000)]
        assert {slab.array.ctypes.data % 64 for slab in slabs} == {0}
