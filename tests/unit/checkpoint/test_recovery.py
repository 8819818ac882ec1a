from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.recovery import handles_for, pending_by_subtask
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)

GROUPS = 16


def ranges(parallelism: int) -> list[tuple[int, int]]:
    return [(GROUPS * i // parallelism, GROUPS * (i + 1) // parallelism) for i in range(parallelism)]


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 1, "0" * 64)


def segment(epoch: int, subtask: int) -> SegmentRef:
    return SegmentRef(Epoch(epoch), Epoch(epoch - 1), blob(f"segments/{epoch:03d}/{subtask}"))


def part(epoch: int, subtask: int, first: int, end: int) -> SegmentRef:
    return replace(segment(epoch, subtask), key_groups=(first, end))


def manifest(state: tuple[SnapshotHandle, ...], pending: tuple[Pending, ...] = ()) -> Manifest:
    return Manifest(
        JobUuid("u"),
        Generation(1),
        Timeline(1),
        Epoch(9),
        Epoch(8),
        max(len(state), 1),
        GROUPS,
        (),
        state,
        pending,
        (),
        (),
    )


def handle(subtask: int, owned: tuple[int, int], *segments: SegmentRef, base: int = 0) -> SnapshotHandle:
    files = (blob(f"base/{base}/{subtask}"),) if base else ()
    return SnapshotHandle(Subtask(subtask), owned, files, Epoch(base), segments)


TWO = (
    handle(0, (0, 8), segment(1, 0), segment(3, 0)),
    handle(1, (8, 16), segment(2, 1), segment(3, 1)),
)


class TestHandles:
    def test_without_a_base_every_subtask_starts_empty(self) -> None:
        assert handles_for(None, ranges(2)) == (handle(0, (0, 8)), handle(1, (8, 16)))

    def test_with_the_same_parallelism_each_subtask_takes_its_own_handle(self) -> None:
        assert handles_for(manifest(TWO), ranges(2)) == TWO

    def test_with_more_subtasks_each_takes_the_segments_that_cover_its_range(self) -> None:
        four = handles_for(manifest(TWO), ranges(4))
        assert [h.segments for h in four] == [TWO[0].segments, TWO[0].segments, TWO[1].segments, TWO[1].segments]
        assert [h.key_groups for h in four] == [(0, 4), (4, 8), (8, 12), (12, 16)]

    def test_with_fewer_subtasks_each_takes_all_overlapping_segments_in_epoch_order(self) -> None:
        assert handles_for(manifest(TWO), ranges(1)) == (
            handle(0, (0, 16), part(1, 0, 0, 8), part(2, 1, 8, 16), part(3, 0, 0, 8), part(3, 1, 8, 16)),
        )

    def test_a_piece_that_two_old_subtasks_share_is_read_once(self) -> None:
        again = handles_for(manifest(handles_for(manifest(TWO), ranges(4))), ranges(2))
        assert again == TWO

    def test_bases_of_several_owners_become_pieces_that_follow_nothing(self) -> None:
        """A base has no tombstones: a piece of another owner must not be below it."""
        old = (handle(0, (0, 8), segment(6, 0), base=5), handle(1, (8, 16), segment(3, 1), segment(4, 1), base=2))
        (merged,) = handles_for(manifest(old), ranges(1))
        assert (merged.base, merged.base_epoch) == ((), 0)
        assert [(s.object.path, s.epoch, s.follows, s.key_groups) for s in merged.segments] == [
            ("base/2/1", 2, 0, (8, 16)),
            ("segments/003/1", 3, 2, (8, 16)),
            ("segments/004/1", 4, 3, (8, 16)),
            ("base/5/0", 5, 0, (0, 8)),
            ("segments/006/0", 6, 5, (0, 8)),
        ]

    def test_a_piece_does_not_count_for_key_groups_between_those_of_its_owners(self) -> None:
        """The subtask between them has merged it into a base, which has no tombstones."""
        shared = segment(1, 0)
        old = (
            handle(0, (0, 4), replace(shared, key_groups=(0, 4))),
            handle(1, (4, 8), base=5),
            handle(2, (8, 16), replace(shared, key_groups=(8, 16))),
        )
        (merged,) = handles_for(manifest(old), ranges(1))
        assert [(s.object.path, s.key_groups) for s in merged.segments] == [
            (shared.object.path, (0, 4)),
            (shared.object.path, (8, 16)),
            ("base/5/1", (4, 8)),
        ]

    def test_neighbours_do_not_split_each_others_base(self) -> None:
        old = (handle(0, (0, 8), segment(6, 0), base=5), handle(1, (8, 16), segment(6, 1), base=4))
        assert handles_for(manifest(old), ranges(2)) == old

    def test_a_subtask_with_part_of_one_owners_range_keeps_its_base(self) -> None:
        (first, _) = handles_for(manifest((handle(0, (0, 16), segment(6, 0), base=5),)), ranges(2))
        assert first == handle(0, (0, 8), segment(6, 0), base=5)

    @given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 2**32))
    def test_no_write_is_lost_over_any_change_of_parallelism(self, widths: list[int], seed: int) -> None:
        """Each run writes values for key groups it owns; after each change all newest values are found."""
        order = random.Random(seed)
        newest: dict[int, int] = {}
        contents: dict[str, dict[int, int]] = {}
        base: Manifest | None = None
        epoch = 0
        for width in widths:
            state = list(handles_for(base, ranges(width)))
            for each in state:
                found: dict[int, int] = {}
                for piece in each.segments:
                    counts = range(*(piece.key_groups or each.key_groups))
                    owned = {k: v for k, v in contents[piece.object.path].items() if k in counts}
                    found |= owned
                assert found == {k: v for k, v in newest.items() if k in range(*each.key_groups)}
            epoch += order.randint(1, 100)
            for i, each in enumerate(state):
                fresh = segment(epoch, i)
                contents[fresh.object.path] = {k: epoch for k in range(*each.key_groups) if order.random() < 0.3}
                newest |= contents[fresh.object.path]
                state[i] = SnapshotHandle(each.subtask, each.key_groups, (), Epoch(0), (*each.segments, fresh))
            base = manifest(tuple(state))


def pending(subtask: int, epoch: int) -> Pending:
    return Pending(
        Writer("out", Subtask(subtask)), Tag(Timeline(1), Epoch(epoch)), Staged((blob(f"{epoch}/{subtask}"),), 1)
    )


class TestPending:
    WAITING = (pending(0, 6), pending(3, 6), pending(1, 7), pending(3, 7))

    def test_a_new_job_has_no_pending_output(self) -> None:
        assert pending_by_subtask(None, 2) == {}

    def test_each_subtask_takes_the_output_of_its_own_writers(self) -> None:
        """P18"""
        base = manifest(TWO, self.WAITING)
        found = pending_by_subtask(base, 4)
        assert found == {0: (pending(0, 6),), 1: (pending(1, 7),), 3: (pending(3, 6), pending(3, 7))}

    def test_output_of_removed_writers_is_distributed_under_their_own_tags(self) -> None:
        """P20"""
        base = manifest(TWO, self.WAITING)
        assert pending_by_subtask(base, 2) == {
            0: (pending(0, 6),),
            1: (pending(3, 6), pending(1, 7), pending(3, 7)),
        }

    @given(st.integers(1, 8))
    def test_all_output_is_assigned_exactly_once(self, parallelism: int) -> None:
        base = manifest(TWO, self.WAITING)
        shared = [item for items in pending_by_subtask(base, parallelism).values() for item in items]
        assert sorted(shared, key=repr) == sorted(self.WAITING, key=repr)
