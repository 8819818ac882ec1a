"""Every invariant of the master is seen to fail: a planted bug breaks it in the course of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from master_runs import A, B, Run, acked, completed, opened, replaced, running

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Epoch, Generation, Subtask
from holdfast.runtime.driver import epochs, failover, master, partitions
from holdfast.runtime.driver import requests as master_requests
from holdfast.runtime.driver.events import Event, Moment, Step, append_record
from holdfast.runtime.driver.requests import carry_out
from holdfast.runtime.driver.state import Closing, Delivering, Deployed, Gathering, Master, Opening
from holdfast.runtime.wire import messages as m
from tests.unit.runtime.test_partition_discovery import grown

Right = Callable[..., Any]


def with_phase(state: Master, **changed: Any) -> Master:
    assert isinstance(state.phase, Deployed)
    return replace(state, phase=replace(state.phase, **changed))


def gives_one_subtask_twice(right: Right) -> Right:
    def deploy(state: Master, now: float) -> Step:
        state, effects = right(state, now)
        assigned = {
            w: h if h.subtask is None else replace(h, role=m.ActiveRole(Subtask(0))) for w, h in state.workers.items()
        }
        return replace(state, workers=assigned), effects

    return deploy


def keeps_workers_ready(right: Right) -> Right:
    def gather(state: Master, now: float) -> Step:
        state, effects = right(state, now)
        workers = {w: replace(h, ready=h.subtask is not None) for w, h in state.workers.items()}
        return replace(state, workers=workers), effects

    return gather


def forgets_its_start(right: Right) -> Right:
    def start_generation(state: Master, cause: str, at_us: int) -> Step:
        return replace(state, phase=Opening(cause)), []

    return start_generation


def runs_on_without_the_worker(right: Right) -> Right:
    def lose(state: Master, *rest: Any) -> Step:
        running = state.phase
        state, effects = right(state, *rest)
        return replace(state, phase=running), effects

    return lose


def forgets_when_it_failed(right: Right) -> Right:
    def lose(*given: Any) -> Step:
        state, effects = right(*given)
        return replace(state, recovering_since=None), effects

    return lose


def counts_from_the_epoch_before(right: Right) -> Right:
    def appended(state: coordinator.Deciding) -> tuple[coordinator.Coordinator, list[coordinator.Effect]]:
        after, effects = right(state)
        return replace(after, committed_through=state.barrier.committed_through), effects

    return appended


def keeps_the_manifest(right: Right) -> Right:
    def completed_(state: Master, *rest: Any) -> Step:
        assert isinstance(state.phase, Deployed)
        closing = state.phase.closing
        state, effects = right(state, *rest)
        return with_phase(state, closing=closing), effects

    return completed_


def keeps_the_older_manifest(right: Right) -> Right:
    def completed_(state: Master, *rest: Any) -> Step:
        assert isinstance(state.phase, Deployed)
        last = state.phase.last
        state, effects = right(state, *rest)
        return with_phase(state, last=last), effects

    return completed_


def never_gives_up(right: Right) -> Right:
    def end(state: Master, *rest: Any) -> Step:
        return state, []

    return end


def refuses_nothing(right: Right) -> Right:
    return lambda *given: None


def calls_every_barrier_the_last(right: Right) -> Right:
    return lambda state, now, last: right(state, now, True)


def does_not_note_the_recovery(right: Right) -> Right:
    return lambda state, now: replace(state, recovering_since=None)


def takes_the_others_start(right: Right) -> Right:
    def occupied(state: append.InFlight, found: joblog.Record) -> tuple[append.Appender, list[append.Effect]]:
        after, effects = right(state, found)
        if not isinstance(after, append.OvertakenDriver):
            return after, effects
        return append.Quiet(state.owner, after.job), [append.Appended(found, after.job)]

    return occupied


def stops_at_any_time(right: Right) -> Right:
    def turn(state: Master, phase: Deployed, at: Moment) -> Step:
        return append_record(state, lambda job: joblog.Stopped(job.base_epoch), at.at_us)

    return turn


def still_misses_the_worker(right: Right) -> Right:
    def step(state: Master, event: Event, at: Moment) -> Step:
        after, effects = right(state, event, at)
        return replace(after, launching=state.launching) if isinstance(event, m.Register) else after, effects

    return step


def goes_on_when_it_is_fenced(right: Right) -> Right:
    def step(state: Master, event: Event, at: Moment) -> Step:
        after, effects = right(state, event, at)
        return replace(after, phase=state.phase) if isinstance(after.log, append.OvertakenDriver) else after, effects

    return step


def expires_before_it_deploys(right: Right) -> Right:
    def launch_missing(state: Master, now: float) -> Step:
        if isinstance(state.phase, Gathering):
            return append_record(state, joblog.LogStart, 0)
        return right(state, now)  # type: ignore[no-any-return]

    return launch_missing


def decides_with_the_trigger(right: Right) -> Right:
    return lambda savepoint, assigned: right(savepoint, assigned, object())


def runs_what_is_finished(right: Right) -> Right:
    def finished(state: Master, outcome: str, error: Any) -> Step:
        return (state, []) if outcome == "finished" else right(state, outcome, error)

    return finished


def forgets_that_it_is_over(right: Right) -> Right:
    """It opens another epoch after the last one."""

    def turn(state: Master, phase: Deployed, at: Moment) -> Step:
        if not isinstance(phase, Delivering):
            return right(state, phase, at)  # type: ignore[no-any-return]
        epochs, _ = coordinator.trigger(cast(coordinator.Idle, phase.epochs), at.now, False)
        return with_phase(state, epochs=epochs, closing=Closing(None, ())), []

    return turn


def delivers_one_epoch_less(right: Right) -> Right:
    def completed_(state: Master, now: float) -> Step:
        state, effects = right(state, now)
        delivering = isinstance(state.phase, Delivering)
        return (with_phase(state, final=NO_EPOCH) if delivering else state), effects

    return completed_


def finishes() -> Run:
    run = running()
    for worker in (A, B):
        run.beat(worker, ended=True)
    completed(run)
    run.pass_time(0.0)
    run.append()
    return run


def stops() -> None:
    run = running()
    completed(run, last=True)
    run.pass_time(0.0)


def uses_numbers_again(right: Right) -> Right:
    return lambda parallelism, base_epoch, first_epoch: right(parallelism, base_epoch, Epoch(first_epoch - 2))


def discovers_twice(right: Right) -> Right:
    def taken(state: Master, listing: Any, new: Any) -> Master:
        after: Master = right(state, listing, new)
        return replace(after, discovered=(*after.discovered, *new))

    return taken


def keeps_it_out_of_the_manifest(right: Right) -> Right:
    def next_manifest(state: Master, decided: coordinator.Decide) -> Manifest:
        assert isinstance(state.phase, Deployed) and state.phase.closing is not None
        manifest: Manifest = right(with_phase(state, closing=replace(state.phase.closing, assigned=())), decided)
        return manifest

    return next_manifest


def finishes_without_looking(right: Right) -> Right:
    return lambda state, phase: True


def opened_and_passed() -> None:
    opened().pass_time(0.0)


def discovers_a_partition() -> None:
    run = grown(3)
    run.pass_time(10.0)
    run.ack(A, 1)
    run.ack(B, 1)


def reads_everything() -> None:
    run = running()
    run.beat(A, ended=True)
    run.beat(B, ended=True)
    run.pass_time(0.0)


def recovers() -> None:
    run = running()
    run.lose(A)
    replaced(run)


def closes_an_epoch_after_a_recovery() -> None:
    run = running()
    run.lose(A)
    replaced(run)
    run.pass_time(10.0)


def loses_workers_again_and_again() -> None:
    run = opened()
    for number in range(1, 9):
        run.pass_time(5.0)
        run.end_launch(number)


def asks_twice_for_a_savepoint() -> None:
    run = running()
    for _ in range(2):
        state, effects, _ = carry_out(run.state, "savepoint", {"name": "v1"}, 1, Generation(1))
        run.take((state, effects))


def is_overtaken() -> None:
    run, other = running(), Run()
    acked(run)
    run.store()
    other.log = run.log
    other.begin("other")
    other.append()
    run.append()


@dataclass(frozen=True)
class Plant:
    """A bug, and a run in which it breaks an invariant."""

    bug: Callable[[Right], Right]
    where: Any
    name: str
    run: Callable[[], object]
    broken: str


PLANTS = (
    Plant(gives_one_subtask_twice, master, "deploy_if_complete", running, "the same subtask"),
    Plant(keeps_workers_ready, master, "gather", recovers, "ready before it was deployed"),
    Plant(forgets_its_start, master, "recover", opened, "no record is in flight"),
    Plant(runs_on_without_the_worker, failover, "lose", lambda: running().lose(A), "no recovery is due"),
    Plant(forgets_when_it_failed, failover, "lose", lambda: running().lose(B), "its beginning is unknown"),
    Plant(counts_from_the_epoch_before, coordinator, "appended", lambda: completed(running()), "counts from another"),
    Plant(keeps_the_manifest, master, "completed", lambda: completed(running()), "that no trigger opened"),
    Plant(keeps_the_older_manifest, master, "completed", lambda: completed(running()), "not that of the last check"),
    Plant(never_gives_up, failover, "end", loses_workers_again_and_again, "outlives the restart limit"),
    Plant(refuses_nothing, master_requests, "_refusal", asks_twice_for_a_savepoint, "requested twice"),
    Plant(calls_every_barrier_the_last, coordinator, "trigger", lambda: acked(running()), "after the last barrier"),
    Plant(does_not_note_the_recovery, master, "all_run", recovers, "how long it took is unknown"),
    Plant(takes_the_others_start, append, "occupied", is_overtaken, "a generation of another driver"),
    Plant(stops_at_any_time, master, "turn", lambda: running().pass_time(1.0), "before its last epoch"),
    Plant(still_misses_the_worker, master, "step", running, "still counts as missing"),
    Plant(goes_on_when_it_is_fenced, master, "step", is_overtaken, "newer generation has fenced"),
    Plant(expires_before_it_deploys, master, "launch_missing", opened_and_passed, "before the generation is deployed"),
    Plant(decides_with_the_trigger, epochs, "Closing", lambda: acked(running()), "an epoch that is not decided"),
    Plant(runs_what_is_finished, master, "end", finishes, "a finished job runs"),
    Plant(forgets_that_it_is_over, master, "turn", stops, "after the last one"),
    Plant(delivers_one_epoch_less, master, "completed", stops, "not the last one"),
    Plant(discovers_twice, partitions, "_taken", discovers_a_partition, "discovered twice"),
    Plant(keeps_it_out_of_the_manifest, epochs, "next_manifest", discovers_a_partition, "that its trigger assigned"),
    Plant(finishes_without_looking, master_requests, "all_input_is_listed", reads_everything, "listed once more"),
    Plant(uses_numbers_again, coordinator, "start", closes_an_epoch_after_a_recovery, "may have used"),
)


class TestEveryInvariant:
    @pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.bug.__name__)
    def test_is_broken_by_a_planted_bug(self, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
        plant.run()  # the invariant holds in the same run without the bug
        monkeypatch.setattr(plant.where, plant.name, plant.bug(getattr(plant.where, plant.name)))
        with pytest.raises(AssertionError, match=plant.broken):
            plant.run()
