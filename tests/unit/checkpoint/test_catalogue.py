from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.catalogue import ObjectCatalogue, Retention, expirable, log_is_long
from holdfast.checkpoint.joblog import (
    CheckpointCompleted,
    Completed,
    Expired,
    Job,
    Record,
    Savepoint,
    fold,
)
from holdfast.checkpoint.manifest import Manifest, encode, named_in
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

UUID = JobUuid("1" * 32)
GENERATION = Generation(3)


def blob(path: str) -> ObjectRef:
    return ObjectRef(path, 1, "0" * 64)


def manifest_ref(epoch: int) -> ObjectRef:
    return blob(f"manifests/00000003/{epoch:012d}-a.json")


def completed(epoch: int, at: int = 0) -> Completed:
    body = CheckpointCompleted(Epoch(epoch), Epoch(epoch - 1), manifest_ref(epoch), 1, 1, 1)
    return Completed(body, GENERATION, Timeline(1), at)


def job(*epochs: int, **known: int) -> Job:
    return Job(
        UUID,
        "hot",
        16,
        0,
        next_seq=known.get("next_seq", 9),
        generation=GENERATION,
        completed=tuple(completed(epoch) for epoch in epochs),
        log_start=known.get("log_start", 0),
        expired_through=Epoch(known.get("expired_through", 0)),
    )


def aged(*life: Completed, named: tuple[int, ...] = ()) -> Job:
    savepoints = tuple(Savepoint(f"v{epoch}", Epoch(epoch)) for epoch in named)
    return replace(job(), completed=life, savepoints=savepoints)


def manifest(epoch: int, *paths: str) -> Manifest:
    segments = tuple(SegmentRef(Epoch(i + 1), Epoch(i), blob(path)) for i, path in enumerate(paths))
    state = (SnapshotHandle(Subtask(0), (0, 16), (), NO_EPOCH, segments),)
    return Manifest(UUID, GENERATION, Timeline(1), Epoch(epoch), Epoch(epoch - 1), 1, 16, (), state, (), (), ())


def catalogue_of(*manifests: Manifest) -> ObjectCatalogue:
    found = ObjectCatalogue()
    for each in manifests:
        found.add(named_in(encode(each), manifest_ref(each.epoch)))
    return found


class TestRetention:
    RULE = Retention(checkpoints=2, age_us=100)

    def test_the_newest_checkpoints_are_kept_at_any_age(self) -> None:
        assert expirable(job(1, 2), self.RULE, now_us=10_000) == NO_EPOCH

    def test_recent_checkpoints_are_kept_in_any_number(self) -> None:
        life = aged(*(completed(epoch, at=epoch * 10) for epoch in range(1, 9)))
        assert expirable(life, self.RULE, now_us=100) == NO_EPOCH
        assert expirable(life, self.RULE, now_us=135) == 3

    def test_a_clock_set_back_keeps_more_checkpoints(self) -> None:
        life = aged(*(completed(epoch, at=epoch * 10) for epoch in range(1, 9)))
        assert expirable(life, self.RULE, now_us=-5_000) == NO_EPOCH

    def test_with_many_kept_a_tenth_may_be_overdue(self) -> None:
        life = aged(*(completed(epoch, at=epoch) for epoch in range(1, 101)))
        assert expirable(life, Retention(50, 0), now_us=1_000) == 50
        assert expirable(life, Retention(97, 0), now_us=1_000) == NO_EPOCH

    def test_with_very_many_kept_a_thousand_expire_at_once(self) -> None:
        """A driver's turn frees them: 3,300 of 36,000 take some 6 ms."""
        life = aged(*(completed(epoch, at=epoch) for epoch in range(1, 20_001)))
        assert expirable(life, Retention(10, 19_000), now_us=19_999) == NO_EPOCH
        assert expirable(life, Retention(10, 19_000), now_us=20_000) == 1_000

    def test_savepoints_do_not_expire_and_do_not_count(self) -> None:
        life = [completed(epoch) for epoch in range(1, 7)]
        assert expirable(aged(*life), self.RULE, now_us=1_000) == 4
        assert expirable(aged(*life, named=(5, 6)), self.RULE, now_us=1_000) == 2
        assert expirable(aged(*life, named=(1, 2, 3, 4)), self.RULE, now_us=1_000) == NO_EPOCH
        assert expirable(aged(*life, named=(1, 2, 4)), self.RULE, now_us=1_000) == 3

    @given(st.integers(1, 12), st.frozensets(st.integers(1, 12)), st.integers(1, 4))
    def test_the_planner_never_expires_a_savepoint_or_the_newest_checkpoint(
        self, count: int, named: frozenset[int], kept: int
    ) -> None:
        """P16: planner and fold together."""
        life = aged(*(completed(epoch) for epoch in range(1, count + 1)), named=tuple(n for n in named if n <= count))
        through = expirable(life, Retention(kept, 0), now_us=1_000)
        if through == NO_EPOCH:
            return
        assert through not in named and through < count
        record = Record(life.next_seq, UUID, GENERATION, Timeline(1), life.owner, 0, Expired(through))
        after = fold(life, record)
        gone = {each.body.epoch for each in life.completed} - {each.body.epoch for each in after.completed}
        assert gone and not gone & named
        assert len([each for each in after.completed if each.body.epoch not in named]) == kept

    def test_a_log_start_is_due_when_the_log_has_grown_enough(self) -> None:
        rule = Retention(2, 0, log_records=10)
        assert not log_is_long(job(5, 6, next_seq=20, log_start=10, expired_through=4), rule)
        assert log_is_long(job(5, 6, next_seq=21, log_start=10, expired_through=4), rule)


