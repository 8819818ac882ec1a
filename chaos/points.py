"""The points of the protocol, and at which of them a process is, told from its ports alone.

A call is at the point that its path, message or frame belongs to. A process as a whole may be at several points at
once: each of its lanes that is at work, an ack that its driver has not heard yet, channels of which one has brought the
barrier and another has not, and what the master's phase says. Nothing in the runtime is asked to tell.

Source: research section 2b, protocol points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import append, coordinator
from holdfast.model import Barrier
from holdfast.runtime import messages as m
from holdfast.runtime.channels import Frame
from holdfast.runtime.deployment import all_ready
from holdfast.runtime.master_state import Gathering, Opening, Running

if TYPE_CHECKING:
    from holdfast.chaos.driver_process import DriverProcess
    from holdfast.chaos.worker_process import WorkerProcess


class Point(StrEnum):
    """Where in the protocol a process is."""

    START = "P0"
    RESTORE = "P1"
    REPLAY = "P2"
    FENCE = "P3"
    TRIGGER = "P4"
    ALIGN = "P5"
    STAGE = "P6"
    APPLY = "P7"
    UPLOAD = "P8"
    ACK = "P9"
    COMMIT = "P10"
    DELIVER = "P11"
    CONFIRM = "P12"
    SWEEP = "P13"
    RECOVER = "P14"
    REWIND = "P15"
    BETWEEN = "-"
    """At none of them: records flow."""


MEANS = {
    Point.START: "start of a generation appended", Point.RESTORE: "state read", Point.REPLAY: "segments replayed",
    Point.FENCE: "target fenced", Point.TRIGGER: "trigger, offsets noted", Point.ALIGN: "alignment",
    Point.STAGE: "output staged", Point.APPLY: "local folder written", Point.UPLOAD: "segment stored",
    Point.ACK: "ack", Point.COMMIT: "manifest and record: the commit", Point.DELIVER: "delivery",
    Point.CONFIRM: "delivery confirmed", Point.SWEEP: "expiry, sweep, pruning", Point.RECOVER: "base, redelivery",
    Point.REWIND: "rewind", Point.BETWEEN: "records flow",
}  # fmt: skip
_RECORDS = {
    "JobCreated": Point.START, "GenerationStarted": Point.START, "CheckpointCompleted": Point.COMMIT,
    "Expired": Point.SWEEP, "LogStart": Point.SWEEP, "Rewound": Point.REWIND,
    "Finished": Point.CONFIRM, "Stopped": Point.CONFIRM, "SavepointNamed": Point.BETWEEN,
}  # fmt: skip
_LANES = {"sweep": Point.SWEEP, "repair": Point.REWIND, "upload": Point.UPLOAD, "merge": Point.UPLOAD}
_WRITES = {
    "segments": Point.UPLOAD, "base": Point.UPLOAD, "merged": Point.UPLOAD, "staged": Point.STAGE,
    "manifests": Point.COMMIT,
}  # fmt: skip
_READS = {
    "segments": (Point.RESTORE, Point.REPLAY), "base": (Point.RESTORE,), "merged": (Point.RESTORE, Point.REPLAY),
    "manifests": (Point.RECOVER,), "log": (Point.RECOVER,), "staged": (Point.DELIVER,),
}  # fmt: skip
_MESSAGES: tuple[tuple[type, Point], ...] = (
    (m.Trigger, Point.TRIGGER), (m.Ack, Point.ACK), (m.Committed, Point.DELIVER), (m.Heartbeat, Point.CONFIRM),
    (m.Deploy, Point.RECOVER), (m.Ready, Point.RECOVER), (m.Register, Point.RECOVER), (m.Failed, Point.RECOVER),
    (m.Expired, Point.SWEEP),
)  # fmt: skip


def of_write(path: str, data: bytes, lane: str) -> tuple[Point, ...]:
    """Return the point of a write to the store; without data it is a delete."""
    if path.startswith("log/") and data:
        return (_RECORDS[json.loads(data)["body"]["kind"]],)
    return of_lane(lane) if not data else (_WRITES.get(path.partition("/")[0], Point.BETWEEN),)


def of_read(path: str, lane: str) -> tuple[Point, ...]:
    """Return the points of a read from the store, by what is read and on which lane."""
    kind = lane.partition("-")[0]
    if kind in ("sweep", "repair", "upload", "merge"):
        return (_LANES[kind],)
    return _READS.get(path.partition("/")[0], (Point.BETWEEN,))


def of_lane(lane: str) -> tuple[Point, ...]:
    """Return the point of work on a lane."""
    kind = lane.partition("-")[0]
    return (Point.DELIVER,) if kind in ("deliver", "write") else (_LANES.get(kind, Point.BETWEEN),)


def of_message(message: Any) -> tuple[Point, ...]:
    """Return the point of a control message."""
    return tuple(point for kind, point in _MESSAGES if isinstance(message, kind)) or (Point.BETWEEN,)


def of_frame(frame: Frame, aligning: bool) -> tuple[Point, ...]:
    """Return the point of a frame in a channel whose receiver aligns, or not."""
    return (Point.ALIGN,) if aligning or isinstance(frame, Barrier) else (Point.BETWEEN,)


def of_worker(worker: WorkerProcess) -> frozenset[Point]:
    """Return all points at which a worker is."""
    return _or_between(_worker_points(worker))


def of_driver(driver: DriverProcess) -> frozenset[Point]:
    """Return all points at which a driver is."""
    return _or_between(_driver_points(driver))


def _worker_points(worker: WorkerProcess) -> Iterator[Point]:
    for lane in worker.lanes:
        if lane.busy:
            [point] = of_lane(lane.name)
            yield Point.CONFIRM if point is Point.DELIVER and lane.worked else point
    if worker.stream.ack_unheard:
        yield Point.ACK
    if worker.stream.deploying:
        yield Point.RECOVER
    if worker.endpoint.links is not None and worker.endpoint.links.aligning:
        yield Point.ALIGN
    if worker.writes_unflushed():
        yield Point.APPLY


def _driver_points(driver: DriverProcess) -> Iterator[Point]:
    if not driver.decides:
        yield Point.RECOVER
        return
    state = driver.loop.state
    for lane in driver.lanes:
        if lane.busy and lane.name != "log":
            yield from of_lane(lane.name)
    if isinstance(state.log, append.InFlight):
        yield _RECORDS[type(state.log.record.body).__name__]
    match state.phase:
        case Opening():
            yield Point.START
        case Gathering():
            yield Point.RECOVER
        case Running(epochs=epochs) as running:
            if not all_ready(state):
                yield Point.RECOVER
            if isinstance(epochs, coordinator.Collecting):
                yield Point.ACK
            if isinstance(epochs, coordinator.Deciding) or running.storing is not None:
                yield Point.COMMIT
            if state.job.completed:
                for worker in driver.alive_workers():
                    yield from {Point.DELIVER, Point.CONFIRM} & of_worker(worker)
        case _:
            return


def _or_between(points: Iterable[Point]) -> frozenset[Point]:
    return frozenset(points) or frozenset({Point.BETWEEN})
