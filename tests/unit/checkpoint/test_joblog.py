from __future__ import annotations

from dataclasses import replace
from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.joblog import (
    OWNERS_KEPT,
    RECENT_KEPT,
    Body,
    CheckpointCompleted,
    Expired,
    Finished,
    GenerationStarted,
    Job,
    JobCreated,
    LogStart,
    Record,
    Rewound,
    Savepoint,
    SavepointNamed,
    Stopped,
    decode,
    encode,
    fold,
    in_pieces,
    next_first_epoch,
)
from holdfast.errors import ConfigError, Damaged
from holdfast.model import EPOCHS_GIVEN_UP_MAX, Epoch, Generation, JobUuid, ObjectRef, Tag, Timeline
from holdfast.storage.hashed import own_hash, with_hash

UUID = JobUuid("6f1d2c9e000040008000000000000001")
MANIFEST = ObjectRef("manifests/00000001/000000000001-a.json", 2, "0" * 64)


def record(seq: int, generation: int, body: Body, owner: str = "a") -> Record:
    return Record(seq, UUID, Generation(generation), Timeline(1), owner, 1_700_000_000_000_000 + seq, body)


def created() -> Record:
    return record(1, 0, JobCreated("hot", 128))


def started(seq: int, generation: int, first: int, base: int = 0, owner: str = "a") -> Record:
    return record(seq, generation, GenerationStarted(Epoch(first), Epoch(base), "here", "started"), owner)


def completed(seq: int, generation: int, epoch: int, follows: int, owner: str = "a") -> Record:
    return record(seq, generation, CheckpointCompleted(Epoch(epoch), Epoch(follows), MANIFEST, 5, 1, 1), owner)


def folded(*records: Record) -> Job:
    job = reduce(fold, records, None)
    assert job is not None
    return job


RUNNING = (created(), started(2, 1, 1), completed(3, 1, 1, 0))


class TestFold:
    def test_a_log_begins_with_the_creation_of_the_job(self) -> None:
        assert folded(created()) == Job(UUID, "hot", 128, 1_700_000_000_000_001, next_seq=2, head=created().hash)
        with pytest.raises(Damaged, match="begins with GenerationStarted at 1"):
            folded(started(1, 1, 1))
        with pytest.raises(Damaged, match="begins with JobCreated at 2"):
            folded(replace_seq(created(), 2))

    def test_the_base_is_the_last_completed_epoch(self) -> None:
        assert folded(*RUNNING[:2]).base_epoch == 0
        assert folded(*RUNNING).base_epoch == 1
        assert folded(*RUNNING, completed(4, 1, 4, 1)).base_epoch == 4

    def test_a_missing_record_is_damage_and_not_the_end(self) -> None:
        with pytest.raises(Damaged, match=r"record log/0+5\.json where log/0+4\.json was expected"):
            folded(*RUNNING, completed(5, 1, 2, 1))

    def test_a_record_of_another_job_is_refused(self) -> None:
        """P1: a job deleted and created again has another UUID."""
        other = msgspec.structs.replace(completed(4, 1, 2, 1), job_uuid=JobUuid("another"))
        with pytest.raises(ConfigError, match="record of another job"):
            folded(*RUNNING, other)

    def test_a_job_is_created_once(self) -> None:
        with pytest.raises(Damaged, match="creates the job a second time"):
            folded(*RUNNING, record(4, 1, JobCreated("hot", 128)))

    def test_a_record_of_another_timeline_is_damage(self) -> None:
        other = msgspec.structs.replace(completed(4, 1, 2, 1), timeline=Timeline(2))
        with pytest.raises(Damaged, match="belongs to timeline 2, not 1"):
            folded(*RUNNING, other)


def chained(*records: Record) -> list[Record]:
    found: list[Record] = []
    for each in records:
        found.append(msgspec.structs.replace(each, prev=found[-1].hash if found else ""))
    return found


