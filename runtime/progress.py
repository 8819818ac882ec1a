"""What a worker tells of itself with every heartbeat: how far it is, and what holds it up.

For people and for `holdfast explain`; of all this only `quiet` decides something: whether an epoch is worth closing.

Source: DESIGN section 13 (status).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.model import NO_EPOCH, Epoch, Generation, WorkerId
from holdfast.runtime import messages as m
from holdfast.runtime import worker
from holdfast.runtime.deliveries import Deliveries
from holdfast.runtime.metrics import rss_bytes
from holdfast.runtime.subtask import SubtaskRun

if TYPE_CHECKING:
    from holdfast.runtime.loop import Active

def heartbeat_of(
    worker_id: WorkerId,
    active: Active | None,
    deliveries: Deliveries,
    refused: Mapping[str, str],
    local_refused: m.LocalRefusal | None,
) -> m.Heartbeat:
    """Return what a worker tells of itself.

    Args:
        refused: Why the store took nothing of a lane, "upload" or "merge", at its last attempt; empty if it did.
        local_refused: Why the local disk takes no state, and since when; None if it does.

    Raises:
        HoldfastError: a source can no longer be read; one of a broken generation is not asked.
    """
    delivered = deliveries.confirmed()
    if active is None:
        return m.Heartbeat(worker_id, Generation(0), False, False, delivered, m.Progress())
    run = active.run
    progress = msgspec.structs.replace(
        run.progress(),
        ends=() if active.broken else run.ends(),
        rss_bytes=rss_bytes(),
        lag_epochs=worker.durable_epochs(active.machine),
        sink_errors={sink: error.what for sink, error in deliveries.errors().items()},
        sink_advice={sink: error.next_step for sink, error in deliveries.errors().items()},
        first_record_at=active.first_record_at,
        held_by=_held_by(run, active.machine, deliveries),
        refused=refused.get("upload", ""),
        merge_refused=refused.get("merge", ""),
        local_refused=local_refused,
    )
    return m.Heartbeat(
        worker_id, active.deploy.generation, run.ended(), active.broken, delivered, progress, run.caught_up(),
        quiet_of(active),
    )  # fmt: skip


def quiet_of(active: Active) -> Epoch:
    """Return the last closed epoch if a later one would record nothing of this subtask, 0 if it would (design/0025)."""
    return NO_EPOCH if active.machine.merged is not None else active.run.quiet


def _held_by(run: SubtaskRun, machine: worker.Worker, deliveries: Deliveries) -> tuple[str, ...]:
    if machine.halted:
        return ("last barrier",)
    return (*run.held_by(), *(("delivery",) if deliveries.full() else ()))
