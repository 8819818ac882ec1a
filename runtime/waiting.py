"""What a running job waits for, as part of its status: the epoch being closed, workers on their way, a backlog.

`holdfast explain` makes sentences of it. Times are those since the event, by the driver's own clock.

Pure: values in, JSON-able values out.
Source: API.md, `holdfast explain`; DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint import append, coordinator
from holdfast.model import NO_EPOCH, Pending, Tag, Timeline
from holdfast.runtime.deployment import launch_allowed_at, older_output_is_left
from holdfast.runtime.master_state import Master, Running


def of(state: Master) -> dict[str, Any]:
    """Return what is waited for, to be put into the status of a run."""
    now = state.looked_at or 0.0
    running = state.phase if isinstance(state.phase, Running) else None
    asked = "finish" if state.finish_asked else "stop" if state.stopping else None
    return {
        "parallelism": state.rules.parallelism,
        "checkpoint_every_ms": round(state.rules.checkpoint_every * 1000),
        "ending": "once" if asked is None and state.rules.until is not None else asked,
        "savepoints_waiting": list(state.savepoints),
        "appending": state.log.record.kind if isinstance(state.log, append.InFlight) else None,
        "open_epoch": None if running is None else _open_epoch(state, running, now),
        "older_output_left": running is not None and older_output_is_left(state, running.base),
        "launching": [{"number": n, "since_ms": _ms(now - at)} for n, at in sorted(state.launching.items())],
        "next_launch_ms": max(0, _ms(launch_allowed_at(state) - now)) if state.failures else 0,
        "failures": {
            "count": len(state.failures), "max": state.rules.failures_max,
            "last": str(state.failures[-1].error.get("what")) if state.failures else None,
        },
        "backlog": _backlog(state, running),
        "waiting": [
            {"worker": worker, "subtask": hosted.subtask, "ready": hosted.ready, "ended": hosted.ended,
             "silent_ms": _ms(now - hosted.seen), "held_by": list(hosted.progress.held_by)}
            for worker, hosted in state.workers.items()
        ],
        "ended": [
            {"source": at.source, "partition": at.partition}
            for hosted in state.workers.values() for at in hosted.progress.ended
        ],
    }  # fmt: skip


def _open_epoch(state: Master, phase: Running, now: float) -> dict[str, Any] | None:
    match phase.epochs:
        case coordinator.Collecting(barrier=barrier, started=started, parts=parts):
            missing = [subtask for subtask in range(state.rules.parallelism) if subtask not in parts]
        case coordinator.Deciding(barrier=barrier, started=started):
            missing = []
        case _:
            return None
    return {
        "epoch": barrier.epoch, "open_ms": _ms(now - started), "deadline_ms": _ms(state.rules.epoch_deadline),
        "last": barrier.last, "savepoint": phase.savepoint, "missing": missing,
    }  # fmt: skip


def _backlog(state: Master, phase: Running | None) -> list[dict[str, Any]]:
    """Return, per sink, the committed output that no worker has reported as delivered."""
    nothing = Tag(Timeline(0), NO_EPOCH)
    left: dict[str, list[Pending]] = {}
    for item in phase.last.pending if phase is not None and phase.last is not None else ():
        if state.confirmed.get(item.writer, nothing) < item.tag:
            left.setdefault(item.writer.sink, []).append(item)
    return [
        {"sink": sink, "epochs": len({item.tag for item in items}), "oldest_epoch": min(i.tag.epoch for i in items),
         "rows": sum(item.staged.rows for item in items),
         "bytes": sum(part.size for item in items for part in item.staged.parts)}
        for sink, items in sorted(left.items())
    ]  # fmt: skip


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