class TestChain:
    """A root that was restored or copied has records with the same job, numbers and generation."""

    OURS = chained(*RUNNING, completed(4, 1, 2, 1), record(5, 1, SavepointNamed(Epoch(2), "v1"), owner="somebody"))
    THEIRS = chained(*RUNNING[:2], completed(3, 1, 1, 0, owner="a"), completed(4, 1, 3, 1), completed(5, 1, 4, 3))

    def test_the_fold_holds_the_hash_of_the_newest_record(self) -> None:
        for count in range(1, len(self.OURS) + 1):
            assert folded(*self.OURS[:count]).head == self.OURS[count - 1].hash

    def test_a_record_of_another_history_is_damage_that_names_both_files(self) -> None:
        assert folded(*RUNNING, *map(unchained, self.THEIRS[3:])).base_epoch == 4, "the numbers alone fit"
        swapped = [*self.OURS[:4], msgspec.structs.replace(completed(5, 1, 3, 2), prev=self.THEIRS[3].hash)]
        with pytest.raises(Damaged, match=r"log/0+5\.json does not continue log/0+4\.json: one of the two belongs to"):
            folded(*swapped)

    def test_a_replaced_record_is_detected_by_its_successor(self) -> None:
        middle = msgspec.structs.replace(self.OURS[2], at=7)
        with pytest.raises(Damaged, match=r"log/0+4\.json does not continue log/0+3\.json"):
            folded(*self.OURS[:2], middle, self.OURS[3])

    def test_a_name_given_by_another_process_is_part_of_the_chain(self) -> None:
        last = msgspec.structs.replace(completed(6, 1, 4, 2), prev=self.OURS[3].hash)
        with pytest.raises(Damaged, match=r"log/0+6\.json does not continue log/0+5\.json"):
            folded(*self.OURS, last)

    def test_the_first_record_has_no_predecessor(self) -> None:
        with pytest.raises(Damaged, match=r"log/0+1\.json names a previous record"):
            folded(msgspec.structs.replace(created(), prev="0" * 16))

    def test_a_log_start_continues_the_chain(self) -> None:
        begin = msgspec.structs.replace(record(6, 1, LogStart(folded(*self.OURS))), prev=self.OURS[-1].hash)
        after = msgspec.structs.replace(completed(7, 1, 4, 2), prev=begin.hash)
        stored = decode(encode(begin), begin.path)
        assert folded(stored, after) == folded(*self.OURS, begin, after)
        with pytest.raises(Damaged, match=r"log/0+7\.json does not continue log/0+6\.json"):
            folded(stored, msgspec.structs.replace(after, prev=self.OURS[-1].hash))

    def test_a_record_that_an_older_version_wrote_with_other_bytes_keeps_its_hash(self) -> None:
        begin = record(4, 1, LogStart(folded(*RUNNING)))
        older = with_hash(
            msgspec.json.encode(begin, enc_hook=in_pieces).replace(b'"head":', b'"was":').replace(b'"v":4', b'"v":2')
        )
        stored = decode(older, begin.path)
        assert stored.hash == own_hash(older) != msgspec.structs.replace(stored, xxh3=msgspec.UNSET).hash
        after = msgspec.structs.replace(completed(5, 1, 2, 1), prev=own_hash(older))
        assert folded(stored, after) == folded(*RUNNING, stored, after)


def unchained(each: Record) -> Record:
    return msgspec.structs.replace(each, prev=msgspec.UNSET)


class TestRecentEpochs:
    """P14: local state left by a kill is at an epoch that may have expired since."""

    def manifests(self, job: Job) -> list[int]:
        assert all(cut.manifest == MANIFEST.sha256 for cut in job.recent)
        return [cut.epoch for cut in job.recent]

    def test_are_identified_by_content_even_after_they_expired(self) -> None:
        before = folded(*RUNNING, completed(4, 1, 2, 1), completed(5, 1, 3, 2), record(6, 1, Expired(Epoch(2))))
        assert self.manifests(before) == [1, 2, 3]
        begin = record(7, 1, LogStart(before))
        assert self.manifests(folded(decode(encode(begin), begin.path), completed(8, 1, 4, 3))) == [1, 2, 3, 4]

    def test_are_limited_to_the_newest(self) -> None:
        job = folded(*RUNNING)
        for epoch in range(2, RECENT_KEPT + 3):
            job = fold(job, completed(job.next_seq, 1, epoch, epoch - 1))
        assert self.manifests(job) == list(range(3, RECENT_KEPT + 3))

    def test_do_not_include_abandoned_epochs(self) -> None:
        job = folded(*RUNNING, completed(4, 1, 2, 1), completed(5, 1, 3, 2))
        body = Rewound(Epoch(2), next_first_epoch(job), "here", "rewound")
        rewound = Record(6, UUID, Generation(2), Timeline(2), "b", 0, body)
        assert self.manifests(fold(job, rewound)) == [1, 2]

    def test_are_unknown_after_a_log_start_of_an_older_version(self) -> None:
        older = msgspec.structs.replace(record(4, 1, LogStart(replace(folded(*RUNNING), recent=()))), v=2)
        assert folded(*RUNNING, older).recent != () == folded(older).recent


