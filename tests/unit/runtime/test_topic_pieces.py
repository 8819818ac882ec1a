"""Which local state can be brought to a target by the records of a topic, and which pieces are still needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    SegmentRef,
    SnapshotHandle,
    Subtask,
    Timeline,
)
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.wire.messages import ActiveRole, Deploy, TopicState
from holdfast.runtime.worker.topic import Older, older
from holdfast.sinks.contract.changelogs import AsOf, Nothing, OpenChangelog, unseen
from holdfast.sinks.contract.owners import Holding

OWNED = (0, 4)
PLAN = Plan("job", 8, (), (), (), (), ())


@dataclass(frozen=True)
class Held:
    """A topic that is compacted through epoch 5, and has everything of writer 0 through epoch 7."""

    empty: bool = False
    holding: Holding = Holding(None, None)
    delivered: Mapping[Subtask, Epoch] = field(default_factory=lambda: {Subtask(0): Epoch(7)})
    floor: Epoch = Epoch(5)

    def records(self, which: AsOf, advanced: Callable[[int, int], object] = unseen) -> Iterator[pa.RecordBatch]:
        raise AssertionError("nothing is read")


def segment(epoch: int, writer: int | None = 0, key_groups: tuple[int, int] | None = None) -> SegmentRef:
    place = ObjectRef(f"segments/{epoch}-{writer}", 1, "")
    return SegmentRef(Epoch(epoch), Epoch(epoch - 1), place, key_groups, None if writer is None else Subtask(writer))


def target(*segments: SegmentRef, topic: bool = True, base: int = 9) -> Deploy:
    handle = SnapshotHandle(Subtask(0), OWNED, (), NO_EPOCH, segments)
    state = TopicState(()) if topic else None
    place = JobUuid("1" * 32), Generation(1), Timeline(1), Epoch(100), Epoch(base), ActiveRole(Subtask(0)), ()
    return Deploy(*place, handle, (), (), (), topic=state)


def past(found: OpenChangelog, *segments: SegmentRef) -> Older:
    return Older(PLAN, target(*segments), found)


class TestLocalState:
    @pytest.mark.parametrize(("applied", "usable"), [(4, False), (5, True), (8, True)])
    def test_from_before_a_compaction_lacks_deletes_and_is_not_used(self, applied: int, usable: bool) -> None:
        assert past(Held()).usable(Epoch(applied), OWNED) is usable

    def test_local_state_of_some_key_groups_is_not_used(self) -> None:
        assert not past(Held()).usable(Epoch(8), (0, 3))

    def test_is_used_as_before_if_the_topic_has_nothing(self) -> None:
        assert past(Nothing()).usable(Epoch(1), (0, 3))
        assert past(Held()).usable(None, None)


class TestNewerPieces:
    def test_are_those_that_the_topic_lacks(self) -> None:
        other = segment(7, writer=1, key_groups=(3, 4))
        found = past(Held(), segment(6), segment(7), other, segment(8))
        assert found.newer == (other, segment(8))

    def test_newer_pieces_without_a_writer_stay(self) -> None:
        assert past(Held(), segment(6, writer=None)).newer == (segment(6, writer=None),)

    def test_are_all_there_is_to_a_target_at_or_below_what_is_held(self) -> None:
        assert list(past(Held()).pieces(Epoch(9), (), unseen)) == []


class TestLookingAtATopic:
    def test_opens_none_for_a_job_without_one_or_before_its_first_epoch(self) -> None:
        for given in (target(topic=False), target(base=NO_EPOCH)):
            assert older(PLAN, given).found.empty
