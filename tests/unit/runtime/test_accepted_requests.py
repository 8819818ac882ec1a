"""What a master has accepted is carried out, or it is answered as refused when the run ends.

Every kind of request, asked at every moment of a run, with every way that a run can end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from master_runs import RULES, A, Run, acked, completed, report, running

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.catalogue import Retention
from holdfast.model import Epoch, Generation, Subtask, Timeline, WorkerId, Writer
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import ManifestLoaded, Moment, RecordFound, TargetsRepaired
from holdfast.runtime.driver.failover import end
from holdfast.runtime.driver.requests import RequestAnswer, carry_out, left_undone, stop
from holdfast.runtime.driver.state import (
    Deployed,
    Finishing,
    Loading,
    Over,
    Repairing,
    RewindWanted,
)
from holdfast.runtime.wire import messages as m

FINISHED, STOPPED, ENDED, FENCED, FAILED = "finished", "stopped", "ended", "fenced", "failed"
ROUNDS_MAX = 60
GOES_BACK = "the job is rewinding and will stop there; rewind it when it has stopped"


def ask(run: Run, kind: str, args: Mapping[str, Any], first: int = 1) -> RequestAnswer | None:
    """Ask for the generation that the log shows, as commands do."""
    generation = run.state.log.job.generation if run.state.log.job is not None else Generation(0)
    state, effects, answer = carry_out(run.state, kind, args, generation, Generation(first))
    run.take((state, effects))
    return answer


def outcome(run: Run) -> str | None:
    return run.state.phase.outcome if isinstance(run.state.phase, Over) else None


def live(run: Run, *, ended: bool = False) -> None:
    """Everything that the master waits for happens, until the run is over."""
    for _ in range(ROUNDS_MAX):
        if outcome(run) is not None:
            return
        one_round(run, ended)


def one_round(run: Run, ended: bool) -> None:
    if isinstance(run.state.log, append.InFlight):
        run.append()
    gather(run)
    for number in sorted(run.state.launching):
        worker = WorkerId(chr(ord("d") + number))
        register = m.Register(worker, number, "here", 1, "boot", ("here", number))
        run.hear(register)
    for worker, hosted in list(run.state.workers.items()):
        if hosted.subtask is not None and not hosted.ready:
            run.ready(worker)
    close(run)
    finish = ended or isinstance(run.state.ending, Finishing)
    for worker in list(run.state.workers):
        if worker in run.state.workers:
            run.beat(worker, ended=finish)
    run.pass_time(1.0, alive=tuple(run.state.workers))


def gather(run: Run) -> None:
    phase = run.state.phase
    if isinstance(phase, Loading):
        base = next(each for each in run.manifests if each.epoch == run.state.job.base_epoch)
        run.take(master.step(run.state, ManifestLoaded(base), Moment(run.now)))
    if isinstance(run.state.phase, Repairing):
        event = TargetsRepaired(run.generation, frozenset({Writer("out", Subtask(0))}))
        run.take(master.step(run.state, event, Moment(run.now)))


def close(run: Run) -> None:
    """Ack the open epoch, and store its manifest."""
    phase = run.state.phase
    if isinstance(phase, Deployed) and isinstance(phase.epochs, coordinator.Collecting):
        for worker, hosted in list(run.state.workers.items()):
            if hosted.subtask is not None:
                run.ack(worker, phase.epochs.barrier.epoch)
    phase = run.state.phase
    deciding = isinstance(phase, Deployed) and isinstance(phase.epochs, coordinator.Deciding)
    if deciding and isinstance(run.state.log, append.Quiet):
        run.store()


def foreign(run: Run, body: joblog.Body, *, newer: bool = False) -> None:
    """Another process appends this before the record in flight; `newer`: it starts its own generation."""
    job = reduce(joblog.fold, run.log, None)
    assert job is not None
    generation = Generation(job.generation + newer)
    timeline = Timeline(job.timeline + isinstance(body, joblog.Rewound))
    owner = "another" if newer else job.owner
    run.log.append(joblog.Record(job.next_seq, job.uuid, generation, timeline, owner, 0, body))


def fence(run: Run) -> None:
    job = reduce(joblog.fold, run.log, None)
    if job is not None:
        foreign(run, joblog.GenerationStarted(joblog.next_first_epoch(job), job.base_epoch, "there", "x"), newer=True)


# Moments at which a request comes; before each, epochs 1 and 2 are completed


def idle() -> Run:
    run = running()
    completed(run)
    completed(run, 2)
    return run


def collecting() -> Run:
    run = idle()
    run.pass_time(10.0)
    run.ack(A, 3)
    return run


def storing() -> Run:
    run = idle()
    acked(run, 3)
    return run


def appending() -> Run:
    run = storing()
    run.store()
    return run


def expiring() -> Run:
    """The record that lets epoch 1 expire is in flight."""
    run = idle()
    run.state = replace(run.state, rules=replace(run.state.rules, retention=Retention(1, 0, 100)))
    run.pass_time(0.0)
    assert isinstance(run.state.log, append.InFlight) and isinstance(run.state.log.record.body, joblog.Expired)
    return run


def starting_again() -> Run:
    """Another run: its start is in flight."""
    run = idle()
    run.begin("next")
    return run


def gathering() -> Run:
    run = starting_again()
    run.append()
    return run


def recovering() -> Run:
    """A worker is lost while a checkpoint is appended."""
    run = appending()
    run.lose(A)
    return run


def recovery_appended() -> Run:
    run = recovering()
    run.append()
    run.pass_time(0.0)
    return run


def last_barrier() -> Run:
    run = idle()
    run.take(stop(run.state))
    run.pass_time(0.0)
    return run


def last_delivery() -> Run:
    run = last_barrier()
    close(run)
    run.append()
    return run


def stopped_appended() -> Run:
    run = last_delivery()
    run.pass_time(0.0)
    assert isinstance(run.state.log, append.InFlight) and isinstance(run.state.log.record.body, joblog.Stopped)
    return run


def finished_appended() -> Run:
    run = idle()
    for worker in list(run.state.workers):
        run.beat(worker, ended=True)
    run.pass_time(0.0)
    close(run)
    run.append()
    run.pass_time(0.0)
    assert isinstance(run.state.log, append.InFlight) and isinstance(run.state.log.record.body, joblog.Finished)
    return run


def going_back(stop: bool) -> Run:
    """`Rewound` is in flight."""
    run = idle()
    ask(run, "rewind", {"epoch": 1, "timeline": 1, "stop": stop})
    run.pass_time(0.0)
    assert isinstance(run.state.log, append.InFlight) and isinstance(run.state.log.record.body, joblog.Rewound)
    return run


def going_back_to_stop() -> Run:
    return going_back(True)


def going_back_to_go_on() -> Run:
    return going_back(False)


def repairing_to_stop() -> Run:
    run = going_back(True)
    run.append()
    return run


def gone_back_and_stopping() -> Run:
    """The targets are repaired, and the record that ends the run is in flight."""
    run = repairing_to_stop()
    gather(run)
    run.pass_time(0.0)
    assert isinstance(run.state.log, append.InFlight) and isinstance(run.state.log.record.body, joblog.Stopped)
    return run


def rewinding_a_stopped_job() -> Run:
    """A driver without workers is about to end."""
    run = idle()
    ask(run, "stop", {"how": "now"})
    job = reduce(joblog.fold, run.log, None)
    assert job is not None
    run.take(master.begin_rewind(run.rules, "rewinder", job, RewindWanted(Epoch(1), True), 0))
    run.append()
    gather(run)
    run.pass_time(0.0)
    assert isinstance(run.state.log, append.InFlight) and isinstance(run.state.log.record.body, joblog.Stopped)
    return run


MOMENTS: tuple[Callable[[], Run], ...] = (
    idle,
    collecting,
    storing,
    appending,
    expiring,
    starting_again,
    gathering,
    recovering,
    recovery_appended,
    last_barrier,
    last_delivery,
    stopped_appended,
    finished_appended,
    going_back_to_stop,
    going_back_to_go_on,
    repairing_to_stop,
    gone_back_and_stopping,
    rewinding_a_stopped_job,
)


def requests_at(run: Run) -> dict[str, tuple[str, dict[str, Any]]]:
    timeline = 1 if run.state.log.job is None else run.state.log.job.timeline
    return {
        "savepoint": ("savepoint", {"name": "v1"}),
        "rewind": ("rewind", {"epoch": 1, "timeline": timeline}),
        "rewind to the last": ("rewind", {"epoch": 2, "timeline": timeline}),
        "rewind --stop": ("rewind", {"epoch": 1, "timeline": timeline, "stop": True}),
        "stop": ("stop", {}),
        "stop --finish": ("stop", {"how": "finish"}),
        "stop --now": ("stop", {"how": "now"}),
    }


KINDS = tuple(requests_at(idle()))
BEFORE = ("savepoint", "rewind", "rewind --stop", "stop", "stop --finish")
"""What may be waiting when another request comes."""


# Ways to end


def finishes(run: Run) -> None:
    live(run, ended=True)


def stops(run: Run) -> None:
    if outcome(run) is None:
        run.take(stop(run.state))
    live(run)


def ends_now(run: Run) -> None:
    if outcome(run) is None:
        run.take(end(run.state, ENDED, None))


def fails(run: Run) -> None:
    if outcome(run) is None:
        run.take(end(run.state, FAILED, report("broken", "failed")))


def is_fenced(run: Run) -> None:
    if outcome(run) is None:
        fence(run)
        run.take(stop(run.state))
    live(run)


def recovers_and_stops(run: Run) -> None:
    for worker in list(run.state.workers)[:1]:
        run.lose(worker)
    stops(run)


def recovers_and_finishes(run: Run) -> None:
    for worker in list(run.state.workers)[:1]:
        run.lose(worker)
    finishes(run)


def goes_back_and_stops(run: Run) -> None:
    if outcome(run) is None:
        one_round(run, False)
    job = run.state.log.job
    if outcome(run) is None and job is not None:
        ask(run, "rewind", {"epoch": job.completed[0].body.epoch, "timeline": job.timeline, "stop": True})
    stops(run)


WITH_PAIRS = (finishes, stops)
IN_ORDER = (finishes, stops, recovers_and_stops, recovers_and_finishes, goes_back_and_stops)
ENDINGS: tuple[Callable[[Run], None], ...] = (*IN_ORDER, ends_now, fails, is_fenced)


def is_done(run: Run, kind: str, args: Mapping[str, Any]) -> bool:
    """Whether the log, or the end itself, shows the requested effect."""
    job = reduce(joblog.fold, run.log, None)
    assert job is not None
    if kind == "savepoint":
        return job.savepoint(args["name"]) is not None
    if kind == "rewind":
        return any(each.timeline == args["timeline"] + 1 and each.base_epoch == args["epoch"] for each in job.rewinds)
    how = {None: (STOPPED, FINISHED), "finish": (FINISHED,), "now": (ENDED,)}[args.get("how")]
    return outcome(run) in how


class TestEveryRequestAtEveryMomentWithEveryEnd:
    @pytest.mark.parametrize("ending", ENDINGS, ids=lambda each: each.__name__)
    @pytest.mark.parametrize("moment", MOMENTS, ids=lambda each: each.__name__)
    def test_an_accepted_request_is_carried_out_or_refused_at_the_end(
        self, moment: Callable[[], Run], ending: Callable[[Run], None]
    ) -> None:
        """Alone, and each after each other one."""
        for one in (None, *BEFORE) if ending in WITH_PAIRS else (None,):
            for other in KINDS:
                run = moment()
                accepted = []
                for name in (one, other):
                    if name is not None:
                        kind, args = requests_at(run)[name]
                        answer = ask(run, kind, args)
                        accepted += [(kind, args)] if answer is not None and answer.accepted else []
                ending(run)
                assert outcome(run) is not None, f"{one}, {other}: the run does not end"
                for kind, args in accepted:
                    done, why = is_done(run, kind, args), left_undone(run.state, kind, args)
                    assert done is (why is None), f"{one}, {other}: {kind} {args}, {outcome(run)}: {why}"
                    if ending in IN_ORDER and outcome(run) != ENDED:
                        assert done, f"{one}, {other}: {kind} {args} was accepted and forgotten; {outcome(run)}"


def finished_by_an_older_driver(asked_after: int) -> tuple[Run, RequestAnswer | None]:
    """A driver whose start is in flight is asked for a savepoint, and finds that the job has finished.

    Args:
        asked_after: How many of the older driver's last two records it has read by then.
    """
    run = idle()
    older = run.log[-1]
    run.begin("next")
    assert isinstance(older.body, joblog.CheckpointCompleted)
    job = run.state.log.job
    assert job is not None
    manifest = older.body.manifest
    answer = None
    last = joblog.CheckpointCompleted(Epoch(3), Epoch(2), manifest, 0, 0, 0, None)
    bodies: tuple[joblog.Body, ...] = (last, joblog.Finished(Epoch(3)))
    for number, body in enumerate(bodies):
        if number == asked_after:
            answer = ask(run, "savepoint", {"name": "s0"})
        record = joblog.Record(older.seq + 1 + number, job.uuid, Generation(1), Timeline(1), older.owner, 0, body)
        run.log.append(record)
        run.take(master.step(run.state, RecordFound(record), Moment(run.now)))
    return run, answer


class TestForgottenRequests:
    """Runs in which a request was accepted and the run then ended without it."""

    def test_a_driver_that_rewinds_a_stopped_job_refuses_another_rewind(self) -> None:
        run = rewinding_a_stopped_job()
        answer = ask(run, "rewind", {"epoch": 1, "timeline": 2})
        assert answer is not None and answer.reason == GOES_BACK
        run.append()
        assert outcome(run) == STOPPED

    def test_a_running_job_that_rewinds_to_stop_refuses_another_rewind(self) -> None:
        run = gone_back_and_stopping()
        answer = ask(run, "rewind", {"epoch": 1, "timeline": 2})
        assert answer is not None and answer.reason == GOES_BACK
        run.append()
        assert outcome(run) == STOPPED

    def test_a_driver_that_has_not_started_accepts_no_savepoint(self) -> None:
        run, answer = finished_by_an_older_driver(0)
        assert (answer, outcome(run), run.state.savepoints) == (None, FINISHED, ())

    def test_a_driver_that_read_another_drivers_last_checkpoint_takes_no_savepoint(self) -> None:
        run, answer = finished_by_an_older_driver(1)
        assert (answer, outcome(run), run.state.savepoints) == (None, FINISHED, ())

    def test_a_driver_that_is_creating_the_job_accepts_no_savepoint(self) -> None:
        run = Run()
        run.begin()
        assert ask(run, "savepoint", {"name": "s1"}) is None
        run.append()
        assert ask(run, "savepoint", {"name": "s1"}, first=0) is None
        run.append()
        assert ask(run, "savepoint", {"name": "s1"}) == RequestAnswer(True, Generation(1))

    def test_a_rewind_to_a_checkpoint_whose_expiry_is_in_flight_is_refused(self) -> None:
        run = expiring()
        answer = ask(run, "rewind", {"epoch": 1, "timeline": 1})
        assert answer is not None and answer.reason is not None and "no checkpoint of epoch 1" in answer.reason

    @pytest.mark.parametrize("epoch", [1, 2])
    def test_a_rewind_of_the_timeline_that_a_rewind_in_flight_ends_is_refused(self, epoch: int) -> None:
        run = going_back_to_go_on()
        answer = ask(run, "rewind", {"epoch": epoch, "timeline": 1})
        assert answer is not None and answer.reason == "another rewind of the job was accepted since the plan was made"

    def test_a_run_to_fixed_ends_that_is_asked_to_finish_does_not_stop_instead(self) -> None:
        run = running(replace(RULES, until={"s": {0: 5, 1: 7, 2: 0}}))
        assert ask(run, "stop", {"how": "finish"}) == RequestAnswer(True, Generation(1))
        run.pass_time(0.0)
        for worker in list(run.state.workers):
            run.hear(run.heartbeat(worker, caught_up=True))
        assert run.pass_time(1.0) == []
        live(run)
        assert outcome(run) == FINISHED

    def test_a_rewind_that_stops_is_not_replaced_by_one_that_continues(self) -> None:
        run = repairing_to_stop()
        answer = ask(run, "rewind", {"epoch": 1, "timeline": 2})
        assert answer is not None and not answer.accepted
        live(run)
        assert outcome(run) == STOPPED
