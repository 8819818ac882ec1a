from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.state.evolution import declaration
from holdfast.state.keys import canonical, hashing
from holdfast.state.keys.batch import COMPILED_FROM, Keys, KeyType
from holdfast.state.keys.keygroups import key_groups_of, splitmix64
from holdfast.state.tables.spec import TableSpec

UTC_US = pa.timestamp("us", "UTC")
LETTERS = st.sampled_from("\x00\x01ab\x7f\xff\u0100\uffff\U0001f600")
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.uint32(): st.integers(0, (1 << 32) - 1),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    UTC_US: st.datetimes(timezones=st.just(dt.UTC)),
    pa.utf8(): st.text(LETTERS, max_size=12),
    pa.large_utf8(): st.text(LETTERS, max_size=4),
    pa.binary(): st.binary(max_size=12),
}

ORDERED = [
    KeyType(("k",), (pa.int64(),)),
    KeyType(("k",), (pa.uint64(),)),
    KeyType(("k",), (pa.int64(),), (True,)),
    KeyType(("end", "k"), (UTC_US, pa.uint64()), unrouted=1),
    KeyType(("end", "sure", "k"), (UTC_US, pa.bool_(), pa.int64()), (False, True, True), unrouted=1),
]


@st.composite
def key_columns(draw: st.DrawFn) -> tuple[KeyType, list[tuple[Any, ...]]]:
    """A key type of one to three columns, and rows of it."""
    types = tuple(draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3)))
    nullable = tuple(draw(st.booleans()) for _ in types)
    kind = KeyType(tuple(f"c{place}" for place in range(len(types))), types, nullable)
    cells = [
        VALUES[column] | st.none() if null else VALUES[column] for column, null in zip(types, nullable, strict=True)
    ]
    return kind, draw(st.lists(st.tuples(*cells), max_size=8))


def encode(kind: KeyType, rows: list[tuple[Any, ...]]) -> Keys:
    columns = zip(*rows, strict=True) if rows else [()] * len(kind.types)
    return kind.encode([pa.array(list(column), kind) for column, kind in zip(columns, kind.types, strict=True)])


def null_first(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        (cell is not None, b"" if cell is None else cell.encode() if isinstance(cell, str) else cell) for cell in row
    )


