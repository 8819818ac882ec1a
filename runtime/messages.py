"""What driver and workers say to each other on the control stream.

Small typed values, encoded with msgspec, never pickled. Every message of a running generation
carries its number: whoever is in another one ignores it (P2). Messages may be lost, repeated or
late; heartbeats are cumulative, so the newest says all.

Pure: values only.
Source: PROTOCOL P2, P9; DESIGN section 3 (control plane).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.checkpoint.manifest import Confirmed, SubtaskPart
from holdfast.model import (
    NO_EPOCH,
    Barrier,
    Epoch,
    Generation,
    JobUuid,
    Pending,
    SnapshotHandle,
    SourcePosition,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
)


class Message(msgspec.Struct, frozen=True, tag=True):
    """Any message on the control stream."""


class Register(Message, frozen=True):
    """A worker has come up and can take a subtask."""

    worker: WorkerId
    launch: int
    """Number of the Spark job that hosts it."""
    host: str
    pid: int
    boot_id: str
    data_address: tuple[str, int]


class Companion(Message, frozen=True):
    """A companion process speaks for this worker when the worker cannot."""

    worker: WorkerId


class OperatorProgress(msgspec.Struct, frozen=True):
    """Counters of one operator in this generation."""

    name: str
    rows_in: int
    rows_out: int
    state_bytes: int
    dropped: int | None = None
    """Rows left out because a function failed; None where nothing can be dropped."""
    late: int | None = None
    """Records that came after their windows were over; None for operators without windows."""
    dlq: int | None = None
    """Records that became dead letters; None where none can."""


class LocalRefusal(msgspec.Struct, frozen=True):
    """A worker's local state has taken nothing of what is committed for a while."""

    what: str
    """Why, at the first attempt that was refused."""
    for_ms: int
    epochs: int
    """How far it is behind the committed epochs."""
    bytes: int


class PartitionTime(msgspec.Struct, frozen=True):
    """What a source partition has to do with event time."""

    source: str
    partition: int
    silent_ms: int | None
    """For how long nothing was found in it; None: its last look found something, or it is looked at no more."""
    holds: bool
    """Event time of the source waits for it."""


class Progress(msgspec.Struct, frozen=True):
    """What a worker has done in this generation, for people."""

    records_in: int = 0
    rss_bytes: int = 0
    lag_epochs: int = 0
    positions: tuple[SourcePosition, ...] = ()
    ends: tuple[SourcePosition, ...] = ()
    operators: tuple[OperatorProgress, ...] = ()
    sink_errors: dict[str, str] = {}
    sink_advice: dict[str, str] = {}
    """Of each sink with an error: what to do about it."""
    ended: tuple[SourcePosition, ...] = ()
    """Partitions of which nothing more will come."""
    times: tuple[PartitionTime, ...] = ()
    """Of the partitions of sources that have event time."""
    held_by: tuple[str, ...] = ()
    """What keeps sources from being read at this moment: throttle, delivery, channel, last barrier, or a mark of
    runtime/vitals.py, such as that of a Python function that the worker has been busy with for a while."""
    first_record_at: int | None = None
    """When the first record of this generation was taken; microseconds since 1970, UTC."""
    merge_refused: str = ""
    """Why a merge of stored segments could not be read or stored, at the last attempt."""
    refused: str = ""
    """Why the root did not take what this worker has to store, at its last attempt."""
    local_refused: LocalRefusal | None = None


class Heartbeat(Message, frozen=True):
    """Alive; and all that is known by now."""

    worker: WorkerId
    generation: Generation
    ended: bool
    """Every source partition of this subtask is read to its end."""
    broken: bool
    """A data channel of this generation broke; the subtask takes no more records in it."""
    delivered: tuple[Confirmed, ...]
    progress: Progress
    caught_up: bool = False
    """Every source partition is read to its end, or as far as the deployment says."""
    quiet: Epoch = NO_EPOCH
    """The last epoch that the sources closed, if nothing has happened since that a later one would record; else 0."""


class Ready(Message, frozen=True):
    """The subtask has its state and takes records."""

    worker: WorkerId
    generation: Generation
    how: str
    """`rolled back` (in place), `restored` or `empty`."""
    took_ms: int


class Ack(Message, frozen=True):
    """The subtask's part of an epoch is durable."""

    worker: WorkerId
    generation: Generation
    epoch: Epoch
    part: SubtaskPart


class Failed(Message, frozen=True):
    """The worker cannot go on in this generation."""

    worker: WorkerId
    generation: Generation
    error: dict[str, Any]
    permanent: bool
    """Trying again would fail in the same way."""


class Vitals(Message, frozen=True):
    """What the companion process saw of its worker; of no generation."""

    worker: WorkerId
    state: Literal["held", "hung", "ended", "lost"]
    mark: str | None
    """What the worker was busy with, in the form of runtime/vitals.py; None: nothing that is marked."""
    for_ms: int
    """How long its interpreter has been held."""
    memory: bool = False
    """When the worker ended, the system killed a process of that machine for want of memory."""


class Peer(msgspec.Struct, frozen=True):
    """Where a subtask takes data connections."""

    subtask: Subtask
    worker: WorkerId
    address: tuple[str, int]


class Deploy(Message, frozen=True):
    """Take this subtask in this generation: roll back to the base, or restore it."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    first_epoch: Epoch
    base_epoch: Epoch
    subtask: Subtask
    peers: tuple[Peer, ...]
    handle: SnapshotHandle
    positions: tuple[SourcePosition, ...]
    """Where each source partition of this subtask is read from."""
    pending: tuple[Pending, ...]
    confirmed: tuple[Confirmed, ...]
    until: tuple[SourcePosition, ...] = ()
    """Where to stop reading; without an entry a partition is read for as long as it lasts."""
    lineage: dict[Epoch, str] = {}
    """Which local state may be a base: only what stands at these epochs, by the SHA-256 of their manifests (P14)."""
    audit: str = "rows"
    """off, counts or rows: what is digested (docs/design/0018)."""
    owner: str = ""
    """Token of the driver; targets note it."""
    owners: tuple[str, ...] = ()
    """Tokens from which targets may be taken over."""


class Trigger(Message, frozen=True):
    """Close the epoch: sources send this barrier."""

    generation: Generation
    barrier: Barrier
    finishing: bool = False
    """All input is read to its sealed end: sources also send the last watermark (P13)."""


class Committed(Message, frozen=True):
    """The epoch is committed: a hint, and at the end of a run the only word of it (P9)."""

    generation: Generation
    epoch: Epoch
    manifest: str
    """SHA-256 of the epoch's manifest."""


class EndInput(Message, frozen=True):
    """The input of every source ends behind the last record that exists when this first arrives."""

    generation: Generation
    drop_unread: bool = False
    """It ends where it stands instead: records that are not read yet never are."""


class Expired(Message, frozen=True):
    """No rewind goes back this far any more: before-images up to it are of no use."""

    generation: Generation
    through: Tag


class Pulse(Message, frozen=True):
    """The driver is alive."""


class Exit(Message, frozen=True):
    """Leave: the run is over, or this worker was replaced."""

    reason: str


FromWorker = Register | Heartbeat | Ready | Ack | Failed | Vitals
FromDriver = Deploy | Trigger | Committed | EndInput | Expired | Pulse | Exit

# Made here, before there are threads: msgspec learns a type when it first decodes one, and two threads that do so at
# once end the process.
HELLO: msgspec.msgpack.Decoder[Register | Companion] = msgspec.msgpack.Decoder(Register | Companion)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
FROM_DRIVER: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)
