"""What a barrier froze, whatever changes records before they are copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.model import Epoch
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables import epochs, indexed
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

NONE, ONE, TWO, THREE = (Epoch(number) for number in range(4))
WINDOW = KeyType(("end", "name"), (pa.int64(), pa.utf8()), unrouted=1)
COUNT, NOTE = ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("note", pa.utf8(), nullable=True)
KEYS = 12


def keys(*numbers: int) -> Keys:
    return WINDOW.encode(
        [pa.array([7] * len(numbers), pa.int64()), pa.array([f"user {n}" for n in numbers], pa.utf8())]
    )


def put(of: StateTable, numbers: list[int], count: int) -> None:
    slots = of.slots(keys(*numbers))
    of.changing(slots)("count")[slots] = count
    of.write(slots, {"note": pa.array([f"{count} times"] * len(numbers))})


def rows_of(of: StateTable, epoch: Epoch) -> dict[str, tuple[int, str] | None]:
    delta = of.delta(epoch).whole()
    names = WINDOW.decode(delta.keys)[1].to_pylist()
    values = zip(delta.columns["count"].tolist(), delta.columns["note"].to_pylist(), strict=True)
    return {n: v if there else None for n, v, there in zip(names, values, delta.puts.tolist(), strict=True)}


def named(values: tuple[int, str] | None, *numbers: int) -> dict[str, tuple[int, str] | None]:
    return {f"user {number}": values for number in numbers}


@pytest.fixture
def of() -> StateTable:
    """A table whose first epoch is frozen, and not copied."""
    made = StateTable(TableSpec(1, "counts", WINDOW, (COUNT, NOTE)), 4)
    put(made, list(range(KEYS)), 1)
    made.freeze(ONE, NONE)
    assert made.uncopied
    return made


def fold(of: StateTable, slots: Any) -> None:
    of.fold(keys(*range(KEYS)), of.program([(Do.COUNT, "count", 0)]), sources_of([KernelInput(None)]))


def expire(of: StateTable, slots: Any) -> None:
    of.expire(slots, np.full(4, 7, np.int64))


CHANGES: dict[str, Callable[[StateTable, Any], object]] = {
    "a fold": fold,
    "a fold at slots": lambda of, slots: of.fold_at(
        slots, of.program([(Do.COUNT, "count", 0)]), sources_of([KernelInput(None)])
    ),
    "a write of plain values": lambda of, slots: of.changing(slots)("count").fill(9),
    "a write of text": lambda of, slots: of.write(slots, {"note": pa.array(["later"] * KEYS)}),
    "a deletion": lambda of, slots: of.delete(slots),
    "an expiry": expire,
}


class TestAFrozenEpoch:
    @pytest.mark.parametrize("copied", [0, 5, KEYS])
    @pytest.mark.parametrize("change", CHANGES)
    def test_sees_nothing_that_changes_after_the_barrier(self, of: StateTable, change: str, copied: int) -> None:
        of.advance(copied)
        CHANGES[change](of, of.find(keys(*range(KEYS))))
        assert rows_of(of, ONE) == named((1, "1 times"), *range(KEYS))

    @pytest.mark.parametrize("change", CHANGES)
    def test_is_what_a_rollback_to_it_restores(self, of: StateTable, change: str) -> None:
        slots = of.find(keys(*range(KEYS)))
        CHANGES[change](of, slots)
        of.commit(ONE)
        assert of.roll_back(ONE)
        assert of.is_present(slots).all() and of.column("count")[slots].tolist() == [1] * KEYS
        assert of.read("note", slots).to_pylist() == ["1 times"] * KEYS
        assert of.get_committed((7, "user 3")) == {"count": 1, "note": "1 times"}

    def test_joins_the_next_one_if_it_does_not_complete(self, of: StateTable) -> None:
        put(of, [0, 1], 2)
        of.freeze(TWO, NONE)
        put(of, [1, 2], 3)
        assert rows_of(of, TWO) == named((2, "2 times"), 0, 1) | named((1, "1 times"), *range(2, KEYS))
        assert rows_of(of, ONE) == named((1, "1 times"), *range(KEYS))
        of.freeze(THREE, TWO)
        assert rows_of(of, THREE) == named((3, "3 times"), 1, 2)

    def test_is_dropped_by_a_rollback_to_the_epoch_before(self, of: StateTable) -> None:
        put(of, [3], 2)
        assert of.roll_back(NONE) and of.uncopied == 0
        put(of, [4], 5)
        of.freeze(TWO, NONE)
        assert rows_of(of, TWO) == named((5, "5 times"), 4)

    def test_keeps_its_keys_while_their_arena_is_compacted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(indexed, "COMPACTED_FROM", 16)
        of = StateTable(TableSpec(1, "counts", WINDOW, (COUNT, NOTE)), 4)
        of.slots(keys(*range(100, 140)))  # never touched, so they can be dropped
        put(of, list(range(KEYS)), 1)
        of.freeze(ONE, NONE)
        of.drop_vacant()
        of.advance(3)
        of.delete(of.find(keys(*range(4, 8))))  # copied by the deletion
        before = of._arena
        of.slots(keys(*range(200, 210)))
        assert of._arena is not before, "nothing was compacted"
        assert rows_of(of, ONE) == named((1, "1 times"), *range(KEYS))

    @pytest.mark.parametrize("others", [0, 200])
    def test_is_copied_in_steps_by_sweep_or_by_list(self, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(epochs, "LISTED_COPIED", 4)
        of = StateTable(TableSpec(1, "counts", WINDOW, (COUNT, NOTE)), 4)
        of.slots(keys(*range(1_000, 1_000 + others)))
        put(of, list(range(KEYS)), 1)
        of.freeze(ONE, NONE)
        looked_at = list[int]()
        while of.uncopied:
            looked_at.append(of.advance(5))
            put(of, [len(looked_at)], 4)
        assert sum(looked_at) == KEYS and max(looked_at) == 5
        assert rows_of(of, ONE) == named((1, "1 times"), *range(KEYS))

    def test_counts_as_memory_before_it_is_copied(self, of: StateTable) -> None:
        before = of.frozen_bytes
        assert before >= KEYS * 8 * of._width
        of.copy_all()
        assert of.frozen_bytes >= before

    def test_is_committed_in_steps(self, of: StateTable) -> None:
        of.commit(ONE)
        assert of.committed_through == ONE and of.uncommitted == KEYS
        put(of, [0, 11], 2)
        assert [of.advance(8) for _ in range(3)] == [8, 4, 0]
        of.freeze(TWO, ONE)
        assert rows_of(of, TWO) == named((2, "2 times"), 0, 11)
        assert of.roll_back(ONE)
        assert of.column("count")[of.find(keys(*range(KEYS)))].tolist() == [1] * KEYS


class TestAView:
    def test_a_view_of_a_column_cannot_be_written(self, of: StateTable) -> None:
        with pytest.raises(ValueError, match="read-only"):
            of.column("count")[0] = 1


def test_a_write_takes_slots_that_cannot_be_written_and_touches_them(of: StateTable) -> None:
    slots = pa.array(of.find(keys(3, 5))).to_numpy()
    assert not slots.flags.writeable
    of.write(slots, {"note": pa.array(["a", "b"]), "count": np.array([8, 9])})
    assert of.read("note", slots).to_pylist() == ["a", "b"] and of.column("count")[slots].tolist() == [8, 9]
    of.freeze(TWO, ONE)
    assert rows_of(of, TWO) == named((8, "a"), 3) | named((9, "b"), 5)