class TestKeys:
    @settings(deadline=None)
    @given(key_columns())
    def test_decode_to_the_columns_they_were_made_of(self, case: tuple[KeyType, list[tuple[Any, ...]]]) -> None:
        kind, rows = case
        keys = encode(kind, rows)
        columns = kind.decode(keys)
        assert [column.type for column in columns] == list(kind.types)
        assert list(zip(*(column.to_pylist() for column in columns), strict=True)) == rows

    @settings(deadline=None)
    @given(key_columns())
    def test_sort_by_their_bytes_like_their_values_with_nulls_first(
        self, case: tuple[KeyType, list[tuple[Any, ...]]]
    ) -> None:
        kind, rows = case
        pairs = sorted(zip(encode(kind, rows).canonical().to_pylist(), map(null_first, rows), strict=True))
        assert [row for _, row in pairs] == sorted(map(null_first, rows))

    @settings(deadline=None)
    @given(key_columns())
    def test_order_is_that_of_their_bytes_within_a_key_group(self, case: tuple[KeyType, list[tuple[Any, ...]]]) -> None:
        kind, rows = case
        keys = encode(kind, rows)
        groups = keys.key_groups(4)
        order = keys.order(groups)
        pairs = list(zip(groups.tolist(), keys.canonical().to_pylist(), strict=True))
        assert [pairs[row] for row in order.tolist()] == sorted(pairs)

    @pytest.mark.parametrize("count", [1, 3, 128])
    @pytest.mark.parametrize("reach", [3, 1 << 12, 1 << 62])
    @pytest.mark.parametrize("kind", ORDERED, ids=str)
    def test_order_of_many_keys_comes_in_parts(self, kind: KeyType, reach: int, count: int) -> None:
        random, columns = np.random.default_rng(count), list[pa.Array]()
        for column, nullable in zip(kind.types, kind.nullable, strict=True):
            numbers = (
                random.integers(0, reach, 9_000) if column == pa.uint64() else random.integers(-reach, reach, 9_000)
            )
            if pa.types.is_boolean(column):
                numbers = numbers % 2 == 0
            null = random.integers(0, 5, numbers.size) == 0 if nullable else None
            whole = pa.array(numbers, pa.int64() if pa.types.is_timestamp(column) else column, mask=null)
            columns.append(whole.view(column))
        keys = kind.encode(columns)
        groups, canonical = keys.key_groups(count).tolist(), keys.canonical().to_pylist()
        parts = list(keys.order_in_parts(np.array(groups, np.uint16), 1_000))
        assert max(part.size for _, part in parts) <= 1_000
        assert np.concatenate([found for found, _ in parts]).tolist() == sorted(groups)
        assert np.concatenate([rows for _, rows in parts]).tolist() == sorted(
            range(len(keys)), key=lambda row: (groups[row], canonical[row])
        )

    @settings(deadline=None)
    @given(key_columns())
    def test_are_rebuilt_from_their_bytes_with_the_same_hashes(
        self, case: tuple[KeyType, list[tuple[Any, ...]]]
    ) -> None:
        kind, rows = case
        keys = encode(kind, rows)
        again = kind.from_canonical(keys.canonical())
        assert again.hashes.tolist() == keys.hashes.tolist()
        assert kind.decode(again) == kind.decode(keys)

    @settings(deadline=None)
    @given(key_columns(), st.data())
    def test_taken_are_the_keys_at_those_rows(
        self, case: tuple[KeyType, list[tuple[Any, ...]]], data: st.DataObject
    ) -> None:
        kind, rows = case
        picked = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
        taken = encode(kind, rows).take(np.array(picked, np.int64))
        assert list(zip(*(column.to_pylist() for column in kind.decode(taken)), strict=True)) == [
            rows[row] for row in picked
        ]

    def test_keys_of_a_sliced_array_are_those_of_the_slice(self) -> None:
        kind = KeyType(("k",), (pa.utf8(),))
        whole = pa.array(["a", "bb", "ccc", "d"])
        assert kind.encode([whole.slice(1, 2)]).canonical().to_pylist() == [b"\x01bb\x00", b"\x01ccc\x00"]

    def test_none_at_all_are_possible(self) -> None:
        for kind in (KeyType(("k",), (pa.int64(),)), KeyType(("k", "l"), (pa.utf8(), pa.int8()))):
            assert len(kind.empty()) == 0
            assert [len(column) for column in kind.decode(kind.empty())] == [0] * len(kind.types)


class TestHashOfAKey:
    def test_the_hash_of_one_plain_integer_is_splitmix64(self) -> None:
        for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint16()):
            keys = KeyType(("k",), (kind,)).encode([pa.array([0, 1, 100], kind)])
            assert keys.hashes.tolist() == splitmix64(np.array([0, 1, 100])).tolist()
            assert keys.ints is not None and keys.ints.tolist() == [0, 1, 100]

    def test_does_not_change_when_an_integer_column_becomes_nullable(self) -> None:
        column = pa.array([5, -5, 0])
        plain = KeyType(("k",), (pa.int64(),)).encode([column])
        nullable = KeyType(("k",), (pa.int64(),), (True,)).encode([column])
        assert nullable.hashes.tolist() == plain.hashes.tolist()
        assert nullable.ints is None

    def test_the_hash_of_a_null_integer_is_that_of_its_bytes(self) -> None:
        keys = KeyType(("k",), (pa.int64(),), (True,)).encode([pa.array([None, 0], pa.int64())])
        assert keys.hashes.tolist() == [xxhash.xxh3_64_intdigest(b"\x00" * 9), int(splitmix64(np.array([0]))[0])]

    @settings(deadline=None)
    @given(st.lists(st.text(LETTERS, max_size=300), min_size=1, max_size=5))
    def test_the_hash_of_any_other_key_is_xxh3_of_the_bytes(self, texts: list[str]) -> None:
        keys = KeyType(("k",), (pa.utf8(),)).encode([pa.array(texts)])
        assert keys.hashes.tolist() == [xxhash.xxh3_64_intdigest(key) for key in keys.canonical().to_pylist()]


