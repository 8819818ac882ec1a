"""The master between the start of a generation and its first record: base, repairs, workers, subtasks.

A generation on a timeline without a completed checkpoint may follow a rewind whose repairs were cut short. It repairs
every target again before it deploys anything; repairing a target twice changes nothing.

Invariants
    - Nothing is deployed before the base is known and every target is repaired (P21).
    - Every subtask gets a worker, and keeps the one it had.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN sections 3, 9; PROTOCOL P5, P10, P21.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.checkpoint import coordinator
from holdfast.checkpoint.manifest import Confirmed, Manifest
from holdfast.errors import ConfigError, Where
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Generation, Subtask, Tag, Writer
from holdfast.runtime.driver.deployment import assigned, confirm, deployments
from holdfast.runtime.driver.failover import end, launch_missing
from holdfast.runtime.driver.hosts import standbys
from holdfast.runtime.driver.partitions import with_those_of
from holdfast.runtime.driver.state import Gathering, LoadManifest, Master, RepairTargets, Restart, Running, Send, Step
from holdfast.runtime.wire import messages as m


def gather(state: Master, now: float) -> Step:
    """Begin, once this driver owns the generation: every worker is free to take a subtask of it."""
    if state.recovering_since is not None:
        started = state.job.starts[-1]
        since = state.recovering_since
        rewind = any(each.first_epoch == started.first_epoch for each in state.job.rewinds)
        restart = Restart(since, started.cause, state.job.generation, logged_after=now - since, rewind=rewind)
        state = replace(state, restarts=(*state.restarts, restart))
    workers = {
        w: replace(
            hosted, ready=False, how=None, ended=False, caught_up=False, quiet=NO_EPOCH, partitions=0, broken_to=()
        )
        for w, hosted in state.workers.items()
    }
    state = replace(state, workers=workers)
    if not state.job.completed:
        return deploy_if_complete(replace(state, phase=Gathering(None, True)), now)
    stops = state.ends_repaired
    state = replace(state, phase=Gathering(None, False, repaired=not state.job.repair_due, stops=stops))
    return state, [LoadManifest(state.job.completed[-1].body.manifest)]


def base_loaded(state: Master, manifest: Manifest, now: float) -> Step:
    """Take the manifest from which the generation continues."""
    phase = state.phase
    if not isinstance(phase, Gathering) or phase.base_known or manifest.epoch != state.job.base_epoch:
        return state, []
    if (error := _unchecked_state(state, manifest)) is not None:
        return end(state, "failed", error.report())
    manifest = _without_gone_sinks(state, manifest)
    state = with_those_of(state, manifest)
    state = replace(confirm(state, manifest.confirmed), phase=replace(phase, base=manifest, base_known=True))
    if not phase.repaired:
        return state, [RepairTargets(state.job, manifest)]
    return deploy_if_complete(state, now)


def _unchecked_state(state: Master, base: Manifest) -> ConfigError | None:
    """Return why the base cannot be used, if a run with other code completed it after this run's code was checked."""
    checked = state.rules.checked
    if checked is None or base.epoch <= checked.epoch or base.operators in (checked.operators, state.rules.operators):
        return None
    return ConfigError(
        f"another run with other code completed epoch {base.epoch} after this run's code was checked against epoch "
        f"{checked.epoch}",
        not_done="no state was read; state and output are untouched",
        next_step="compare the code with the new checkpoint: holdfast plan JOB.py; then start it again",
        where=Where(job=state.rules.name),
    )


def _without_gone_sinks(state: Master, base: Manifest) -> Manifest:
    """Drop delivered output of sinks that the code no longer has; newer output of these sinks stays."""
    gone = state.rules.gone_sinks
    if gone is None:
        return base
    kept = [item for item in base.pending if item.writer.sink not in gone.names or item.tag.epoch > gone.through]
    return msgspec.structs.replace(base, pending=tuple(kept))


def repaired(state: Master, generation: Generation, writers: Iterable[Writer], now: float) -> Step:
    """Every target is at the base of the timeline, for all these writers."""
    phase, job = state.phase, state.job
    if not isinstance(phase, Gathering) or generation != job.generation:
        return state, []
    tag = Tag(job.timeline, job.base_epoch)
    state = confirm(state, tuple(Confirmed(writer, tag) for writer in writers))
    return deploy_if_complete(replace(state, phase=replace(phase, repaired=True)), now)


def deploy_if_complete(state: Master, now: float) -> Step:
    """Assign every subtask to a worker once there are enough workers and the base is known and repaired."""
    phase = state.phase
    if not isinstance(phase, Gathering) or not (phase.base_known and phase.repaired) or state.ends_repaired:
        return state, []
    if len(state.workers) < state.rules.parallelism:
        return launch_missing(state, now)
    state, job = _with_roles(state), state.job
    epochs = coordinator.start(state.rules.parallelism, job.base_epoch, job.first_epoch)
    running = Running(phase.base, now, epochs, now, phase.base, deployed=len(state.discovered))
    state = standbys.cover(replace(state, phase=running))
    if state.recovering_since is not None:
        deployed = replace(state.restarts[-1], deployed_after=now - state.recovering_since)
        state = replace(state, restarts=(*state.restarts[:-1], deployed))
    return state, [Send(*each) for each in deployments(state, phase.base, assigned(state))]


def _with_roles(state: Master) -> Master:
    """Give every free subtask to the worker without one that has the newest copy of its state."""
    workers = dict(state.workers)
    taken = {hosted.subtask for hosted in workers.values()}
    for subtask in map(Subtask, range(state.rules.parallelism)):
        if subtask not in taken:
            chosen = standbys.newest_copy(state, subtask, [w for w in workers if workers[w].subtask is None])
            workers[chosen] = replace(workers[chosen], role=m.Active(subtask), copies=())
    return replace(state, workers=workers)
