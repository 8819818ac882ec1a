"""Segments outlive the process that wrote them: a later version must restore from them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state import changelog, packing
from holdfast.state.changelog import SegmentHeader, opened, seal, unseal, write_as
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import OperatorDelta

HERE = Path(__file__).parent
HEADER = SegmentHeader(JobUuid("job"), Generation(3), Timeline(1), Epoch(7), Epoch(5), WorkerId("w1"))
NOTHING, LAST = -(1 << 63), (1 << 63) - 1


def rows(delta: OperatorDelta) -> set[tuple[object, ...]]:
    ends, users = delta.keys.type.decode(delta.keys)
    return set(
        zip(
            ends.view(pa.int64()).to_pylist(),
            users.to_pylist(),
            delta.puts.tolist(),
            delta.columns["n"].tolist(),
            strict=True,
        )
    )


KINDS = {
    1: KeyType(("k",), (pa.int64(),)),
    2: KeyType(("end", "k"), (pa.timestamp("us", "UTC"), pa.utf8()), unrouted=1),
}
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "note": (pa.large_utf8(), ["a\x00é", None, "", "long " * 40]),
    "blob": (pa.large_binary(), [b"\xff", b"", b"\x00", b"z"]),
    "size": (pa.int32(), [5, None, -1, None]),
    "sure": (pa.bool_(), [True, None, False, None]),
    "level": (pa.float32(), [0.5, None, float("-inf"), 1.0]),
}


def version_3() -> bytes:
    """Return what segment_v3.bin was written as: nulls, text and bytes, put and deleted, and ranges before them."""
    keys = [
        KINDS[1].encode([pa.array([4, 5, 6, 7])]),
        KINDS[2].encode([pa.array([20, 20, 30, 40], KINDS[2].types[0]), pa.array(["a", "b", "a", ""])]),
    ]
    puts, through = np.array([True, False, True, True]), np.full(16, NOTHING)
    through[4:9] = 10
    columns = {name: pa.array(values, kind) for name, (kind, values) in VALUES.items()} | {"n": np.arange(4)}
    deltas = [
        OperatorDelta(Epoch(7), Epoch(5), operator, 16, key, puts, dict(columns), bounds)
        for operator, key, bounds in ((1, keys[0], None), (2, keys[1], through))
    ]
    return seal(HEADER, deltas)


def version_5(patched: pytest.MonkeyPatch) -> bytes:
    """Return what segment_v5.bin was written as: the rows of version 3, in several batches."""
    patched.setattr(changelog, "BATCH_BYTES", 150)
    return version_3()


PACKED_ROWS = 40


def version_6(patched: pytest.MonkeyPatch) -> bytes:
    """Return what segment_v6.bin was written as: integer keys, some negative, in two packed batches."""
    patched.setattr(changelog, "BATCH_BYTES", 600)
    patched.setattr(changelog, "PACKED_FROM_BYTES", 0)
    patched.setattr(packing, "_is_worth_it", lambda *_: True)
    numbers = np.arange(PACKED_ROWS, dtype=np.int64)
    columns = {
        "big": numbers << 55,
        "level": numbers / 7,
        "seen": pa.array([None if n % 3 == 0 else n for n in numbers.tolist()], pa.int64()),
        "small": numbers.astype(np.int16),
        "at": numbers.view("datetime64[us]"),
    }
    keys = KINDS[1].from_ints((numbers - 20) * 1_000_003)
    return seal(HEADER, [OperatorDelta(Epoch(7), Epoch(5), 1, 2, keys, numbers % 5 != 0, columns)])


class TestSegmentFormat:
    @pytest.mark.parametrize("version", range(1, 7))
    def test_every_version_is_copied_for_another_job_byte_for_byte(self, version: int) -> None:
        """A fork has copies of segments of any age."""
        data, back, there = (HERE / f"segment_v{version}.bin").read_bytes(), io.BytesIO(), io.BytesIO()
        write_as(data, JobUuid("other"), Generation(0), Timeline(1), there)
        assert opened(there.getvalue()).header == replace(HEADER, job_uuid=JobUuid("other"), generation=Generation(0))
        write_as(there.getvalue(), HEADER.job_uuid, HEADER.generation, HEADER.timeline, back)
        assert back.getvalue() == data

    def test_version_3_with_nulls_text_and_bytes_is_read(self) -> None:
        header, (numbers, windows) = unseal((HERE / "segment_v3.bin").read_bytes())
        assert header == HEADER
        for delta in (numbers, windows):
            order = np.argsort(delta.columns["n"])
            assert delta.puts[order].tolist() == [True, False, True, True]
            read = delta.take(order)
            for name, (kind, values) in VALUES.items():
                found = read.columns[name]
                assert (found.tolist(), found.type if isinstance(found, pa.Array) else kind) == (values, kind)
        assert numbers.through is None and windows.through is not None
        assert windows.through.tolist() == [*[NOTHING] * 4, *[10] * 5, *[NOTHING] * 7]

    def test_version_3_is_written_as_it_was(self) -> None:
        _, written = unseal(version_3())
        _, kept = unseal((HERE / "segment_v3.bin").read_bytes())
        assert [delta.columns["note"].tolist() for delta in written] == [d.columns["note"].tolist() for d in kept]

    def test_version_1_with_a_delete_per_key_is_read(self) -> None:
        header, (numbers, windows) = unseal((HERE / "segment_v1.bin").read_bytes())
        assert header == HEADER
        assert numbers.keys.ints is not None and sorted(numbers.keys.ints.tolist()) == [-2, 4]
        assert sorted(zip(*(numbers.columns[name].tolist() for name in "nf"), strict=True)) == [(0, 0.0), (9, 1.5)]
        assert windows.through is None and numbers.through is None
        assert rows(windows) == {(10, "a", False, 0), (10, None, False, 0), (20, "a", True, 3), (20, "b", True, 4)}

    def test_version_4_with_keys_that_have_a_suffix_is_read(self) -> None:
        header, (lists,) = unseal((HERE / "segment_v4.bin").read_bytes())
        assert header == HEADER
        kind = lists.keys.type
        assert (kind.unrouted, kind.suffix) == (0, 1)
        users, numbers = kind.decode(lists.keys)
        found = zip(
            users.to_pylist(), numbers.to_pylist(), lists.puts.tolist(), lists.columns["n"].tolist(), strict=True
        )
        assert set(found) == {("a", 0, True, 3), ("a", 1, True, 4), ("a\x00", 0, False, 0), (None, 7, True, 5)}
        assert lists.keys.key_groups(lists.key_group_count).tolist() == lists.keys.routed().key_groups(16).tolist()

    def test_version_5_with_several_batches_of_a_block_is_read(self) -> None:
        header, deltas = unseal((HERE / "segment_v5.bin").read_bytes())
        assert header == HEADER
        assert [len(block.batches) for block in opened((HERE / "segment_v5.bin").read_bytes()).blocks] == [2, 3]
        for delta, expected in zip(deltas, unseal((HERE / "segment_v3.bin").read_bytes())[1], strict=True):
            assert delta.keys.canonical().equals(expected.keys.canonical())
            assert delta.puts.tolist() == expected.puts.tolist()
            for name, values in expected.columns.items():
                assert delta.columns[name].tolist() == values.tolist()
            through = [None if each.through is None else each.through.tolist() for each in (delta, expected)]
            assert through[0] == through[1]

    def test_version_5_is_written_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = version_5(monkeypatch)
        assert b"version\x05" in data
        kept = opened((HERE / "segment_v5.bin").read_bytes())
        assert [[each.rows for each in block.batches] for block in opened(data).blocks] == [
            [each.rows for each in block.batches] for block in kept.blocks
        ]

    def test_version_6_with_packed_batches_is_read(self) -> None:
        data = (HERE / "segment_v6.bin").read_bytes()
        header, (read,) = unseal(data)
        (block,) = opened(data).blocks
        assert header == HEADER and len(block.batches) == 2
        assert block.packed == ("key", "big", "level", "seen", "at")
        assert read.keys.ints is not None
        rows = {key: row for row, key in enumerate(read.keys.ints.tolist())}
        order = [rows[(n - 20) * 1_000_003] for n in range(PACKED_ROWS)]
        found, numbers = read.take(np.array(order)), range(PACKED_ROWS)
        assert found.puts.tolist() == [n % 5 != 0 for n in numbers]
        assert found.columns["big"].tolist() == (np.arange(PACKED_ROWS) << 55).tolist()
        assert found.columns["level"].tolist() == [n / 7 for n in numbers]
        assert found.columns["seen"].tolist() == [None if n % 3 == 0 else n for n in numbers]
        assert found.columns["small"].tolist() == list(numbers)
        assert found.columns["at"].view(np.int64).tolist() == list(numbers)

    def test_version_6_is_written_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        written, kept = (opened(data) for data in (version_6(monkeypatch), (HERE / "segment_v6.bin").read_bytes()))
        assert [block.batches for block in written.blocks] == [block.batches for block in kept.blocks]

    def test_version_2_with_a_range_per_key_group_is_read(self) -> None:
        header, (windows,) = unseal((HERE / "segment_v2.bin").read_bytes())
        assert header == HEADER
        assert rows(windows) == {(10, "b", True, 5), (20, "a", True, 3), (20, None, False, 0)}
        assert windows.through is not None
        assert windows.through.tolist() == [*[NOTHING] * 4, *[10] * 5, LAST, *[NOTHING] * 6]
