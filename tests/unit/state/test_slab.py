"""Columns that grow without moving."""

from __future__ import annotations

import pickle

import numpy as np

from holdfast.state.tables.slab import Slab


class TestSlab:
    def test_a_type_that_travelled_to_a_worker_gives_numpys_own_type_again(self) -> None:
        travelled = pickle.loads(pickle.dumps(np.dtype(np.int64)))  # noqa: S301 - what Spark does with a plan
        assert travelled is not np.dtype(np.int64)

        assert Slab(travelled).array.dtype is np.dtype(np.int64)

    def test_growing_beyond_the_reservation_keeps_the_values(self) -> None:
        slab = Slab(np.int64, reserved=4)
        slab.array[:4] = [1, 2, 3, 4]

        slab.hold(5)

        assert slab.array[:4].tolist() == [1, 2, 3, 4]
        assert slab.array.size >= 5

    def test_room_is_reserved_once_a_few_rows_are_not_enough_and_values_move_once(self) -> None:
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
