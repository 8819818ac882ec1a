"""Tables, store and changelog together, against dictionaries that cannot be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cramped import CrampedState
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from killed_worker import RewoundWorker

from holdfast.model import Epoch
from holdfast.state import blocks, changelog, packing
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import ColumnSpec, TableSpec

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    """Write segments in several record batches, and restore them in several parts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(changelog, "ROWS_AT_ONCE", 4)
        patched.setattr(changelog, "BATCH_BYTES", 200)
        patched.setattr(changelog, "PACKED_FROM_BYTES", 0)
        patched.setattr(packing, "_is_worth_it", lambda *_: True)
        patched.setattr(blocks, "ROWS_AT_ONCE", 3)
        yield


COUNT = ColumnSpec("count", np.dtype(np.int64))
LEVEL = ColumnSpec("level", np.dtype(np.float64), 1.5)
NOTE, BLOB = ColumnSpec("note", pa.utf8(), nullable=True), ColumnSpec("blob", pa.binary())
SIZE = ColumnSpec("size", np.dtype(np.int16), nullable=True)
BY_NUMBER = TableSpec(1, "by-number", KeyType(("k",), (pa.int64(),)), (COUNT, LEVEL, NOTE))
BY_NAME = TableSpec(2, "by-name", KeyType(("n", "i"), (pa.utf8(), pa.int32()), (True, False)), (COUNT, BLOB, SIZE))
SPECS = {spec.operator: spec for spec in (BY_NUMBER, BY_NAME)}
NAMES = ("", "a", "a\x00b", "ab", None, "long enough for more than one word")
KEYS: dict[int, list[tuple[Any, ...]]] = {
    1: [(number,) for number in (0, 1, -1, 7, 1 << 62, -(1 << 63), *range(10, 24))],
    2: [(name, number) for name in NAMES for number in (0, -3)],
}
Rows = dict[tuple[Any, ...], int]
State = dict[int, Rows]

picks = st.lists(st.integers(0, 19), min_size=1, max_size=12)
operators = st.sampled_from(sorted(SPECS))


def keys_of(operator: int, picked: list[int]) -> list[tuple[Any, ...]]:
    return [KEYS[operator][pick % len(KEYS[operator])] for pick in picked]


def beside(operator: int, count: int) -> dict[str, Any]:
    """The other values of a key with this count."""
    if operator == 1:
        return {"note": (None, "", "é\x00", f"{count} " * 50)[count % 4]}
    return {"blob": b"\xff" * (count % 7) * 30, "size": None if count % 3 == 0 else count}


def copied(state: State) -> State:
    return {operator: dict(rows) for operator, rows in state.items()}


class OneWorker(RewoundWorker):
    """One worker's life: batches, barriers, lost epochs, rollbacks, kills, rewinds."""

    specs = (BY_NUMBER, BY_NAME)

    def __init__(self) -> None:
        super().__init__({1: {}, 2: {}})

    def continue_from(self, epoch: Epoch) -> None:
        self.working: State = copied(self.completed[epoch])

    def slots(self, operator: int, keys: list[tuple[Any, ...]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        kind = SPECS[operator].key
        columns = zip(zip(*keys, strict=True), kind.types, strict=True)
        return self.store.table(operator).slots(kind.encode([pa.array(column, type_) for column, type_ in columns]))

    @rule(operator=operators, picked=picks)
    def count(self, operator: int, picked: list[int]) -> None:
        keys = keys_of(operator, picked)
        table, slots = self.store.table(operator), self.slots(operator, keys)
        np.add.at(table.changing(slots)("count"), slots, 1)
        values = [beside(operator, count) for count in table.column("count")[slots].tolist()]
        table.write(slots, {n: pa.array([v[n] for v in values], table.spec.column(n).arrow) for n in values[0]})
        for key in keys:
            self.working[operator][key] = self.working[operator].get(key, 0) + 1

    @rule(operator=operators, picked=picks)
    def delete(self, operator: int, picked: list[int]) -> None:
        keys = keys_of(operator, picked)
        self.store.table(operator).delete(self.slots(operator, keys))
        for key in keys:
            self.working[operator].pop(key, None)

    @rule(operator=operators, picked=picks)
    def look(self, operator: int, picked: list[int]) -> None:
        keys = keys_of(operator, picked)
        table, slots = self.store.table(operator), self.slots(operator, keys)
        rows = self.working[operator]
        assert table.is_present(slots).tolist() == [key in rows for key in keys]
        assert table.column("count")[slots].tolist() == [rows.get(key, 0) for key in keys]
        self.check_values_beside(operator, slots)
        if operator == 1:
            assert set(table.column("level")[slots].tolist()) == {1.5}

    def check_values_beside(self, operator: int, slots: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        table = self.store.table(operator)
        values = [beside(operator, count) for count in table.column("count")[slots].tolist()]
        for name in beside(operator, 0):
            assert table.read(name, slots).to_pylist() == [value[name] for value in values]

    @rule(operator=operators, pick=st.integers(0, 19))
    def read_committed(self, operator: int, pick: int) -> None:
        (key,) = keys_of(operator, [pick])
        row = self.store.get_committed(operator, key)
        for name, value in (beside(operator, row["count"]) if row is not None else {}).items():
            assert row is not None and row[name] == value
        assert (None if row is None else row["count"]) == self.completed[self.store.committed_through][operator].get(
            key
        )

    @rule(completes=st.booleans(), gap=st.integers(1, 3), announced=st.booleans())
    def barrier(self, completes: bool, gap: int, announced: bool) -> None:
        """Close an epoch; the one before is given up if it is not sealed."""
        self.close(Epoch(self.newest + gap), copied(self.working), completes=completes, announced=announced)

    @rule(operator=operators, picked=picks, copied=st.integers(0, 8), deletes=st.booleans(), announced=st.booleans())
    def return_to_a_barrier(
        self, operator: int, picked: list[int], copied: int, deletes: bool, announced: bool
    ) -> None:
        """Change keys before a barrier and after it, and return to it."""
        self.count(operator, picked)
        self.barrier(True, 1, announced)
        self.store.advance(copied)
        (self.delete if deletes else self.count)(operator, picked)
        self.seal()
        self.roll_back()
        self.list_present(operator)

    @rule(operator=operators, picked=picks, announced=st.booleans())
    def lose_the_last_epoch(self, operator: int, picked: list[int], announced: bool) -> None:
        """Values of a completed epoch return after the next one, which changed the same keys, is lost."""
        self.count(operator, picked)
        self.barrier(True, 1, announced)
        self.count(operator, picked)
        self.roll_back()
        self.look(operator, picked)

    @rule()
    def drop_vacant(self) -> None:
        for operator in SPECS:
            self.store.table(operator).drop_vacant()

    @rule(operator=operators)
    def list_present(self, operator: int) -> None:
        table = self.store.table(operator)
        slots = table.present()
        self.check_values_beside(operator, slots)
        keys = list(zip(*(column.to_pylist() for column in table.key_columns(slots)), strict=True))
        assert dict(zip(keys, table.column("count")[slots].tolist(), strict=True)) == self.working[operator]

    @invariant()
    def commits_stay_behind_the_head(self) -> None:
        assert not hasattr(self, "store") or self.store.committed_through <= self.head

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for operator in SPECS:
            self.list_present(operator)


class CrampedOneWorker(CrampedState, OneWorker):
    """The same in tables that are larger than their budget."""


TestOneWorker = OneWorker.TestCase
TestOneWorker.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestCrampedOneWorker = CrampedOneWorker.TestCase
TestCrampedOneWorker.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