class TestWhoMayAppend:
    """P6: after its start, a driver's own records only."""

    def test_only_a_start_can_follow_the_creation(self) -> None:
        with pytest.raises(Damaged, match="belongs to generation 1, not 0"):
            folded(created(), completed(2, 1, 1, 0))

    def test_a_record_of_an_older_generation_is_rejected(self) -> None:
        with pytest.raises(Damaged, match="belongs to generation 1, not 2"):
            folded(*RUNNING, started(4, 2, 102, 1, owner="b"), completed(5, 1, 2, 1))

    def test_a_record_of_another_driver_of_the_same_generation_is_rejected(self) -> None:
        with pytest.raises(Damaged, match="belongs to generation 1"):
            folded(*RUNNING, completed(4, 1, 2, 1, owner="b"))

    def test_generations_have_no_gaps(self) -> None:
        with pytest.raises(Damaged, match="generation 3 cannot follow 1"):
            folded(*RUNNING, started(4, 3, 102, 1))

    def test_a_generation_starts_from_the_last_completed_epoch(self) -> None:
        """P5"""
        with pytest.raises(Damaged, match="generation 2 cannot follow 1"):
            folded(*RUNNING, started(4, 2, 102, base=0))

    def test_the_newest_start_owns_the_job(self) -> None:
        job = folded(*RUNNING, started(4, 2, 102, 1, owner="b"))
        assert (job.generation, job.owner, job.first_epoch) == (2, "b", 102)
        assert [(start.generation, start.base_epoch) for start in job.starts] == [(1, 0), (2, 1)]


class TestEndOfARun:
    def test_a_stopped_job_can_be_started_again(self) -> None:
        stopped = (*RUNNING, record(4, 1, Stopped(Epoch(1))))
        assert folded(*stopped).ended == Stopped(Epoch(1))
        assert not folded(*stopped).finished
        again = folded(*stopped, started(5, 2, 102, 1))
        assert (again.ended, again.ended_at) == (None, None)

    def test_a_finished_job_is_never_started_again(self) -> None:
        """P13"""
        finished = (*RUNNING, record(4, 1, Finished(Epoch(1))))
        assert folded(*finished).finished
        with pytest.raises(Damaged, match="starts a finished job"):
            folded(*finished, started(5, 2, 102, 1))

    @pytest.mark.parametrize("body", [Stopped(Epoch(1)), Finished(Epoch(1))])
    def test_no_record_of_a_run_follows_its_end(self, body: Stopped | Finished) -> None:
        with pytest.raises(Damaged, match="follows the end of the run"):
            folded(*RUNNING, record(4, 1, body), completed(5, 1, 2, 1))

    def test_a_run_ends_with_its_last_completed_epoch(self) -> None:
        with pytest.raises(Damaged, match="ends the run at epoch 2, not at 1"):
            folded(*RUNNING, record(4, 1, Finished(Epoch(2))))


