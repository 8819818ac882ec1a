from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

import msgspec
import pytest
from msgspec import structs

from holdfast.checkpoint import append, joblog
from holdfast.checkpoint.catalogue import ObjectCatalogue, Retention, expirable
from holdfast.checkpoint.joblog import Body, CheckpointCompleted, Job, JobCreated, Record, Rewound, fold
from holdfast.checkpoint.timeline import Rewind, lineage_of, timeline_of
from holdfast.errors import Damaged
from holdfast.model import EPOCH_MAX, Epoch, Generation, JobUuid, ObjectRef, Stretch, Timeline

UUID = JobUuid("6f1d2c9e000040008000000000000001")


def record(seq: int, generation: int, timeline: int, body: Body, owner: str = "a") -> Record:
    return Record(seq, UUID, Generation(generation), Timeline(timeline), owner, seq, body)


def completed(seq: int, generation: int, timeline: int, epoch: int, follows: int) -> Record:
    ref = ObjectRef(f"manifests/{epoch}", 1, "0")
    return record(seq, generation, timeline, CheckpointCompleted(Epoch(epoch), Epoch(follows), ref, 1, 1, 1))


def rewound(seq: int, generation: int, timeline: int, base: int, first: int) -> Record:
    body = Rewound(Epoch(base), Epoch(first), "here", f"rewound to epoch {base}")
    return record(seq, generation, timeline, body)


def folded(*records: Record, job: Job | None = None) -> Job:
    after = reduce(fold, records, job)
    assert after is not None
    return after


RUN = folded(
    record(1, 0, 1, JobCreated("hot", 128)),
    record(2, 1, 1, joblog.GenerationStarted(Epoch(1), Epoch(0), "here", "started")),
    *(completed(2 + epoch, 1, 1, epoch, epoch - 1) for epoch in (1, 2, 3, 4)),
)
BACK = folded(rewound(7, 2, 2, 2, 105), job=RUN)


def epochs(checkpoints: Iterable[joblog.Completed]) -> list[int]:
    return [each.body.epoch for each in checkpoints]


class TestRewound:
    def test_starts_a_generation_and_a_timeline_at_the_base(self) -> None:
        assert (BACK.generation, BACK.timeline, BACK.base_epoch, BACK.first_epoch) == (2, 2, 2, 105)
        assert BACK.rewinds == (Rewind(Timeline(2), Epoch(2), Epoch(105), 7),)
        assert BACK.starts[-1].cause == "rewound to epoch 2"

    def test_checkpoints_after_the_base_are_abandoned_and_kept(self) -> None:
        assert (epochs(BACK.completed), epochs(BACK.abandoned)) == ([1, 2], [3, 4])
        assert epochs(BACK.retained) == [1, 2, 3, 4]

    def test_epoch_numbers_used_on_any_timeline_are_not_reused(self) -> None:
        with pytest.raises(Damaged, match="may have been used"):
            folded(rewound(7, 2, 2, 2, 104), job=RUN)
        assert joblog.next_first_epoch(BACK) > 105 + 99

    def test_later_checkpoints_follow_the_base(self) -> None:
        after = folded(completed(8, 2, 2, 105, 2), job=BACK)
        assert epochs(after.completed) == [1, 2, 105] and not after.repair_due
        for epoch, follows in ((105, 4), (5, 2), (400, 2)):
            with pytest.raises(Damaged, match="cannot follow"):
                folded(completed(8, 2, 2, epoch, follows), job=BACK)

    def test_repairs_are_due_until_the_timeline_has_its_own_checkpoint(self) -> None:
        assert not RUN.repair_due and BACK.repair_due
        again = record(8, 3, 2, joblog.GenerationStarted(Epoch(205), Epoch(2), "here", "started again"))
        assert folded(again, job=BACK).repair_due

    def test_needs_a_new_generation_and_a_new_timeline(self) -> None:
        for generation, timeline in ((1, 2), (3, 2), (2, 1), (2, 3)):
            with pytest.raises(Damaged):
                folded(rewound(7, generation, timeline, 2, 105), job=RUN)

    def test_goes_back_only_to_a_checkpoint_of_the_lineage(self) -> None:
        for base in (0, 3, 9):
            with pytest.raises(Damaged, match="not in the lineage"):
                folded(rewound(8, 3, 3, base, 206), job=BACK)

    def test_a_driver_of_the_old_timeline_is_overtaken(self) -> None:
        quiet = append.Quiet("zombie", RUN)
        body = CheckpointCompleted(Epoch(5), Epoch(4), ObjectRef("m", 1, "0"), 1, 1, 1)
        flight, _ = append.append(quiet, lambda _job: body, 0)
        assert isinstance(flight, append.InFlight)
        after, effects = append.occupied(flight, rewound(7, 2, 2, 2, 105))
        assert isinstance(after, append.OvertakenDriver) and [type(each) for each in effects] == [append.Lost]

    def test_one_of_two_simultaneous_rewinds_wins(self) -> None:
        flight, _ = append.append(
            append.Quiet("b", RUN), lambda job: Rewound(Epoch(1), joblog.next_first_epoch(job), "b", "rewound"), 0
        )
        assert isinstance(flight, append.InFlight)
        after, _ = append.occupied(flight, rewound(7, 2, 2, 2, 105))
        assert isinstance(after, append.OvertakenDriver)

    def test_a_log_start_folds_to_the_same_job(self) -> None:
        start = record(8, 2, 2, joblog.LogStart(BACK))
        again = fold(None, joblog.decode(joblog.encode(start), "log/8"))
        assert again == folded(start, job=BACK)
        assert not isinstance(Rewound(Epoch(1), Epoch(2), "", ""), joblog.PRUNABLE)


