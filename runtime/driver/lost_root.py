"""What a driver reports when its root was deleted or replaced: what is lost with it, and what is not.

Pure: no clock, thread or I/O. Part of runtime/driver/loop.py.
Source: docs/design/0116-roots-that-go.md.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.checkpoint.joblog import record_path
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ErrorReport, HoldfastError
from holdfast.model import Epoch
from holdfast.runtime.driver.state import Master

SHOWN_MAX = 20
"""How many positions and targets the message names."""


def report(state: Master, last: Manifest | None, error: HoldfastError) -> ErrorReport:
    """Return the error with what the job had done and where its state still is.

    Args:
        last: The manifest of the last completed epoch; None if it is unknown.
    """
    said, job = error.report(), state.log.job
    if job is None or not job.completed:
        return said
    through = job.base_epoch
    kept = [f"{said.not_done}. The last checkpoint was that of epoch {through}"]
    if last is not None and last.epoch == through:
        read = [f"{at.source}:{at.partition} at {at.offset}" for at in last.positions]
        kept.append(f"the sources were read as far as {_shown(read)}")
    if delivered := _delivered(state):
        targets = [f"{sink} through epoch {epoch}" for sink, epoch in delivered]
        kept.append(f"targets keep what was delivered: {_shown(targets)}")
    if hosts := sorted({hosted.host for hosted in state.workers.values() if hosted.subtask is not None}):
        kept.append(
            f"the state as of epoch {through} is in the memory of the workers, which ends with this run; their local "
            f"folders on {', '.join(hosts)} lag behind it, and only a root with this log can use them"
        )
    next_step = (
        f"put the root back as it was (undo the move, mount it, or restore a copy that has "
        f"{record_path(job.next_seq - 1)}) and run the job again: it continues after epoch {through}. Without such "
        "a copy the state cannot be restored: begin under another name, with targets of its own, and it reads its "
        "sources from the start"
    )
    return replace(said, job=job.name, epoch=through, not_done="; ".join(kept), next=next_step)


def _delivered(state: Master) -> list[tuple[str, Epoch]]:
    newest: dict[str, Epoch] = {}
    for writer, tag in state.confirmed.items():
        newest[writer.sink] = max(newest.get(writer.sink, tag.epoch), tag.epoch)
    return sorted(newest.items())


def _shown(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN_MAX} more" if len(items) > SHOWN_MAX else ""
    return ", ".join(items[:SHOWN_MAX]) + more
