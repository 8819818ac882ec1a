"""Ordered indexes of a table against sorted Python lists."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.model import Epoch
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables import ordered
from holdfast.state.tables.ordered import BY_KEY
from holdfast.state.tables.slab import Slab
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.state.tables.table import StateTable

AT = ColumnSpec("at", np.dtype(np.int64), -1)
GROUPS = 4
KINDS = {
    "integers": KeyType(("k", "i"), (pa.int64(), pa.int64()), suffix=1),
    "unsigned": KeyType(("k", "i"), (pa.uint64(), pa.uint64()), suffix=1),
    "nullable": KeyType(("k", "l", "i"), (pa.int32(), pa.bool_(), pa.int64()), (True, True, True), suffix=1),
    "text": KeyType(("k", "i"), (pa.utf8(), pa.int64()), (True, False), suffix=1),
    "text below text": KeyType(("k", "t", "i"), (pa.utf8(), pa.utf8(), pa.int64()), (False, True, False), suffix=2),
    "text below an integer": KeyType(("k", "t"), (pa.int64(), pa.binary()), suffix=1),
}
TEXTS = ["", "a", "a\x00", "a\x00b", "same start, longer", "same start, long", "same sta", "same stb", "\x00", "z"]
Row = tuple[Any, ...]


def row_of(kind: KeyType, number: int) -> Row:
    """Return the key of this number; the lowest digits decide the user key, other numbers are other keys."""
    cells: list[Any] = []
    for at, (column, nullable) in enumerate(zip(kind.types, kind.nullable, strict=True)):
        last = at == len(kind.types) - 1
        if pa.types.is_boolean(column):
            cells.append((None, False, True)[number % 3])
            number //= 3
        elif pa.types.is_string(column) or pa.types.is_binary(column):
            text = TEXTS[number % 10] + (f"{number // 10:03}" if last and number >= 10 else "")
            cell = text.encode() if pa.types.is_binary(column) else text
            cells.append(None if nullable and number % 11 == 10 else cell)
            number //= 110 if nullable else 10
        else:
            value = number if last else number % 5
            if pa.types.is_uint64(column):
                cells.append((1 << 64) - 1 - value if value % 2 else value)
            else:
                cells.append(None if nullable and value == 3 else -value if value % 2 else value)
            number //= 5
    return tuple(cells)


def rank(row: Row) -> tuple[Any, ...]:
    """Return what sorts as canonical bytes do: nulls first."""
    cells = (cell.encode() if isinstance(cell, str) else cell for cell in row)
    return tuple((0, 0) if cell is None else (1, cell) for cell in cells)


def encoded(kind: KeyType, rows: list[Row]) -> Keys:
    columns = zip(*rows, strict=True) if rows else [()] * len(kind.types)
    return kind.encode([pa.array(column, type_) for column, type_ in zip(columns, kind.types, strict=True)])


def rows_at(table: StateTable, slots: Any) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in table.key_columns(slots)), strict=True))


def refused(*_: object) -> None:
    raise MemoryError


class Checked:
    """A table with two orders, and the dictionary of its rows' times."""

    def __init__(self, kind: KeyType) -> None:
        self.kind, self.rows = kind, dict[Row, int]()
        self.table = StateTable(TableSpec(1, "rows", kind, (AT,), orders=(BY_KEY, AT.name)), GROUPS)

    def put(self, rows: list[Row], times: list[int]) -> None:
        slots = self.table.slots(encoded(self.kind, rows))
        self.table.changing(slots)(AT.name)[slots] = times
        self.rows |= dict(zip(rows, times, strict=True))

    def delete(self, rows: list[Row]) -> None:
        self.table.delete(self.table.slots(encoded(self.kind, rows)))
        for row in rows:
            self.rows.pop(row, None)

    def check_below(self, user_of: Row, low: int | None, high: int | None, skip: int, limit: int, down: bool) -> None:
        """Compare the range of one user key between two of its suffixes."""
        part = self.kind.routed_part
        user, suffixes = user_of[part], sorted({row[part.stop :] for row in self.rows}, key=rank)
        users = self.kind.routed.encode([pa.array([c], t) for c, t in zip(user, self.kind.routed.types, strict=True)])
        bounds = [() if at is None or not suffixes else suffixes[at % len(suffixes)] for at in (low, high)]
        first, end = (
            [pa.array([c], t) for c, t in zip(bound, self.kind.types[part.stop :], strict=False)] for bound in bounds
        )
        own = sorted((row for row in self.rows if row[part] == user), key=rank)
        ranks = [rank(row[part.stop :]) for row in own]
        start = bisect_left(ranks, rank(bounds[0])) if bounds[0] else 0
        stop = bisect_left(ranks, rank(bounds[1])) if bounds[1] else len(own)
        expected = own[start:stop][:: -1 if down else 1]
        index = self.table.ordered()
        assert index.counts(users, first, end).tolist() == [len(expected)]
        found = index.below(users, first, end, skip=skip, limit=limit, descending=down)
        assert rows_at(self.table, found.slots) == expected[skip : skip + limit]
        assert found.counts.tolist() == [len(expected[skip : skip + limit])]

    def check_times(self, last: int, limit: int | None) -> None:
        due = sorted(((at, rank(row)), row) for row, at in self.rows.items() if at <= last)
        slots = self.table.ordered(AT.name).through(last, limit)
        assert rows_at(self.table, slots) == [row for _, row in due][:limit]


