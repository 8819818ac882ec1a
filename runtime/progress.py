"""What a worker tells of itself with every heartbeat: how far it is, and what holds it up.

For people and for `holdfast explain`; nothing is decided by it.

Source: DESIGN section 13 (status).
"""

from __future__ import annotations

import msgspec

from holdfast.runtime import messages as m
from holdfast.runtime import worker
from holdfast.runtime.deliveries import Deliveries
from holdfast.runtime.metrics import rss_bytes
from holdfast.runtime.subtask import SubtaskRun


def progress_of(
    run: SubtaskRun,
    machine: worker.Worker,
    deliveries: Deliveries,
    first_record_at: int | None,
    refused: str,
    local_refused: m.LocalRefusal | None,
) -> m.Progress:
    """Return how far a subtask is."""
    return msgspec.structs.replace(
        run.progress(),
        rss_bytes=rss_bytes(),
        lag_epochs=worker.durable_epochs(machine),
        sink_errors=deliveries.errors(),
        first_record_at=first_record_at,
        held_by=_held_by(run, machine, deliveries),
        refused=refused,
        local_refused=local_refused,
    )


def _held_by(run: SubtaskRun, machine: worker.Worker, deliveries: Deliveries) -> tuple[str, ...]:
    if machine.halted:
        return ("last barrier",)
    return (*run.held_by(), *(("delivery",) if deliveries.full() else ()))
