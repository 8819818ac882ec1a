from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.model import Epoch
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

KEY = KeyType(("k",), (pa.int64(),))
SPEC = TableSpec(1, "counts", KEY, (ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("low", np.dtype(float), 9.5)))
ONE, TWO, THREE = Epoch(1), Epoch(2), Epoch(3)
NONE = Epoch(0)


def keys(*numbers: int) -> Keys:
    return KEY.encode([pa.array(numbers, pa.int64())])


def count(table: StateTable, *numbers: int) -> None:
    slots = table.slots(keys(*numbers))
    np.add.at(table.changing(slots)("count"), slots, 1)


def delete(table: StateTable, *numbers: int) -> None:
    table.delete(table.slots(keys(*numbers)))


def counts(table: StateTable, *numbers: int) -> list[int]:
    slots = table.slots(keys(*numbers))
    values: list[int] = table.column("count")[slots].tolist()
    return values


def rows_of(delta: OperatorDelta) -> dict[int, int | None]:
    assert delta.keys.ints is not None
    values = zip(delta.keys.ints.tolist(), delta.puts.tolist(), delta.columns["count"].tolist(), strict=True)
    return {key: value if put else None for key, put, value in values}


@pytest.fixture
def table() -> StateTable:
    return StateTable(SPEC, 128)


class TestTable:
    def test_starts_every_key_absent_with_the_defaults(self, table: StateTable) -> None:
        slots = table.slots(keys(5, 6))
        assert table.is_present(slots).tolist() == [False, False]
        assert table.column("low")[slots].tolist() == [9.5, 9.5]

    def test_counts_a_key_as_often_as_it_occurs(self, table: StateTable) -> None:
        count(table, 5, 6, 5, 5)
        assert counts(table, 5, 6) == [3, 1]

    def test_returns_the_keys_of_slots(self, table: StateTable) -> None:
        assert table.key_columns(table.slots(keys(7, -1, 7)))[0].to_pylist() == [7, -1, 7]

    def test_lists_what_changed_since_the_barrier_once_each(self, table: StateTable) -> None:
        count(table, 5, 6, 5)
        count(table, 5, 7)
        delete(table, 6, 8)
        assert sorted(table.key_columns(table.changed())[0].to_pylist()) == [5, 6, 7, 8]
        table.freeze(ONE, NONE)
        assert table.changed().size == 0

    def test_starts_a_deleted_key_anew(self, table: StateTable) -> None:
        count(table, 5, 5)
        delete(table, 5)
        assert table.is_present(table.slots(keys(5))).tolist() == [False]
        count(table, 5)
        assert counts(table, 5) == [1]

    def test_lists_present_keys(self, table: StateTable) -> None:
        count(table, 1, 2, 3)
        delete(table, 2)
        assert table.key_columns(table.present())[0].to_pylist() == [1, 3]

    def test_keeps_its_values_beyond_the_room_reserved_for_it(self) -> None:
        table = StateTable(SPEC, 128)
        for slab in (table._records, table._committed_values, table._opened):
            slab._reserved = 0
        count(table, *range(300))
        table.freeze(ONE, NONE)
        count(table, *range(3_000))
        table.freeze(TWO, ONE)
        assert counts(table, *range(298, 302)) == [2, 2, 1, 1]
        assert [table.get_committed((number,)) for number in (299, 300)] == [{"count": 1, "low": 9.5}, None]

    def test_a_table_of_long_and_similar_texts_distinguishes_them(self) -> None:
        kind = KeyType(("k",), (pa.utf8(),))
        table = StateTable(TableSpec(1, "texts", kind, SPEC.columns), 128)
        texts = [stem + tail for stem in ("", "x" * 7, "x" * 8, "x" * 40) for tail in ("", "a", "b")]
        slots = table.slots(kind.encode([pa.array(texts * 2)]))
        assert len(set(slots.tolist())) == len(texts)
        assert table.key_columns(slots)[0].to_pylist() == texts * 2


