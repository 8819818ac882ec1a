from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.append import (
    Appended,
    Appender,
    Create,
    Effect,
    InFlight,
    Lost,
    OvertakenDriver,
    Quiet,
    append,
    create_job,
    occupied,
    retry,
)
from holdfast.checkpoint.joblog import (
    Body,
    CheckpointCompleted,
    Finished,
    GenerationStarted,
    Job,
    JobCreated,
    Record,
    SavepointNamed,
    Stopped,
    fold,
    next_first_epoch,
)
from holdfast.model import EPOCHS_GIVEN_UP_MAX, Epoch, Generation, JobUuid, ObjectRef, Timeline

UUID, OTHER_UUID = JobUuid("1" * 32), JobUuid("2" * 32)
CREATED = JobCreated("hot", 128)
MANIFEST = ObjectRef("manifests/1", 2, "0" * 64)


def start_of(cause: str) -> Callable[[Job], Body]:
    return lambda job: GenerationStarted(next_first_epoch(job), job.base_epoch, "here", cause)


def completion(job: Job, number: int = 0, skipped: int = 0) -> Body:
    epoch = max(job.base_epoch, job.first_epoch - 1) + 1 + skipped
    return CheckpointCompleted(Epoch(epoch), job.base_epoch, MANIFEST, number, 1, 1)


def record(seq: int, generation: int, owner: str, body: Body, after: Record | None = None) -> Record:
    prev = "" if after is None else after.hash
    return Record(seq, UUID, Generation(generation), Timeline(1), owner, 0, body, prev=prev)


def folded(*records: Record) -> Job:
    job = reduce(fold, records, None)
    assert job is not None
    return job


CREATION = record(1, 0, "a", CREATED)
START_OF_A = record(2, 1, "a", GenerationStarted(Epoch(1), Epoch(0), "here", "a starts"), CREATION)
EPOCH_OF_A = record(3, 1, "a", completion(folded(CREATION, START_OF_A)), START_OF_A)
START_OF_B = record(3, 2, "b", GenerationStarted(Epoch(101), Epoch(0), "here", "b starts"), START_OF_A)
RUN_BY_A = folded(CREATION, START_OF_A)


def in_flight(owner: str, job: Job, draft: Callable[[Job], Body]) -> InFlight:
    state, _ = append(Quiet(owner, job), draft, 0)
    assert isinstance(state, InFlight)
    return state


class TestNames:
    """P6: a name that another process gives does not block an append."""

    NAMED = record(4, 1, "somebody", SavepointNamed(Epoch(1), "v1"), EPOCH_OF_A)
    RUN = folded(CREATION, START_OF_A, EPOCH_OF_A)

    def test_an_epoch_is_appended_after_the_name(self) -> None:
        after = fold(self.RUN, self.NAMED)
        _, (again,) = append(Quiet("a", after), completion, 0)
        state, effects = occupied(in_flight("a", self.RUN, completion), self.NAMED)
        assert effects == [again]
        assert isinstance(state, InFlight) and state.job == after

    def test_a_start_is_appended_after_the_name(self) -> None:
        state, (create,) = occupied(in_flight("b", self.RUN, start_of("b starts")), self.NAMED)
        assert isinstance(create, Create) and (create.record.seq, create.record.generation) == (5, 2)
        assert isinstance(state, InFlight)


class TestCreatingTheJob:
    def test_the_first_record_holds_the_uuid(self) -> None:
        """P1"""
        state, effects = create_job(Quiet("a", None), CREATED, UUID, 0)
        assert effects == [Create(CREATION)]
        assert isinstance(state, InFlight)
        assert occupied(state, CREATION) == (
            Quiet("a", folded(CREATION)),
            [Appended(CREATION, folded(CREATION))],
        )

    def test_the_second_driver_adopts_the_job_of_the_first(self) -> None:
        state, _ = create_job(Quiet("b", None), CREATED, OTHER_UUID, 0)
        assert isinstance(state, InFlight)
        assert occupied(state, CREATION) == (
            Quiet("b", folded(CREATION)),
            [Appended(CREATION, folded(CREATION))],
        )


