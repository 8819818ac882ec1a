"""Values that every part of Holdfast shares, in the words of docs/glossary.md.

All are frozen and plain, so msgspec can put them on the wire and into JSON as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NewType

import msgspec

JobUuid = NewType("JobUuid", str)
WorkerId = NewType("WorkerId", str)
"""One incarnation of a worker process; a restarted one has another."""
Generation = NewType("Generation", int)
Timeline = NewType("Timeline", int)
Epoch = NewType("Epoch", int)
Subtask = NewType("Subtask", int)

KEY_GROUPS_MAX = 32_768
NO_EPOCH = Epoch(0)
"""Epoch numbers start at 1; 0 means "before the first"."""
EPOCH_MAX = Epoch(1 << 62)
CHANGELOG = "_changelog"
"""The name under which a job delivers its changelog to a topic, as if to a sink. No sink of a user can have it."""
EPOCHS_GIVEN_UP_MAX = 100
"""A of PROTOCOL P2: how many epochs in a row a generation may give up."""


class Cut(NamedTuple):
    """A completed checkpoint, identified by content. The number alone is ambiguous: a root that was copied or
    restored reuses the same numbers for other checkpoints."""

    epoch: Epoch
    manifest: str
    """SHA-256 of its manifest; empty if unknown, and for epoch 0."""


@dataclass(frozen=True)
class Stretch:
    """The epochs, first to last inclusive, that one timeline contributed to a job's lineage."""

    timeline: Timeline
    first: Epoch
    last: Epoch


class ObjectRef(msgspec.Struct, frozen=True, gc=False):
    """A stored object as a manifest names it; every read verifies size and hash.

    It is part of no cycle, so the garbage collector passes over it; a driver may hold 36,000.
    """

    path: str
    size: int
    sha256: str


class SegmentRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sealed changelog segment: one worker's for one epoch, or merged from several."""

    epoch: Epoch
    follows: Epoch
    """The completed epoch to which the segment applies; 0: no earlier segment is needed."""
    object: ObjectRef
    key_groups: tuple[int, int] | None = None
    """Half-open range of the key groups to read; None: all that the handle owns."""
    writer: Subtask | None = None
    """The subtask that delivers it to the changelog's topic; None: the segment stays where it is."""


@dataclass(frozen=True)
class SnapshotHandle:
    """How to rebuild the state of one subtask: a base (may be absent) and the segments after it."""

    subtask: Subtask
    key_groups: tuple[int, int]
    """Half-open range of key groups, [first, end)."""
    base: tuple[ObjectRef, ...]
    base_epoch: Epoch
    segments: tuple[SegmentRef, ...]
    """In epoch order; every epoch above base_epoch, the last may be below the checkpoint's."""


@dataclass(frozen=True)
class Writer:
    """One sink subtask: the unit of delivery. Stable over generations."""

    sink: str
    subtask: Subtask


@dataclass(frozen=True, order=True)
class Tag:
    """How far a writer's output has reached in its target. Only ever grows (PROTOCOL P17)."""

    timeline: Timeline
    epoch: Epoch


class Uploaded(msgspec.Struct, frozen=True):
    """The rows of one staged part that are in the target too, invisible to readers until a commit names them."""

    part: str
    """Path of the part."""
    named: str
    """The sink's name for them; opaque to all others."""


class Staged(msgspec.Struct, frozen=True, omit_defaults=True):
    """Output of one writer for one epoch, or of all writers of a sink: durable, invisible. Parts are delivered in
    order."""

    parts: tuple[ObjectRef, ...]
    rows: int
    uploads: tuple[Uploaded, ...] = ()
    """Uploads of some of the parts; only for sinks that have one committer."""


class RowDigest(msgspec.Struct, frozen=True):
    """Identifies a set of rows regardless of their order: storage/rowhash.py. Unknown is None, never 0."""

    rows: int
    sum: int | None = None
    """Sum of the row hashes mod 2^64."""
    xor: int | None = None


@dataclass(frozen=True)
class Pending:
    """Staged output whose delivery no manifest has confirmed yet (PROTOCOL P18)."""

    writer: Writer
    tag: Tag
    staged: Staged


@dataclass(frozen=True, order=True)
class ChannelId:
    """One ordered link: an edge of the plan, from one subtask to another."""

    edge: int
    sender: Subtask
    receiver: Subtask


@dataclass(frozen=True)
class Barrier:
    """The marker that closes an epoch in a channel (PROTOCOL P9)."""

    epoch: Epoch
    committed_through: Epoch
    last: bool
    """No record follows; the job finishes or stops with this epoch."""


NEVER_US = -(1 << 63)
"""Event time of a watermark before the first record."""
LAST_US = (1 << 63) - 1
"""Event time of the last watermark: no record follows."""


@dataclass(frozen=True)
class Watermark:
    """How far event time has advanced in a channel; microseconds since 1970, UTC (docs/decisions/0006)."""

    at_us: int
    idle: bool = False
    """The sender has sent no record for a while; it does not hold back event time where another sender is active."""
    quiet: bool = False
    """The sender has sent no record for half of that while; it holds back event time as before, but is not active."""
    over: bool = False
    """The sender will send no more records, or never sends any; it does not hold back event time."""


class SourcePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where reading resumes: the next offset of one partition of one source."""

    source: str
    partition: int
    offset: int
    watermark: int | None = None
    """Watermark of the partition at this offset, in microseconds since 1970, UTC; None before its first record."""
    identity: str | None = None
    """The history to which the records before this offset belong, as the source named it (docs/decisions/0022)."""
    subtask: Subtask | None = None
    """In a manifest: which subtask reads it (P12); omitted elsewhere, and by older versions."""
    lost: int = 0
    """Offsets before this one that the source had removed when they were to be read, and that the job's policy allowed
    to pass; in the whole history that leads here (docs/decisions/0107)."""


class DriverProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process that runs a job, as it shows itself in `live.json`."""

    host: str
    pid: int
    seen_ms: int = 0
    """How long ago, at the time of reading."""
    at: int
    """When it last showed itself; microseconds since 1970, UTC, by its own clock."""
    owner: str | None = None
    """The token in the job log's records that identifies the driver that wrote them."""
    boot_id: str | None = None
    namespace: str | None = None
    began: int | None = None
    """When the process began, in ticks since the boot."""
