"""What the master does when data channels break between workers that both still reach the driver.

A broken connection may be an accident: the generation is recovered in place, and its channels connect again. A network
may also be severed between two hosts and nowhere else, perhaps for good and perhaps in one direction only. Then each
recovery in place would break in the same way. So one of the two workers is replaced: immediately if a machine answered
nothing, else if the channels break again before an epoch was completed. Where another worker takes over or is started,
hosts that are severed from those of the other subtasks are avoided as long as there is a choice.

Invariants
    - A recovery of broken channels waits as long as restarts do, so that a lasting cause does not keep the job busy.
    - What is noted of two hosts ends with an epoch that workers on both complete.
    - Severed hosts are avoided, never excluded: the report of a worker may be wrong, or the network mended.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: docs/design/0064-severed-hosts.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.frozen import replace
from holdfast.model import WorkerId
from holdfast.runtime.driver.deployment import launch_allowed_at
from holdfast.runtime.driver.failover import is_held
from holdfast.runtime.driver.hosts.standbys import copied
from holdfast.runtime.driver.state import Hosted, Master, Running, Site

BROKEN_GRACE_S = 1.0
"""How long the loss of a worker may lag behind its peers' reports of broken channels."""


@dataclass(frozen=True)
class Break:
    """Channels broke between two workers with subtasks."""

    workers: tuple[WorkerId, WorkerId]
    """The first has reported it."""
    why: str
    silent: bool
    """As in `BrokenLink`."""


def is_due(state: Master, phase: Running, now: float) -> bool:
    """Return whether broken channels are to be recovered now.

    The cause may persist, so recoveries are paced: not one per second. A recovery that has to wait for a held worker
    would break in the same way.
    """
    broken = phase.broken_since is not None and now - phase.broken_since > BROKEN_GRACE_S
    return broken and now >= launch_allowed_at(state) and not is_held(state)


def breaks(state: Master) -> list[Break]:
    """Return what the workers report of broken channels, silence first."""
    runs = {hosted.subtask: worker for worker, hosted in state.workers.items() if hosted.subtask is not None}
    found = [
        Break((worker, runs[link.peer]), link.why, link.silent)
        for worker, hosted in state.workers.items()
        for link in hosted.broken_to
        if hosted.subtask is not None and link.peer in runs
    ]
    return sorted(found, key=lambda each: not each.silent)


def cause_of(state: Master, found: list[Break]) -> str:
    """Return what happened, for users."""
    if not found:
        return "a data channel broke between live workers"
    here, there = (_named(state, worker) for worker in found[0].workers)
    return f"a data channel broke between {here} and {there}, which both reach the driver: {found[0].why}"


def to_replace(state: Master, found: list[Break], now: float) -> WorkerId | None:
    """Return the worker to replace; None if all stay.

    One that the driver has not heard for two heartbeats, and a second at least, is probably lost. One with broken
    channels to several hosts is severed from all of them. Otherwise it is one whose copy is on a third host, where that
    exists.
    """
    decisive = [each for each in found if (each.silent and _apart(state, each)) or state.broken_in_a_row > 0]
    if not decisive:
        return None
    unheard_for = max(BROKEN_GRACE_S, 2 * state.rules.heartbeat_every)
    peers: dict[WorkerId, set[WorkerId]] = {}
    for each in decisive:
        for worker, other in (each.workers, each.workers[::-1]):
            peers.setdefault(worker, set()).add(other)

    def likely(worker: WorkerId) -> tuple[bool, int, bool, int]:
        hosted = state.workers[worker]
        others = {state.workers[other].host for other in peers[worker]}
        assert hosted.subtask is not None
        return now - hosted.seen > unheard_for, len(peers[worker]), _covered(state, hosted, others), hosted.subtask

    return max(peers, key=likely)


def noted(state: Master, found: list[Break], now: float) -> Master:
    """Note the pairs of hosts, to avoid them."""
    pairs = {**state.severed}
    for each in found:
        if _apart(state, each) and (each.silent or state.broken_in_a_row > 0):
            pairs[frozenset(state.workers[worker].site for worker in each.workers)] = now
    return replace(state, severed=pairs)


def proved(state: Master) -> Master:
    """Forget the pairs of hosts whose workers have completed an epoch: every channel carried its barrier."""
    return replace(state, severed={pair: at for pair, at in state.severed.items() if not _both_run(state, pair)})


def in_the_way(state: Master) -> list[tuple[Site, Site]]:
    """Return the severed pairs of hosts that keep the job from completing epochs now."""
    pairs = [(min(pair), max(pair)) for pair in state.severed if state.failures_in_a_row > 0 and _both_run(state, pair)]
    return sorted(pairs)


def _both_run(state: Master, pair: frozenset[Site]) -> bool:
    return pair <= {hosted.site for hosted in state.workers.values() if hosted.subtask is not None}


def _apart(state: Master, each: Break) -> bool:
    return len({state.workers[worker].host for worker in each.workers}) > 1


def _covered(state: Master, hosted: Hosted, others: set[str]) -> bool:
    """Return whether a standby has a copy of the worker's state on a host that is not one of these."""
    assert hosted.subtask is not None
    spare = (each for each in state.workers.values() if each.subtask is None and each.host not in others)
    return any(copied(each, hosted.subtask) > 0 for each in spare)


def _named(state: Master, worker: WorkerId) -> str:
    hosted = state.workers[worker]
    return f"subtask {hosted.subtask} on {hosted.host}"
