from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Confirmed, Manifest, SubtaskPart
from holdfast.errors import ErrorReport
from holdfast.model import (
    EPOCHS_GIVEN_UP_MAX,
    Barrier,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.runtime.driver import master
from holdfast.runtime.driver.epochs import repeated
from holdfast.runtime.driver.events import (
    AppendUnknown,
    BaseLoaded,
    CreateRecord,
    Dismiss,
    Effect,
    End,
    EpochAsked,
    Launch,
    LaunchEnded,
    ListPartitions,
    LoadManifest,
    ManifestStored,
    Moment,
    RecordFound,
    Send,
    SourcesListed,
    Step,
    StoreManifest,
    StreamClosed,
    Tick,
)
from holdfast.runtime.driver.invariants import validate
from holdfast.runtime.driver.partitions import counts_of
from holdfast.runtime.driver.requests import stop
from holdfast.runtime.driver.state import Interrupted, Master, Over, Rules
from holdfast.runtime.wire import messages as m

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
DRIVER = "driver"
UUID = JobUuid("u" * 32)
OUT0 = Writer("out", Subtask(0))

RULES = Rules(
    name="job",
    job_uuid=UUID,
    host="here",
    key_groups=128,
    key_ranges=((0, 64), (64, 128)),
    partitions={"s": (0, 1, 2)},
    operators=(),
    checkpoint_every=10.0,
    silent_after=5.0,
    epoch_deadline=30.0,
    redeploy_every=10.0,
    restart_failures_max=3,
    restart_window=60.0,
    restart_backoff_first=0.5,
    restart_backoff_max=4.0,
)
"""Two subtasks. Three failures are forgiven within a minute."""


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 10, "0" * 64)


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def staged(name: str) -> Staged:
    return Staged((blob(name),), 1)


def report(what: str, kind: str = "unavailable") -> ErrorReport:
    return ErrorReport(kind=kind, what=what, not_done="nothing was done", next="see the cause")