class TestFreeze:
    def test_holds_the_values_of_the_barrier(self, table: StateTable) -> None:
        count(table, 5, 6)
        table.freeze(ONE, NONE)
        count(table, 5, 7)
        assert rows_of(table.delta(ONE).whole()) == {5: 1, 6: 1}

    def test_says_which_keys_are_gone(self, table: StateTable) -> None:
        count(table, 5, 6)
        table.freeze(ONE, NONE)
        delete(table, 5)
        table.freeze(TWO, ONE)
        assert rows_of(table.delta(TWO).whole()) == {5: None}

    def test_leaves_out_keys_that_came_and_went(self, table: StateTable) -> None:
        count(table, 5)
        delete(table, 5)
        table.freeze(ONE, NONE)
        assert rows_of(table.delta(ONE).whole()) == {}

    def test_takes_the_keys_of_an_unfinished_epoch_along(self, table: StateTable) -> None:
        count(table, 5, 6)
        table.freeze(ONE, NONE)
        count(table, 6, 7)
        table.freeze(TWO, NONE)
        assert rows_of(table.delta(TWO).whole()) == {5: 1, 6: 2, 7: 1}
        assert table.delta(TWO).follows == NONE

    def test_keeps_the_deletion_of_a_key_that_only_an_unfinished_epoch_knew(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        delete(table, 5)
        table.freeze(TWO, NONE)
        assert rows_of(table.delta(TWO).whole()) == {5: None}

    def test_takes_nothing_along_from_a_committed_epoch(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        count(table, 6)
        table.freeze(TWO, ONE)
        assert rows_of(table.delta(TWO).whole()) == {6: 1}
        assert table.delta(TWO).follows == ONE

    def test_gives_arrays_that_cannot_be_written(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        with pytest.raises(ValueError, match="read-only"):
            table.delta(ONE).whole().columns["count"][0] = 7

    def test_refuses_an_epoch_that_is_not_newer(self, table: StateTable) -> None:
        table.freeze(TWO, NONE)
        with pytest.raises(AssertionError, match="increase"):
            table.freeze(TWO, NONE)


class TestCommit:
    def test_shows_frozen_values_to_readers_of_committed_state(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        count(table, 5)
        assert table.get_committed((5,)) is None
        table.commit(ONE)
        assert table.get_committed((5,)) == {"count": 1, "low": 9.5}

    def test_may_be_repeated(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        table.commit(ONE)
        count(table, 5)
        table.freeze(TWO, ONE)
        table.commit(ONE)
        assert table.get_committed((5,)) == {"count": 1, "low": 9.5}

    def test_a_commit_of_an_epoch_that_was_never_frozen_stops_the_worker(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        with pytest.raises(AssertionError, match="never froze"):
            table.commit(TWO)


class TestRollBack:
    def test_returns_to_the_values_of_the_base(self, table: StateTable) -> None:
        count(table, 5, 6)
        table.freeze(ONE, NONE)
        count(table, 5, 7)
        delete(table, 6)
        assert table.roll_back(ONE)
        assert counts(table, 5, 6, 7) == [1, 1, 0]
        assert table.is_present(table.slots(keys(5, 6, 7))).tolist() == [True, True, False]

    def test_commits_the_base_if_it_is_only_frozen(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        assert table.roll_back(ONE)
        assert table.get_committed((5,)) == {"count": 1, "low": 9.5}

    def test_undoes_unfinished_epochs(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        count(table, 5)
        table.freeze(TWO, ONE)
        count(table, 6)
        table.freeze(THREE, ONE)
        assert table.roll_back(ONE)
        assert counts(table, 5, 6) == [1, 0]

    def test_makes_a_key_born_later_as_good_as_new(self, table: StateTable) -> None:
        slots = table.slots(keys(5))
        table.changing(slots)("low")[slots] = 1.0
        assert table.roll_back(NONE)
        count(table, 5)
        assert table.column("low")[table.slots(keys(5))].tolist() == [9.5]
        assert counts(table, 5) == [1]

    def test_changes_nothing_if_the_base_is_not_held(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        table.freeze(TWO, ONE)
        count(table, 5)
        assert not table.roll_back(NONE)
        assert not table.roll_back(THREE)
        assert counts(table, 5) == [2]

    def test_goes_on_counting_afterwards(self, table: StateTable) -> None:
        count(table, 5)
        table.freeze(ONE, NONE)
        count(table, 5)
        table.roll_back(ONE)
        count(table, 5)
        table.freeze(TWO, ONE)
        assert rows_of(table.delta(TWO).whole()) == {5: 2}


class TestVacantSlots:
    def test_are_those_of_absent_keys(self, table: StateTable) -> None:
        count(table, 1, 2, 3)
        delete(table, 2)
        for epoch, committed in ((ONE, NONE), (TWO, ONE), (THREE, TWO)):
            table.freeze(epoch, committed)
        table.drop_vacant()
        assert len(table) == 2
        assert counts(table, 1, 3) == [1, 1]

    def test_keeps_what_an_unfinished_epoch_has_to_take_along(self, table: StateTable) -> None:
        count(table, 1, 2)
        delete(table, 2)
        table.freeze(ONE, NONE)
        table.drop_vacant()
        table.freeze(TWO, NONE)
        assert rows_of(table.delta(TWO).whole()) == {1: 1, 2: None}
        assert table.roll_back(TWO)
        assert counts(table, 1, 2) == [1, 0]

    def test_leaves_every_key_its_values(self, table: StateTable) -> None:
        count(table, *range(5_000), *range(2_000))
        delete(table, *range(1_000, 4_000))
        table.freeze(ONE, NONE)
        table.freeze(TWO, ONE)
        table.drop_vacant()
        assert len(table) == 2_000
        assert counts(table, 0, 999, 1_000, 3_999, 4_000, 4_999) == [2, 2, 0, 0, 1, 1]


class TestTableSpec:
    @pytest.mark.parametrize(
        "column", [("kind", np.dtype(np.int64)), ("name", np.dtype("U3")), ("o", np.dtype(object))]
    )
    def test_a_column_that_cannot_be_stored_is_refused(self, column: tuple[str, np.dtype[Any]]) -> None:
        with pytest.raises(ConfigError, match="cannot be stored"):
            ColumnSpec(*column)


MEASURE = """
import sys
import numpy as np, pyarrow as pa
from holdfast.model import Epoch
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

text = sys.argv[1] == "text"
kind = KeyType(("k",), (pa.utf8() if text else pa.int64(),))
columns = tuple(ColumnSpec(name, np.dtype(np.int64)) for name in ("n", "total"))
table = StateTable(TableSpec(1, "t", kind, columns), 1)

def put(first, end):
    numbers = np.arange(first, end)
    column = pa.array([f"user-{n}" for n in numbers.tolist()]) if text else pa.array(numbers)
    table.touch(table.slots(kind.encode([column])))

put(0, 1_000)
table.freeze(Epoch(1), Epoch(0))
table.commit(Epoch(1))
before, counted = resident(), table.nbytes
for first in range(0, 700_000, 10_000):
    put(first, first + 10_000)
    # Committed and forgotten, so that what is measured is the table, not what an epoch keeps.
    epoch = first // 10_000 + 2
    table.freeze(Epoch(epoch), Epoch(epoch - 1))
    table.commit(Epoch(epoch))
pa.default_memory_pool().release_unused()
print(resident() - before, table.nbytes - counted)
"""


class TestBytes:
    @pytest.mark.parametrize("kind", ["integer", "text"])
    def test_are_those_that_the_process_grows_by(self, kind: str) -> None:
        said = subprocess.run([sys.executable, "-c", MEASURE, kind], capture_output=True, text=True, check=True)
        grown, counted = map(int, said.stdout.split())
        assert counted == pytest.approx(grown, rel=0.1)
