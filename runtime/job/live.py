"""The status of a job: the typed form that `status`, `explain`, progress lines and `live.json` share.

runtime/job/status.py makes it from the job log and, in a driver, from the master's state. A driver writes it to
`live.json`; another process, perhaps of another version, reads it back, in a place where others may write too. A file
without this shape is not used: the job log records what has happened, and a running driver replaces the file within a
second.

Invariants
    - Unknown is None, and null in JSON; it is never zero.
    - A file of a version that reports less is read too: the missing fields are unknown.

Pure: values in, JSON-able values out.
Source: API.md, JSON `status`; DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.model import DriverProcess

SCHEMA = 1
PATH = "live.json"
BYTES_MAX = 64 << 20
"""Limit for the file, which other programs may write too; 1,000 workers and 10,000 partitions take a tenth of it."""
Number = int | float
"""A count or a time; JSON has one kind of number."""
State = Literal["starting", "running", "recovering", "stopped", "finished", "failed", "unreachable"]
_WITH_A_LOG = ("job_uuid", "key_groups", "epochs")
"""Fields that JSON leaves out while they are unknown."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The last completed checkpoint."""

    epoch: int
    at: int
    age_ms: int | None
    duration_ms: Number | None
    bytes: int | None


class Horizon(msgspec.Struct, frozen=True):
    """The oldest checkpoint to which the job can be rewound, outputs included."""

    epoch: int
    at: int


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker process and its subtasks."""

    id: str
    host: str
    pid: int
    role: str
    subtasks: tuple[int, ...] = ()
    """The subtasks that it runs."""
    follows: tuple[int, ...] = ()
    """The subtasks whose state a standby follows."""
    rss_bytes: int | None = None
    state_bytes: int | None = None
    """All tables, in memory or swapped out; None before the worker has a subtask."""
    lag_epochs: int | None = None
    """For a standby: how many completed epochs its oldest copy lacks."""
    lag_bytes: int | None = None
    """For a standby: the stored bytes that its copies lack."""
    how: str | None = None
    first_record_at: int | None = None
    refused: str | None = None
    restored_bytes: int | None = None
    """While state is restored: how much of `restore_bytes`, the stored pieces, is done."""
    restore_bytes: int | None = None


class SourceRow(msgspec.Struct, frozen=True):
    """One partition of a source."""

    name: str
    partition: int
    offset: int | None = None
    end_offset: int | None = None
    lag: int | None = None
    oldest_offset: int | None = None
    watermark: int | None = None
    idle_ms: Number | None = None
    holds_time: bool | None = None
    lost: int | None = None
    """Offsets that the source had removed before they were read, in the whole history of the job."""
    called: str | None = None
    """The name of the partition in the source's system, if the number is one of the source's own."""
    unit: str | None = None
    """Unit of offsets and lag: records or bytes; None: a version that did not record the unit wrote this."""

    @property
    def shown(self) -> str:
        """Return the partition as text for people shows it."""
        return str(self.partition) if self.called is None else f"{self.partition} ({self.called})"

    @property
    def place(self) -> tuple[str, int]:
        """Return source and partition."""
        return self.name, self.partition


class SinkRow(msgspec.Struct, frozen=True):
    """One sink."""

    name: str
    staged_epoch: int | None = None
    delivered_epoch: int | None = None
    error: str | None = None


class OperatorRow(msgspec.Struct, frozen=True):
    """One operator, all subtasks together."""

    name: str
    rows_in: int | None = None
    rows_out: int | None = None
    late: int | None = None
    dropped: int | None = None
    dlq: int | None = None
    state_bytes: int | None = None
    blocked_by: str | None = None


class LateRecords(msgspec.Struct, frozen=True):
    """Records that were late, as of a checkpoint."""

    since_epoch: int
    operators: dict[str, int]


class RestartRow(msgspec.Struct, frozen=True):
    """One recovery; only the driver that did it knows how long its parts took."""

    at: Number | None
    cause: str
    generation: int
    rewind: bool = False
    recovery_ms: Number | None = None
    logged_ms: Number | None | UnsetType = UNSET
    deployed_ms: Number | None | UnsetType = UNSET


class Problem(msgspec.Struct, frozen=True):
    """Something that needs attention; the problem of a failed run has all parts of its error."""

    code: str
    kind: str | None | UnsetType = UNSET
    job: str | None | UnsetType = UNSET
    operator: str | None | UnsetType = UNSET
    epoch: int | None | UnsetType = UNSET
    source: str | None | UnsetType = UNSET
    partition: int | None | UnsetType = UNSET
    offset: int | None | UnsetType = UNSET
    object: str | UnsetType = UNSET
    what: str = ""
    not_done: str | None | UnsetType = UNSET
    next: str | None = None


class Waiting(msgspec.Struct, frozen=True):
    """A worker that the driver waits for, and what the worker is busy with."""

    worker: str
    subtask: int | None
    ready: bool
    ended: bool
    silent_ms: Number
    held_by: tuple[str, ...]


class LaunchingWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was requested and has not come up."""

    number: int | None = None
    since_ms: Number


class OpenEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch being closed."""

    epoch: int
    open_ms: Number
    deadline_ms: Number
    last: bool = False
    savepoint: str | None = None
    missing: tuple[int, ...]
    """Subtasks that have not reported their part as durable."""


class Failures(msgspec.Struct, frozen=True):
    """Failures that count against the restart limit."""

    count: int
    max: int
    last: str | None


class SinkBacklog(msgspec.Struct, frozen=True):
    """Committed output of a sink that no worker has reported as delivered."""

    sink: str
    epochs: int
    oldest_epoch: int
    rows: int
    bytes: int | None = None


class EndedPartition(msgspec.Struct, frozen=True):
    """A partition that will have no more records."""

    source: str
    partition: int


class Delays(msgspec.Struct, frozen=True):
    """How long something took: a histogram of one run."""

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    """One count per bucket, not cumulative; the last one counts delays above the last bound."""
    sum_ms: int


class Measured(msgspec.Struct, frozen=True):
    """The delays that a driver measures."""

    checkpoint: Delays
    recovery: Delays


class RepairingSink(msgspec.Struct, frozen=True):
    """A sink whose target still shows output that a rewind undoes."""

    sink: str
    error: str | None


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Work and waits of the driver, which only the driver knows, and only while it runs."""

    records_in: int | None = None
    epochs_given_up: int | None = None
    parallelism: int | None = None
    checkpoint_every_ms: Number | None = None
    ending: str | None = None
    savepoints_waiting: tuple[str, ...] = ()
    appending: str | None = None
    open_epoch: OpenEpoch | None = None
    older_output_left: bool = False
    launching: tuple[LaunchingWorker, ...] = ()
    next_launch_ms: Number | None = None
    failures: Failures | None = None
    backlog: tuple[SinkBacklog, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    ended: tuple[EndedPartition, ...] = ()
    listing_ms: Number | None = None
    """How long the listing of the sources has been under way; None if there is none."""
    epoch_ms: Number | None = None
    """Duration of the shortest of the last epochs of this generation; None if there were too few."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is doing."""

    schema: int = SCHEMA
    job: str
    root: str
    state: State
    reason: str | None
    mode: str | None
    generation: int | None
    timeline: int | None
    checkpoint: Checkpoint | None = None
    driver: DriverProcess | None = None
    workers: tuple[WorkerRow, ...]
    sources: tuple[SourceRow, ...]
    sinks: tuple[SinkRow, ...]
    operators: tuple[OperatorRow, ...]
    late: LateRecords | None = None
    restarts: tuple[RestartRow, ...]
    rewind_horizon: Horizon | None = None
    problems: tuple[Problem, ...]
    job_uuid: str | None = None
    key_groups: int | None = None
    epochs: int | None = None
    """Completed checkpoints that the log holds."""
    activity: Activity | None = None
    """None if the status is made from the log alone. In JSON its fields are members of the same object."""
    repairing: tuple[RepairingSink, ...] = ()
    delays: Measured | None = None
    """None if no driver reports them; omitted from the JSON then."""
    changelog: dict[str, str] | None = None
    """The place of the topic that takes the changelog; omitted from the JSON if there is none or it is unknown."""

    def as_json(self) -> dict[str, Any]:
        """Return the status in the form of API.md."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        activity, repairing = document.pop("activity"), document.pop("repairing")
        for name in _WITH_A_LOG:
            if document[name] is None:
                del document[name]
        for name in ("delays", "changelog"):
            if document[name] is None:
                del document[name]
        return document | (activity or {}) | ({"repairing": repairing} if repairing else {})


def from_json(said: Any) -> Status:
    """Return the status that `Status.as_json` made.

    Raises:
        msgspec.ValidationError: it has another shape.
    """
    shown = msgspec.convert(said, Status)
    known = any(name in said for name in Activity.__struct_fields__)
    return msgspec.structs.replace(shown, activity=msgspec.convert(said, Activity) if known else None)


def understood(data: bytes) -> Status | None:
    """Return the contents of `live.json`; None if no driver of this version writes such a file."""
    try:
        said = from_json(json.loads(data))
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None
    return said if said.schema == SCHEMA and said.driver is not None else None
