"""What an earlier declaration of an operator wrote, read with its present declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merged_pieces import compact

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.evolution import adapted, by_name, declaration, widens, widens_key
from holdfast.state.keys.batch import KeyType
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import ColumnSpec, TableSpec

GROUPS, JOB = 8, JobUuid("job")
WHOLE = (0, GROUPS)
KEY = KeyType(("k",), (pa.int32(),))
INT, SMALL = np.dtype(np.int64), np.dtype(np.int32)
LARGEST, LARGEST_SMALL = np.iinfo(np.int64).max, np.iinfo(np.int32).max
COUNT = ColumnSpec("n.count", INT)
LOW = ColumnSpec("low.min", SMALL, LARGEST_SMALL, counter="low.seen")
SEEN = ColumnSpec("low.seen", INT)


def spec(*columns: ColumnSpec, key: KeyType = KEY, past: tuple[str, ...] = ()) -> TableSpec:
    return TableSpec(1, "totals", key, columns, past)


def delta(given: TableSpec, rows: Mapping[int, tuple[float, ...]], epoch: int = 1) -> OperatorDelta:
    """Return puts of these rows, under the names of the columns."""
    keys = given.key.encode([pa.array(list(rows), given.key.types[0])])
    columns = {
        column.name: np.array([row[at] for row in rows.values()], column.dtype)
        for at, column in enumerate(given.columns)
    }
    return OperatorDelta(Epoch(epoch), Epoch(epoch - 1), 1, GROUPS, keys, np.ones(len(rows), bool), columns)


def header(epoch: int, follows: int) -> SegmentHeader:
    return SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), WorkerId("w"))


def segment(given: TableSpec, rows: Mapping[int, tuple[float, ...]], epoch: int = 1) -> bytes:
    return seal(
        header(epoch, epoch - 1),
        [delta(given, rows, epoch).renamed({column.name: column.id for column in given.columns})],
    )


def store_of(given: TableSpec) -> StateStore:
    identity = Identity(JOB, Generation(1), Timeline(1), WorkerId("w"))
    return StateStore(identity, [given], GROUPS, WHOLE)


def rows_of(store: StateStore) -> dict[int, tuple[Any, ...]]:
    table = store.table(1)
    slots = table.present()
    values = [table.column(column.name)[slots].tolist() for column in table.spec.columns]
    return dict(zip(table.key_columns(slots)[0].to_pylist(), zip(*values, strict=True), strict=True))


def restored(now: TableSpec, *segments: bytes) -> dict[int, tuple[Any, ...]]:
    store = store_of(now)
    store.restore(Epoch(9), segments)
    return rows_of(store)


class TestAColumn:
    def test_a_column_added_later_takes_its_default_in_older_rows(self) -> None:
        before, now = spec(COUNT), spec(COUNT, ColumnSpec("high.max", INT, -1, late=True))
        assert restored(now, segment(before, {1: (5,)}), segment(now, {2: (6, 7)}, 2)) == {1: (5, -1), 2: (6, 7)}

    def test_a_column_missing_for_another_reason_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="different columns"):
            restored(spec(COUNT, SEEN), segment(spec(COUNT), {1: (5,)}))

    def test_a_removed_column_is_omitted(self) -> None:
        before = spec(COUNT, SEEN)
        assert restored(spec(COUNT, past=("low.seen",)), segment(before, {1: (5, 9)})) == {1: (5,)}
        with pytest.raises(ConfigError, match="different columns"):
            restored(spec(COUNT), segment(before, {1: (5, 9)}))

    def test_a_column_with_the_name_of_a_removed_one_does_not_read_its_values(self) -> None:
        again = replace(COUNT, id="n.count#2", late=True)
        now = spec(again, past=("n.count",))
        assert restored(now, segment(spec(COUNT), {1: (5,), 2: (6,)}), segment(now, {1: (1,)}, 2)) == {1: (1,), 2: (0,)}

    def test_a_renamed_column_keeps_its_values(self) -> None:
        now = spec(replace(COUNT, name="m.count", id="n.count"))
        assert restored(now, segment(spec(COUNT), {1: (5,)})) == {1: (5,)}

    def test_a_column_that_changed_its_position_keeps_its_values(self) -> None:
        assert restored(spec(SEEN, COUNT), segment(spec(COUNT, SEEN), {1: (5, 9)})) == {1: (9, 5)}

    def test_a_column_of_a_wider_type_keeps_its_values_and_which_are_absent(self) -> None:
        wide = replace(LOW, dtype=INT, default=LARGEST)
        rows = {1: (LARGEST_SMALL, 1), 2: (LARGEST_SMALL, 0), 3: (-4, 2)}
        found = restored(spec(wide, SEEN), segment(spec(LOW, SEEN), rows))
        assert found == {1: (LARGEST_SMALL, 1), 2: (LARGEST, 0), 3: (-4, 2)}

    def test_a_column_of_a_narrower_type_is_refused(self) -> None:
        wide = replace(LOW, dtype=INT, default=LARGEST)
        with pytest.raises(ConfigError, match="different columns"):
            restored(spec(LOW, SEEN), segment(spec(wide, SEEN), {1: (3, 1)}))

    def test_id_that_was_reused_is_a_broken_declaration(self) -> None:
        with pytest.raises(AssertionError, match="reused"):
            spec(COUNT, past=("n.count",))


class TestTypesThatWiden:
    @pytest.mark.parametrize(("narrow", "wide"), [("i4", "i8"), ("u4", "i8"), ("i1", "i2"), ("f4", "f8"), ("u1", "u8")])
    def test_hold_every_value(self, narrow: str, wide: str) -> None:
        assert widens(np.dtype(narrow), np.dtype(wide))

    @pytest.mark.parametrize(
        ("narrow", "wide"), [("i8", "i4"), ("i4", "i4"), ("i4", "f8"), ("i4", "u8"), ("u8", "i8"), ("?", "i8")]
    )
    def test_are_not_those_that_lose_some(self, narrow: str, wide: str) -> None:
        assert not widens(np.dtype(narrow), np.dtype(wide))

    @pytest.mark.parametrize("wide", [pa.uint64(), pa.int64(), pa.int16()])
    def test_widened_key_types_have_the_same_bytes(self, wide: pa.DataType) -> None:
        """uint64 has bytes of its own: its order is not that of the signed types."""
        narrow = pa.uint8()
        values = [pa.array([20], kind) for kind in (narrow, wide)]
        before, now = (KeyType(("k",), (each.type,)).encode([each]).canonical() for each in values)
        assert widens_key(narrow, wide) == before.equals(now)

    @given(
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, unique=True),
        st.sampled_from([(False,), (True,), (False, False)]),
    )
    def test_widened_key_types_move_no_key(self, values: list[int], nullable: tuple[bool, ...]) -> None:
        def key(kind: pa.DataType) -> KeyType:
            return KeyType(("a", "b")[: len(nullable)], (kind, pa.string())[: len(nullable)], nullable)

        def encoded(kind: pa.DataType) -> Any:
            return key(kind).encode([pa.array(values, kind), pa.array(["x"] * len(values))][: len(nullable)])

        old, new = encoded(pa.int32()), encoded(pa.int64())
        given = OperatorDelta(Epoch(1), Epoch(0), 1, GROUPS, old, np.ones(len(values), bool), {})
        found = adapted(given, TableSpec(1, "totals", key(pa.int64()), ())).keys
        assert found.type == new.type and (found.hashes == new.hashes).all()
        assert found.canonical().equals(new.canonical())
        assert (old.key_groups(GROUPS) == new.key_groups(GROUPS)).all()


class TestMerging:
    def test_across_an_evolution_gives_what_restoring_the_pieces_gives(self) -> None:
        before = spec(COUNT, LOW, SEEN)
        now = spec(
            replace(COUNT, name="m.count", id="n.count"),
            ColumnSpec("high.max", INT, -1, late=True),
            key=KeyType(("k",), (pa.int64(),)),
            past=("low.min", "low.seen"),
        )
        pieces = [segment(before, {1: (5, 1, 1), 2: (6, 1, 1)}), segment(now, {1: (7, 70)}, 2)]
        for follows in (0, 1):
            merged = compact(header(2, follows), [(piece, WHOLE) for piece in pieces[follows:]], [now])
            assert restored(now, *pieces[:follows], merged) == restored(now, *pieces) == {1: (7, 70), 2: (6, -1)}
        (block,) = unseal(compact(header(2, 0), [(piece, WHOLE) for piece in pieces], [now]))[1]
        assert set(block.columns) == {"n.count", "high.max"}

    def test_leaves_out_operators_that_are_gone(self) -> None:
        assert unseal(compact(header(1, 0), [(segment(spec(COUNT), {1: (5,)}), WHOLE)], []))[1] == []


class TestADeclaration:
    def test_is_another_one_unless_only_a_column_was_renamed(self) -> None:
        """An image of the tables is used by the declaration that wrote it."""
        before = declaration(spec(COUNT, SEEN))
        assert declaration(spec(replace(COUNT, name="m.count", id="n.count"), SEEN)) == before
        others = (
            spec(SEEN, COUNT),
            spec(COUNT, SEEN, ColumnSpec("m.count", INT, late=True)),
            spec(COUNT, past=("low.seen",)),
            spec(COUNT, SEEN, key=KeyType(("k",), (pa.int64(),))),
        )
        assert before not in {declaration(other) for other in others}


def test_a_delta_of_the_present_declaration_is_not_copied() -> None:
    given = delta(spec(COUNT), {1: (5,)})
    assert by_name(given, spec(COUNT)) is given
