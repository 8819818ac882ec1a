"""Segments outlive the process that wrote them: a later version must restore from them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, unseal
from holdfast.state.tables.delta import Delta

HERE = Path(__file__).parent
HEADER = SegmentHeader(JobUuid("job"), Generation(3), Timeline(1), Epoch(7), Epoch(5), WorkerId("w1"))
NOTHING, LAST = -(1 << 63), (1 << 63) - 1


def rows(delta: Delta) -> set[tuple[object, ...]]:
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


class TestSegmentFormat:
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

    def test_version_2_with_a_range_per_key_group_is_read(self) -> None:
        header, (windows,) = unseal((HERE / "segment_v2.bin").read_bytes())
        assert header == HEADER
        assert rows(windows) == {(10, "b", True, 5), (20, "a", True, 3), (20, None, False, 0)}
        assert windows.through is not None
        assert windows.through.tolist() == [*[NOTHING] * 4, *[10] * 5, LAST, *[NOTHING] * 6]
