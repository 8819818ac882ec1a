"""The messages between driver and workers on the control stream.

Messages are small typed values, encoded with msgspec, never pickled. Every message of a running
generation carries its number; a receiver in another generation ignores it (P2). Messages may be lost,
repeated or late. Heartbeats are cumulative, so the newest one is enough.

Pure: values only.
Source: PROTOCOL P2, P9; DESIGN section 3 (control plane).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.checkpoint.manifest import Confirmed, SubtaskPart
from holdfast.errors import ErrorReport
from holdfast.model import (
    NO_EPOCH,
    Barrier,
    Epoch,
    Generation,
    JobUuid,
    Pending,
    SnapshotHandle,
    SourcePosition,
    Stretch,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
)
from holdfast.runtime.wire.vitals import UNKNOWN, At
from holdfast.sinks.contract.owners import NO_CLAIM, Claim


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    """Any message on the control stream."""


class Register(ControlMessage, frozen=True):
    """A worker has started and can take a subtask."""

    worker: WorkerId
    launch: int
    """Number of the Spark job that hosts it."""
    host: str
    pid: int
    boot_id: str
    data_address: tuple[str, int]


class Companion(ControlMessage, frozen=True):
    """A companion process reports for this worker when the worker cannot."""

    worker: WorkerId


class OperatorProgress(msgspec.Struct, frozen=True):
    """Counters of one operator in this generation."""

    name: str
    rows_in: int
    rows_out: int
    state_bytes: int
    dropped: int | None = None
    """Rows left out because a function failed; None if the operator drops none."""
    late: int | None = None
    """Records that arrived after their windows were over; None for operators without windows."""
    dlq: int | None = None
    """Records that became dead letters; None if the operator makes none."""


class LocalRefusal(msgspec.Struct, frozen=True):
    """A worker's local state has accepted no committed values for a while."""

    what: str
    """The reason, from the first refused attempt."""
    for_ms: int
    epochs: int
    """By how many committed epochs it lags."""
    bytes: int


class PartitionTime(msgspec.Struct, frozen=True):
    """The state of a source partition in event time."""

    source: str
    partition: int
    silent_ms: int | None
    """How long polls have found no record; None if the last poll found one, or the partition is no longer polled."""
    holds: bool
    """The source's event time waits for this partition."""


class WorkerProgress(msgspec.Struct, frozen=True):
    """The progress of a worker in this generation, for display."""

    records_in: int = 0
    rss_bytes: int = 0
    state_bytes: int = 0
    """Bytes of all tables, in memory or swapped out."""
    state_memory: int | None = None
    """The budget; None: no limit."""
    lag_epochs: int = 0
    positions: tuple[SourcePosition, ...] = ()
    ends: tuple[SourcePosition, ...] = ()
    operators: tuple[OperatorProgress, ...] = ()
    sink_errors: dict[str, str] = {}
    sink_advice: dict[str, str] = {}
    """The next step, for each sink with an error."""
    ended: tuple[SourcePosition, ...] = ()
    """Partitions that have ended."""
    times: tuple[PartitionTime, ...] = ()
    """For the partitions of sources with event time."""
    held_by: tuple[str, ...] = ()
    """Reasons why sources are not read now: throttle, delivery, memory, channel, event time, last barrier, or a mark
    of runtime/wire/vitals.py, such as that of a Python function that has been running for a while."""
    first_record_at: int | None = None
    """When the first record of this generation was read; microseconds since 1970, UTC."""
    merge_refused: str = ""
    """Why a merge of stored segments could not be read or stored, at the last attempt."""
    refused: str = ""
    """Why the root refused this worker's last attempt to store; empty if it did not."""
    local_refused: LocalRefusal | None = None
    restored: tuple[int, int] | None = None
    """While state is restored: the bytes of stored pieces restored so far, and of all pieces; else None."""
    due_us: int | None = None
    """For a task, the earliest processing time at which a later epoch has something to do; None if never."""
    source_errors: dict[str, str] = {}
    """Why a source cannot be read, if it could not be for some time."""
    source_advice: dict[str, str] = {}
    """The next step, for each source with an error."""


class StandbyCopy(msgspec.Struct, frozen=True):
    """A standby's copy of the state of one subtask."""

    subtask: Subtask
    epoch: Epoch
    """The completed epoch that the copy holds; 0: none yet."""
    bytes: int = 0
    """Bytes stored for the requested epoch that the copy's memory lacks; an estimate while it reads a local folder."""


class BrokenLink(msgspec.Struct, frozen=True):
    """A data channel to or from this peer broke."""

    peer: Subtask
    why: str
    silent: bool
    """The peer's machine answered nothing; else its system, or something between, ended or refused the connection."""