class TestCatalogue:
    def test_objects_named_only_by_expired_checkpoints_are_deleted(self) -> None:
        found = catalogue_of(manifest(1, "segments/a"), manifest(2, "segments/a", "segments/b"), manifest(3, "base/c"))
        assert found.expire(job(3)) == [manifest_ref(1).path, manifest_ref(2).path, "segments/a", "segments/b"]
        assert found.expire(job(3)) == []

    def test_uploads_in_flight_are_kept(self) -> None:
        """P16"""
        found, at = catalogue_of(manifest(5)), job(5)
        flying = [
            "segments/00000003/000000000006/w1.segment",
            "base/00000003/000000000005/w1.segment",
            "staged/00000004/000000000001/w1-out.arrow",
        ]
        assert found.garbage(at, flying) == []
        assert found.orphans(flying) == flying

    def test_leftover_objects_of_decided_epochs_are_deleted(self) -> None:
        left = [
            "segments/00000003/000000000004/w1.segment",
            "staged/00000002/000000000999/w1-out.arrow",
            "base/00000002/000000000004/w1.segment",
            "manifests/00000003/000000000004-b.json",
        ]
        assert catalogue_of(manifest(5)).garbage(job(5), left) == left

    def test_foreign_files_are_kept(self) -> None:
        assert catalogue_of(manifest(5)).garbage(job(5), ["segments/readme.txt", "staged/1/2/x"]) == []

    @settings(deadline=None)
    @given(st.lists(st.frozensets(st.integers(1, 12), max_size=6), min_size=1, max_size=10), st.data())
    def test_objects_of_retained_checkpoints_are_never_deleted(
        self, named: list[frozenset[int]], data: st.DataObject
    ) -> None:
        everything = [f"segments/00000003/{number:012d}/w.segment" for number in range(1, 13)]
        life = [manifest(i + 1, *(everything[n - 1] for n in sorted(names))) for i, names in enumerate(named)]
        found = catalogue_of(*life)
        left = set(everything)
        retained = [each.epoch for each in life]
        while len(retained) > 1:
            # Any checkpoint but the newest may expire: savepoints are kept longer than their neighbours.
            gone = data.draw(st.sets(st.sampled_from(retained[:-1]), min_size=1))
            retained = [epoch for epoch in retained if epoch not in gone]
            now = job(*retained)
            left -= set(found.expire(now))
            left -= set(found.garbage(now, sorted(left)))
            for each in life:
                if each.epoch in retained:
                    assert {s.object.path for s in each.state[0].segments} <= left
