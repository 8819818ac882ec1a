"""Every invariant of the master is seen to fail: a planted bug breaks it in the course of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.model import Epoch, Generation, Subtask
from holdfast.runtime.driver import failover, master, partitions
from holdfast.runtime.driver import requests as master_requests
from holdfast.runtime.wire import messages as m
from tests.unit.runtime.test_master import A, B, Run, acked, completed, opened, replaced, running
from tests.unit.runtime.test_partition_discovery import grown

Right = Callable[..., Any]


def with_phase(state: master.Master, **changed: Any) -> master.Master:
    assert isinstance(state.phase, master.Running)
    return replace(state, phase=replace(state.phase, **changed))


def gives_one_subtask_twice(right: Right) -> Right:
    def deploy(state: master.Master, now: float) -> master.Step:
        state, effects = right(state, now)
        assigned = {
            w: h if h.subtask is None else replace(h, role=m.Active(Subtask(0))) for w, h in state.workers.items()
        }
        return replace(state, workers=assigned), effects

    return deploy


def keeps_workers_ready(right: Right) -> Right:
    def gather(state: master.Master, now: float) -> master.Step:
        state, effects = right(state, now)
        workers = {w: replace(h, ready=h.subtask is not None) for w, h in state.workers.items()}
        return replace(state, workers=workers), effects

    return gather


def forgets_its_start(right: Right) -> Right:
    def start_generation(state: master.Master, cause: str, at_us: int) -> master.Step:
        return replace(state, phase=master.Opening(cause)), []

    return start_generation


def runs_on_without_the_worker(right: Right) -> Right:
    def lose(state: master.Master, *rest: Any) -> master.Step:
        running = state.phase
        state, effects = right(state, *rest)
        return replace(state, phase=running), effects

    return lose


def forgets_when_it_failed(right: Right) -> Right:
    def lose(*given: Any) -> master.Step:
        state, effects = right(*given)
        return replace(state, recovering_since=None), effects

    return lose


def counts_from_the_epoch_before(right: Right) -> Right:
    def appended(state: coordinator.Deciding) -> tuple[coordinator.Coordinator, list[coordinator.Effect]]:
        after, effects = right(state)
        return replace(after, committed_through=state.barrier.committed_through), effects

    return appended


def keeps_the_manifest(right: Right) -> Right:
    def completed_(state: master.Master, *rest: Any) -> master.Step:
        assert isinstance(state.phase, master.Running)
        storing = state.phase.storing
        state, effects = right(state, *rest)
        return with_phase(state, storing=storing), effects

    return completed_


def keeps_the_older_manifest(right: Right) -> Right:
    def completed_(state: master.Master, *rest: Any) -> master.Step:
        assert isinstance(state.phase, master.Running)
        last = state.phase.last
        state, effects = right(state, *rest)
        return with_phase(state, last=last), effects

    return completed_


def never_gives_up(right: Right) -> Right:
    def end(state: master.Master, *rest: Any) -> master.Step:
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
        if not isinstance(after, append.Overtaken):
            return after, effects
        return append.Quiet(state.owner, after.job), [append.Appended(found, after.job)]

    return occupied


def stops_at_any_time(right: Right) -> Right:
    def tick_running(state: master.Master, phase: master.Running, now: float, at_us: int) -> master.Step:
        assert isinstance(state.log, append.Quiet)
        log, effects = append.append(state.log, lambda job: joblog.Stopped(job.base_epoch), at_us)
        return master._log_effects(replace(state, log=log), effects, now, at_us)

    return tick_running


def still_misses_the_worker(right: Right) -> Right:
    def registered(state: master.Master, message: Any, now: float) -> master.Step:
        launching = state.launching
        state, effects = right(state, message, now)
        return replace(state, launching=launching), effects

    return registered


def uses_numbers_again(right: Right) -> Right:
    return lambda parallelism, base_epoch, first_epoch: right(parallelism, base_epoch, Epoch(first_epoch - 2))


def discovers_twice(right: Right) -> Right:
    def taken(state: master.Master, listing: Any, new: Any) -> master.Master:
        after: master.Master = right(state, listing, new)
        return replace(after, discovered=(*after.discovered, *new))

    return taken


def keeps_it_out_of_the_manifest(right: Right) -> Right:
    return lambda state, decided: right(with_phase(state, assigning=()), decided)


def finishes_without_looking(right: Right) -> Right:
    return lambda state, phase: True


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
        state, effects, _ = master.carry_out(run.state, "savepoint", {"name": "v1"}, 1, Generation(1))
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
    Plant(forgets_its_start, master, "_start_generation", opened, "no record is in flight"),
    Plant(runs_on_without_the_worker, failover, "lose", lambda: running().lose(A), "no recovery is due"),
    Plant(forgets_when_it_failed, failover, "lose", lambda: running().lose(B), "its beginning is unknown"),
    Plant(counts_from_the_epoch_before, coordinator, "appended", lambda: completed(running()), "counts from another"),
    Plant(keeps_the_manifest, master, "_completed", lambda: completed(running()), "an epoch that is not decided"),
    Plant(keeps_the_older_manifest, master, "_completed", lambda: completed(running()), "not that of the last check"),
    Plant(never_gives_up, failover, "end", loses_workers_again_and_again, "outlives the restart limit"),
    Plant(refuses_nothing, master_requests, "_refusal", asks_twice_for_a_savepoint, "requested twice"),
    Plant(calls_every_barrier_the_last, coordinator, "trigger", lambda: acked(running()), "after the last barrier"),
    Plant(does_not_note_the_recovery, master, "all_run", recovers, "how long it took is unknown"),
    Plant(takes_the_others_start, append, "occupied", is_overtaken, "a generation of another driver"),
    Plant(stops_at_any_time, master, "_tick_running", lambda: running().pass_time(1.0), "before its last epoch"),
    Plant(still_misses_the_worker, master, "registered", running, "still counts as missing"),
    Plant(discovers_twice, partitions, "_taken", discovers_a_partition, "discovered twice"),
    Plant(keeps_it_out_of_the_manifest, master, "next_manifest", discovers_a_partition, "that its trigger assigned"),
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