class TestSavepoints:
    """P6: any process may name a completed checkpoint, at any time."""

    def named(self, seq: int, epoch: int = 1, name: str = "v1", generation: int = 1) -> Record:
        return record(seq, generation, SavepointNamed(Epoch(epoch), name), owner="somebody")

    def test_the_record_of_a_checkpoint_may_carry_a_name(self) -> None:
        """P13"""
        body = CheckpointCompleted(Epoch(2), Epoch(1), MANIFEST, 5, 1, 1, "v1")
        job = folded(*RUNNING, record(4, 1, body))
        assert (job.savepoints, job.names_of(Epoch(2))) == ((Savepoint("v1", Epoch(2)),), ("v1",))

    def test_a_checkpoint_without_a_name_is_written_without_the_field(self) -> None:
        assert b"savepoint" not in encode(completed(3, 1, 1, 0))

    def test_new_partitions_are_in_the_record_of_their_checkpoint(self) -> None:
        """P12"""
        assert b"added" not in encode(completed(3, 1, 1, 0))
        body = CheckpointCompleted(Epoch(2), Epoch(1), MANIFEST, 5, 1, 1, added={"s": (3, 4)})
        found = record(4, 1, body)
        assert decode(encode(found), found.path).body == body

    def test_another_process_may_name_a_checkpoint_while_the_run_continues(self) -> None:
        job = folded(*RUNNING, self.named(4), completed(5, 1, 2, 1))
        assert (job.savepoint("v1"), job.base_epoch) == (Savepoint("v1", Epoch(1)), 2)

    @pytest.mark.parametrize("body", [Stopped(Epoch(1)), Finished(Epoch(1))])
    def test_a_checkpoint_may_be_named_after_the_end_of_the_run(self, body: Stopped | Finished) -> None:
        job = folded(*RUNNING, record(4, 1, body), self.named(5), self.named(6, name="v2"))
        assert (job.ended, job.names_of(Epoch(1))) == (body, ("v1", "v2"))

    def test_a_stopped_job_with_a_savepoint_can_be_started_again(self) -> None:
        stopped = (*RUNNING, record(4, 1, Stopped(Epoch(1))), self.named(5))
        assert folded(*stopped, started(6, 2, 102, 1)).savepoints == (Savepoint("v1", Epoch(1)),)

    def test_a_name_can_be_given_only_once(self) -> None:
        with pytest.raises(Damaged, match="gives the name 'v1' a second time"):
            folded(*RUNNING, self.named(4), self.named(5))

    @pytest.mark.parametrize(("epoch", "generation"), [(2, 1), (0, 1), (1, 2)])
    def test_only_a_completed_checkpoint_can_be_named(self, epoch: int, generation: int) -> None:
        with pytest.raises(Damaged, match="which is not completed"):
            folded(*RUNNING, self.named(4, epoch, generation=generation))


class TestEpochNumbers:
    """P2: a number is used once, although triggers are not logged."""

    def test_the_first_generation_starts_at_epoch_one(self) -> None:
        assert next_first_epoch(folded(created())) == 1

    def test_a_later_generation_starts_above_every_number_possibly_given_up(self) -> None:
        assert next_first_epoch(folded(*RUNNING[:2])) == 1 + EPOCHS_GIVEN_UP_MAX
        assert next_first_epoch(folded(*RUNNING)) == 2 + EPOCHS_GIVEN_UP_MAX

    def test_generations_without_a_completed_epoch_have_their_own_numbers(self) -> None:
        job = folded(created(), started(2, 1, 1), started(3, 2, 101), started(4, 3, 201))
        assert next_first_epoch(job) == 301

    def test_a_start_may_not_use_a_number_again(self) -> None:
        with pytest.raises(Damaged, match="first epoch 101 may have been used"):
            folded(*RUNNING, started(4, 2, 101, 1))

    @pytest.mark.parametrize("epoch", [1, 0, 102])
    def test_an_epoch_number_is_new_and_within_the_limit(self, epoch: int) -> None:
        with pytest.raises(Damaged, match=f"epoch {epoch} cannot follow 1"):
            folded(*RUNNING, completed(4, 1, epoch, 1))

    def test_epochs_that_were_given_up_leave_gaps(self) -> None:
        assert folded(*RUNNING, completed(4, 1, 1 + EPOCHS_GIVEN_UP_MAX, 1)).base_epoch == 101

    def test_an_epoch_names_the_completed_epoch_it_follows(self) -> None:
        """P8: its changes are changes to that one."""
        with pytest.raises(Damaged, match="cannot follow 1"):
            folded(*RUNNING, completed(4, 1, 3, follows=2))

    @given(st.lists(st.one_of(st.just("start"), st.integers(1, EPOCHS_GIVEN_UP_MAX + 1)), max_size=12))
    def test_generations_never_share_a_number(self, moves: list[str | int]) -> None:
        """A number means an epoch completed that many numbers after the next one of the generation."""
        job = folded(created(), started(2, 1, 1))
        reach = EPOCHS_GIVEN_UP_MAX  # highest number that may have been triggered so far
        for move in moves:
            if isinstance(move, int):
                epoch = max(job.base_epoch, job.first_epoch - 1) + min(move, EPOCHS_GIVEN_UP_MAX)
                job = fold(job, completed(job.next_seq, job.generation, epoch, job.base_epoch))
                reach = epoch + EPOCHS_GIVEN_UP_MAX
            else:
                first = next_first_epoch(job)
                assert first > reach
                job = fold(job, started(job.next_seq, job.generation + 1, first, job.base_epoch))
                reach = first - 1 + EPOCHS_GIVEN_UP_MAX


