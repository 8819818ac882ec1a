"""Decides which standby follows which subtasks, and the messages to them.

A standby is a worker without a subtask. Its copies advance with the completed epochs; gathering.py gives a free subtask
to the standby with the newest copy.

A base does not record earlier deletions, so a copy older than a base cannot advance over it. The last epoch
without the base has the segments that lead up to it: a *waypoint*. The master keeps its handle until every copy is past
the base, and sends it to a copy that is behind. Without it, a copy that needs longer than the time between two bases
would start over with each of them.

Invariants
    - While there is a standby, every subtask has a follower.
    - A standby gives up a copy only once another standby has it complete.
    - A follower learns of completed epochs only, so no copy is ahead of the log.
    - Neither the loss of a standby nor a missing one affects the generation.
    - A waypoint is a completed epoch of this generation or its base, and has not expired: its pieces are stored.
    - There are at most WAYPOINTS_MAX per subtask; a copy that is further behind is restored.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN section 5 (standby); docs/decisions/0054-standbys.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint import recovery
from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.manifest import Manifest
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Epoch, SnapshotHandle, Subtask, WorkerId
from holdfast.runtime.driver.deployment import claim_of, local_bases, recent_cuts, topic_state
from holdfast.runtime.driver.events import Effect, Send
from holdfast.runtime.driver.failover import conflicts
from holdfast.runtime.driver.state import Deployed, Hosted, Master, Waypoint, Waypoints
from holdfast.runtime.wire import messages as m

COMPLETE_WITHIN = 4
"""Copies that hold one of this many last epochs count as complete: a new epoch is on its way to them."""
Follows = dict[WorkerId, tuple[Subtask, ...]]


def cover(state: Master) -> Master:
    """Let workers without a subtask follow subtasks, as many as the run has standbys."""
    spare = [w for w, worker_entry in state.workers.items() if worker_entry.subtask is None]
    spare.sort(key=lambda worker: state.workers[worker].role is None)  # a worker with copies stays a standby
    standbys = {worker: state.workers[worker] for worker in spare[: state.rules.standbys]}
    if not standbys or not isinstance(state.phase, Deployed):
        return state
    follows: Follows = {w: _followed(worker_entry) for w, worker_entry in standbys.items()}
    subtasks = [Subtask(s) for s in range(state.rules.parallelism)]
    hosts = {
        worker_entry.subtask: worker_entry.host
        for worker_entry in state.workers.values()
        if worker_entry.subtask is not None
    }
    for subtask in subtasks:
        if not _followers(follows, subtask):
            _add(follows, _least_busy(follows, {w for w in follows if standbys[w].host == hosts[subtask]}), subtask)
    _balance(follows, subtasks, {w: {s for s in subtasks if hosts[s] == standbys[w].host} for w in follows})
    _release(state, follows, most=-(-len(subtasks) // len(standbys)))
    changed = {w: replace(standbys[w], role=m.Standby(each)) for w, each in follows.items()}
    return state if changed == standbys else replace(state, workers={**state.workers, **changed})


def _followed(hosted: Hosted) -> tuple[Subtask, ...]:
    return hosted.role.follows if isinstance(hosted.role, m.Standby) else ()


def _followers(follows: Follows, subtask: Subtask) -> list[WorkerId]:
    return [worker for worker, each in follows.items() if subtask in each]


def _add(follows: Follows, worker: WorkerId, subtask: Subtask) -> None:
    follows[worker] = tuple(sorted((*follows[worker], subtask)))


def _least_busy(follows: Follows, beside: Collection[WorkerId]) -> WorkerId:
    """Return the standby with the fewest copies, preferably not one beside the worker that it is to replace."""
    return min(follows, key=lambda worker: (len(follows[worker]), worker in beside))


def _balance(follows: Follows, subtasks: Sequence[Subtask], beside: Mapping[WorkerId, set[Subtask]]) -> None:
    """Let standbys with few copies make those of others, which give them up later.

    Args:
        beside: The subtasks whose workers are on the same host as a standby.
    """
    fewest = max(1, len(subtasks) // len(follows))
    for worker in follows:
        while len(follows[worker]) < fewest:
            alone = {w: sum(len(_followers(follows, s)) == 1 for s in each) for w, each in follows.items()}

            def need(subtask: Subtask, alone: Mapping[WorkerId, int] = alone, worker: WorkerId = worker) -> Any:
                followers = _followers(follows, subtask)
                return len(followers), -max(alone[w] for w in followers), subtask in beside[worker]

            _add(follows, worker, min((s for s in subtasks if s not in follows[worker]), key=need))


def _release(state: Master, follows: Follows, most: int) -> None:
    """Take copies from the standbys with more than `most`, where another one is complete."""
    for worker in follows:
        for subtask in follows[worker]:
            others = [w for w in _followers(follows, subtask) if w != worker]
            if len(follows[worker]) > most and any(has_newest(state, w, subtask) for w in others):
                follows[worker] = tuple(each for each in follows[worker] if each != subtask)


def has_newest(state: Master, worker: WorkerId, subtask: Subtask) -> bool:
    """Return whether a standby has reported that its copy holds the last completed epoch."""
    return state.workers[worker].copied(subtask) == state.job.base_epoch


def are_complete(state: Master) -> bool:
    """Return whether all wanted standbys are there, and their copies hold one of the last completed epochs."""
    standbys = {w: h.role.follows for w, h in state.workers.items() if isinstance(h.role, m.Standby)}
    recent = sorted(recent_cuts(state.job))[-COMPLETE_WITHIN:]
    wanted = len(standbys) == state.rules.standbys
    return wanted and all(state.workers[w].copied(s) in recent for w, follows in standbys.items() for s in follows)


def epochs_behind(state: Master, hosted: Hosted) -> int | None:
    """Return how many completed epochs the oldest copy of a standby lacks; None if a copy is still to be made."""
    epochs = [hosted.copied(subtask) for subtask in _followed(hosted)]
    if not epochs or min(epochs) == NO_EPOCH:
        return None
    return sum(epoch > min(epochs) for epoch in recent_cuts(state.job))


def follow(state: Master) -> list[Effect]:
    """Send every standby the subtasks of which it has not reported the last completed epoch.

    A standby that restores a copy reads no messages; it is sent the newest epoch afterwards.
    """
    phase = state.phase
    if not isinstance(phase, Deployed) or phase.last is None:
        return []
    standbys = {w: role for w, h in state.workers.items() if isinstance(role := h.role, m.Standby)}
    standbys = {w: role for w, role in standbys.items() if state.workers[w].heartbeat.progress.restored is None}
    behind = [(w, s) for w, role in standbys.items() for s in role.follows if not has_newest(state, w, s)]
    if not behind:
        return []
    job, handles, cuts = state.job, recovery.handles_for(phase.last, state.rules.key_ranges), recent_cuts(state.job)
    place = job.uuid, job.generation, job.timeline, job.base_epoch

    def lineage(worker: WorkerId, subtask: Subtask) -> dict[Epoch, str]:
        """Return the epochs from which the copy continues; all that a local folder may hold, if there is no copy."""
        bases, at = local_bases(cuts, handles[subtask]), state.workers[worker].copied(subtask)
        return {epoch: bases[epoch] for epoch in (at, job.base_epoch)} if at in bases else bases

    topic, claim = topic_state(state, phase.last), claim_of(state.job, state.rules.adopted)

    def target(worker: WorkerId, subtask: Subtask) -> m.Follow:
        at = state.workers[worker].copied(subtask)
        via = _waypoint(state, phase, handles[subtask], at)
        if via is None:
            return m.Follow(*place, standbys[worker], handles[subtask], lineage(worker, subtask), claim, topic)
        where = job.uuid, job.generation, job.timeline, via.epoch
        known = {epoch: cuts[epoch] for epoch in (at, via.epoch)}
        return m.Follow(*where, standbys[worker], via.handle, known, claim, topic)

    return [Send(w, target(w, s)) for w, s in behind]


def _waypoint(state: Master, phase: Deployed, handle: SnapshotHandle, at: Epoch) -> Waypoint | None:
    if not phase.waypoints or at not in recent_cuts(state.job):
        return None
    job = state.job
    return next_for(phase.waypoints, handle, at, lambda epoch: job.checkpoint(epoch) is not None)


def waypoints_after(state: Master, phase: Deployed, completed: Manifest) -> Waypoints:
    """Return the waypoints of copies that are behind, once this epoch is completed."""
    copies: dict[Subtask, list[Epoch]] = {}
    for hosted in state.workers.values():
        for subtask in _followed(hosted):
            copies.setdefault(subtask, []).append(hosted.copied(subtask))
    return passed(phase.waypoints, phase.last, completed, copies)


def newest_copy(state: Master, subtask: Subtask, among: Iterable[WorkerId]) -> WorkerId:
    """Return the worker to run a subtask: that with the newest copy of it, else the one with the fewest copies.

    One on a host that is severed from those of other subtasks comes last. A copy of an epoch after the base is one that
    a rewind has abandoned.
    """

    def rank(worker: WorkerId) -> tuple[int, int, int]:
        at, hosted = state.workers[worker].copied(subtask), state.workers[worker]
        return conflicts(state, hosted.site), -at if at <= state.job.base_epoch else 0, len(hosted.heartbeat.copies)

    return min(among, key=rank)


WAYPOINTS_MAX = 8


def base_of(handle: SnapshotHandle) -> Epoch:
    """Return the newest epoch that a base of this handle is as of: older state cannot be brought to the handle."""
    return max((piece.epoch for piece in pieces(handle) if piece.follows == NO_EPOCH), default=NO_EPOCH)


def passed(
    known: Waypoints, before: Manifest | None, after: Manifest, copies: Mapping[Subtask, Iterable[Epoch]]
) -> Waypoints:
    """Return the waypoints after an epoch is completed.

    Args:
        before: The last completed epoch; None: there is none.
        after: The one that is completed now.
        copies: The epochs of all copies of each subtask, 0 for one that is still to be made.
    """
    if before is None or [h.key_groups for h in before.state] != [h.key_groups for h in after.state]:
        return {}
    waypoints: dict[Subtask, tuple[Waypoint, ...]] = {}
    for old, new in zip(before.state, after.state, strict=True):
        base, oldest = base_of(new), min(copies.get(new.subtask, ()), default=base_of(new))
        every = known.get(new.subtask, ())
        if base_of(old) != base:
            every = (*every, Waypoint(before.epoch, old))
        if ahead := [each for each in every if oldest < each.epoch][-WAYPOINTS_MAX:] if oldest < base else []:
            waypoints[new.subtask] = tuple(ahead)
    return waypoints


def next_for(known: Waypoints, handle: SnapshotHandle, at: Epoch, is_kept: Callable[[Epoch], bool]) -> Waypoint | None:
    """Return the waypoint that a copy as of an epoch must reach first; None if it needs none, or no one leads on.

    Args:
        handle: That of the newest epoch.
        is_kept: Whether this completed epoch has not expired.
    """
    if at == NO_EPOCH or base_of(handle) <= at:
        return None
    found = (each for each in known.get(handle.subtask, ()) if base_of(each.handle) <= at < each.epoch)
    waypoint = next(found, None)
    return waypoint if waypoint is not None and is_kept(waypoint.epoch) else None
