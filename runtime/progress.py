"""What a worker tells of itself with every heartbeat: how far it is, and what holds it up.

For people and for `holdfast explain`; nothing is decided by it.

Source: DESIGN section 13 (status).
"""

from __future__ import annotations

from holdfast.runtime import messages as m
from holdfast.runtime import worker
from holdfast.runtime.deliveries import Deliveries
from holdfast.runtime.metrics import rss_bytes
from holdfast.runtime.subtask import SubtaskRun


def progress_of(
    run: SubtaskRun, machine: worker.Worker, deliveries: Deliveries, first_record_at: int | None
) -> m.Progress:
    """Return how far a subtask is."""
    dropped = run.dropped()
    operators = tuple(m.OperatorProgress(n, *counts, 0, dropped.get(n)) for n, counts in run.counters().items())
    return m.Progress(
        records_in=run.records_in,
        rss_bytes=rss_bytes(),
        positions=run.positions(),
        ends=run.ends(),
        operators=operators,
        lag_epochs=worker.durable_epochs(machine),
        sink_errors=deliveries.errors(),
        first_record_at=first_record_at,
        ended=run.ended_at(),
        held_by=_held_by(run, machine, deliveries),
    )


def _held_by(run: SubtaskRun, machine: worker.Worker, deliveries: Deliveries) -> tuple[str, ...]:
    if machine.halted:
        return ("last barrier",)
    return (*run.held_by(), *(("delivery",) if deliveries.full() else ()))