class TestBytes:
    @pytest.mark.parametrize(
        "each",
        [*RUNNING, *(record(4, 1, b) for b in (SavepointNamed(Epoch(1), "v1"), Stopped(Epoch(1)), Finished(Epoch(1))))],
    )
    def test_every_kind_of_record_is_read_back(self, each: Record) -> None:
        assert decode(encode(each), "log/1.json") == each

    @pytest.mark.parametrize("data", [b"", b"{", b"null", b'{"v":1}', encode(created())[:-1], b'{"v":1,"seq":"one"}'])
    def test_unreadable_bytes_are_damage_that_names_the_file(self, data: bytes) -> None:
        with pytest.raises(Damaged, match=r"log/7\.json cannot be read"):
            decode(data, "log/7.json")

    def test_a_record_of_a_later_format_is_not_damage(self) -> None:
        later = msgspec.json.encode(created()).replace(b'"v":4', b'"v":6').replace(b"JobCreated", b"SomethingNew")
        with pytest.raises(ConfigError, match="has format 6"):
            decode(with_hash(later), "log/7.json")

    @pytest.mark.parametrize("version", [2, 3, 4])
    def test_a_record_without_its_hash_is_damaged(self, version: int) -> None:
        bare = msgspec.json.encode(msgspec.structs.replace(created(), v=version))
        with pytest.raises(Damaged, match="does not match the hash"):
            decode(bare, "log/7.json")

    def test_a_record_of_the_first_format_has_no_hash(self) -> None:
        bare = msgspec.json.encode(msgspec.structs.replace(created(), v=1))
        assert decode(bare, "log/7.json").body == created().body

    def test_a_record_with_one_changed_digit_is_damaged(self) -> None:
        with pytest.raises(Damaged, match="does not match the hash"):
            decode(encode(created()).replace(b'"at":17', b'"at":18'), "log/7.json")


def replace_seq(each: Record, seq: int) -> Record:
    return msgspec.structs.replace(each, seq=seq)


class TestRewinds:
    """P2, P6, P21."""

    LIFE = (*RUNNING, completed(4, 1, 2, 1), completed(5, 1, 3, 2))

    def back(self, to: int, first: int) -> Record:
        each = record(6, 2, Rewound(Epoch(to), Epoch(first), "here", "why"), owner="b")
        return msgspec.structs.replace(each, timeline=Timeline(2))

    def test_a_rewind_starts_above_every_epoch_number_possibly_used_before(self) -> None:
        last = 3 + EPOCHS_GIVEN_UP_MAX
        assert folded(*self.LIFE, self.back(1, last + 1)).first_epoch == last + 1
        with pytest.raises(Damaged, match="may have been used"):
            folded(*self.LIFE, self.back(1, last))

    def test_repairs_are_due_until_the_new_timeline_has_a_checkpoint(self) -> None:
        first = 4 + EPOCHS_GIVEN_UP_MAX
        job = folded(*self.LIFE, self.back(1, first))
        assert job.repair_due
        again = record(7, 3, GenerationStarted(next_first_epoch(job), Epoch(1), "here", "restarted"), owner="c")
        job = fold(job, msgspec.structs.replace(again, timeline=Timeline(2)))
        assert job.repair_due
        done = completed(8, 3, job.first_epoch, 1, owner="c")
        assert not fold(job, msgspec.structs.replace(done, timeline=Timeline(2))).repair_due


