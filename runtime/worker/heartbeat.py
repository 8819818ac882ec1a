"""The content of a worker's heartbeat: its progress, and what holds it up.

The report is for display and for `holdfast explain`. Only `quiet` and `wants_barrier` drive a decision: whether to
close an epoch, and whether before it is due.

Source: DESIGN section 13 (status).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.manifest import Confirmed
from holdfast.model import NO_EPOCH, Epoch, Generation, WorkerId
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker import protocol as worker
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.runtime.worker.subtask import Active, SubtaskRun
from holdfast.state.paging.swap import resident_bytes


class MemoryUse(NamedTuple):
    """The memory of a worker's state."""

    state_bytes: int
    """Bytes of all tables, in memory or swapped out."""
    budget: int | None
    is_full: bool
    """Sources wait for memory."""
    wants_barrier: bool


NO_STATE = MemoryUse(0, None, False, False)


def heartbeat_of(
    worker_id: WorkerId,
    active: Active | None,
    deliveries: Deliveries,
    refused: Mapping[str, str],
    local_refused: m.LocalRefusal | None,
    memory: MemoryUse = NO_STATE,
) -> m.Heartbeat:
    """Return the worker's heartbeat.

    Args:
        refused: Why the store refused the last attempt of a lane, "upload" or "merge"; empty if it did not.
        local_refused: Why the local disk takes no state, and since when; None if the disk takes it.
    """
    confirmations = deliveries.confirmed()
    if active is None:
        return m.Heartbeat(worker_id, Generation(0), False, False, confirmations, m.WorkerProgress())
    run = active.run
    progress = msgspec.structs.replace(
        run.progress(),
        ends=() if active.broken else active.ends,
        rss_bytes=resident_bytes(),
        state_bytes=memory.state_bytes,
        state_memory=memory.budget,
        lag_epochs=worker.durable_epochs(active.machine),
        sink_errors={sink: error.what for sink, error in deliveries.errors().items()},
        sink_advice={sink: error.next_step for sink, error in deliveries.errors().items()},
        first_record_at=active.first_record_at,
        held_by=_held_by(run, active.machine, deliveries, memory),
        refused=refused.get("upload", ""),
        merge_refused=refused.get("merge", ""),
        local_refused=local_refused,
    )
    return m.Heartbeat(
        worker_id,
        active.deploy.generation,
        run.ended(),
        active.broken,
        confirmations,
        progress,
        run.caught_up(),
        quiet_of(active),
        run.partitions(),
        memory.wants_barrier and not active.broken,
        broken_to=tuple(active.broken_to.values()),
    )


def standby_heartbeat(
    worker_id: WorkerId,
    generation: Generation,
    copies: tuple[m.StandbyCopy, ...],
    delivered: tuple[Confirmed, ...],
    memory: MemoryUse,
    refused: str,
) -> m.Heartbeat:
    """Return the heartbeat of a worker that runs no subtask.

    Args:
        refused: Why the root could not be read at the last attempt; empty if it could.
    """
    progress = m.WorkerProgress(
        rss_bytes=resident_bytes(),
        state_bytes=memory.state_bytes,
        state_memory=memory.budget,
        refused=refused,
    )
    return m.Heartbeat(worker_id, generation, False, False, delivered, progress, copies=copies)


def quiet_of(active: Active) -> Epoch:
    """Return the last closed epoch if a later one would record nothing new of this subtask, else 0 (decisions/0025)."""
    return NO_EPOCH if active.machine.merged is not None else active.run.quiet


def _held_by(run: SubtaskRun, machine: worker.Worker, deliveries: Deliveries, memory: MemoryUse) -> tuple[str, ...]:
    if machine.halted:
        return ("last barrier",)
    waits = ("delivery", deliveries.full()), ("memory", memory.is_full)
    return (*run.held_by(), *(name for name, holds in waits if holds))
