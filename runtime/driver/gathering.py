"""The master between the start of a generation and its first record: base, repairs, workers, subtasks.

A generation on a timeline without a completed checkpoint may follow a rewind whose repairs were cut short. It repairs
every target again before it deploys anything; repairing a target twice changes nothing.

A path without a host names a different folder on every machine. A worker elsewhere would find an empty root, read no
input, or write results that no reader finds, and nothing would fail. So a worker that registers from another machine
ends a run that uses such paths, before any subtask is assigned.

Invariants
    - Nothing is deployed before the base is known and every target is repaired (P21).
    - Every subtask gets a worker, and keeps the one it had.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN sections 3, 9; PROTOCOL P5, P10, P21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from holdfast.checkpoint import coordinator
from holdfast.checkpoint.manifest import Confirmed, Manifest
from holdfast.errors import ConfigError, ErrorReport, Where
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Subtask, Tag
from holdfast.runtime.driver import standbys
from holdfast.runtime.driver.deployment import confirm, deployments
from holdfast.runtime.driver.events import (
    LoadManifest,
    ManifestLoaded,
    Moment,
    RepairTargets,
    Send,
    Step,
    TargetsRepaired,
)
from holdfast.runtime.driver.failover import end, launch_missing
from holdfast.runtime.driver.partitions import with_those_of
from holdfast.runtime.driver.state import (
    Gathering,
    Hosted,
    Loading,
    Master,
    Repaired,
    Repairing,
    Restart,
    Rules,
    Running,
)
from holdfast.runtime.wire import messages as m
from holdfast.traits import local

if TYPE_CHECKING:
    from holdfast.runtime.plan.model import Plan  # loads Polars, which commands that only inspect a job do not need


def gather(state: Master, now: float) -> Step:
    """Begin, once this driver owns the generation: every worker is free to take a subtask of it."""
    if state.recovering_since is not None:
        started = state.job.starts[-1]
        since = state.recovering_since
        rewind = any(each.first_epoch == started.first_epoch for each in state.job.rewinds)
        restart = Restart(since, started.cause, state.job.generation, logged_after=now - since, rewind=rewind)
        state = replace(state, restarts=(*state.restarts, restart))
    workers = {w: replace(h, ready=False, how=None, heartbeat=_unheard(h)) for w, h in state.workers.items()}
    state = replace(state, workers=workers)
    if not state.job.completed:
        return deploy_if_complete(replace(state, phase=Gathering(None)), now)
    state = replace(state, phase=Loading(stops=state.ends_repaired))
    return state, [LoadManifest(state.job.completed[-1].body.manifest)]


def _unheard(hosted: Hosted) -> m.Heartbeat:
    """Return the last heartbeat without its facts about an older generation; copies and progress outlive that."""
    return structs.replace(hosted.heartbeat, ended=False, caught_up=False, quiet=NO_EPOCH, partitions=0, broken_to=())


def base_loaded(state: Master, event: ManifestLoaded, at: Moment) -> Step:
    """Take the manifest from which the generation continues."""
    phase, manifest = state.phase, event.manifest
    assert isinstance(phase, Loading)
    if manifest.epoch != state.job.base_epoch:
        return state, []
    if (error := _unchecked_state(state, manifest)) is not None:
        return end(state, "failed", error.report())
    manifest = _without_gone_sinks(state, manifest)
    state = confirm(with_those_of(state, manifest), manifest.confirmed)
    if state.job.repair_due:
        return replace(state, phase=Repairing(manifest, phase.stops)), [RepairTargets(state.job, manifest)]
    return deploy_if_complete(replace(state, phase=Gathering(manifest)), at.now)


def _unchecked_state(state: Master, base: Manifest) -> ConfigError | None:
    """Return why the base cannot be used, if a run with other code completed it after this run's code was checked."""
    code_check = state.rules.checked
    if (
        code_check is None
        or base.epoch <= code_check.epoch
        or base.operators in (code_check.operators, state.rules.operators)
    ):
        return None
    return ConfigError(
        f"another run with other code completed epoch {base.epoch} after this run's code was checked against epoch "
        f"{code_check.epoch}",
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
    return structs.replace(base, pending=tuple(kept))


def repaired(state: Master, event: TargetsRepaired, at: Moment) -> Step:
    """Every target is at the base of the timeline: deploy, or end the run if that was all."""
    phase, job = state.phase, state.job
    assert isinstance(phase, Repairing)
    if event.generation != job.generation:
        return state, []
    tag = Tag(job.timeline, job.base_epoch)
    state = confirm(state, tuple(Confirmed(writer, tag) for writer in event.writers))
    if phase.stops:
        return replace(state, phase=Repaired(phase.base)), []
    return deploy_if_complete(replace(state, phase=Gathering(phase.base)), at.now)


def deploy_if_complete(state: Master, now: float) -> Step:
    """Assign every subtask to a worker once there are enough workers."""
    phase = state.phase
    assert isinstance(phase, Gathering)
    if not state.all_hosted:
        return launch_missing(state, now)
    state, job = _with_roles(state), state.job
    epochs = coordinator.start(state.rules.parallelism, job.base_epoch, job.first_epoch)
    running = Running(phase.base, now, epochs, now, phase.base, known=len(state.discovered))
    state = standbys.cover(replace(state, phase=running))
    if state.recovering_since is not None:
        deployed = replace(state.restarts[-1], deployed_after=now - state.recovering_since)
        state = replace(state, restarts=(*state.restarts[:-1], deployed))
    return state, [Send(*each) for each in deployments(state, phase.base, state.assigned)]


def _with_roles(state: Master) -> Master:
    """Give every free subtask to the worker without one that has the newest copy of its state."""
    workers = dict(state.workers)
    taken = {hosted.subtask for hosted in workers.values()}
    for subtask in map(Subtask, range(state.rules.parallelism)):
        if subtask not in taken:
            chosen = standbys.newest_copy(state, subtask, [w for w in workers if workers[w].subtask is None])
            heartbeat = structs.replace(workers[chosen].heartbeat, copies=())
            workers[chosen] = replace(workers[chosen], role=m.ActiveRole(subtask), heartbeat=heartbeat)
    return replace(state, workers=workers)


def local_paths(plan: Plan, root: str) -> tuple[str, ...]:
    """Return the job's files on a disk of this machine, each as a few words with the path."""
    from holdfast.runtime.plan.topic import outputs_of  # imports Polars, which `status` does not need

    named = [("the root", path) for path in local(root)]
    named += [(f"source {spec.name!r}", path) for spec in plan.sources for path in spec.source.traits.local_paths]
    named += [(f"sink {spec.name!r}", path) for spec in outputs_of(plan) for path in spec.sink.traits.local_paths]
    return tuple(f"{what} at {path}" for what, path in named if not path.startswith("memory://"))


def placement_refusal(rules: Rules, worker: m.Register) -> ErrorReport | None:
    """Return why the run must end because this worker registered, or None."""
    return elsewhere(rules.name, rules.machine, rules.local_paths, (worker.host, worker.boot_id))


def elsewhere(
    job: str, driver: tuple[str, str] | None, paths: tuple[str, ...], here: tuple[str, str]
) -> ErrorReport | None:
    """Return why a job with these local paths must not run here, or None.

    Args:
        driver: Host name and boot id of the driver's machine.
        here: Those of a worker's, or a task's.
    """
    if not paths or driver is None or here == driver:
        return None
    error = ConfigError(
        f"a worker started on {here[0]}, the driver is on {driver[0]}, and the job uses paths that are "
        f"local to each machine: {'; '.join(paths)}",
        not_done="nothing was read there; state and output are untouched",
        next_step="use s3:// URLs for the root and for logs; or, if all machines mount the same file system at these "
        "paths, set HOLDFAST_SHARED_PATHS=true (not for SQLite unless its locks work there)",
        where=Where(job=job),
    )
    return error.report()
