"""Wrong versions of the audit digests; chaos/mutants/mutants.py names the rule that each negates.

Source: docs/decisions/0018-audit.md; PROTOCOL P8, P10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.audit import PartAudit
from holdfast.model import Epoch
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.worker import protocol as worker
from holdfast.runtime.worker.loop import WorkerLoop

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def tells_only_new(right: Right) -> Right:
    def audit_through(state: worker.Worker, epoch: Epoch) -> PartAudit | None:
        only = {number: counts for number, counts in state.counts.items() if number == epoch}
        reported: PartAudit | None = right(replace(state, counts=only), epoch)
        return reported

    return audit_through


def keeps_counts(right: Right) -> Right:
    """Counts from before a rollback are reported together with the records that are read again."""

    def deploy(loop: WorkerLoop, order: Deploy) -> None:
        before = loop._active.machine.counts if loop._active is not None else {}
        right(loop, order)
        if loop._active is not None:
            loop._active.machine = replace(loop._active.machine, counts=before)

    return deploy


def tells_committed_again(right: Right) -> Right:
    def committed(state: worker.Worker, through: Epoch) -> tuple[worker.Worker, list[worker.Effect]]:
        after, effects = right(state, through)
        return replace(after, counts=state.counts), effects

    return committed