class TestKeeping:
    """P7, P16."""

    LIFE = (*RUNNING, completed(4, 1, 2, 1), completed(5, 1, 3, 2))

    def test_expired_checkpoints_are_forgotten_but_never_the_newest(self) -> None:
        job = folded(*self.LIFE, record(6, 1, Expired(Epoch(2))))
        assert ([each.body.epoch for each in job.completed], job.expired_through) == ([3], 2)
        for through in (0, 3, 4):
            with pytest.raises(Damaged, match="expires epochs"):
                folded(*self.LIFE, record(6, 1, Expired(Epoch(through))))

    def test_a_log_start_folds_to_the_same_job(self) -> None:
        before = folded(*self.LIFE, record(6, 1, Expired(Epoch(1))))
        begin = record(7, 1, LogStart(before))
        after = (completed(8, 1, 4, 3), started(9, 2, 105, 4, "b"))
        stored = decode(encode(begin), "log/7.json")
        assert stored == begin
        assert folded(stored, *after) == folded(*self.LIFE, record(6, 1, Expired(Epoch(1))), begin, *after)

    def test_a_log_start_that_contradicts_the_records_is_damage(self) -> None:
        other = folded(*RUNNING)
        with pytest.raises(Damaged, match="contradicts the records before it"):
            folded(*self.LIFE, record(6, 1, LogStart(other)))

    def named(self, seq: int, epoch: int, name: str) -> Record:
        return record(seq, 1, SavepointNamed(Epoch(epoch), name), owner="somebody")

    def test_a_savepoint_never_expires(self) -> None:
        job = folded(
            *self.LIFE,
            self.named(6, 1, "v1"),
            record(7, 1, Expired(Epoch(2))),
            completed(8, 1, 4, 3),
            record(9, 1, Expired(Epoch(3))),
        )
        assert [each.body.epoch for each in job.completed] == [1, 4]
        assert (job.savepoints, job.expired_through) == ((Savepoint("v1", Epoch(1)),), 3)

    def test_a_checkpoint_named_just_before_its_expiry_is_kept(self) -> None:
        job = folded(*self.LIFE, self.named(6, 2, "v1"), record(7, 1, Expired(Epoch(2))))
        assert [each.body.epoch for each in job.completed] == [2, 3]

    def test_an_expired_checkpoint_cannot_be_named(self) -> None:
        with pytest.raises(Damaged, match="names epoch 1, which is not completed"):
            folded(*self.LIFE, record(6, 1, Expired(Epoch(1))), self.named(7, 1, "v1"))

    def test_a_log_start_keeps_the_savepoints(self) -> None:
        before = (*self.LIFE, self.named(6, 1, "v1"), record(7, 1, Expired(Epoch(2))))
        begin = decode(encode(record(8, 1, LogStart(folded(*before)))), "log/8.json")
        after = (self.named(9, 1, "v2"), completed(10, 1, 4, 3))
        job = folded(begin, *after)
        assert job == folded(*before, begin, *after)
        assert job.names_of(Epoch(1)) == ("v1", "v2")
        assert [each.body.epoch for each in job.completed] == [1, 3, 4]
        with pytest.raises(Damaged, match="a second time"):
            folded(begin, self.named(9, 3, "v1"))


class TestOwners:
    """Drivers recorded in the log: a target that none of them took over belongs to another history."""

    def test_every_start_is_an_owner_once_with_the_newest_last(self) -> None:
        starts = (started(2, 1, 1, owner="a"), started(3, 2, 101, owner="b"), started(4, 3, 201, owner="a"))
        job = folded(created(), *starts)
        assert (job.owners, job.owner) == (("b", "a"), "a")

    def test_a_rewind_adds_an_owner(self) -> None:
        back = Rewound(Epoch(1), Epoch(102), "here", "why")
        rewound = msgspec.structs.replace(record(4, 2, back, owner="b"), timeline=Timeline(2))
        assert folded(*RUNNING, rewound).owners == (folded(*RUNNING).owner, "b")

    def test_only_the_newest_owners_are_kept(self) -> None:
        job = replace(folded(created()), owners=tuple(map(str, range(OWNERS_KEPT))))
        job = fold(job, started(2, 1, 1, owner="new"))
        assert (len(job.owners), job.owners[0], job.owners[-1]) == (OWNERS_KEPT, "1", "new")

    def test_a_log_start_lists_the_owners(self) -> None:
        job = folded(*RUNNING)
        begins = decode(encode(record(4, 1, LogStart(job))), "log/4.json")
        assert fold(None, begins).owners == fold(job, begins).owners == job.owners != ()

    def test_a_log_start_with_other_owners_is_damage(self) -> None:
        job = folded(*RUNNING)
        with pytest.raises(Damaged, match="contradicts the records before it"):
            fold(job, record(4, 1, LogStart(replace(job, owners=(*job.owners, "another")))))

    def test_a_log_start_of_an_earlier_version_without_owners_is_accepted(self) -> None:
        job = folded(*RUNNING)
        begins = msgspec.structs.replace(record(4, 1, LogStart(replace(job, owners=()))), v=2)
        assert fold(job, begins).owners == job.owners
        assert fold(None, begins).owners == (job.owner,)