class TestUnroutedColumns:
    def test_do_not_move_a_key_to_another_key_group(self) -> None:
        ends, users = pa.array([10, 20, 30]), pa.array(["u", "u", "v"])
        windowed = KeyType(("end", "user"), (pa.int64(), pa.utf8()), unrouted=1).encode([ends, users])
        plain = KeyType(("user",), (pa.utf8(),)).encode([users])
        assert windowed.key_groups(128).tolist() == plain.key_groups(128).tolist()
        assert len(set(windowed.hashes.tolist())) == 3

    def test_leave_an_integer_key_where_its_fast_path_puts_it(self) -> None:
        numbers = pa.array([1, 2, 3])
        windowed = KeyType(("end", "k"), (pa.int64(), pa.int64()), unrouted=1).encode([numbers, numbers])
        plain = KeyType(("k",), (pa.int64(),)).encode([numbers])
        assert windowed.key_groups(128).tolist() == plain.key_groups(128).tolist()


SUFFIXES = {
    "number": KeyType(("k", "i"), (pa.int64(), pa.int64()), suffix=1),
    "text and number": KeyType(("k", "i"), (pa.utf8(), pa.int64()), (True, False), suffix=1),
    "number and text": KeyType(("k", "t", "b"), (pa.int32(), pa.utf8(), pa.bool_()), (True, True, False), suffix=2),
    "time, two columns and a nullable one": KeyType(
        ("end", "k", "b", "i"),
        (pa.timestamp("us", "UTC"), pa.int64(), pa.bool_(), pa.int64()),
        (False, True, False, True),
        unrouted=1,
        suffix=1,
    ),
}
SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [3, -1, 0],
    pa.int32(): [3, None, 0],
    pa.utf8(): ["a", "a\x00", ""],
    pa.bool_(): [True, False, True],
}


class TestSuffix:
    @pytest.mark.parametrize("name", SUFFIXES)
    def test_does_not_move_a_key_to_another_key_group(self, name: str) -> None:
        kind = SUFFIXES[name]
        arrays = [pa.array(SAMPLES.get(each, [1, 2, 3]), each) for each in kind.types]
        encoded, routed = kind.encode(arrays), kind.routed.encode(arrays[kind.routed_part])
        again = [kind.from_canonical(encoded.canonical())] + ([kind.from_words(encoded.words())] if kind.fixed else [])
        for keys in (encoded, *again):
            assert keys.routed().canonical().equals(routed.canonical())
            assert keys.key_groups(128).tolist() == routed.key_groups(128).tolist()

    def test_keeps_the_rows_of_a_user_key_adjacent_and_in_its_order(self) -> None:
        kind = SUFFIXES["text and number"]
        users, numbers = ["b", "a\x00", "a", "b", "a", "a\x00"], [2, 0, 9, -7, 1, 5]
        keys = kind.encode([pa.array(users), pa.array(numbers)])
        order = keys.order(keys.key_groups(1))
        expected = [("a", 1), ("a", 9), ("a\x00", 0), ("a\x00", 5), ("b", -7), ("b", 2)]
        assert [(users[row], numbers[row]) for row in order] == expected

    def test_changes_the_hash_of_the_declaration(self) -> None:
        kinds = [KeyType(("k", "i"), (pa.int64(), pa.int64()), suffix=suffix) for suffix in (0, 1)]
        assert len({declaration(TableSpec(1, "rows", kind, ())) for kind in kinds}) == 2


class TestKeyType:
    @pytest.mark.parametrize(
        "kind", [pa.float64(), pa.list_(pa.int64()), pa.struct([("a", pa.int8())]), pa.time32("s")]
    )
    def test_a_type_that_cannot_be_a_key_is_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match="cannot be part of a key"):
            KeyType(("k",), (kind,))

    def test_is_made_of_schema_fields(self) -> None:
        kind = KeyType.of([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.utf8())])
        assert kind == KeyType(("a", "b"), (pa.int64(), pa.utf8()), (False, True))

    def test_refuses_a_null_that_its_schema_forbids(self) -> None:
        with pytest.raises(AssertionError, match="forbids nulls"):
            KeyType(("k",), (pa.int64(),)).encode([pa.array([None], pa.int64())])


