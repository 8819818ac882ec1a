from __future__ import annotations

import pytest

from holdfast.checkpoint import joblog
from holdfast.checkpoint.joblog import CheckpointCompleted, Expired, GenerationStarted, JobCreated, LogStart, Savepoint
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline
from holdfast.runtime.job.naming import Naming
from holdfast.storage.objects import MemoryObjects

UUID = JobUuid("1" * 32)


class RepliesLost(MemoryObjects):
    """Objects are created, but the reply to the first create is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lose = False

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if self.lose:
            self.lose = False
            raise Unavailable("the reply is lost", next_step="try again")


class Log:
    """A job log and the driver that appends to it."""

    def __init__(self) -> None:
        self.store = RepliesLost()
        self.repository = Repository(self.store)
        self.append(JobCreated("hot", 16), generation=0)
        self.append(GenerationStarted(Epoch(1), Epoch(0), "here", "started"))

    @property
    def job(self) -> joblog.Job:
        job = self.repository.read_log()
        assert job is not None
        return job

    def append(self, body: joblog.Body, generation: int = 1) -> None:
        job = self.repository.read_log()
        seq = 1 if job is None else job.next_seq
        record = joblog.Record(seq, UUID, Generation(generation), Timeline(1), "driver", 0, body)
        assert self.repository.create_record(record).hash == record.hash

    def complete(self) -> None:
        epoch = self.job.base_epoch + 1
        ref = ObjectRef(f"m/{epoch}", 1, "")
        self.append(CheckpointCompleted(Epoch(epoch), Epoch(epoch - 1), ref, 1, 1, 1))

    def write_log_start(self) -> None:
        """Expire all but the newest, and prune."""
        self.append(Expired(Epoch(self.job.base_epoch - 1)))
        self.append(LogStart(self.job))
        self.repository.prune(self.job.log_start, set())

    def naming(self, name: str = "v1") -> Naming:
        return Naming(self.repository, name, "somebody", 0)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.complete()
    return log


class TestNaming:
    def test_the_name_is_given_to_the_last_checkpoint(self, log: Log) -> None:
        naming = log.naming()
        assert naming.look() is None
        assert naming.append()
        assert log.job.savepoints == (Savepoint("v1", Epoch(1)),)

    def test_the_log_is_reread_if_the_number_was_taken(self, log: Log) -> None:
        naming = log.naming()
        naming.look()
        log.complete()
        assert not naming.append()
        naming.look()
        assert naming.append()
        assert log.job.savepoints == (Savepoint("v1", Epoch(2)),)

    def test_the_log_is_reread_if_the_number_was_pruned(self, log: Log) -> None:
        """P7: the record fell into a hole."""
        naming = log.naming()
        naming.look()
        log.complete()
        log.write_log_start()
        assert not naming.append()
        assert log.job.savepoint("v1") is None
        naming.look()
        assert naming.append()
        assert log.job.savepoints == (Savepoint("v1", Epoch(2)),)

    def test_a_lost_reply_is_settled_by_a_repetition(self, log: Log) -> None:
        """P4"""
        naming = log.naming()
        naming.look()
        log.store.lose = True
        assert not naming.append()
        assert naming.look() is None
        assert naming.append()
        assert log.job.savepoints == (Savepoint("v1", Epoch(1)),)

    def test_a_name_in_the_log_is_found_even_after_a_log_start(self, log: Log) -> None:
        naming = log.naming()
        naming.look()
        log.store.lose = True
        assert not naming.append()
        log.complete()
        log.complete()
        log.write_log_start()
        assert not naming.append()
        assert naming.look() == log.job
        assert log.job.savepoints == (Savepoint("v1", Epoch(1)),)
        assert [each.body.epoch for each in log.job.completed] == [1, 3]

    def test_a_name_that_another_process_gave_first_is_refused(self, log: Log) -> None:
        naming, other = log.naming(), Naming(log.repository, "v1", "another", 0)
        naming.look()
        other.look()
        assert other.append()
        assert not naming.append()
        with pytest.raises(ConfigError, match="already has a savepoint 'v1'"):
            naming.look()
