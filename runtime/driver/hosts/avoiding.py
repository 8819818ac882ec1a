"""Which hosts the master avoids where it has a choice: for a new worker, and for a subtask that is free.

Spark decides where a task runs, and knows less than the driver: it takes a minute or two to notice that a host is gone,
never notices that two hosts are severed, and does not know which worker follows which. So a launch names hosts to
avoid. Local state plays no part here: a worker that died by itself leaves its host as good as any.

Invariants
    - A host is avoided, never excluded: if no other has a free slot, the worker starts there.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: docs/design/0064-severed-hosts.md.
"""

from __future__ import annotations

from holdfast.frozen import replace
from holdfast.runtime.driver.state import Hosted, Master, Site

SILENT_S = 2.0
"""A worker not heard for so long before its loss was not just ended: its host may be gone or unreachable."""
DOUBTED_FOR_S = 120.0
"""How long a host is avoided afterwards, unless a worker registers from it: until Spark itself has noticed."""
SEVERED_FOR_S = 600.0
"""How long two hosts count as severed after the last report."""


def doubt(state: Master, lost: Hosted, now: float) -> Master:
    """Note that a worker was lost, after a silence or not."""
    if now - lost.seen <= SILENT_S:
        return state
    return replace(state, doubted={**state.doubted, lost.host: (lost.site, now)})


def trust(state: Master, host: str) -> Master:
    """Note that a worker has registered from this host."""
    return replace(state, doubted={name: each for name, each in state.doubted.items() if name != host})


def forget_old(state: Master, now: float) -> Master:
    """Drop what was noted of hosts too long ago to count."""
    doubted = {name: each for name, each in state.doubted.items() if now - each[1] < DOUBTED_FOR_S}
    severed = {pair: at for pair, at in state.severed.items() if now - at < SEVERED_FOR_S}
    if len(doubted) == len(state.doubted) and len(severed) == len(state.severed):
        return state
    return replace(state, doubted=doubted, severed=severed)


def avoided(state: Master, standby: bool) -> tuple[Site, ...]:
    """Return where the next worker should rather not start, the worst first.

    Args:
        standby: It will be one: it is to survive the hosts of the workers that it follows.
    """
    doubted = [site for site, _ in state.doubted.values()]
    active = [hosted.site for hosted in state.workers.values() if hosted.subtask is not None]
    severed = [site for pair in state.severed for site in sorted(pair) if pair - {site} & set(active)]
    return tuple(dict.fromkeys((*doubted, *(active if standby else ()), *severed)))


def conflicts(state: Master, site: Site) -> int:
    """Return how many workers with a subtask are where data from this site does not arrive, or the reverse."""
    active = (hosted.site for hosted in state.workers.values() if hosted.subtask is not None)
    return sum(frozenset((site, other)) in state.severed for other in active)
