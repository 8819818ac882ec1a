from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.bases import Merge, Thresholds, advanced, due, pieces
from holdfast.model import NO_EPOCH, Epoch, ObjectRef, SegmentRef, SnapshotHandle, Subtask


def segment(epoch: int, size: int = 10, follows: int | None = None) -> SegmentRef:
    before = epoch - 1 if follows is None else follows
    return SegmentRef(Epoch(epoch), Epoch(before), ObjectRef(f"segments/{epoch}", size, "0" * 64))


def handle(*segments: SegmentRef, base: int = 0, size: int = 0) -> SnapshotHandle:
    files = (ObjectRef(f"base/{base}", size, "0" * 64),) if base else ()
    return SnapshotHandle(Subtask(0), (0, 16), files, Epoch(base), segments)


LIMITS = Thresholds(bytes_max=100, segments_max=4)


class TestMergeDue:
    def test_few_bytes_are_not_merged(self) -> None:
        assert due(handle(segment(2), segment(3), base=1), Epoch(3), LIMITS) is None

    def test_many_bytes_are_merged_into_a_base(self) -> None:
        grown = handle(segment(2, 60), segment(3, 60), base=1, size=50)
        assert due(grown, Epoch(3), LIMITS) == Merge(Epoch(3), NO_EPOCH, pieces(grown))

    def test_a_large_base_is_merged_after_half_its_size_in_changes(self) -> None:
        assert due(handle(segment(2, 60), segment(3, 60), base=1, size=1_000), Epoch(3), LIMITS) is None

    def test_many_small_segments_are_merged_without_the_base(self) -> None:
        grown = handle(segment(2, 60), segment(3, 5), segment(4, 5), segment(5, 5), base=1, size=1_000)
        assert due(grown, Epoch(5), LIMITS) == Merge(Epoch(5), Epoch(2), grown.segments[1:])

    def test_all_segments_without_a_base_become_a_base(self) -> None:
        grown = handle(*(segment(epoch) for epoch in (2, 3, 4, 5)))
        assert due(grown, Epoch(5), LIMITS) == Merge(Epoch(5), NO_EPOCH, grown.segments)

    def test_bases_of_several_owners_become_one(self) -> None:
        grown = handle(segment(2, 90, follows=0), segment(3, 2, follows=0), segment(4, 1), segment(5, 1))
        assert due(grown, Epoch(5), LIMITS) == Merge(Epoch(5), NO_EPOCH, grown.segments)


class TestAdvancing:
    def test_a_base_replaces_everything_up_to_its_epoch(self) -> None:
        base = segment(3, follows=0)
        assert advanced(handle(segment(2), segment(3), segment(4), base=1), segment(5), base) == replace(
            handle(segment(4), segment(5)), base=(base.object,), base_epoch=Epoch(3)
        )

    def test_a_merged_segment_replaces_its_inputs(self) -> None:
        merged = SegmentRef(Epoch(4), Epoch(2), ObjectRef("merged/4", 5, "0" * 64))
        before = handle(segment(2), segment(3), segment(4), segment(5), base=1, size=9)
        assert advanced(before, None, merged) == handle(segment(2), merged, segment(5), base=1, size=9)

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 200), max_size=300))
    def test_a_handle_stays_short_and_merged_bytes_stay_proportional_to_changes(self, sizes: list[int]) -> None:
        now, written, changed = handle(), 0, 0
        for epoch, size in enumerate(sizes, 1):
            now = advanced(now, segment(epoch, size), None)
            changed += size
            merge = due(now, Epoch(epoch), LIMITS)
            if merge is not None:
                total = sum(piece.object.size for piece in merge.pieces)
                written += total if merge.follows == NO_EPOCH else 0
                ref = ObjectRef(f"merged/{epoch}", total, "0" * 64)
                now = advanced(now, None, SegmentRef(merge.through, merge.follows, ref))
            assert len(now.segments) <= LIMITS.segments_max + 8
            covered = [piece.epoch for piece in pieces(now)]
            assert covered == sorted(covered)
        assert written <= 3 * changed + 100 * len(sizes)
