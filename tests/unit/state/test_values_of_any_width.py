"""State values that may be null, text or bytes: in tables, rows and segments, and under another declaration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from merged_pieces import compact

from holdfast.errors import ConfigError, Damaged, JobFailed
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state import blocks, row_bytes
from holdfast.state.changelog import SegmentHeader, opened, seal, unseal
from holdfast.state.evolution import adapted, by_name, declaration
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables import indexed, records
from holdfast.state.tables.spec import ColumnSpec, TableSpec, column_of_type
from holdfast.state.tables.table import StateTable

JOB, GROUPS = JobUuid("job"), 8
KEY, TEXT_KEY = KeyType(("k",), (pa.int64(),)), KeyType(("k",), (pa.utf8(),))
COUNT = ColumnSpec("n", np.dtype(np.int64), 7)
NOTE, BLOB = ColumnSpec("note", pa.utf8(), nullable=True), ColumnSpec("blob", pa.binary())
SIZE = ColumnSpec("size", np.dtype(np.int32), nullable=True)
SURE = ColumnSpec("sure", np.dtype(np.bool_), nullable=True)
SPEC = TableSpec(1, "notes", KEY, (COUNT, NOTE, BLOB, SIZE, SURE))
Row = tuple[int, str | None, bytes, int | None, bool | None]
ABSENT: Row = (7, None, b"", None, None)


def keys(*numbers: int) -> Keys:
    return KEY.encode([pa.array(numbers, pa.int64())])


def write(of: StateTable, rows: dict[int, Row]) -> None:
    slots = of.slots(keys(*rows))
    columns = {
        column.name: np.array(values, column.dtype) if column.plain else pa.array(values, column.arrow)
        for column, values in zip(SPEC.columns, zip(*rows.values(), strict=True), strict=True)
    }
    of.write(slots, columns)


def rows_of(of: StateTable, *numbers: int) -> list[Row]:
    slots = of.slots(keys(*numbers))
    columns = [
        of.column(c.name)[slots].tolist() if c.plain else of.read(c.name, slots).to_pylist() for c in SPEC.columns
    ]
    return list(zip(*columns, strict=True))


def store_of(spec: TableSpec = SPEC) -> StateStore:
    identity = Identity(JOB, Generation(1), Timeline(1), WorkerId("w"))
    return StateStore(identity, [spec], GROUPS, (0, GROUPS))


def header(epoch: int, follows: int) -> SegmentHeader:
    return SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), WorkerId("w"))


def segment_of(store: StateStore, epoch: int) -> bytes:
    store.freeze(1, Epoch(epoch), Epoch(epoch - 1))
    return seal(header(epoch, epoch - 1), store.deltas(Epoch(epoch)))


ONE: Row = (1, "a\x00é", b"\xff", 5, True)
TWO: Row = (2, None, b"", None, False)
LONG: Row = (3, "x" * 500, b"y" * 300, -1, None)


class TestATable:
    def test_reads_what_was_written_and_null_or_nothing_for_an_absent_key(self) -> None:
        of = StateTable(SPEC, GROUPS)
        write(of, {1: ONE, 2: TWO, 3: LONG})
        assert rows_of(of, 3, 9, 1, 2) == [LONG, ABSENT, ONE, TWO]

    def test_keeps_the_later_of_two_rows_of_a_key(self) -> None:
        of = StateTable(SPEC, GROUPS)
        slots = of.slots(keys(1, 1, 2, 1))
        sizes = pa.array([1, 2, None, None], pa.int32())
        of.write(slots, {"note": pa.array(["first", None, "two", "last"]), "size": sizes})
        assert of.read("note", of.slots(keys(1, 2))).to_pylist() == ["last", "two"]
        assert of.read("size", of.slots(keys(1, 2))).to_pylist() == [None, None]

    def test_writes_one_column_and_leaves_the_nulls_of_others(self) -> None:
        of = StateTable(SPEC, GROUPS)
        write(of, {1: TWO})
        of.write(of.slots(keys(1)), {"sure": pa.array([None], pa.bool_())})
        assert rows_of(of, 1) == [(2, None, b"", None, None)]
        of.write(of.slots(keys(1)), {"size": pa.array([4], pa.int32())})
        assert rows_of(of, 1) == [(2, None, b"", 4, None)]

    def test_rolls_back_to_what_was_committed(self) -> None:
        of = StateTable(SPEC, GROUPS)
        write(of, {1: ONE, 2: LONG})
        of.freeze(Epoch(1), Epoch(0))
        of.commit(Epoch(1))
        write(of, {1: LONG, 3: ONE})
        of.delete(of.slots(keys(2)))
        assert of.roll_back(Epoch(1))
        assert rows_of(of, 1, 2, 3) == [ONE, LONG, ABSENT]
        assert of.get_committed((1,)) == dict(zip(("n", "note", "blob", "size", "sure"), ONE, strict=True))

    def test_has_many_nullable_columns(self) -> None:
        columns = tuple(ColumnSpec(f"c{i}", np.dtype(np.int8), nullable=True) for i in range(130))
        of = StateTable(TableSpec(1, "wide", KEY, columns), GROUPS)
        slots = of.slots(keys(1, 2))
        of.write(slots, {f"c{i}": pa.array([i % 100, None], pa.int8()) for i in range(0, 130, 3)})
        for i in range(130):
            assert of.read(f"c{i}", slots).to_pylist() == [i % 100 if i % 3 == 0 else None, None]

    def test_a_table_of_plain_columns_keeps_its_record_layout(self) -> None:
        of = StateTable(TableSpec(1, "plain", KEY, (COUNT,)), GROUPS)
        assert of._width == 3 and of._bytes is None


class TestRowsBelowAKey:
    def test_may_hold_text_and_a_refused_one_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = KeyType(("k", "i"), (pa.int64(), pa.int64()), suffix=1)
        below = StateTable(TableSpec(1, "notes", kind, (COUNT, NOTE)), GROUPS)
        slots = below.slots(kind.encode([pa.array([1, 1]), pa.array([1, 2])]))
        below.write(slots, {"n": np.array([1, 2]), "note": pa.array(["a", None])})
        monkeypatch.setattr(records, "VALUE_BYTES_MAX", 100)
        with pytest.raises(JobFailed, match="key '1, 2'"):
            below.write(slots, {"n": np.array([3, 4]), "note": pa.array(["b", "c" * 101])})
        assert (below.column("n")[slots].tolist(), below.read("note", slots).to_pylist()) == ([1, 2], ["a", None])


class TestTheArena:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(indexed, "COMPACTED_FROM", 1_000)

    def test_stays_below_a_multiple_of_what_is_live_when_values_are_replaced(self) -> None:
        of = StateTable(SPEC, GROUPS)
        for round_ in range(300):
            write(of, {k: (round_, f"{round_}-{k}" * 20, b"z" * 40, k, None) for k in range(10)})
        assert rows_of(of, 4) == [(299, "299-4" * 20, b"z" * 40, 4, None)]
        assert of._bytes is not None and of._bytes.used < 4 * 10 * (20 * 5 + 40)

    @pytest.mark.parametrize("base", [1, 2])
    def test_is_compacted_while_epochs_are_frozen_and_rolled_back_afterwards(self, base: int) -> None:
        of = StateTable(SPEC, GROUPS)
        write(of, {8: (0, "moved by the compaction " * 9, b"", None, None)})
        of.delete(of.slots(keys(8)))
        write(of, {1: ONE, 2: LONG})
        of.freeze(Epoch(1), Epoch(0))
        of.commit(Epoch(1))
        write(of, {1: LONG, 2: ONE, 3: LONG})
        of.freeze(Epoch(2), Epoch(1))
        write(of, {1: TWO, 2: TWO, 3: TWO})
        before = of._bytes
        for round_ in range(50):
            write(of, {9: (0, str(round_) * 500, b"", None, None)})
        assert of._bytes is not before, "the arena was never compacted"
        assert of.roll_back(Epoch(base))
        kept = [ONE, LONG, ABSENT] if base == 1 else [LONG, ONE, LONG]
        assert rows_of(of, 1, 2, 3, 8, 9) == [*kept, ABSENT, ABSENT]

    def test_gives_back_the_bytes_of_dropped_keys(self) -> None:
        store = store_of()
        write(store.table(1), {k: (k, "t" * 400, b"", None, None) for k in range(50)})
        store.freeze(1, Epoch(1), Epoch(0))
        store.commit(Epoch(1))
        table = store.table(1)
        table.delete(table.slots(keys(*range(1, 50))))
        store.freeze(1, Epoch(2), Epoch(1))
        store.commit(Epoch(2))
        table.drop_vacant()
        assert len(table) == 1 and table._bytes is not None and table._bytes.used < 1_000
        assert rows_of(table, 0) == [(0, "t" * 400, b"", None, None)]


class TestSizes:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "VALUE_BYTES_MAX", 100)

    def test_a_value_that_is_too_large_is_refused_before_anything_is_written(self) -> None:
        of = StateTable(SPEC, GROUPS)
        write(of, {1: ONE, 2: TWO})
        with pytest.raises(JobFailed, match=r"'notes'.*key '2'.*'note' has 101 bytes") as caught:
            of.write(of.slots(keys(1, 2)), {"n": np.array([8, 9]), "note": pa.array(["b", "c" * 101])})
        assert caught.value.where.operator == "notes"
        assert rows_of(of, 1, 2) == [ONE, TWO]

    def test_many_small_values_may_be_larger_together(self) -> None:
        of = StateTable(SPEC, GROUPS)
        of.write(of.slots(keys(*range(9))), {"note": pa.array(["b" * 60, None, ""] * 3)})
        assert of.read("note", of.slots(keys(0))).to_pylist() == ["b" * 60]

    def test_a_key_that_is_too_large_is_refused_before_it_gets_a_record(self) -> None:
        of = StateTable(TableSpec(1, "words", TEXT_KEY, (COUNT,)), GROUPS)
        given = TEXT_KEY.encode([pa.array(["a", "k" * 101])])
        for take in (of.slots, lambda keys: of.fold(keys, records.NO_PROGRAM, np.empty((0, 3), np.int64))):
            with pytest.raises(JobFailed, match=r"'words' cannot keep the key 'k{60}\.\.\.'"):
                take(given)
        assert len(of) == 0


class TestRowsAsBytes:
    @pytest.mark.parametrize("spec", [SPEC, TableSpec(1, "s", KEY, (COUNT, SIZE))], ids=["varying", "nullable"])
    def test_row_bytes_of_another_form_are_refused(self, spec: TableSpec) -> None:
        of = StateTable(spec, GROUPS)
        of.touch(of.slots(keys(1)))
        of.freeze(Epoch(1), Epoch(0))
        [row] = row_bytes.row_values(spec, of.delta(Epoch(1)).whole().columns, 1)
        assert len(row_bytes.columns_of(spec, [row])["n"]) == 1
        plain = TableSpec(1, "p", KEY, (COUNT,))
        [other] = row_bytes.row_values(plain, {"n": np.array([1])}, 1)
        for wrong in (row[:-1], row + b"\x00", b"\x01" + row[1:], other, b""):
            with pytest.raises(Damaged):
                row_bytes.columns_of(spec, [wrong])


class TestASegment:
    def test_restores_what_was_sealed_and_merged(self) -> None:
        store = store_of()
        write(store.table(1), {1: ONE, 2: TWO, 3: LONG})
        first = segment_of(store, 1)
        write(store.table(1), {2: LONG})
        store.table(1).delete(store.table(1).slots(keys(1)))
        second = segment_of(store, 2)
        for pieces in (
            [first, second],
            [compact(header(2, 0), [(first, (0, GROUPS)), (second, (0, GROUPS))], [SPEC])],
        ):
            again = store_of()
            again.restore(Epoch(2), pieces)
            assert rows_of(again.table(1), 1, 2, 3) == [ABSENT, LONG, LONG]

    @pytest.mark.parametrize("size", [200, 1])
    def test_is_inspected_a_bounded_number_of_bytes_at_a_time(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr(blocks, "STRING_BYTES_AT_ONCE", 1_000)
        random = np.random.default_rng(0)
        store = store_of()
        write(store.table(1), {k: (k, None, random.bytes(size), None, None) for k in range(100)})
        data = segment_of(store, 1)
        segment = opened(data)
        [block] = segment.blocks
        reader, counts = blocks.BlockReader(segment.file, block, (0, GROUPS), spec=SPEC), list[int]()
        while (rows := reader.read()) is not None:
            counts.append(len(rows))
        assert counts == ([5] * 20 if size == 200 else [100])

    @pytest.mark.parametrize(("row", "version"), [((1, "a", b"", 1, True), 3), (None, 1)])
    def test_has_a_new_version_only_if_it_needs_one(self, row: Row | None, version: int) -> None:
        spec = SPEC if row else TableSpec(1, "notes", KEY, (COUNT, SIZE))
        store = store_of(spec=spec)
        of = store.table(1)
        slots = of.slots(keys(1))
        of.write(slots, {"size": pa.array([4], pa.int32())})
        data = segment_of(store, 1)
        assert b"version" + bytes([version]) in data
        assert unseal(data)[0] == header(1, 0)


def segment(spec: TableSpec, **columns: pa.Array) -> bytes:
    store = store_of(spec=spec)
    of = store.table(1)
    slots = of.slots(keys(*range(len(next(iter(columns.values()))))))
    of.write(slots, columns)
    store.freeze(1, Epoch(1), Epoch(0))
    return seal(header(1, 0), [of.delta(Epoch(1))])


def read(data: bytes, spec: TableSpec) -> dict[str, list[Any]]:
    [delta] = unseal(data)[1]
    assert delta.keys.ints is not None
    found = by_name(delta.take(np.argsort(delta.keys.ints)), spec).columns
    store = store_of(spec=spec)
    store.restore(Epoch(1), [data])  # what is accepted can be absorbed
    return {name: values.tolist() for name, values in found.items()}


class TestAnotherDeclaration:
    def spec(self, column: ColumnSpec) -> TableSpec:
        return TableSpec(1, "notes", KEY, (column,))

    def test_may_allow_nulls(self) -> None:
        plain, nullable = ColumnSpec("size", np.dtype(np.int32)), SIZE
        data = segment(self.spec(plain), size=np.array([4, 0], np.int32))
        assert read(data, self.spec(nullable)) == {"size": [4, 0]}
        wider = ColumnSpec("size", np.dtype(np.int64), nullable=True)
        assert read(data, self.spec(wider)) == {"size": [4, 0]}
        text = segment(self.spec(ColumnSpec("note", pa.utf8())), note=pa.array(["a", ""]))
        assert read(text, self.spec(NOTE)) == {"note": ["a", ""]}

    def test_may_have_a_wider_nullable_type(self) -> None:
        data = segment(self.spec(SIZE), size=pa.array([4, None], pa.int32()))
        assert read(data, self.spec(ColumnSpec("size", np.dtype(np.int64), nullable=True))) == {"size": [4, None]}

    def test_may_not_forbid_a_null_that_was_kept(self) -> None:
        for data, now in (
            (segment(self.spec(SIZE), size=pa.array([None], pa.int32())), ColumnSpec("size", np.dtype(np.int32))),
            (segment(self.spec(NOTE), note=pa.array([None], pa.utf8())), ColumnSpec("note", pa.utf8())),
        ):
            with pytest.raises(ConfigError, match="different columns"):
                read(data, self.spec(now))

    @pytest.mark.parametrize(
        "now",
        [
            ColumnSpec("note", pa.binary(), nullable=True),
            ColumnSpec("note", np.dtype(np.int64)),
            ColumnSpec("note", np.dtype(np.int64), nullable=True),
        ],
        ids=lambda column: column.type_name,
    )
    def test_does_not_read_text_as_anything_else(self, now: ColumnSpec) -> None:
        data = segment(self.spec(NOTE), note=pa.array(["a"]))
        with pytest.raises(ConfigError, match="different columns"):
            read(data, self.spec(now))
        numbers = segment(self.spec(ColumnSpec("note", np.dtype(np.int64))), note=np.array([1]))
        with pytest.raises(ConfigError, match="different columns"):
            read(numbers, self.spec(NOTE))

    def test_with_a_late_column_reads_null_or_nothing(self) -> None:
        data = segment(self.spec(COUNT), n=np.array([1, 2]))
        late = [ColumnSpec("note", pa.utf8(), nullable=True, late=True), ColumnSpec("blob", pa.binary(), late=True)]
        assert read(data, TableSpec(1, "notes", KEY, (COUNT, *late))) == {
            "n": [1, 2],
            "note": [None, None],
            "blob": [b"", b""],
        }

    def test_is_another_one_for_images(self) -> None:
        columns = [NOTE, *(ColumnSpec("note", kind) for kind in (pa.utf8(), pa.binary(), np.dtype(int)))]
        assert len({declaration(self.spec(column)) for column in columns}) == 4

    def test_a_delta_with_the_same_columns_is_not_copied(self) -> None:
        [delta] = unseal(segment(self.spec(NOTE), note=pa.array(["a", None])))[1]
        assert adapted(delta, self.spec(NOTE)) is delta

    @pytest.mark.parametrize("column", [COUNT, NOTE, BLOB, SIZE, SURE, ColumnSpec("note", pa.utf8())], ids=str)
    def test_is_recorded_by_name(self, column: ColumnSpec) -> None:
        again = column_of_type(column.name, column.type_name)
        assert (again.dtype, again.nullable) == (column.dtype, column.nullable)
