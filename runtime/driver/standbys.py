"""Which standby follows which subtasks, and what the master sends to them.

A standby is a worker without a subtask. Its copies advance with the completed epochs; gathering.py gives a free subtask
to the standby with the newest copy.

Invariants
    - While there is a standby, every subtask has a follower.
    - A standby gives up a copy only once another standby has it complete.
    - A follower learns of completed epochs only, so no copy is ahead of the log.
    - Neither the loss of a standby nor a missing one affects the generation.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: DESIGN section 5 (standby); docs/design/0054-standbys.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.checkpoint import recovery
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Epoch, Subtask, WorkerId
from holdfast.runtime.driver.deployment import local_bases, recent_cuts
from holdfast.runtime.driver.state import Effect, Hosted, Master, Running, Send
from holdfast.runtime.wire import messages as m

Follows = dict[WorkerId, tuple[Subtask, ...]]


def cover(state: Master) -> Master:
    """Let workers without a subtask follow subtasks, as many as the run has standbys."""
    spare = [w for w, hosted in state.workers.items() if hosted.subtask is None]
    spare.sort(key=lambda worker: state.workers[worker].role is None)  # what has copies stays a standby
    standbys = {worker: state.workers[worker] for worker in spare[: state.rules.standbys]}
    if not standbys or not isinstance(state.phase, Running):
        return state
    follows: Follows = {w: _followed(hosted) for w, hosted in standbys.items()}
    subtasks = [Subtask(s) for s in range(state.rules.parallelism)]
    hosts = {hosted.subtask: hosted.host for hosted in state.workers.values() if hosted.subtask is not None}
    for subtask in subtasks:
        if not _followers(follows, subtask):
            _add(follows, _least_busy(follows, {w for w in follows if standbys[w].host == hosts[subtask]}), subtask)
    for worker in [w for w, each in follows.items() if not each]:
        _add(follows, worker, _neediest(follows, subtasks, hosts, standbys[worker].host))
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


def _neediest(follows: Follows, subtasks: Iterable[Subtask], hosts: Mapping[Subtask, str], host: str) -> Subtask:
    """Return the subtask with the fewest followers, among them that whose follower has the most others."""

    def need(subtask: Subtask) -> tuple[int, int, bool]:
        followers = _followers(follows, subtask)
        return len(followers), -min(len(follows[w]) for w in followers), hosts[subtask] == host

    return min(subtasks, key=need)


def _release(state: Master, follows: Follows, most: int) -> None:
    """Take copies from the standbys with more than `most`, where another one is complete."""
    for worker in follows:
        for subtask in follows[worker]:
            others = [w for w in _followers(follows, subtask) if w != worker]
            if len(follows[worker]) > most and any(has_newest(state, w, subtask) for w in others):
                follows[worker] = tuple(each for each in follows[worker] if each != subtask)


def copied(hosted: Hosted, subtask: Subtask) -> Epoch:
    """Return the epoch of a worker's copy of a subtask; 0 if it has none."""
    return next((each.epoch for each in hosted.copies if each.subtask == subtask), NO_EPOCH)


def has_newest(state: Master, worker: WorkerId, subtask: Subtask) -> bool:
    """Return whether a standby has reported that its copy holds the last completed epoch."""
    return copied(state.workers[worker], subtask) == state.job.base_epoch


def are_complete(state: Master) -> bool:
    """Return whether all wanted standbys are there, and all their copies hold the last completed epoch."""
    standbys = {w: h.role.follows for w, h in state.workers.items() if isinstance(h.role, m.Standby)}
    wanted = len(standbys) == state.rules.standbys
    return wanted and all(has_newest(state, w, s) for w, follows in standbys.items() for s in follows)


def epochs_behind(state: Master, hosted: Hosted) -> int | None:
    """Return how many completed epochs the oldest copy of a standby lacks; None if it has reported no copy."""
    if not hosted.copies:
        return None
    oldest = min(each.epoch for each in hosted.copies)
    return sum(done.body.epoch > oldest for done in state.job.completed)


def follow(state: Master) -> list[Effect]:
    """Send every standby the subtasks of which it has not reported the last completed epoch."""
    phase = state.phase
    if not isinstance(phase, Running) or phase.last is None:
        return []
    standbys = {w: role for w, h in state.workers.items() if isinstance(role := h.role, m.Standby)}
    behind = [(w, s) for w, role in standbys.items() for s in role.follows if not has_newest(state, w, s)]
    if not behind:
        return []
    job, handles = state.job, recovery.handles_for(phase.last, state.rules.key_ranges)
    cuts = recent_cuts(job)
    bases = {subtask: local_bases(cuts, handles[subtask]) for _, subtask in behind}
    place = job.uuid, job.generation, job.timeline, job.base_epoch
    return [Send(w, m.Follow(*place, standbys[w], handles[s], bases[s])) for w, s in behind]


def newest_copy(state: Master, subtask: Subtask, among: Iterable[WorkerId]) -> WorkerId:
    """Return the worker to run a subtask: that with the newest copy of it, else the one with the fewest copies."""

    def rank(worker: WorkerId) -> tuple[int, int]:
        return -copied(state.workers[worker], subtask), len(state.workers[worker].copies)

    return min(among, key=rank)