@st.composite
def some_numbers(draw: st.DrawFn) -> list[int]:
    """Draw many different numbers in some order, so that trees get several levels."""
    first, count, step = draw(st.integers(0, 400)), draw(st.integers(1, 400)), draw(st.sampled_from([1, -1, 3, 7]))
    numbers = list(range(first, first + count * abs(step), abs(step)))
    return numbers[::-1] if step < 0 else numbers


changes = st.lists(st.tuples(st.sampled_from(["put", "delete", "move"]), some_numbers()), min_size=1, max_size=5)
picks = st.none() | st.integers(0, 999)
looks = st.lists(
    st.tuples(st.integers(0, 999), picks, picks, st.integers(0, 9), st.sampled_from([0, 1, 5, 10**9]), st.booleans()),
    min_size=1,
    max_size=4,
)


class TestOrderedIndex:
    @pytest.mark.parametrize("name", KINDS)
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(changes=changes, looks=looks, seed=st.integers(0, 99))
    def test_has_the_present_rows_in_order(self, name: str, changes: Any, looks: Any, seed: int) -> None:
        checked = Checked(KINDS[name])
        for change, numbers in changes:
            rows = list(dict.fromkeys(row_of(checked.kind, number) for number in numbers))
            if change == "delete":
                checked.delete(rows)
            else:
                kept = [row for row in rows if change == "put" or row in checked.rows]
                checked.put(kept, [(at * 37 + seed) % 50 for at in range(len(kept))])
            checked.check_times(seed, None if seed % 2 else 40)
            for number, low, high, skip, limit, down in looks:
                checked.check_below(row_of(checked.kind, number), low, high, skip, limit, down)

    def test_answers_many_user_keys_in_one_call(self) -> None:
        checked = Checked(KINDS["integers"])
        checked.put([(user, number) for user in range(50) for number in range(user)], [0] * sum(range(50)))
        users = checked.kind.routed.encode([pa.array([7, 0, 49, 99, 7])])
        found = checked.table.ordered().below(users, limit=np.array([2, 2, 3, 1, 100]), descending=True)
        assert found.counts.tolist() == [2, 0, 3, 0, 7]
        assert [number for _, number in rows_at(checked.table, found.slots)] == [6, 5, 48, 47, 46, *range(6, -1, -1)]

    def test_an_ordered_index_that_grew_and_was_emptied_is_rebuilt_small(self) -> None:
        checked, size = Checked(KINDS["text"]), 20_000
        rows = [(f"user {number % 8_000}", number) for number in range(size)]
        checked.put(rows, list(range(size)))
        index = checked.table.ordered()
        assert (
            len(checked.table.ordered(AT.name).through(size))
            == size
            == sum(index.counts(checked.kind.routed.encode([pa.array([f"user {user}" for user in range(8_000)])])))
        )
        grown = index.nbytes
        checked.delete([row for row in rows if row[1] % 500])
        index.settle()
        assert len(index) == 40 and index.nbytes < grown / 4
        checked.check_times(size, None)

    def test_reads_a_new_key_in_the_slot_of_a_dropped_one(self) -> None:
        checked = Checked(KINDS["integers"])
        checked.put([(1, 1), (1, 2)], [5, 6])
        checked.check_times(9, None)
        checked.table.roll_back(checked.table.committed_through)
        checked.rows = {}
        assert len(checked.table) == 2
        checked.table.drop_vacant()
        assert len(checked.table) == 0
        checked.put([(1, 9), (0, 2)], [4, 7])
        checked.check_times(9, None)

    def test_finds_windows_that_are_over_and_follows_their_expiry(self) -> None:
        kind = KeyType(("end", "k"), (pa.timestamp("us", "UTC"), pa.utf8()), unrouted=1)
        table = StateTable(TableSpec(1, "windows", kind, (AT,), orders=(BY_KEY,)), GROUPS)
        ends, names = [30, 10, 20, 10], ["a", "b", "a", "a"]
        table.touch(table.slots(kind.encode([pa.array(ends).view(kind.types[0]), pa.array(names)])))
        table.freeze(Epoch(1), Epoch(0))
        table.commit(Epoch(1))
        for _ in range(2):
            over = table.ordered().through(20)
            found = (column.to_pylist() for column in table.key_columns(over)[1:])
            assert list(*found) == ["a", "b", "a"]
            table.expire(over, np.full(GROUPS, 20))
            assert len(table.ordered().through(20)) == 0 and len(table.ordered().through(30)) == 1
            assert table.roll_back(Epoch(1))

    def test_takes_the_rest_after_a_failure_for_want_of_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        checked = Checked(KINDS["integers"])
        checked.put([(number % 7, number) for number in range(3_000)], list(range(3_000)))
        with monkeypatch.context() as patched, pytest.raises(MemoryError):
            patched.setattr(Slab, "hold", refused)
            checked.table.ordered(AT.name).settle()
        assert len(checked.table.ordered(AT.name)) < 3_000
        checked.check_times(9_999, None)

    def test_keeps_only_different_slots_in_mind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ordered, "NOTED_MAX", 8)
        checked = Checked(KINDS["integers"])
        for time in range(30):
            checked.put([(1, number) for number in range(6)], [time + number for number in range(6)])
        assert checked.table.ordered().nbytes < 100_000
        checked.check_times(31, None)
