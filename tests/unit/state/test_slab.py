"""Columns that grow without moving."""

from __future__ import annotations

import pickle

import numpy as np

from holdfast.state.slab import Slab


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
