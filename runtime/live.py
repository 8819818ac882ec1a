"""The shape of `live.json`, in which a driver reports itself: what readers rely on, checked before they do.

The file is written by another process, perhaps of another version, and lies where others may write. What does not have
this shape is not used; the job log says what has happened, and a driver that runs replaces the file within a second.

Pure: bytes in, values out.
Source: runtime/status.py, runtime/waiting.py and runtime/presence.py write it; DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.runtime import status

Number = int | float
"""A count or a time; JSON has one kind of numbers."""


class Driver(msgspec.Struct):
    """The process that runs the job; the other fields of presence.myself are compared, never computed with."""

    host: str
    pid: int
    at: int
    owner: str | None = None


class _Worker(msgspec.Struct):
    id: str
    host: str
    pid: int
    role: str
    subtasks: list[int]
    rss_bytes: Number | None
    lag_epochs: int | None
    how: str | None = None
    refused: str | None = None


class _Source(msgspec.Struct):
    name: str
    partition: int
    offset: int | None
    end_offset: int | None
    lag: int | None
    watermark: int | None = None


class _Sink(msgspec.Struct):
    name: str
    staged_epoch: int | None
    delivered_epoch: int | None
    error: str | None


class _Operator(msgspec.Struct):
    name: str
    rows_in: int | None
    rows_out: int | None
    late: int | None
    dropped: int | None
    dlq: int | None
    state_bytes: Number | None


class _Restart(msgspec.Struct):
    generation: int
    recovery_ms: Number | None


class _Waiting(msgspec.Struct):
    worker: str
    subtask: int | None
    ready: bool
    ended: bool
    silent_ms: Number
    held_by: list[str]


class _Launching(msgspec.Struct):
    since_ms: Number


class _OpenEpoch(msgspec.Struct):
    epoch: int
    open_ms: Number
    deadline_ms: Number
    missing: list[int]


class _Failures(msgspec.Struct):
    count: int
    max: int
    last: str | None


class _Left(msgspec.Struct):
    sink: str
    epochs: int
    oldest_epoch: int
    rows: int


class _Repairing(msgspec.Struct):
    sink: str
    error: str | None


class _Ended(msgspec.Struct):
    source: str
    partition: int


class _Problem(msgspec.Struct):
    code: str
    what: str
    next: str | None


class _Live(msgspec.Struct):
    schema: int
    job: str
    root: str
    timeline: int | None
    state: Literal["starting", "running", "recovering", "stopped", "finished", "failed", "unreachable"]
    reason: str | None
    mode: str | None
    generation: int | None
    driver: Driver
    workers: list[_Worker]
    sources: list[_Source]
    sinks: list[_Sink]
    operators: list[_Operator]
    restarts: list[_Restart]
    problems: list[_Problem]
    job_uuid: str | None = None
    parallelism: int | None = None
    checkpoint_every_ms: Number | None = None
    ending: str | None = None
    appending: str | None = None
    open_epoch: _OpenEpoch | None = None
    next_launch_ms: Number | None = None
    epochs_given_up: int | None = None
    launching: list[_Launching] = []
    failures: _Failures | None = None
    backlog: list[_Left] = []
    waiting: list[_Waiting] = []
    ended: list[_Ended] = []
    repairing: list[_Repairing] = []


def understood(data: bytes) -> Mapping[str, Any] | None:
    """Return what the file says; None if no driver of this version writes such a file."""
    try:
        said = json.loads(data)
        msgspec.convert(said, _Live)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None
    if said["schema"] != status.SCHEMA:
        return None
    found: dict[str, Any] = said
    return found