class TestAppend:
    def test_the_record_goes_to_the_next_number(self) -> None:
        state, effects = append(Quiet("a", RUN_BY_A), completion, 0)
        assert effects == [Create(EPOCH_OF_A)]
        assert state == InFlight("a", RUN_BY_A, EPOCH_OF_A, completion)

    def test_the_append_is_done_when_its_number_holds_our_record(self) -> None:
        """P4: the owner token identifies the record."""
        after = folded(CREATION, START_OF_A, EPOCH_OF_A)
        assert occupied(in_flight("a", RUN_BY_A, completion), EPOCH_OF_A) == (
            Quiet("a", after),
            [Appended(EPOCH_OF_A, after)],
        )

    def test_a_lost_reply_sends_the_same_record_to_the_same_number(self) -> None:
        """P4"""
        assert retry(in_flight("a", RUN_BY_A, completion)) == [Create(EPOCH_OF_A)]

    def test_a_start_carries_the_next_generation(self) -> None:
        assert append(Quiet("b", RUN_BY_A), start_of("b starts"), 0)[1] == [Create(START_OF_B)]

    def test_nothing_can_be_appended_to_a_finished_job(self) -> None:
        finished = folded(CREATION, START_OF_A, EPOCH_OF_A, record(4, 1, "a", Finished(Epoch(1)), EPOCH_OF_A))
        with pytest.raises(AssertionError):
            append(Quiet("b", finished), start_of("b starts"), 0)


class TestConflict:
    def test_a_start_is_rebuilt_on_a_record_that_an_older_driver_appended_first(self) -> None:
        """P5: the base is the fold of everything before the start, folded again."""
        after = folded(CREATION, START_OF_A, EPOCH_OF_A)
        starting = start_of("b starts")
        anew = record(4, 2, "b", GenerationStarted(Epoch(102), Epoch(1), "here", "b starts"), EPOCH_OF_A)
        assert occupied(in_flight("b", RUN_BY_A, starting), EPOCH_OF_A) == (
            InFlight("b", after, anew, starting),
            [Create(anew)],
        )

    def test_a_start_is_rebuilt_on_a_stop_that_was_appended_first(self) -> None:
        before = folded(CREATION, START_OF_A, EPOCH_OF_A)
        stop = record(4, 1, "a", Stopped(Epoch(1)), EPOCH_OF_A)
        state, effects = occupied(in_flight("b", before, start_of("b")), stop)
        assert isinstance(state, InFlight)
        assert effects == [Create(record(5, 2, "b", GenerationStarted(Epoch(102), Epoch(1), "here", "b"), stop))]

    def test_a_job_that_finished_just_before_is_not_started_again(self) -> None:
        """P13: a start after `Finished` would make the log permanently unreadable."""
        before = folded(CREATION, START_OF_A, EPOCH_OF_A)
        end = record(4, 1, "a", Finished(Epoch(1)), EPOCH_OF_A)
        after = fold(before, end)
        assert occupied(in_flight("b", before, start_of("b")), end) == (
            OvertakenDriver("b", after, Generation(2)),
            [Lost(after, Generation(2))],
        )

    def test_the_second_of_two_simultaneous_starts_loses(self) -> None:
        after = folded(CREATION, START_OF_A, START_OF_B)
        assert occupied(in_flight("c", RUN_BY_A, start_of("c starts")), START_OF_B) == (
            OvertakenDriver("c", after, Generation(2)),
            [Lost(after, Generation(2))],
        )

    def test_the_next_append_of_a_zombie_reports_that_it_was_overtaken(self) -> None:
        """P6"""
        after = folded(CREATION, START_OF_A, START_OF_B)
        assert occupied(in_flight("a", RUN_BY_A, completion), START_OF_B) == (
            OvertakenDriver("a", after, Generation(1)),
            [Lost(after, Generation(1))],
        )


@dataclass
class Driver:
    """One driver, the requests it has sent, and the replies under way to it."""

    owner: str
    state: Appender
    requests: list[Record] = field(default_factory=list)
    replies: list[Record] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    appended: list[Record] = field(default_factory=list)


