"""Digests of rows depend on the rows alone."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import RowDigest
from holdfast.storage.digests import NOTHING, added, removed, whole
from holdfast.storage.rowhash import CHUNK_ROWS, digest_of

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("word", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("raw", pa.binary()),
        pa.field("yes", pa.bool_()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
row = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "word": st.none() | st.text(max_size=5),
        "price": st.none() | st.floats(allow_nan=False),
        "raw": st.none() | st.binary(max_size=5),
        "yes": st.none() | st.booleans(),
        "at": st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    }
)
rows = st.lists(row, max_size=20)
GOLDEN = {
    "n": (0x6D87917FF8835AA2, 0x52302EFA01FFA164),
    "u": (0x2DC72D0256620E94, 0xD475C20D205E4D6A),
    "word": (0x5FA28DC9AB813997, 0x464D96F415618E6F),
    "raw": (0xC7312AEA22586CD0, 0x38CEB416EDB8D322),
    "x": (0x0335A6DA3B0B951A, 0xF8E2436504F44CD4),
    "yes": (0x9DB5201436433486, 0x424D306F038C8B18),
    "at": (0xD9D305392D2C2B32, 0xC10F1E6A969592CC),
    "day": (0x1CB33AB171ADA612, 0x1359CB4C5ECBE82C),
    "price": (0xC4A0EFD6EAF85119, 0x384D90209405B7AF),
}
GOLDEN_ROWS = RowDigest(3, 0x79D39DD4C149BC2E, 0x39B7E22A43F6C3D0)


def table(given: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(given, schema=schema)


class TestDigest:
    @given(rows, st.randoms(use_true_random=False))
    def test_order_and_batches_do_not_matter(self, given: list[dict[str, Any]], rng: random.Random) -> None:
        shuffled = rng.sample(given, len(given))
        cuts = sorted(rng.randrange(len(given) + 1) for _ in range(3))
        parts = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(given)], strict=True)]
        assert whole(digest_of(table(part)) for part in parts) == digest_of(table(given))

    @given(rows)
    def test_slices_dictionaries_offsets_and_order_of_columns_do_not_matter(self, given: list[dict[str, Any]]) -> None:
        padded = table([*given[:1], *given, *given[:1]])
        sliced = padded.slice(min(1, len(given)), len(given))
        encoded = sliced.set_column(1, "word", sliced.column("word").dictionary_encode())
        large = sliced.cast(pa.schema([f.with_type(pa.large_string()) if f.name == "word" else f for f in SCHEMA]))
        wanted = digest_of(table(given))
        turned = sliced.select(SCHEMA.names[::-1])
        assert [digest_of(form) for form in (sliced, encoded, large, turned)] == [wanted] * 4

    @given(rows)
    def test_a_column_of_nulls_does_not_change_the_digest(self, given: list[dict[str, Any]]) -> None:
        more = table(given).append_column("more", pa.nulls(len(given), pa.int32()))
        assert digest_of(more) == digest_of(table(given))

    @given(st.lists(st.integers(-128, 127), max_size=20))
    def test_the_width_of_numbers_does_not_matter(self, given: list[int]) -> None:
        wanted = digest_of(pa.table({"n": pa.array(given, pa.int64())}))
        assert digest_of(pa.table({"n": pa.array(given, pa.int8())})) == wanted
        floats = digest_of(pa.table({"n": pa.array(given, pa.float64())}))
        assert digest_of(pa.table({"n": pa.array(given, pa.float32())})) == floats

    @given(st.lists(row, min_size=1, max_size=20), row, st.randoms(use_true_random=False))
    def test_another_row_is_another_digest(
        self, given: list[dict[str, Any]], other: dict[str, Any], rng: random.Random
    ) -> None:
        at = rng.randrange(len(given))
        changed = [*given[:at], other, *given[at + 1 :]]
        same = digest_of(table([given[at]])) == digest_of(table([other]))
        assert same == (_plain(given[at]) == _plain(other))
        assert (digest_of(table(changed)) == digest_of(table(given))) == same

    def test_swapping_a_value_between_two_rows_changes_the_digest(self) -> None:
        one = pa.table({"a": [1, 2], "b": [10, 20]})
        assert digest_of(one) != digest_of(pa.table({"a": [1, 2], "b": [20, 10]}))
        assert digest_of(one) != digest_of(pa.table({"b": [1, 2], "a": [10, 20]}))

    def test_values_that_targets_may_not_distinguish_have_the_same_digest(self) -> None:
        floats = pa.table({"x": pa.array([float("nan"), -0.0])})
        assert digest_of(floats) == digest_of(pa.table({"x": pa.array([None, 0.0])}))

    def test_more_rows_than_one_chunk_give_the_sum_of_their_parts(self) -> None:
        many = pa.table({"n": pa.array(range(3 * CHUNK_ROWS + 5))})
        assert digest_of(many) == whole(digest_of(many.slice(at, 1_000)) for at in range(0, many.num_rows, 1_000))

    def test_lists_are_counted_and_not_hashed(self) -> None:
        assert digest_of(pa.table({"l": [[1], [2, 3]]})) == RowDigest(2)


class TestGoldenValues:
    """Digests are stored in checkpoints: another value here makes every audit of older ones fail."""

    def test_values_of_every_kind_of_column(self) -> None:
        columns: dict[str, pa.Array] = {
            "n": pa.array([7, -1, None], pa.int64()),
            "u": pa.array([7, (1 << 64) - 1, None], pa.uint64()),
            "word": pa.array(["a", "", None]),
            "raw": pa.array([b"a", b"", None]),
            "x": pa.array([1.5, -2.25, None]),
            "yes": pa.array([True, False, None]),
            "at": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
            "day": pa.array([1, 2, None], pa.date32()),
            "price": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(9, 2)),
        }
        found = {name: digest_of(pa.table({name: column})) for name, column in columns.items()}
        assert {name: (digest.sum, digest.xor) for name, digest in found.items()} == GOLDEN

    def test_digests_match_the_documented_format(self) -> None:
        """docs/formats.md, row at a time, without the libraries that hash entire columns."""
        values = {("int", "n"): (-5) % 2**64, ("text", "word"): xxhash.xxh3_64_intdigest("añ".encode())}
        total = xxhash.xxh3_64_intdigest(b"holdfast.rowhash.1")
        for (kind, name), value in values.items():
            odd, seed = (
                xxhash.xxh3_64_intdigest(f"holdfast.rowhash.1\0{what}\0{kind}\0{name}".encode())
                for what in ("odd", "seed")
            )
            total += (value + seed) * (odd | 1)
        total %= 2**64
        total = (total ^ total >> 32) * 0xD6E8FEB86659FD93 % 2**64
        total ^= total >> 29
        assert digest_of(pa.table({"n": [-5], "word": ["añ"]})) == RowDigest(1, total, total)

    def test_digests_of_rows(self) -> None:
        assert digest_of(pa.table({"n": [1, 2, 3], "word": ["a", "b", "c"]})) == GOLDEN_ROWS


class TestSums:
    def test_the_sum_with_an_unknown_digest_is_unknown(self) -> None:
        assert added(RowDigest(2, 5, 6), RowDigest(3)) == RowDigest(5)

    @given(rows, rows)
    def test_an_added_digest_can_be_subtracted(self, one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
        both = added(digest_of(table(one)), digest_of(table(other)))
        assert removed(both, digest_of(table(other))) == digest_of(table(one))
        assert added(both, NOTHING) == both


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in given.items()}
