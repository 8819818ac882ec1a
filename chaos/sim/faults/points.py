"""The points of the protocol, and at which of them a process is, derived from its ports alone.

A call is at the point of its path, message or frame. A process may be at several points at the same time: the points of
its busy lanes, of an ack that its driver has not received yet, of an alignment in which only some channels have
delivered the barrier, and of the master's phase. The runtime has no hooks for this.

Source: research section 2b, protocol points.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from holdfast.model import Barrier
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Frame


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
    PARTITIONS = "P16"
    BATCH = "P17"
    STANDBY = "P18"
    BETWEEN = "-"
    """At no point: records flow."""


MEANS = {
    Point.START: "start of a generation appended", Point.RESTORE: "state read", Point.REPLAY: "segments replayed",
    Point.FENCE: "target fenced", Point.TRIGGER: "trigger, offsets noted", Point.ALIGN: "alignment",
    Point.STAGE: "output staged", Point.APPLY: "local folder written", Point.UPLOAD: "segment stored",
    Point.ACK: "ack", Point.COMMIT: "manifest and record: the commit", Point.DELIVER: "delivery",
    Point.CONFIRM: "delivery confirmed", Point.SWEEP: "expiry, sweep, pruning", Point.RECOVER: "base, redelivery",
    Point.REWIND: "rewind", Point.PARTITIONS: "sources listed, a new partition in no checkpoint yet",
    Point.BATCH: "a job of tasks runs (microbatch mode)", Point.STANDBY: "a standby follows",
    Point.BETWEEN: "records flow",
}  # fmt: skip
RECORDS = {
    "JobCreated": Point.START, "GenerationStarted": Point.START, "CheckpointCompleted": Point.COMMIT,
    "Expired": Point.SWEEP, "LogStart": Point.SWEEP, "Rewound": Point.REWIND,
    "Finished": Point.CONFIRM, "Stopped": Point.CONFIRM, "SavepointNamed": Point.BETWEEN,
    "Forked": Point.START,
}  # fmt: skip
_LANES = {
    "sweep": Point.SWEEP,
    "repair": Point.REWIND,
    "upload": Point.UPLOAD,
    "merge": Point.UPLOAD,
    "sources": Point.PARTITIONS,
}
_WRITES = {
    "segments": Point.UPLOAD,
    "base": Point.UPLOAD,
    "merged": Point.UPLOAD,
    "staged": Point.STAGE,
    "manifests": Point.COMMIT,
}
_READS = {
    "segments": (Point.RESTORE, Point.REPLAY),
    "base": (Point.RESTORE,),
    "merged": (Point.RESTORE, Point.REPLAY),
    "manifests": (Point.RECOVER,),
    "log": (Point.RECOVER,),
    "staged": (Point.DELIVER,),
}
_MESSAGES: tuple[tuple[type, Point], ...] = (
    (m.Trigger, Point.TRIGGER),
    (m.Ack, Point.ACK),
    (m.Committed, Point.DELIVER),
    (m.Heartbeat, Point.CONFIRM),
    (m.Deploy, Point.RECOVER),
    (m.Follow, Point.STANDBY),
    (m.Ready, Point.RECOVER),
    (m.Register, Point.RECOVER),
    (m.Failed, Point.RECOVER),
    (m.BeforeImagesExpired, Point.SWEEP),
)


def of_write(path: str, data: bytes, lane: str) -> tuple[Point, ...]:
    """Return the point of a write to the store; without data it is a delete."""
    if path.startswith("log/") and data:
        return (RECORDS[json.loads(data)["body"]["kind"]],)
    return of_lane(lane) if not data else (_WRITES.get(path.partition("/")[0], Point.BETWEEN),)


def of_read(path: str, lane: str) -> tuple[Point, ...]:
    """Return the points of a read from the store, by object and lane."""
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
    assigns = (Point.PARTITIONS,) if isinstance(message, m.Trigger) and message.assignment else ()
    at = tuple(point for kind, point in _MESSAGES if isinstance(message, kind))
    return (*at, *assigns) or (Point.BETWEEN,)


def of_frame(frame: Frame, aligning: bool) -> tuple[Point, ...]:
    """Return the point of a frame in a channel whose receiver aligns, or not."""
    return (Point.ALIGN,) if aligning or isinstance(frame, Barrier) else (Point.BETWEEN,)
