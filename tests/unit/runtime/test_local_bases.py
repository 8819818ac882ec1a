"""P14: the epochs at which a deployment accepts local state."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from holdfast.checkpoint.joblog import (
    Body,
    CheckpointCompleted,
    Expired,
    GenerationStarted,
    Job,
    JobCreated,
    LogStart,
    Record,
    fold,
)
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
from holdfast.runtime.driver.deployment import local_bases, recent_cuts


def record(seq: int, body: Body, v: int = 3) -> Record:
    return Record(seq, JobUuid("1"), Generation(min(seq - 1, 1)), Timeline(1), "a", 0, body, v)


def completed(epoch: int) -> CheckpointCompleted:
    return CheckpointCompleted(Epoch(epoch), Epoch(epoch - 1), ObjectRef(f"m/{epoch}", 1, f"sha of {epoch}"), 1, 1, 1)


def folded(*bodies: Body) -> Job:
    job = reduce(fold, [record(seq, body) for seq, body in enumerate(bodies, 1)], None)
    assert job is not None
    return job


RUN: tuple[Body, ...] = (
    JobCreated("job", 8),
    GenerationStarted(Epoch(1), NO_EPOCH, "here", "started"),
    *map(completed, (1, 2, 3, 4)),
)


def handle(base: int, *segments: SegmentRef) -> SnapshotHandle:
    files = (ObjectRef("base", 1, ""),) if base else ()
    return SnapshotHandle(Subtask(0), (0, 8), files, Epoch(base), segments)


def segment(epoch: int, follows: int) -> SegmentRef:
    return SegmentRef(Epoch(epoch), Epoch(follows), ObjectRef(f"s/{epoch}", 1, ""))


def test_are_completed_epochs_by_the_hash_of_their_manifests() -> None:
    named = {epoch: f"sha of {epoch}" for epoch in (1, 2, 3, 4)}
    assert local_bases(recent_cuts(folded(*RUN)), handle(0, segment(1, 0), segment(3, 1))) == named


def test_are_never_below_a_base_of_the_handle() -> None:
    """A base has no tombstones."""
    assert sorted(local_bases(recent_cuts(folded(*RUN)), handle(3, segment(4, 3)))) == [3, 4]
    assert sorted(local_bases(recent_cuts(folded(*RUN)), handle(0, segment(2, 0), segment(4, 2)))) == [2, 3, 4]


def test_may_have_expired() -> None:
    assert sorted(local_bases(recent_cuts(folded(*RUN, Expired(Epoch(3)))), handle(1, segment(4, 1)))) == [1, 2, 3, 4]


def test_are_the_retained_epochs_after_a_log_start_of_an_older_version() -> None:
    older = folded(LogStart(folded(*RUN, Expired(Epoch(2)))))
    assert sorted(local_bases(recent_cuts(older), handle(1))) == [1, 2, 3, 4]
    unknown = fold(None, record(8, LogStart(replace(folded(*RUN, Expired(Epoch(2))), recent=())), v=2))
    assert sorted(local_bases(recent_cuts(unknown), handle(1))) == [3, 4]
