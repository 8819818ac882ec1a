"""Keys find their partition by a hash that never changes."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.storage.log.partitioning import partition_rows, partitions_of

KEYS = pa.table(
    {
        "i": pa.array([0, -1, None, 2**63 - 1], pa.int64()),
        "s": pa.array(["", "ä", None, "x" * 100], pa.utf8()),
        "b": pa.array([b"", b"\x00\xff", None, b"x"], pa.binary()),
        "t": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC")),
        "d": pa.array([date(2026, 1, 2)] * 4, pa.date32()),
        "f": pa.array([True, False, None, True], pa.bool_()),
    }
)
GOLDEN = {
    "i": [82, 828, 795, 673],
    "s": [964, 440, 795, 127],
    "b": [964, 287, 795, 762],
    "t": [348, 348, 348, 348],
    "d": [891, 891, 891, 891],
    "f": [263, 752, 795, 263],
}
GOLDEN_PAIR = [865, 864, 815, 776]


class TestPartitionsOf:
    def test_golden_partitions_never_change(self) -> None:
        got = {name: partitions_of(KEYS, [name], 1_000).tolist() for name in KEYS.schema.names}
        assert got == GOLDEN
        assert partitions_of(KEYS, ["i", "s"], 1_000).tolist() == GOLDEN_PAIR

    @given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1), st.integers(1, 4_096))
    @settings(max_examples=50, deadline=None)
    def test_the_documented_text_form_gives_the_same_partitions(self, keys: list[int | None], partitions: int) -> None:
        texts = ["n" if key is None else f"v{key}" for key in keys]
        expected = [((xxhash.xxh3_64_intdigest(text.encode()) >> 32) * partitions) >> 32 for text in texts]
        table = pa.table({"k": pa.array(keys, pa.int64())})
        assert partitions_of(table, ["k"], partitions).tolist() == expected

    def test_the_unit_of_a_timestamp_does_not_matter(self) -> None:
        millis = pa.table({"t": KEYS.column("t").cast(pa.timestamp("ms", "UTC"), safe=False)})
        micros = pa.table({"t": millis.column("t").cast(pa.timestamp("us", "UTC"))})
        assert partitions_of(millis, ["t"], 1_000).tolist() == partitions_of(micros, ["t"], 1_000).tolist()

    def test_floats_are_refused_as_keys(self) -> None:
        with pytest.raises(ConfigError, match="'x' of type Float64 cannot be a key"):
            partitions_of(pa.table({"x": [1.5]}), ["x"], 4)

    def test_an_absent_column_is_named(self) -> None:
        with pytest.raises(ConfigError, match="'y' is not among the columns x"):
            partitions_of(pa.table({"x": [1]}), ["y"], 4)


class TestPartitionRows:
    @given(st.lists(st.integers(0, 20), max_size=50), st.integers(1, 7))
    @settings(max_examples=50, deadline=None)
    def test_every_row_lands_once_and_rows_of_a_key_keep_their_order(self, keys: list[int], partitions: int) -> None:
        table = pa.table({"k": pa.array(keys, pa.int64()), "at": pa.array(range(len(keys)), pa.int64())})
        parts = partition_rows(table, ["k"], partitions)
        assert sorted(at for part in parts.values() for at in part.column("at").to_pylist()) == list(range(len(keys)))
        homes: dict[int, int] = {}
        for partition, part in parts.items():
            assert part.column("at").to_pylist() == sorted(part.column("at").to_pylist())
            for key in part.column("k").to_pylist():
                assert homes.setdefault(key, partition) == partition

    def test_partitions_without_rows_are_left_out(self) -> None:
        assert len(partition_rows(pa.table({"k": [1, 1]}), ["k"], 100)) == 1