class Heartbeat(ControlMessage, frozen=True):
    """The worker is alive; with its progress and problems."""

    worker: WorkerId
    generation: Generation
    ended: bool
    """Every source partition of this subtask is read to its end."""
    broken: bool
    """A data channel of this generation broke; the subtask takes no more records in it."""
    delivered: tuple[Confirmed, ...]
    progress: WorkerProgress
    caught_up: bool = False
    """Every source partition is read to its end, or as far as the deployment allows."""
    quiet: Epoch = NO_EPOCH
    """The last epoch that the sources closed, if a later one would record nothing new; else 0."""
    partitions: int = 0
    """How many source partitions the subtask reads: `ended` and `caught_up` are about these."""
    wants_barrier: bool = False
    """The next barrier should not wait until it is due: changes since the last one take much memory or, in microbatch
    mode, records wait to be read."""
    copies: tuple[StandbyCopy, ...] = ()
    """The copies that a standby holds."""
    broken_to: tuple[BrokenLink, ...] = ()
    """With `broken`: the peers, if channels broke."""


class Ready(ControlMessage, frozen=True):
    """The subtask has its state and takes records."""

    worker: WorkerId
    generation: Generation
    how: str
    """`rolled back` (in place), `restored` or `empty`; in microbatch mode `as batches`: tasks restore it."""
    took_ms: int


class Ack(ControlMessage, frozen=True):
    """The subtask's part of an epoch is durable."""

    worker: WorkerId
    generation: Generation
    epoch: Epoch
    part: SubtaskPart


ENDED = "error"
"""The kind of an error that no code expected: it ends the worker's process, whichever generation that is in."""


class Failed(ControlMessage, frozen=True):
    """The worker cannot continue in this generation."""

    worker: WorkerId
    generation: Generation
    error: ErrorReport
    permanent: bool
    """A retry would fail in the same way."""


class Vitals(ControlMessage, frozen=True):
    """Observations of the companion process about its worker; they belong to no generation."""

    worker: WorkerId
    state: Literal["held", "hung", "ended", "lost"]
    mark: str | None
    """The marked activity of the worker, in the form of runtime/wire/vitals.py; None: none was marked."""
    for_ms: int
    """How long its interpreter has been held."""
    memory: bool = False
    """When the worker ended, the system killed a process of that machine because memory ran out."""
    at: At | None = None
    """With the mark of a function, if the worker has ended: its rows; None if it was called for something else."""
    how: str = ""
    """How the process ended, if that is known already."""


class ActiveRole(msgspec.Struct, frozen=True, tag="active"):
    """A worker that runs this subtask."""

    subtask: Subtask


class Standby(msgspec.Struct, frozen=True, tag="standby"):
    """A worker that runs no subtask and keeps copies of the state of these, to take one of them over."""

    follows: tuple[Subtask, ...]


Role = ActiveRole | Standby
"""A worker's role in a generation."""


class Peer(msgspec.Struct, frozen=True):
    """Where a subtask accepts data connections."""

    subtask: Subtask
    worker: WorkerId
    address: tuple[str, int]


class Killer(msgspec.Struct, frozen=True):
    """A row for which a function has ended its process; it is left out."""

    digest: int
    """The hash of the row."""
    how: str
    """How the process ended, for the dead letter."""
    partition: int = UNKNOWN
    offset: int = 0
    """The offset of its record, if the partition is known."""


LIMITED_EPOCHS = 3
"""For so many epochs the limit of a suspect holds for rows whose offsets are not known.

One is not enough: the first one ends behind the first call, which may be slow, and long before the place.
"""


class Suspect(msgspec.Struct, frozen=True):
    """A function that has ended its process (docs/decisions/0117)."""

    operator: str
    rows_max: int = 0
    """How many rows to give it together; 0: there is no limit."""
    partition: int = UNKNOWN
    offset: int = 0
    """The limit holds for records from here, if the partition is known; else for all rows of some epochs."""
    following: int = 0
    """To here, exclusive."""
    killers: tuple[Killer, ...] = ()


class TopicState(msgspec.Struct, frozen=True):
    """The facts about a changelog's topic that a restore needs."""

    history: tuple[Stretch, ...]
    """The lineage: records of other epochs do not count."""
    delivered: dict[Subtask, Epoch] = {}
    """By writer, how far the topic is known to be; below that, it was restored from a backup."""
    committer: Subtask | None = None
    """The subtask that delivers the segments of all; None: each delivers its own."""

    def writer(self, subtask: Subtask) -> Subtask:
        """Return who delivers the segments of a subtask."""
        return subtask if self.committer is None else self.committer