class TestRetention:
    def test_abandoned_checkpoints_expire_with_the_epochs_before_them(self) -> None:
        after = folded(completed(8, 2, 2, 105, 2), completed(9, 2, 2, 106, 105), job=BACK)
        assert expirable(after, Retention(1, 0), 100) == 105
        after = folded(record(10, 2, 2, joblog.Expired(Epoch(105))), job=after)
        assert (epochs(after.completed), after.abandoned) == ([106], ())

    def test_a_savepoint_keeps_an_abandoned_checkpoint(self) -> None:
        named = replace(BACK, savepoints=(joblog.Savepoint("v1", Epoch(4)),))
        after = folded(completed(8, 2, 2, 105, 2), completed(9, 2, 2, 106, 105), job=named)
        after = folded(record(10, 2, 2, joblog.Expired(Epoch(105))), job=after)
        assert epochs(after.retained) == [4, 106]

    def test_the_sweep_reads_abandoned_manifests_too(self) -> None:
        assert epochs(tuple(ObjectCatalogue().unread(BACK))) == [1, 2, 3, 4]


class TestLineage:
    def test_is_one_stretch_before_any_rewind(self) -> None:
        assert lineage_of(()) == (Stretch(Timeline(1), Epoch(1), EPOCH_MAX),)

    def test_leaves_out_abandoned_epochs(self) -> None:
        assert lineage_of(BACK.rewinds) == (
            Stretch(Timeline(1), Epoch(1), Epoch(2)),
            Stretch(Timeline(2), Epoch(105), EPOCH_MAX),
        )

    def test_a_timeline_that_contributed_nothing_is_in_no_lineage(self) -> None:
        twice = (*BACK.rewinds, Rewind(Timeline(3), Epoch(1), Epoch(206), 9))
        assert lineage_of(twice) == (
            Stretch(Timeline(1), Epoch(1), Epoch(1)),
            Stretch(Timeline(3), Epoch(206), EPOCH_MAX),
        )

    def test_gives_the_timeline_of_an_epoch(self) -> None:
        assert [timeline_of(BACK.rewinds, Epoch(epoch)) for epoch in (1, 2, 105)] == [1, 1, 2]


class TestAccepted:
    def test_is_in_the_record_and_in_the_fold_after_a_log_start(self) -> None:
        record = rewound(7, 2, 2, 2, 105)
        body = Rewound(Epoch(2), Epoch(105), "here", "rewound", ("out:impossible",))
        job = folded(joblog.decode(joblog.encode(structs.replace(record, body=body)), "7"), job=RUN)
        assert job.rewinds[-1].accepted == ("out:impossible",)
        again = msgspec.json.decode(msgspec.json.encode(joblog.LogStart(job)), type=joblog.LogStart).job
        assert again.rewinds == job.rewinds

    def test_a_record_without_accepted_verdicts_omits_the_field(self) -> None:
        assert b"accepted" not in joblog.encode(rewound(7, 2, 2, 2, 105))