class Run:
    """One driver: takes events, keeps the state, the log and the stored objects; returns the effects."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules, self.now = rules, 100.0
        self.lists = True
        """Listings of the sources are answered as they are asked for: nothing is new."""
        self.state: Master
        self.log: list[joblog.Record] = []
        self.manifests: list[Manifest] = []
        self.effects: list[Effect] = []

    def take(self, step: Step) -> list[Effect]:
        self.state, effects = step
        validate(self.state)
        if self.lists and (asked := [effect for effect in effects if isinstance(effect, ListPartitions)]):
            effects = [effect for effect in effects if effect not in asked]
            self.effects += effects
            return effects + self.answer(asked[0])
        self.effects += effects
        return effects

    def answer(self, asked: ListPartitions, *new: SourcePosition) -> list[Effect]:
        """The sources are listed: they have the known partitions and these."""
        known = (SourcePosition(source, p, 0) for source, partitions in asked.known.items() for p in partitions)
        return self.take(master.step(self.state, SourcesListed(asked.number, (*known, *new)), Moment(self.now)))

    def begin(self, owner: str = DRIVER) -> list[Effect]:
        job = reduce(joblog.fold, self.log, None)
        return self.take(master.begin(self.rules, owner, job, "started", 0))

    def append(self) -> list[Effect]:
        """The record in flight reaches the log, and its number is read."""
        record = next(e.record for e in reversed(self.effects) if isinstance(e, CreateRecord))
        if record.seq == len(self.log) + 1:
            self.log.append(record)
        return self.take(master.step(self.state, RecordFound(self.log[record.seq - 1]), Moment(self.now)))

    def load(self) -> list[Effect]:
        return self.take(master.step(self.state, BaseLoaded(self.manifests[-1]), Moment(self.now)))

    def store(self) -> list[Effect]:
        manifest = next(e.manifest for e in reversed(self.effects) if isinstance(e, StoreManifest))
        self.manifests.append(manifest)
        return self.take(
            master.step(self.state, ManifestStored(manifest, blob(f"manifests/{manifest.epoch}")), Moment(self.now))
        )

    def register(self, *workers: WorkerId) -> list[Effect]:
        effects = []
        for worker in workers:
            launch = min(self.state.launching, default=99)
            register = m.Register(worker, launch, "here", 1, "boot", ("here", ord(worker)))
            effects += self.take(master.step(self.state, register, Moment(self.now)))
        return effects

    def hear(self, message: m.FromWorker) -> list[Effect]:
        return self.take(master.step(self.state, message, Moment(self.now)))

    def ready(self, *workers: WorkerId) -> None:
        for worker in workers:
            self.hear(m.Ready(worker, self.generation, "empty", 1))

    def beat(self, worker: WorkerId, *, ended: bool = False, broken: bool = False, delivered: int = 0) -> None:
        done = (Confirmed(OUT0, tag(delivered)),) if delivered else ()
        self.hear(self.heartbeat(worker, ended, broken, done))

    def heartbeat(
        self, worker: WorkerId, ended: bool = False, broken: bool = False, done: tuple[Confirmed, ...] = (), **more: Any
    ) -> m.Heartbeat:
        """A heartbeat about every partition that the subtask has by now."""
        subtask = self.state.workers[worker].subtask
        reads = 0 if subtask is None else counts_of(self.state)[subtask]
        said = {"partitions": reads} | more
        return m.Heartbeat(worker, self.generation, ended, broken, done, m.Progress(), **said)

    def ack(self, worker: WorkerId, epoch: int, **fields: Any) -> list[Effect]:
        subtask = self.state.workers[worker].subtask
        assert subtask is not None
        known = {"positions": (), "segment": None, "staged": {}, "delivered": ()} | fields
        return self.hear(m.Ack(worker, self.generation, Epoch(epoch), SubtaskPart(subtask, **known)))

    def fail(self, worker: WorkerId, what: str, *, permanent: bool = False) -> list[Effect]:
        error = report(what)
        return self.hear(m.Failed(worker, self.generation, error, permanent))

    def lose(self, worker: WorkerId, why: str = "stream closed") -> list[Effect]:
        return self.take(master.step(self.state, StreamClosed(worker, why), Moment(self.now)))

    def end_launch(self, number: int, error: str | None = "no room") -> list[Effect]:
        return self.take(master.step(self.state, LaunchEnded(number, error), Moment(self.now)))

    def pass_time(self, seconds: float, *, alive: tuple[WorkerId, ...] = (A, B, C)) -> list[Effect]:
        """Time passes; the named workers send a heartbeat just before it is checked."""
        effects: list[Effect] = []
        end = self.now + seconds
        while True:
            self.now = min(end, self.now + 1.0)
            workers = {w: replace(h, seen=self.now) if w in alive else h for w, h in self.state.workers.items()}
            self.state = replace(self.state, workers=workers)
            before = self.state.listings
            effects += self.take(master.step(self.state, Tick(), Moment(self.now)))
            if self.lists and self.state.listings > before:
                effects += self.take(master.step(self.state, Tick(), Moment(self.now)))
            if self.now >= end:
                return effects

    @property
    def generation(self) -> Generation:
        return self.state.job.generation


def opened(rules: Rules = RULES) -> Run:
    """The first generation is in the log; no worker has come yet."""
    run = Run(rules)
    run.begin()
    run.append()
    run.append()
    return run


def running(rules: Rules = RULES) -> Run:
    """Both subtasks are ready."""
    run = opened(rules)
    run.pass_time(0.0)
    run.register(A, B)
    run.ready(A, B)
    return run


def acked(run: Run, epoch: int = 1, last: bool = False, **of_a: Any) -> list[Effect]:
    """The next epoch is triggered and both workers ack it."""
    if last:
        run.take(stop(run.state))
    run.pass_time(10.0)
    run.ack(A, epoch, **of_a)
    return run.ack(B, epoch)


def completed(run: Run, epoch: int = 1, **fields: Any) -> list[Effect]:
    acked(run, epoch, **fields)
    run.store()
    return run.append()


def replaced(run: Run, worker: WorkerId = C) -> None:
    """The recovery that is due runs to its end, with a worker that comes up."""
    run.pass_time(0.0)
    run.append()
    if run.manifests:
        run.load()
    run.register(worker)
    run.ready(*run.state.workers)


class TestConfirmedDelivery:
    def test_never_decreases(self) -> None:
        """An ack may carry less than a heartbeat that overtook it."""
        run = running()
        for epoch in (2, 1):
            run.beat(A, delivered=epoch)
            assert run.state.confirmed == {OUT0: tag(2)}


class TestMessagesOfAnOlderGeneration:
    """P2: its workers may have rolled back since; their earlier reports are invalid."""

    def test_are_ignored(self) -> None:
        run = running()
        older = run.generation
        run.lose(A)
        replaced(run)
        run.pass_time(10.0)
        assert run.generation > older
        before = run.state
        part = SubtaskPart(Subtask(0), (), None, {}, (Confirmed(OUT0, tag(7)),))
        for message in (
            m.Ack(B, older, before.job.first_epoch, part),
            m.Heartbeat(B, older, True, True, (Confirmed(OUT0, tag(7)),), m.Progress()),
            m.Ready(B, older, "empty", 1),
            m.Failed(B, older, report("a symptom"), False),
        ):
            assert run.hear(message) == []
            assert run.state == before


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect.message) if isinstance(effect, Send) else type(effect) for effect in effects]


class TestOpening:
    def test_a_new_job_is_created_and_then_started(self) -> None:
        """P1"""
        run = Run()
        (create,) = run.begin()
        assert isinstance(create, CreateRecord)
        assert (create.record.seq, create.record.body) == (1, joblog.JobCreated("job", 128))
        (start,) = run.append()
        assert isinstance(start, CreateRecord)
        assert start.record.body == joblog.GenerationStarted(Epoch(1), Epoch(0), "here", "started")

    def test_nothing_is_launched_or_deployed_before_the_start_is_in_the_log(self) -> None:
        run = Run()
        run.begin()
        run.append()
        run.register(A, B)
        assert not [e for e in run.effects if isinstance(e, Send)]
        assert kinds(run.append()) == [m.Deploy, m.Deploy]

    def test_an_append_with_an_unknown_outcome_is_repeated(self) -> None:
        """P4"""
        run = Run()
        (create,) = run.begin()
        assert master.step(run.state, AppendUnknown(), Moment(0.0)) == (run.state, [create])

    def test_an_answer_for_another_number_changes_nothing(self) -> None:
        run = opened()
        assert master.step(run.state, RecordFound(run.log[0]), Moment(0.0)) == (run.state, [])

    def test_a_job_with_a_checkpoint_waits_for_its_manifest(self) -> None:
        run = running()
        completed(run)
        run.begin("another")
        assert run.append() == [LoadManifest(blob("manifests/1"))]
        assert run.register(A, B) == []
        assert kinds(run.load()) == [m.Deploy, m.Deploy]


class TestTwoDrivers:
    def test_an_overtaken_driver_ends_and_dismisses_its_workers(self) -> None:
        """P6"""
        run, other = running(), Run()
        acked(run)
        run.store()
        other.log = run.log
        other.begin("other")
        other.append()
        assert run.append() == [End("fenced", master.taken_over(other.state.job))]
        assert run.state.phase == Over("fenced")

    def test_two_drivers_that_create_the_job_both_use_the_first_record(self) -> None:
        """P1"""
        first, second = Run(), Run(replace(RULES, job_uuid=JobUuid("v" * 32)))
        first.begin("first")
        second.begin("second")
        first.append()
        second.log = first.log
        second.append()
        assert second.state.job.uuid == UUID

    def test_a_driver_that_starts_while_the_job_finishes_has_nothing_to_run(self) -> None:
        """P13"""
        run, late = running(), Run()
        run.beat(A, ended=True)
        run.beat(B, ended=True)
        completed(run)
        run.pass_time(0.0)
        late.log = list(run.log)
        late.begin("late")
        run.append()
        late.log = run.log
        assert late.append() == [End("finished", None)]


class TestGathering:
    def test_as_many_workers_as_subtasks_are_launched(self) -> None:
        run = opened()
        assert run.effects[-2:] == [Launch(1), Launch(2)]
        assert run.pass_time(1.0) == []

    def test_each_deployment_contains_everything_its_worker_needs(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A)
        first, second = run.register(B)
        assert isinstance(first, Send) and isinstance(second, Send)
        peers = (m.Peer(Subtask(0), A, ("here", 97)), m.Peer(Subtask(1), B, ("here", 98)))
        handle = SnapshotHandle(Subtask(1), (64, 128), (), Epoch(0), ())
        assert isinstance(first.message, m.Deploy) and isinstance(second.message, m.Deploy)
        assert (first.worker, second.worker) == (A, B)
        reported = second.message
        assert (reported.job_uuid, reported.generation, reported.timeline) == (UUID, 1, 1)
        assert (reported.base_epoch, reported.first_epoch) == (0, 1)
        assert (reported.subtask, reported.peers, reported.handle) == (1, peers, handle)
        assert (reported.positions, reported.pending, reported.confirmed) == ((SourcePosition("s", 1, -1),), (), ())
        assert first.message.positions == (SourcePosition("s", 0, -1), SourcePosition("s", 2, -1))

    def test_a_worker_that_registers_twice_counts_once(self) -> None:
        run = opened()
        run.pass_time(0.0)
        assert run.register(A, A) == []

    def test_a_launch_that_fails_is_repeated(self) -> None:
        run = opened()
        run.pass_time(0.0)
        assert run.end_launch(1) == []
        assert run.pass_time(0.0) == [Launch(3)]

    def test_a_replacement_that_is_lost_is_replaced(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A)
        assert run.lose(A) == [Dismiss(A, 1)]
        assert run.pass_time(0.0) == [Launch(3)]
        assert run.lose(A) == []

    def test_a_subtask_that_does_not_answer_is_deployed_again(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A, B)
        run.ready(A)
        assert run.pass_time(9.0) == []
        (again,) = run.pass_time(2.0)
        assert isinstance(again, Send) and again.worker == B and isinstance(again.message, m.Deploy)
        assert run.pass_time(1.0) == []


class TestQuiet:
    """No epoch without new records, unless one was given up (docs/design/0025)."""

    def quiet(self, run: Run, worker: WorkerId, epoch: int) -> list[Effect]:
        beat = run.heartbeat(worker, quiet=Epoch(epoch))
        return run.hear(beat)

    def idle(self) -> Run:
        run = running()
        completed(run)
        self.quiet(run, A, 1)
        self.quiet(run, B, 1)
        return run

    def test_no_epoch_is_closed_while_every_subtask_is_quiet(self) -> None:
        assert self.idle().pass_time(1_000.0) == []

    def test_one_subtask_with_new_records_closes_an_epoch(self) -> None:
        run = self.idle()
        run.pass_time(100.0)
        self.quiet(run, B, 0)
        assert kinds(run.pass_time(0.0)) == [m.Trigger, m.Trigger]

    def test_reports_about_an_older_epoch_do_not_count(self) -> None:
        run = self.idle()
        self.quiet(run, A, 0)
        run.pass_time(10.0)
        assert kinds(run.effects[-2:]) == [m.Trigger, m.Trigger]
        run.ack(A, 2)
        run.ack(B, 2)
        run.store()
        run.append()
        assert kinds(run.pass_time(10.0)) == [m.Trigger, m.Trigger]

    def test_an_epoch_that_was_given_up_is_followed_by_another(self) -> None:
        """P8"""
        run = self.idle()
        self.quiet(run, A, 0)
        run.pass_time(10.0)
        self.quiet(run, A, 2)
        self.quiet(run, B, 2)
        run.ack(A, 2)
        assert kinds(run.pass_time(32.0)) == [m.Trigger, m.Trigger]
        assert run.state.given_up == 1

    def test_a_generation_closes_its_first_epoch_whatever_was_reported_before(self) -> None:
        run = self.idle()
        run.beat(A, broken=True)
        self.quiet(run, A, 1)
        run.pass_time(2.0)
        run.append()
        run.load()
        run.ready(A, B)
        assert kinds(run.pass_time(10.0)) == [m.Trigger, m.Trigger]

    def test_a_stop_closes_an_epoch(self) -> None:
        run = self.idle()
        run.take(stop(run.state))
        assert kinds(run.pass_time(0.0)) == [m.Trigger, m.Trigger]

    def test_a_requested_epoch_is_closed_when_due_and_only_once(self) -> None:
        run = self.idle()
        run.state = master.step(run.state, EpochAsked(), Moment(0.0))[0]
        assert kinds(run.pass_time(10.0)) == [m.Trigger, m.Trigger]
        run.ack(A, 2)
        run.ack(B, 2)
        run.store()
        run.append()
        self.quiet(run, A, 2)
        self.quiet(run, B, 2)
        assert run.pass_time(100.0) == []

    def test_the_commit_is_repeated_as_no_barrier_announces_it(self) -> None:
        """P9"""
        run = self.idle()
        committed = m.Committed(Generation(1), Epoch(1), blob("").sha256)
        assert {Send(A, committed), Send(B, committed)} <= set(repeated(run.state))
        self.quiet(run, A, 0)
        assert Send(B, committed) not in repeated(run.state)


class TestEpochs:
    def test_no_epoch_is_triggered_before_every_subtask_is_ready(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A, B)
        run.ready(A)
        assert Send(A, m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), False))) not in run.pass_time(30.0)

    def test_an_epoch_is_triggered_when_it_is_due(self) -> None:
        run = running()
        assert run.pass_time(9.0) == []
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), False))
        assert run.pass_time(1.0) == [Send(A, trigger), Send(B, trigger)]

    def test_one_is_triggered_early_once_a_worker_wants_a_barrier(self) -> None:
        run = running()
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), False))
        run.hear(run.heartbeat(B, wants_barrier=True))
        assert run.pass_time(0.1) == [Send(A, trigger), Send(B, trigger)]
        run.hear(run.heartbeat(B, wants_barrier=True))  # sent before the barrier took the changes
        for worker in (A, B):
            run.ack(worker, 1)
        run.store()
        run.append()
        assert run.pass_time(0.1) == []
        run.hear(run.heartbeat(B, wants_barrier=True))
        assert [type(effect) for effect in run.pass_time(0.1)] == [Send, Send]

    def test_the_manifest_is_stored_before_its_record_is_appended(self) -> None:
        run = running()
        (store,) = acked(run, staged={"out": staged("x")}, positions=(SourcePosition("s", 0, 7),))
        assert isinstance(store, StoreManifest)
        assert (store.manifest.epoch, store.manifest.follows) == (1, 0)
        assert store.manifest.positions == (SourcePosition("s", 0, 7, subtask=Subtask(0)),)
        assert store.manifest.pending == (Pending(OUT0, tag(1), staged("x")),)
        (create,) = run.store()
        assert isinstance(create, CreateRecord)
        assert create.record.body == joblog.CheckpointCompleted(Epoch(1), Epoch(0), blob("manifests/1"), 0, 0, 0)

    def test_every_worker_is_notified_when_an_epoch_completes(self) -> None:
        run = running()
        committed = m.Committed(Generation(1), Epoch(1), blob("").sha256)
        assert completed(run) == [Send(A, committed), Send(B, committed)]

    def test_an_epoch_that_misses_its_deadline_is_given_up(self) -> None:
        """P8"""
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        assert run.pass_time(31.0) == []
        trigger = m.Trigger(Generation(1), Barrier(Epoch(2), Epoch(0), False))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]
        assert run.ack(B, 1) == []

    def test_an_epoch_whose_append_is_in_flight_is_never_given_up(self) -> None:
        """P4"""
        run = running()
        acked(run)
        run.store()
        assert run.pass_time(1_000.0) == []
        assert kinds(run.append()) == [m.Committed, m.Committed]

    def test_too_many_consecutive_epochs_given_up_force_a_recovery(self) -> None:
        """P2"""
        run = running()
        starts: list[CreateRecord] = []
        for _ in range(50 * EPOCHS_GIVEN_UP_MAX):
            starts += [effect for effect in run.pass_time(1.0) if isinstance(effect, CreateRecord)]
            if starts:
                break
        (start,) = starts
        assert run.state.given_up == EPOCHS_GIVEN_UP_MAX
        assert isinstance(start.record.body, joblog.GenerationStarted)
        assert start.record.body.first_epoch == 1 + EPOCHS_GIVEN_UP_MAX
        assert start.record.body.cause == "100 epochs in a row were not completed"

    def test_an_ack_of_an_older_generation_changes_nothing(self) -> None:
        """P2"""
        run = running()
        run.lose(B)
        replaced(run)
        run.pass_time(10.0)
        stale = m.Ack(A, Generation(1), Epoch(101), SubtaskPart(Subtask(0), (), None, {}, ()))
        assert run.hear(stale) == []
        run.ack(C, 101)
        assert run.manifests == []

    def test_delivered_output_is_no_longer_pending(self) -> None:
        """P18"""
        run = running()
        completed(run, staged={"out": staged("x")})
        run.beat(A, delivered=1)
        (store,) = acked(run, 2)
        assert isinstance(store, StoreManifest)
        assert store.manifest.pending == ()
        assert store.manifest.confirmed == (Confirmed(OUT0, tag(1)),)

    def test_segments_and_sizes_add_up(self) -> None:
        run = running()
        one = SegmentRef(Epoch(1), Epoch(0), blob("segments/1"))
        completed(run, segment=one)
        (store,) = acked(run, 2, segment=SegmentRef(Epoch(2), Epoch(1), blob("segments/2")))
        assert isinstance(store, StoreManifest)
        (create,) = run.store()
        assert isinstance(create, CreateRecord) and isinstance(create.record.body, joblog.CheckpointCompleted)
        assert (create.record.body.bytes_new, create.record.body.bytes_total) == (10, 20)


class TestRecovery:
    def test_a_lost_worker_starts_a_generation_and_a_launch(self) -> None:
        run = running()
        assert run.lose(B, "stream closed") == [Dismiss(B, 2)]
        start, launch = run.pass_time(0.0)
        assert isinstance(start, CreateRecord)
        assert start.record.body == joblog.GenerationStarted(Epoch(101), Epoch(0), "here", "stream closed")
        assert launch == Launch(3)

    def test_survivors_keep_their_subtask_and_are_given_the_base(self) -> None:
        """P10: even for a survivor that does not know yet that the base is completed."""
        run = running()
        completed(run)
        run.lose(A)
        replaced(run)
        reported = [e for e in run.effects if isinstance(e, Send) and isinstance(e.message, m.Deploy)][-2:]
        assert [
            (e.worker, e.message.subtask, e.message.base_epoch, e.message.first_epoch)
            for e in reported
            if isinstance(e.message, m.Deploy)
        ] == [(B, 1, 1, 102), (C, 0, 1, 102)]

    def test_unconfirmed_output_is_handed_to_the_next_worker_of_its_writer(self) -> None:
        """P18"""
        run = running()
        completed(run, staged={"out": staged("x")})
        run.lose(A)
        replaced(run)
        deploys = {e.worker: e.message for e in run.effects if isinstance(e, Send) and isinstance(e.message, m.Deploy)}
        assert deploys[C].pending == (Pending(OUT0, tag(1), staged("x")),)
        assert deploys[B].pending == ()

    def test_an_append_in_flight_is_settled_first(self) -> None:
        """P4: its epoch becomes the base."""
        run = running()
        acked(run)
        run.store()
        run.lose(B)
        assert kinds(run.pass_time(0.0)) == [Launch]
        assert run.append() == [Send(A, m.Committed(Generation(1), Epoch(1), blob("").sha256))]
        (start,) = run.pass_time(0.0)
        assert isinstance(start, CreateRecord)
        assert start.record.body == joblog.GenerationStarted(Epoch(102), Epoch(1), "here", "stream closed")

    def test_an_epoch_whose_record_was_not_sent_is_forgotten(self) -> None:
        run = running()
        acked(run)
        run.lose(B)
        assert run.store() == []
        start, _ = run.pass_time(0.0)
        assert isinstance(start, CreateRecord) and isinstance(start.record.body, joblog.GenerationStarted)
        assert start.record.body.base_epoch == 0

    def test_a_manifest_stored_for_an_older_generation_is_not_appended(self) -> None:
        run = running()
        acked(run)
        run.lose(B)
        replaced(run)
        assert run.store() == []

    def test_several_workers_lost_together_are_one_recovery(self) -> None:
        run = running()
        run.lose(A, "first")
        run.lose(B, "second")
        assert kinds(run.pass_time(0.0)) == [CreateRecord, Launch, Launch]
        assert run.append() == []

    def test_a_worker_lost_while_the_start_is_appended_is_replaced_in_that_generation(self) -> None:
        run = running()
        run.lose(A)
        run.pass_time(0.0)
        assert run.lose(B) == [Dismiss(B, 2)]
        assert run.append() == [Launch(4)]
        assert run.generation == 2
        assert kinds(run.register(C, A)) == [m.Deploy, m.Deploy]

    def test_a_silent_worker_is_lost(self) -> None:
        run = running()
        assert run.pass_time(5.0, alive=(A,)) == []
        effects = run.pass_time(1.0, alive=(A,))
        assert kinds(effects) == [Dismiss, CreateRecord, Launch]
        assert not isinstance(run.state.phase, Interrupted)

    def test_messages_of_a_zombie_are_ignored(self) -> None:
        """P2"""
        run = running()
        run.lose(B)
        before = run.state
        assert run.hear(m.Ready(B, Generation(1), "empty", 1)) == []
        assert run.state == before

    def test_a_spare_worker_takes_over_without_a_launch(self) -> None:
        run = running()
        run.register(C)
        run.lose(B)
        assert kinds(run.pass_time(0.0)) == [CreateRecord]
        assert kinds(run.append()) == [m.Deploy, m.Deploy]

    def test_a_broken_channel_between_live_workers_waits_for_its_cause(self) -> None:
        run = running()
        run.beat(A, broken=True)
        assert run.pass_time(0.9) == []
        (start,) = run.pass_time(0.2)
        assert isinstance(start, CreateRecord) and isinstance(start.record.body, joblog.GenerationStarted)
        assert start.record.body.cause == "a data channel broke between live workers"

    def test_repeated_reports_of_a_broken_channel_do_not_extend_the_wait(self) -> None:
        run = running()
        for _ in range(3):
            run.beat(A, broken=True)
            assert run.pass_time(0.3) == []
        run.beat(A, broken=True)
        assert kinds(run.pass_time(0.3)) == [CreateRecord]

    def test_a_recovery_is_over_when_every_subtask_is_ready(self) -> None:
        run = running()
        run.lose(B, "stream closed")
        run.now += 2.0
        replaced(run)
        (restart,) = run.state.restarts
        assert (restart.at, restart.cause, restart.generation, restart.ready_after) == (100.0, "stream closed", 2, 2.0)
        assert run.state.recovering_since is None

    def test_losing_a_spare_worker_causes_no_recovery(self) -> None:
        run = running()
        run.register(C)
        assert run.lose(C) == [Dismiss(C, 99)]
        assert run.pass_time(0.0) == []


class TestRestartLimit:
    """A job that cannot run ends with the first cause, not with the last symptom."""

    def test_the_first_cause_is_reported(self) -> None:
        run = running()
        run.fail(A, "disk full")
        for number in (3, 4):
            run.pass_time(10.0)
            run.end_launch(number, "no room")
        run.pass_time(10.0)
        assert not any(isinstance(e, End) for e in run.effects)
        assert run.end_launch(5, "no room")[-1] == End("failed", report("disk full"))

    def test_the_end_of_an_unknown_launch_is_not_counted(self) -> None:
        run = running()
        for number in range(50, 60):
            assert run.end_launch(number) == []

    def test_failures_are_forgiven_after_a_while(self) -> None:
        run = opened()
        for _ in range(10):
            run.pass_time(21.0)
            for number in list(run.state.launching)[:1]:
                run.end_launch(number)
        assert not any(isinstance(e, End) for e in run.effects)

    def test_live_workers_are_dismissed(self) -> None:
        run = running()
        for _ in range(3):
            run.lose(B)
            run.register(B)
        effects = run.lose(B)
        assert effects[1:] == [Send(A, m.Exit("failed")), run.effects[-1]]
        assert isinstance(run.effects[-1], End)

    def test_the_wait_before_a_launch_doubles_until_an_epoch_completes(self) -> None:
        run = opened(replace(RULES, restart_failures_max=100, key_ranges=((0, 128),)))
        run.pass_time(0.0)
        waits = []
        for number in range(1, 7):
            run.end_launch(number)
            before = run.now
            while not any(isinstance(e, Launch) for e in run.pass_time(0.25)):
                pass
            waits.append(run.now - before)
        assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]

    def test_a_permanent_failure_ends_the_job_immediately(self) -> None:
        run = running()
        effects = run.fail(B, "column 'x' does not exist", permanent=True)
        error = report("column 'x' does not exist")
        assert effects == [Send(A, m.Exit("failed")), Send(B, m.Exit("failed")), End("failed", error)]

    def test_a_permanent_failure_ends_the_job_even_during_a_recovery(self) -> None:
        """The worker reports it once; a sink that failed permanently stays stopped over recoveries."""
        run = running()
        run.lose(A)
        assert isinstance(run.fail(B, "target emptied", permanent=True)[-1], End)

    def test_a_forgiven_failure_is_not_the_first_cause(self) -> None:
        run = opened(replace(RULES, restart_failures_max=2, key_ranges=((0, 128),)))
        run.pass_time(0.0)
        for seconds, number, error in ((0.0, 1, "old"), (50.0, 2, "first"), (50.0, 3, "second"), (5.0, 4, "third")):
            run.pass_time(seconds)
            run.end_launch(number, error)
        end = run.effects[-1]
        assert isinstance(end, End) and end.error is not None
        assert end.error.what == "a worker could not be started: first"

    def test_channels_that_break_repeatedly_end_the_job(self) -> None:
        run = running()
        for _ in range(4):
            run.beat(A, broken=True)
            run.pass_time(1.5)
            run.append()
            run.ready(A, B)
        assert isinstance(run.effects[-1], End)

    def test_the_wait_after_a_broken_channel_grows_until_an_epoch_completes(self) -> None:
        rules = replace(RULES, restart_failures_max=100, restart_backoff_first=0.5, restart_backoff_max=4.0)
        run, waits = running(rules), []
        for _ in range(8):
            run.beat(A, broken=True)
            waits.append(1)
            while not any(isinstance(effect, CreateRecord) for effect in run.pass_time(1.1)):
                waits[-1] += 1
            run.append()
            run.ready(A, B)
        assert waits == [1, 1, 1, 1, 2, 4, 4, 4]

    def test_a_cause_that_spark_reports_after_the_stream_closed_is_used(self) -> None:
        run = running(replace(RULES, restart_failures_max=1))
        run.lose(A, "worker a closed its stream")
        run.end_launch(1, "MemoryError: cannot allocate")
        run.pass_time(0.0)
        end = run.end_launch(3)[-1]
        assert isinstance(end, End) and end.error is not None
        assert "MemoryError" in end.error.what

    def test_the_run_ends_once(self) -> None:
        run = running(replace(RULES, restart_failures_max=0))
        assert len([e for e in run.pass_time(6.0, alive=()) if isinstance(e, End)]) == 1

    def test_a_run_that_has_ended_does_not_restart(self) -> None:
        """The start of a generation was in flight when the limit was reached."""
        run = running(replace(RULES, restart_failures_max=1))
        run.lose(A)
        run.pass_time(0.0)
        run.end_launch(3)
        assert run.append() == []
        assert isinstance(run.state.phase, Over)


class TestEnd:
    def stopped(self) -> Run:
        """The last epoch is completed; its output is not delivered yet."""
        run = running()
        completed(run, last=True, staged={"out": staged("x")})
        return run

    def test_a_stop_immediately_closes_a_last_epoch(self) -> None:
        """P13"""
        run = running()
        assert run.take(stop(run.state)) == []
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), True))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]

    def test_an_open_epoch_is_completed_before_the_last_one(self) -> None:
        run = running()
        run.pass_time(10.0)
        run.take(stop(run.state))
        assert run.pass_time(0.0) == []
        for worker in (A, B):
            run.ack(worker, 1)
        run.store()
        run.append()
        trigger = m.Trigger(Generation(1), Barrier(Epoch(2), Epoch(1), True))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]

    def test_a_last_epoch_that_is_given_up_is_followed_by_another_last_epoch(self) -> None:
        run = running()
        run.take(stop(run.state))
        run.pass_time(0.0)
        run.pass_time(31.0)
        trigger = m.Trigger(Generation(1), Barrier(Epoch(2), Epoch(0), True))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]

    def test_the_commit_is_repeated_while_the_sink_is_unreachable(self) -> None:
        """P9: no barrier follows that could announce it."""
        run = self.stopped()
        assert run.pass_time(1_000.0) == []
        committed = m.Committed(Generation(1), Epoch(1), blob("").sha256)
        assert repeated(run.state) == [
            Send(A, m.Pulse()),
            Send(B, m.Pulse()),
            Send(A, committed),
            Send(B, committed),
        ]

    def test_the_end_is_appended_when_everything_is_delivered(self) -> None:
        run = self.stopped()
        run.state = replace(run.state, confirmed={OUT0: tag(0)})
        assert run.pass_time(0.0) == [], "the epoch before the last one is not the last one"
        run.beat(A, delivered=1)
        (create,) = run.pass_time(0.0)
        assert isinstance(create, CreateRecord)
        assert create.record.body == joblog.Stopped(Epoch(1))
        assert run.append() == [Send(A, m.Exit("stopped")), Send(B, m.Exit("stopped")), End("stopped", None)]

    def test_a_job_finishes_when_the_input_of_every_subtask_has_ended(self) -> None:
        run = running()
        run.beat(A, ended=True)
        assert run.pass_time(0.0) == []
        run.beat(B, ended=True)
        trigger = m.Trigger(Generation(1), Barrier(Epoch(1), Epoch(0), True), finishing=True)
        assert run.pass_time(0.0) == [Send(A, trigger), Send(B, trigger)]
        run.ack(A, 1)
        run.ack(B, 1)
        run.store()
        run.append()
        (create,) = run.pass_time(0.0)
        assert isinstance(create, CreateRecord) and create.record.body == joblog.Finished(Epoch(1))
        assert run.append()[-1] == End("finished", None)

    def test_a_worker_lost_before_the_delivery_causes_another_last_epoch(self) -> None:
        run = self.stopped()
        run.lose(A)
        replaced(run)
        trigger = m.Trigger(Generation(2), Barrier(Epoch(102), Epoch(1), True))
        assert run.pass_time(0.0) == [Send(B, trigger), Send(C, trigger)]

    def test_a_worker_lost_while_the_end_is_appended_changes_nothing(self) -> None:
        run = self.stopped()
        run.beat(A, delivered=1)
        run.pass_time(0.0)
        run.lose(A)
        assert run.append()[-1] == End("stopped", None)

    def test_a_stop_while_recovering_waits_for_the_subtasks(self) -> None:
        run = running()
        run.lose(B)
        run.take(stop(run.state))
        replaced(run)
        trigger = m.Trigger(Generation(2), Barrier(Epoch(101), Epoch(0), True))
        assert run.pass_time(0.0) == [Send(A, trigger), Send(C, trigger)]

    def test_a_worker_that_registers_after_the_end_is_dismissed(self) -> None:
        run = self.stopped()
        run.beat(A, delivered=1)
        run.pass_time(0.0)
        run.append()
        assert run.register(C) == [Send(C, m.Exit("the run is over"))]
        assert run.lose(A) == []
        assert run.pass_time(100.0) == []

    def test_a_stopped_job_restarts_from_its_last_epoch(self) -> None:
        run = self.stopped()
        run.beat(A, delivered=1)
        run.pass_time(0.0)
        run.append()
        (start,) = run.begin("next")
        assert isinstance(start, CreateRecord)
        assert start.record.body == joblog.GenerationStarted(Epoch(102), Epoch(1), "here", "started")


class TestRescale:
    """P20: new writers deliver nothing before all output of older writers is delivered."""

    def narrower(self) -> Run:
        """A driver with one subtask takes over a job of two; output of subtask 1 is not delivered."""
        run = running()
        run.pass_time(10.0)
        run.ack(A, 1)
        run.ack(B, 1, staged={"out": staged("y")})
        run.store()
        run.append()
        run.rules = replace(RULES, key_ranges=((0, 128),))
        run.begin("next")
        run.append()
        run.load()
        return run

    def test_output_of_a_removed_writer_is_handed_over_under_its_own_tag(self) -> None:
        run = self.narrower()
        (reported,) = run.register(A)
        assert isinstance(reported, Send) and isinstance(reported.message, m.Deploy)
        assert reported.message.pending == (Pending(Writer("out", Subtask(1)), tag(1), staged("y")),)
        assert reported.message.handle.key_groups == (0, 128)

    def test_no_epoch_is_triggered_before_that_output_is_delivered(self) -> None:
        run = self.narrower()
        run.register(A)
        run.ready(A)
        assert run.pass_time(100.0) == []
        done = (Confirmed(Writer("out", Subtask(1)), tag(1)),)
        run.hear(m.Heartbeat(A, run.generation, False, False, done, m.Progress()))
        assert kinds(run.pass_time(0.0)) == [m.Trigger]

    def test_the_confirmed_tag_of_a_removed_writer_is_handed_over_too(self) -> None:
        """P24: its target may have been restored from a backup."""
        run = self.narrower()
        run.state = replace(run.state, confirmed={Writer("out", Subtask(1)): tag(1)})
        (reported,) = run.register(A)
        assert isinstance(reported, Send) and isinstance(reported.message, m.Deploy)
        assert reported.message.confirmed == (Confirmed(Writer("out", Subtask(1)), tag(1)),)