class TestCompiledHashes:
    @given(st.data())
    @settings(deadline=None, max_examples=200)
    def test_are_those_of_the_canonical_bytes(self, data: st.DataObject) -> None:
        kinds = data.draw(
            st.lists(st.sampled_from([pa.int64(), pa.uint64(), pa.bool_(), pa.int8()]), min_size=1, max_size=13)
        )
        nullable = data.draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
        values = {
            pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
            pa.uint64(): st.integers(0, (1 << 64) - 1),
            pa.bool_(): st.booleans(),
            pa.int8(): st.integers(-128, 127),
        }
        arrays = []
        for kind, null in zip(kinds, nullable, strict=True):
            value = st.none() | values[kind] if null else values[kind]
            arrays.append(pa.array(data.draw(st.lists(value, min_size=4, max_size=4)), kind))
        names = tuple(f"c{i}" for i in range(len(kinds)))
        keys = KeyType(names, tuple(kinds), tuple(nullable)).encode(arrays)
        if len(kinds) == 1 and kinds[0] != pa.bool_():
            return
        expected = [xxhash.xxh3_64_intdigest(key) for key in keys.canonical().to_pylist()]
        assert keys.hashes.tolist() == expected
        words = keys.type.from_words(np.ascontiguousarray(keys.words()))
        assert words.hashes.tolist() == expected

    @pytest.mark.parametrize("columns", range(2, 17))
    @pytest.mark.parametrize("flags", range(3))
    def test_compiled_hashes_of_every_width_are_those_of_the_canonical_bytes(self, columns: int, flags: int) -> None:
        kinds = [pa.int64()] * columns + [pa.bool_()] * flags
        numbers = [[(i + 1) * 1_234_567_891_234 - n for n in range(3)] for i in range(columns)]
        arrays = [*(pa.array(each) for each in numbers), *([pa.array([True, False, True])] * flags)]
        keys = KeyType(tuple(f"c{i}" for i in range(len(kinds))), tuple(kinds)).encode(arrays)
        assert keys.hashes.tolist() == [xxhash.xxh3_64_intdigest(key) for key in keys.canonical().to_pylist()]


class TestCompiledKeys:
    @settings(deadline=None)
    @given(key_columns().filter(lambda drawn: drawn[0].fixed))
    def test_canonical_bytes_are_those_of_numpy(self, drawn: tuple[KeyType, list[tuple[Any, ...]]]) -> None:
        kind, rows = drawn
        keys, width = encode(kind, rows), canonical.width_of(kind.types)
        found = hashing.canonical_of(list(keys.words()), kind.types, len(keys), width)
        assert canonical.from_matrix(found).equals(keys.canonical())

    @settings(deadline=None)
    @given(st.lists(VALUES[pa.int64()], max_size=20), st.integers(1, 1 << 15))
    def test_key_groups_are_those_of_numpy(self, values: list[int], count: int) -> None:
        ints = np.array(values, np.int64)
        assert hashing.key_groups_of_ints(ints, count).tolist() == key_groups_of(splitmix64(ints), count).tolist()

    @pytest.mark.parametrize("rows", [COMPILED_FROM - 1, COMPILED_FROM])
    def test_many_keys_are_encoded_and_grouped_as_few_are(self, rows: int) -> None:
        kind = KeyType(("k", "n"), (pa.int64(), pa.int64()), (False, True), unrouted=1)
        columns = [pa.array(range(rows)), pa.array([None if i % 3 else i for i in range(rows)])]
        keys = kind.from_words(np.ascontiguousarray(kind.encode(columns).words()))
        assert keys.canonical().equals(canonical.encode(columns))
        own = KeyType(("k",), (pa.int64(),)).encode(columns[:1])
        assert own.key_groups(128).tolist() == key_groups_of(splitmix64(np.arange(rows)), 128).tolist()
        with pytest.raises(ConfigError, match="key_groups is 0"):
            own.key_groups(0)
