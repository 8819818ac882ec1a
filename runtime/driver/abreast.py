"""Keeps the subtasks of a source together in event time: tells those that are ahead how far they may read.

Pure: no clock, thread or I/O.
Source: docs/design/0048-event-time-alignment.md.
"""

from __future__ import annotations

from holdfast.frozen import replace
from holdfast.model import Subtask
from holdfast.runtime.driver.deployment import all_ready, assigned
from holdfast.runtime.driver.state import ALIGNED_WITHIN_S, Hosted, Master, Running, Send, Step
from holdfast.runtime.time.time_alignment import ALWAYS_LEFT, Look, Place, Reached, looked
from holdfast.runtime.wire import messages as m

PULSES_PER_WINDOW = 4
"""Looks in a window, so that a limit outlasts lost and late messages."""


def hold_back(state: Master, now: float, every: float) -> Step:
    """Look how far the sources are read; return the limits, for the subtasks that they apply to.

    Args:
        every: Seconds between two looks.
    """
    phase = state.phase
    if not (isinstance(phase, Running) and state.rules.aligned and state.rules.parallelism > 1 and all_ready(state)):
        return state, []
    partitions: dict[Place, Reached] = {}
    reader: dict[Place, Subtask] = {}
    for hosted in state.workers.values():
        if hosted.subtask is not None:
            mine = _reached(state, hosted)
            partitions |= mine
            reader |= dict.fromkeys(mine, hosted.subtask)
    window = max(ALIGNED_WITHIN_S, PULSES_PER_WINDOW * every)
    before = replace(phase.aligned, window=window)
    aligned = looked(before, Look(now, partitions), state.rules.aligned)
    state = replace(state, phase=replace(phase, aligned=aligned))
    effects = []
    for worker in assigned(state):
        subtask = state.workers[worker].subtask
        others = [(group, limit) for group, limit in aligned.limits.items() if reader[limit.slowest] != subtask]
        later_than = {source: limit.at_us for group, limit in others for source in group.sources}
        if aligned.limits or before.limits:  # an empty one ends those that were in force
            effects.append(Send(worker, m.HoldBack(state.job.generation, later_than, window)))
    return state, [*effects]


def _reached(state: Master, hosted: Hosted) -> dict[Place, Reached]:
    """Return how far a worker says that it has read the partitions that this run has not read to their end."""
    said, until = hosted.progress, state.rules.until
    boundless = {source for group in state.rules.aligned for source in group.boundless}
    ends = {(at.source, at.partition): at.offset for at in said.ends}
    ended = {(at.source, at.partition) for at in said.ended}
    found: dict[Place, Reached] = {}
    for at in said.positions:
        place = at.source, at.partition
        if place in ended or place not in ends:
            continue
        end = ends[place] if until is None else min(ends[place], until[at.source].get(at.partition, 0))
        left = ALWAYS_LEFT if at.source in boundless else max(0, end - max(at.offset, 0))
        found[place] = Reached(at.offset, at.watermark, left)
    return found