class Drivers:
    """Several drivers over one log; the seed decides what happens next, replies are lost, creates are late."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[Record] = []
        self.drivers: list[Driver] = []
        self.numbers = 0

    def job(self) -> Job | None:
        return reduce(fold, self.log, None)

    def enter(self) -> None:
        """A driver starts and reads the current log."""
        owner = f"driver-{len(self.drivers)}"
        driver = Driver(owner, Quiet(owner, None))
        job = self.job()
        if job is None:
            uuid = JobUuid(owner)
            self.take(driver, *create_job(Quiet(owner, None), CREATED, uuid, 0))
        elif not job.finished:
            self.take(driver, *append(Quiet(owner, job), start_of(owner), 0))
        self.drivers.append(driver)

    def take(self, driver: Driver, state: Appender, effects: list[Effect]) -> None:
        driver.state = state
        for effect in effects:
            match effect:
                case Create(each):
                    driver.requests.append(each)
                case Appended(each, job):
                    assert job == reduce(fold, self.log[: each.seq], None)
                    driver.appended.append(each)
                    if isinstance(each.body, JobCreated):
                        assert isinstance(driver.state, Quiet)
                        self.take(driver, *append(driver.state, start_of(driver.owner), 0))
                case Lost():
                    driver.lost.append(effect)

    def write(self, driver: Driver, quiet: Quiet) -> None:
        """The driver appends a record: mostly an epoch, sometimes a recovery, rarely its end."""
        self.numbers += 1
        number, kind, skipped = self.numbers, self.random.random(), self.random.randrange(EPOCHS_GIVEN_UP_MAX)
        draft: Callable[[Job], Body]
        if kind < 0.6:
            draft = lambda job: completion(job, number, skipped)
        elif kind < 0.9:
            draft = start_of(f"recovery {number}")
        else:
            draft = lambda job: (Stopped if kind < 0.95 else Finished)(job.base_epoch)
        self.take(driver, *append(quiet, draft, 0))

    def execute(self, driver: Driver, each: Record, keep: bool) -> None:
        """A create reaches the store; `keep` repeats it later, as a retry below us may."""
        if not keep:
            driver.requests.remove(each)
        assert each.seq <= len(self.log) + 1, "a driver wrote past the end"
        if each.seq == len(self.log) + 1:
            self.log.append(each)
            self.job()  # every prefix of the log can be folded
        driver.replies.append(self.log[each.seq - 1])

    def reply(self, driver: Driver, found: Record) -> None:
        driver.replies.remove(found)
        if isinstance(driver.state, InFlight) and driver.state.record.seq == found.seq:
            self.take(driver, *occupied(driver.state, found))

    def choices(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for d in self.drivers:
            for r in d.requests:
                found.append(lambda d=d, r=r: self.execute(d, r, keep=self.random.random() < 0.2))  # type: ignore[misc]
            for r in d.replies:
                found.append(lambda d=d, r=r: self.reply(d, r))  # type: ignore[misc]
                found.append(lambda d=d, r=r: d.replies.remove(r))  # type: ignore[misc]
            match d.state:
                case InFlight() as flying if len(d.requests) < 3:
                    found.append(lambda d=d, s=flying: self.take(d, s, list(retry(s))))  # type: ignore[misc]
                case Quiet(_, job) as quiet if job is not None and job.ended is None:
                    found.append(lambda d=d, s=quiet: self.write(d, s))  # type: ignore[misc]
        return found

    def step(self) -> None:
        if len(self.drivers) < 3 and (not self.drivers or self.random.random() < 0.05):
            self.enter()
        elif choices := self.choices():
            self.random.choice(choices)()

    def settle(self) -> None:
        """Every message arrives, and every driver that can still append tries to."""
        for _ in range(10_000):
            waiting = [d for d in self.drivers if d.requests or d.replies]
            if not waiting:
                flying = [d for d in self.drivers if isinstance(d.state, InFlight)]
                for d in flying:
                    assert isinstance(d.state, InFlight)
                    self.take(d, d.state, list(retry(d.state)))
                if not flying:
                    return
            for d in waiting:
                for each in list(d.requests):
                    self.execute(d, each, keep=False)
                for each in list(d.replies):
                    self.reply(d, each)
        raise AssertionError("the drivers never came to rest")


class TestSeveralDrivers:
    @settings(max_examples=300, deadline=None)
    @given(st.integers(0, 2**32), st.integers(10, 120))
    def test_several_drivers_write_one_history(self, seed: int, steps: int) -> None:
        """P2, P4, P5, P6. That each prefix of the log folds is checked at every append."""
        world = Drivers(seed)
        for _ in range(steps):
            world.step()
        world.settle()
        for driver in world.drivers:  # overtaken drivers are notified at their next append
            if isinstance(driver.state, Quiet) and driver.state.job is not None and driver.state.job.ended is None:
                world.write(driver, driver.state)
        world.settle()
        job = world.job()
        assert job is not None

        # A record is in the log once, and every driver was notified of exactly its own.
        said = Counter(
            (r.owner, r.kind, getattr(r.body, "cause", None), getattr(r.body, "duration_ms", None))
            for r in world.log
            if isinstance(r.body, GenerationStarted | CheckpointCompleted)
        )
        assert all(count == 1 for count in said.values())
        for driver in world.drivers:
            own = [r for r in world.log if r.owner == driver.owner and not isinstance(r.body, JobCreated)]
            assert [r for r in driver.appended if not isinstance(r.body, JobCreated)] == own

        # Every driver but the owner of the newest generation was notified once, or had ended its run before.
        for driver in world.drivers:
            overtaken = isinstance(driver.state, OvertakenDriver)
            assert overtaken == (len(driver.lost) == 1)
            ended = isinstance(driver.state, Quiet) and (driver.state.job is None or driver.state.job.ended is not None)
            assert driver.owner == job.owner or overtaken or ended

        # Generations use distinct numbers.
        for earlier, later in zip(job.starts, job.starts[1:], strict=False):
            used = [c.body.epoch for c in job.completed if c.generation == earlier.generation]
            assert max(used, default=earlier.first_epoch - 1) + EPOCHS_GIVEN_UP_MAX < later.first_epoch
