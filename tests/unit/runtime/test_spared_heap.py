"""What a run spares the garbage collector: docs.python.org/3/library/gc.html says what `gc.freeze` does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from holdfast.runtime.execution.heap import spared


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Undo what conftest.py freezes for all tests, for the time of one."""
    gc.unfreeze()
    yield
    gc.freeze()


class Knot:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.own = self


def seen_by_a_collection(knot: Knot) -> bool:
    return any(each is knot for each in gc.get_objects())


class TestASparedHeap:
    def test_leaves_what_there_was_out_of_collections(self) -> None:
        before = Knot()
        with spared():
            during = Knot()
            assert not seen_by_a_collection(before)
            assert seen_by_a_collection(during)

    def test_keeps_no_garbage_of_before(self) -> None:
        gone = weakref.ref(Knot())
        with spared():
            assert gone() is None

    def test_is_collected_again_afterwards(self) -> None:
        knot = Knot()
        with spared():
            pass
        gone = weakref.ref(knot)
        del knot
        gc.collect()
        assert gone() is None

    def test_leaves_to_a_program_what_it_has_frozen_itself(self) -> None:
        knot = Knot()
        gc.freeze()
        try:
            with spared():
                pass
            assert not seen_by_a_collection(knot)
        finally:
            gc.unfreeze()
