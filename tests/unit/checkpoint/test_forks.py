from __future__ import annotations

import re
from functools import reduce

import msgspec
import pytest

from holdfast.checkpoint.append import Appended, Create, Lost, OvertakenDriver, Quiet, append, create_job, occupied
from holdfast.checkpoint.audit import Audit, PartAudit, SinkStaged, SinkTotal, manifest_audit
from holdfast.checkpoint.beyond import beyond
from holdfast.checkpoint.catalogue import ObjectCatalogue
from holdfast.checkpoint.forks import GENERATION, NewJob, copy_path, first_record, forked_manifest, objects_of
from holdfast.checkpoint.joblog import (
    Body,
    CheckpointCompleted,
    ForkOrigin,
    GenerationStarted,
    Job,
    JobCreated,
    Record,
    Rewound,
    SavepointNamed,
    Stopped,
    decode,
    encode,
    fold,
    next_first_epoch,
)
from holdfast.checkpoint.manifest import Confirmed, Manifest, OperatorState, named_in
from holdfast.checkpoint.manifest import encode as encoded
from holdfast.checkpoint.timeline import lineage_of
from holdfast.errors import ConfigError, Damaged
from holdfast.model import (
    EPOCH_MAX,
    Cut,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    RowDigest,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Stretch,
    Subtask,
    Tag,
    Timeline,
    Writer,
)

NEW = NewJob("trial", JobUuid("2" * 32), "o" * 32, 1_700_000_000_000_000)
ORIGIN = ForkOrigin("hot", JobUuid("1" * 32), Timeline(2), Epoch(57), {"out": {"kind": "Log", "path": "/out"}})


def blob(path: str) -> ObjectRef:
    return ObjectRef(path, 10, "5" * 64)


def copied(ref: ObjectRef) -> ObjectRef:
    return ObjectRef(f"copy/{ref.path}", 11, "6" * 64)


SHARED = SegmentRef(Epoch(50), Epoch(0), blob("merged/50"), key_groups=(2, 4))
MANIFEST = Manifest(
    job_uuid=ORIGIN.uuid,
    generation=Generation(4),
    timeline=Timeline(2),
    epoch=Epoch(57),
    follows=Epoch(56),
    parallelism=2,
    key_groups=8,
    positions=(SourcePosition("bids", 0, 1_000, 7, "history", Subtask(1)),),
    state=(
        SnapshotHandle(Subtask(0), (0, 4), (blob("base/40"),), Epoch(40), (SHARED,)),
        SnapshotHandle(
            Subtask(1), (4, 8), (), Epoch(0), (SHARED, SegmentRef(Epoch(57), Epoch(56), blob("s/57"), None, Subtask(1)))
        ),
    ),
    pending=(Pending(Writer("out", Subtask(1)), Tag(Timeline(2), Epoch(57)), Staged((blob("staged/57"),), 12)),),
    confirmed=(Confirmed(Writer("out", Subtask(0)), Tag(Timeline(2), Epoch(56))),),
    operators=(OperatorState("hot", 1, {"auction": "int64"}), OperatorState("gone", 2, {}, dropped=True)),
    audit=Audit((), (), (), (SinkTotal("out", RowDigest(9, 8, 7)),), Epoch(4)),
    shape={"v": 1},
    changelog={"kind": "log", "path": "/changes"},
    orders=(blob("orders/57"),),
    committed_once=("out",),
)
FORK = forked_manifest(MANIFEST, NEW, copied)
REF = ObjectRef("manifests/00000000/000000000057-a.json", 2, "0" * 64)
FIRST = first_record(NEW, FORK, (ORIGIN,), REF, 1_500, 300)


def record(seq: int, generation: int, body: Body, owner: str = "a", timeline: int = 1) -> Record:
    return Record(seq, NEW.uuid, Generation(generation), Timeline(timeline), owner, 1_700_000_000_000_000, body)


def folded(*records: Record) -> Job:
    job = reduce(fold, records, None)
    assert job is not None
    return job


STARTED = record(2, 1, GenerationStarted(Epoch(58), Epoch(57), "here", "started"))


class TestItsFirstCheckpoint:
    def test_has_what_belongs_to_the_state(self) -> None:
        for part in ("epoch", "parallelism", "key_groups", "positions", "operators", "shape"):
            assert getattr(FORK, part) == getattr(MANIFEST, part), part

    def test_is_of_the_new_job_and_follows_nothing(self) -> None:
        assert (FORK.job_uuid, FORK.generation, FORK.timeline, FORK.follows) == (NEW.uuid, 0, 1, 0)

    def test_names_copies_alone_each_for_the_key_groups_that_count(self) -> None:
        first, second = FORK.state
        assert first.base == (copied(blob("base/40")),) and first.base_epoch == 40
        shared = msgspec.structs.replace(SHARED, object=copied(SHARED.object))
        assert first.segments == (shared,)
        assert second.segments == (shared, SegmentRef(Epoch(57), Epoch(56), copied(blob("s/57"))))

    def test_has_no_output(self) -> None:
        assert (FORK.pending, FORK.confirmed) == ((), ())

    def test_has_no_record_of_the_order_in_which_another_job_took_its_input(self) -> None:
        assert MANIFEST.recorded is not None and FORK.recorded is None

    def test_is_the_begin_of_what_its_audit_counts(self) -> None:
        assert FORK.audited == Audit((), (), (), (), Epoch(0))
        staged = SinkStaged(Writer("out", Subtask(0)), (RowDigest(3, 5, 7),))
        after = manifest_audit(Epoch(57), FORK.audited, [PartAudit(sinks=(staged,))])
        assert after is not None and (after.since, after.totals) == (0, (SinkTotal("out", RowDigest(3, 5, 7)),))

    def test_keeps_its_changelog_in_the_root(self) -> None:
        assert FORK.topic is None and FORK.with_committer == ()

    def test_is_read_by_earlier_releases(self) -> None:
        assert msgspec.json.decode(encoded(FORK))["v"] == 1

    def test_needs_each_object_once(self) -> None:
        assert [ref.path for ref in objects_of(MANIFEST)] == ["base/40", "merged/50", "s/57"]


