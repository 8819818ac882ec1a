"""Classes of rows that have no dataclass."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from holdfast.runtime.rows.row_types import row_class


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Collect garbage at every chance."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


class TestRowClass:
    @pytest.mark.usefixtures("eager_collector")
    def test_a_row_class_is_built_correctly_during_garbage_collection(self) -> None:
        for number in range(100):
            names = tuple(f"c{number}_{at}" for at in range(number % 7 + 1))
            row = row_class(names)(range(len(names)))
            assert [getattr(row, name) for name in names] == list(range(len(names)))