class Deploy(ControlMessage, frozen=True):
    """Run this subtask in this generation: roll back to the base, or restore it."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    first_epoch: Epoch
    base_epoch: Epoch
    role: ActiveRole
    peers: tuple[Peer, ...]
    handle: SnapshotHandle
    positions: tuple[SourcePosition, ...]
    """The offset at which reading starts, for each source partition of this subtask."""
    pending: tuple[Pending, ...]
    confirmed: tuple[Confirmed, ...]
    until: tuple[SourcePosition, ...] = ()
    """Where to stop reading; a partition without an entry is read until it ends."""
    lineage: dict[Epoch, str] = {}
    """Epochs at which local state may serve as a base, with the SHA-256 of their manifests (P14)."""
    audit: str = "rows"
    """The extent of the digests: off, counts or rows (docs/decisions/0018)."""
    claim: Claim = NO_CLAIM
    """The driver's right to write to targets, and to read the topic."""
    topic: TopicState | None = None
    """None: the changelog is kept in the root alone."""
    suspects: tuple[Suspect, ...] = ()
    """Functions and reads of this subtask that have ended their process."""
    reads_alone: bool = False
    """A process of this subtask has ended, maybe in a read: read nothing ahead for some epochs (decisions/0121)."""
    records_order: bool = False
    """Record the order in which the subtask takes its input (decisions/0131)."""

    @property
    def subtask(self) -> Subtask:
        """Return the subtask that the worker is to run."""
        return self.role.subtask


class Follow(ControlMessage, frozen=True):
    """Bring the copy of one subtask's state to this completed epoch, as a standby."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    base_epoch: Epoch
    role: Standby
    """All that the standby follows; it gives up other copies."""
    handle: SnapshotHandle
    """The state of the subtask as of the epoch."""
    lineage: dict[Epoch, str] = {}
    """As in `Deploy`."""
    claim: Claim = NO_CLAIM
    """As in `Deploy`."""
    topic: TopicState | None = None
    """As in `Deploy`."""

    @property
    def subtask(self) -> Subtask:
        """Return the subtask to copy."""
        return self.handle.subtask


class Assigned(msgspec.Struct, frozen=True):
    """A source partition that was discovered after the deployment, and the subtask that reads it."""

    position: SourcePosition
    subtask: Subtask


class Trigger(ControlMessage, frozen=True):
    """Close the epoch: sources send this barrier."""

    generation: Generation
    barrier: Barrier
    finishing: bool = False
    """All input is read to its sealed end: sources also send the last watermark (P13)."""
    assignment: tuple[Assigned, ...] = ()
    """Partitions to read from the next epoch on; repeated until an epoch that carried them completes (P12)."""


class Committed(ControlMessage, frozen=True):
    """The epoch is committed: a hint, except at the end of a run, when no barrier announces it (P9)."""

    generation: Generation
    epoch: Epoch
    manifest: str
    """SHA-256 of the epoch's manifest."""


class Deliver(ControlMessage, frozen=True):
    """Deliver this committed output: that of all writers of sinks that have one committer, which this worker hosts.

    The driver repeats it until it is confirmed, oldest epochs first and without a gap.
    """

    generation: Generation
    pending: tuple[Pending, ...]


class EndInput(ControlMessage, frozen=True):
    """The input of every source ends after the last record that exists when this message first arrives."""

    generation: Generation
    drop_unread: bool = False
    """The input ends at the current positions instead; unread records stay unread."""


class BeforeImagesExpired(ControlMessage, frozen=True):
    """No rewind can reach this tag any more: before-images up to it are no longer needed."""

    generation: Generation
    through: Tag


class HoldBack(ControlMessage, frozen=True):
    """Partitions of these sources whose watermarks are later than this are not read for so many seconds at most."""

    generation: Generation
    later_than: dict[str, int]
    lasts_s: float


class Pulse(ControlMessage, frozen=True):
    """The driver is alive."""

    behind: bool = False
    """So much output of sinks that have one committer waits for delivery that sources stop (P18)."""


class Exit(ControlMessage, frozen=True):
    """Leave: the run is over, or this worker was replaced."""

    reason: str


FromWorker = Register | Heartbeat | Ready | Ack | Failed | Vitals
FromDriver = Deploy | Follow | Trigger | Committed | Deliver | EndInput | BeforeImagesExpired | HoldBack | Pulse | Exit

# Built here, before any thread starts: msgspec resolves a type when it first decodes one, and two threads that do so
# at the same time crash the process.
HELLO: msgspec.msgpack.Decoder[Register | Companion] = msgspec.msgpack.Decoder(Register | Companion)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
FROM_DRIVER: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)