class TestItsFirstRecord:
    def test_has_a_format_of_its_own_that_earlier_releases_refuse(self) -> None:
        assert FIRST.v == 5 and decode(encode(FIRST), FIRST.path) == FIRST
        assert record(1, 0, JobCreated("hot", 8)).v == STARTED.v == 4

    def test_is_a_stopped_job_with_one_checkpoint(self) -> None:
        job = folded(FIRST)
        assert (job.name, job.uuid, job.key_groups, job.next_seq) == ("trial", NEW.uuid, 8, 2)
        assert (job.generation, job.timeline, job.base_epoch, job.owners) == (0, 1, 57, ())
        assert job.ended == Stopped(Epoch(57)) and job.ended_at == job.created_at == NEW.at_us
        (done,) = job.completed
        assert done.body == CheckpointCompleted(Epoch(57), Epoch(0), REF, 1_500, 300, 300)
        assert (done.generation, done.at) == (0, NEW.at_us) and job.recent == (Cut(Epoch(57), REF.sha256),)
        assert lineage_of(job.rewinds) == (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),)

    def test_is_followed_by_epochs_with_higher_numbers(self) -> None:
        assert next_first_epoch(folded(FIRST)) == 58
        job = folded(FIRST, STARTED, record(3, 1, CheckpointCompleted(Epoch(60), Epoch(57), REF, 1, 1, 1)))
        assert [each.body.epoch for each in job.completed] == [57, 60] and job.ended is None
        low = record(2, 1, GenerationStarted(Epoch(57), Epoch(57), "here", "started"))
        with pytest.raises(Damaged, match="first epoch 57 may have been used"):
            folded(FIRST, low)

    def test_may_be_followed_by_a_name_or_a_rewind_to_its_checkpoint(self) -> None:
        assert folded(FIRST, record(2, 0, SavepointNamed(Epoch(57), "begin"))).names_of(Epoch(57)) == ("begin",)
        back = folded(FIRST, record(2, 1, Rewound(Epoch(57), Epoch(58), "here", "rewound"), timeline=2))
        assert (back.timeline, back.base_epoch, back.repair_due) == (2, 57, True)

    def test_is_the_first_one_and_the_only_one_that_creates_the_job(self) -> None:
        with pytest.raises(Damaged, match="begins with Forked at 2"):
            folded(msgspec.structs.replace(FIRST, seq=2))
        with pytest.raises(Damaged, match="creates the job a second time"):
            folded(FIRST, STARTED, record(3, 1, FIRST.body))

    def test_a_first_record_of_a_later_format_is_not_damage(self) -> None:
        later = encode(msgspec.structs.replace(FIRST, v=6))
        with pytest.raises(ConfigError, match="has format 6"):
            decode(later, FIRST.path)


class TestADriver:
    def test_a_driver_about_to_create_the_job_is_fenced(self) -> None:
        """It has checked the code against no checkpoint."""
        state, [sent] = create_job(Quiet("driver", None), JobCreated("trial", 8), JobUuid("3" * 32), 1)
        assert isinstance(sent, Create) and not isinstance(state, Quiet | OvertakenDriver)
        job = folded(FIRST)
        assert occupied(state, FIRST) == (OvertakenDriver("driver", job, Generation(0)), [Lost(job, Generation(0))])

    def test_a_driver_that_starts_the_fork_continues_from_its_checkpoint(self) -> None:
        quiet = Quiet("driver", folded(FIRST))
        state, [sent] = append(
            quiet, lambda job: GenerationStarted(next_first_epoch(job), job.base_epoch, "here", "started"), 1
        )
        assert isinstance(sent, Create) and not isinstance(state, Quiet | OvertakenDriver)
        assert (sent.record.generation, sent.record.v) == (1, 4)
        after, [appended] = occupied(state, sent.record)
        assert isinstance(appended, Appended) and isinstance(after, Quiet)
        assert (appended.job.base_epoch, appended.job.first_epoch, appended.job.reaches) == (
            57,
            58,
            {"driver": Tag(Timeline(1), Epoch(57))},
        )


class TestItsCopies:
    def test_have_names_of_their_attempt_that_the_sweep_knows(self) -> None:
        path, other = copy_path(NEW, Epoch(57), 0), copy_path(NEW, Epoch(57), 1)
        assert re.fullmatch(rf"base/00000000/000000000057/{NEW.owner}-0\.segment", path) and path != other
        catalogue = ObjectCatalogue()
        catalogue.add(named_in(encoded(FORK), REF))
        named, left = "copy/base/40", "manifests/00000000/000000000057-b.json"
        assert catalogue.garbage(folded(FIRST, STARTED), [named, path, left, REF.path]) == [path, left]

    def test_prove_no_log_that_was_cut_short(self) -> None:
        """Those of attempts that were killed lie beside them, and below names under which no job exists."""
        left = [f"manifests/{GENERATION:08d}/{epoch:012d}-{owner}.json" for epoch in (57, 99) for owner in "ab"]
        assert beyond(None, left, None) == beyond(folded(FIRST), left, None) == []
        assert beyond(folded(FIRST, STARTED), left, None) == []
