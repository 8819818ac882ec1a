"""Hand the output of sinks that have one committer to the worker that hosts it.

The driver alone knows what all writers staged: the last manifest names it as pending until it is confirmed. A
deployment hands over what its base names; the messages here hand over what later epochs add.

Invariants
    - What is handed over is committed, oldest first, and without a gap behind the base (P18).
    - It is repeated until a heartbeat or an ack confirms it (P9).

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: PROTOCOL P9, P18, P20, P23; docs/design/0056-one-committer.md.
"""

from __future__ import annotations

from holdfast.checkpoint.committing import COMMITTER
from holdfast.model import NO_EPOCH, Pending
from holdfast.runtime.driver.events import Send
from holdfast.runtime.driver.state import Master, Running
from holdfast.runtime.wire import messages as m
from holdfast.sinks.protocol import delivery

HANDED_OVER_MAX = delivery.TOGETHER_EPOCHS_MAX
"""Epochs of a sink in one message; the committer gets the next ones as it confirms these."""


def hand_over(state: Master) -> list[Send]:
    """Return the message to the committer's worker, none if there is nothing to deliver."""
    phase = state.phase
    if not isinstance(phase, Running) or not state.rules.committed_once:
        return []
    base = NO_EPOCH if phase.base is None else phase.base.epoch
    pending = tuple(
        item for items in _open(state, phase).values() for item in items[:HANDED_OVER_MAX] if item.tag.epoch > base
    )
    host = next((worker for worker, hosted in state.workers.items() if hosted.subtask == COMMITTER), None)
    return [Send(host, m.Deliver(state.job.generation, pending))] if pending and host is not None else []


def behind(state: Master) -> bool:
    """Return whether so much output waits for a committer that sources must stop."""
    running, rules = state.running, state.rules
    if running is None:
        return False
    for items in _open(state, running).values():
        size = sum(part.size for item in items for part in item.staged.parts)
        if delivery.too_much(len(items), size, bytes_max=rules.staged_bytes_max * rules.parallelism):
            return True
    return False


def _open(state: Master, running: Running) -> dict[str, list[Pending]]:
    """Return what is pending and not confirmed of each sink that has one committer, oldest first."""
    found: dict[str, list[Pending]] = {sink: [] for sink in state.rules.committed_once}
    for item in () if running.last is None else running.last.pending:
        known = state.confirmed.get(item.writer)
        if item.writer.sink in found and item.writer.subtask == COMMITTER and (known is None or known < item.tag):
            found[item.writer.sink].append(item)
    return {sink: sorted(items, key=lambda item: item.tag) for sink, items in found.items()}