class TestWhatOwnersCompleted:
    """A driver in the log of two histories may have completed more in the other one."""

    def life(self) -> tuple[Record, ...]:
        """a completes 1 and 2 and goes back to 1; b recovers once, completes 209 and 210; c has just started."""
        to_1 = Rewound(Epoch(1), Epoch(103), "here", "why")
        return (
            created(),
            started(2, 1, 1, owner="a"),
            completed(3, 1, 1, 0, owner="a"),
            completed(4, 1, 2, 1, owner="a"),
            *(
                msgspec.structs.replace(each, timeline=Timeline(2))
                for each in (
                    record(5, 2, to_1, owner="a"),
                    started(6, 3, 204, base=1, owner="b"),
                    completed(7, 3, 204, 1, owner="b"),
                    started(8, 4, 305, base=204, owner="b"),
                    completed(9, 4, 305, 204, owner="b"),
                    started(10, 5, 406, base=305, owner="c"),
                )
            ),
        )

    def test_is_what_the_log_has_of_each_when_the_next_one_starts(self) -> None:
        job = folded(*self.life())
        assert job.reaches == {"a": Tag(Timeline(2), Epoch(1)), "b": Tag(Timeline(2), Epoch(305)), "c": job.before}
        assert job.before == Tag(Timeline(2), Epoch(305))
        assert folded(created()).reaches == {} and folded(created()).before == Tag(Timeline(1), Epoch(0))
        assert folded(*RUNNING).reaches == {folded(*RUNNING).owner: Tag(Timeline(1), Epoch(1))}

    def test_does_not_shrink_when_another_owner_goes_back(self) -> None:
        rewound = msgspec.structs.replace(
            record(11, 6, Rewound(Epoch(204), Epoch(506), "here", "why"), owner="d"), timeline=Timeline(3)
        )
        back = folded(*self.life(), rewound)
        assert back.reaches["b"] == back.reaches["c"] == Tag(Timeline(2), Epoch(305))
        assert back.reaches["d"] == Tag(Timeline(3), Epoch(204))

    def test_is_in_a_log_start(self) -> None:
        job = folded(*self.life())
        begins = msgspec.structs.replace(record(11, 5, LogStart(job), owner="c"), timeline=Timeline(2))
        stored = decode(encode(begins), begins.path)
        assert folded(stored).reaches == folded(*self.life(), stored).reaches == job.reaches
        other = msgspec.structs.replace(begins, body=LogStart(replace(job, reached=(job.before,) * 2)))
        with pytest.raises(Damaged, match="contradicts the records before it"):
            folded(*self.life(), other)

    def test_is_bounded_for_owners_of_which_a_log_start_of_an_earlier_version_does_not_say_it(self) -> None:
        job = folded(*self.life())
        begins = msgspec.structs.replace(record(11, 5, LogStart(replace(job, reached=())), owner="c"), v=3)
        begins = msgspec.structs.replace(begins, timeline=Timeline(2))
        assert folded(*self.life(), begins).reaches == job.reaches
        assert set(folded(begins).reaches.values()) == {job.before} and set(folded(begins).reaches) == {"a", "b", "c"}
        later = msgspec.structs.replace(started(12, 6, 506, base=305, owner="d"), timeline=Timeline(2))
        assert folded(begins, later).reaches == dict.fromkeys(("a", "b", "c", "d"), job.before)

    def test_is_kept_as_long_as_the_owner(self) -> None:
        job = folded(created())
        for n in range(OWNERS_KEPT + 3):
            first = 1 if n == 0 else 1 + 100 * n
            job = fold(job, started(2 + n, n + 1, first, owner=str(n)))
        assert len(job.owners) == len(job.reaches) == len(job.reached) + 1 == OWNERS_KEPT
