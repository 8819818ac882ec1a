"""The job log: numbered records that are the only truth about a job, and their fold.

Each record is created conditionally under its sequence number, so a writer must know the last number to append: the
list is linearizable. The state of a job is the pure fold of its log; nothing else is remembered.

Invariants
    - The first record holds a random job UUID, and every later one repeats it (P1).
    - `first_epoch` of a generation is above every epoch number that an older one can have used (P2).
    - A `LogStart` holds the fold of the records before it, so either gives the same fold (P7).
    - Only the owner of the newest generation appends after its start. The exception is `SavepointNamed`: any process
      may append it at any time after a checkpoint, even after the end of a run (P6).
    - `Rewound` starts a generation and a timeline: epochs completed after its base are abandoned, nothing ever
      builds on them again, and their numbers are not reused (P2, P6).
    - Records of format 3 form a chain: each carries the hash of its predecessor, so the log of another history,
      with the same UUID and numbers, never continues this one.
    - A savepoint's name belongs to one checkpoint permanently, and that checkpoint never expires (P16).
    - A fork's first record holds the checkpoint with which it begins, so a fork exists whole or not at all.
    - The newest epoch that an owner completed is remembered as long as the owner: records of it may be pruned.

Pure: no clock, thread or I/O. checkpoint/repository.py moves the bytes.
Source: PROTOCOL P1, P2, P6, P7, P16; DESIGN section 13 for the record's form; docs/decisions/0010, 0020, 0057, 0086.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from holdfast.checkpoint.timeline import Rewind
from holdfast.errors import ConfigError, Damaged, Where
from holdfast.frozen import grown, replace, shortened
from holdfast.model import EPOCHS_GIVEN_UP_MAX, NO_EPOCH, Cut, Epoch, Generation, JobUuid, ObjectRef, Tag, Timeline
from holdfast.storage.hashed import fits_hash, own_hash, with_hash

FORMAT_VERSION = 5
"""Format 1 has no hash at the end of a record; format 2 has no hash of the previous record and no owners in a LogStart;
format 3 does not record in a LogStart which epochs the owners completed. All can be read. Only `Forked` is written as
format 5: earlier versions, which do not know it, read every other record."""
_WRITTEN = 4
"""The format of every other record."""
SAVEPOINT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
"""Begins with a letter, so that a name is never mistaken for an epoch number."""


class JobCreated(msgspec.Struct, frozen=True, tag="JobCreated", tag_field="kind"):
    """The first record: the properties that never change."""

    name: str
    key_groups: int


class ForkOrigin(msgspec.Struct, frozen=True):
    """A checkpoint with which a fork began."""

    job: str
    """The name of its job under the same root."""
    uuid: JobUuid
    timeline: Timeline
    epoch: Epoch
    targets: dict[str, dict[str, str]]
    """Where that job delivers, by sink: its `kind`, and its place by argument; empty if its checkpoint did not record
    it."""


class Forked(msgspec.Struct, frozen=True, tag="Forked", tag_field="kind"):
    """The first record of a fork: the properties that never change, and the checkpoint with which it begins."""

    name: str
    key_groups: int
    origins: tuple[ForkOrigin, ...]
    """Oldest first; the last is the copied checkpoint, the others are those from which its job was forked itself."""
    epoch: Epoch
    """As in its origin, since segments carry it."""
    manifest: ObjectRef
    duration_ms: int
    """How long copying took."""
    bytes_total: int


class GenerationStarted(msgspec.Struct, frozen=True, tag="GenerationStarted", tag_field="kind"):
    """A driver took over the job or recovered it; older generations are fenced from here on."""

    first_epoch: Epoch
    base_epoch: Epoch
    """Last completed epoch before this record; 0 if there is none (P5)."""
    host: str
    cause: str


class Rewound(msgspec.Struct, frozen=True, tag="Rewound", tag_field="kind", omit_defaults=True):
    """The job goes back to a checkpoint: a generation on a new timeline, whose targets are repaired first (P21)."""

    base_epoch: Epoch
    first_epoch: Epoch
    host: str
    cause: str
    accepted: tuple[str, ...] = ()
    """SINK:VERDICT, for sinks whose output may stay if it cannot be taken back; omitted from the JSON if empty."""


class CheckpointCompleted(
    msgspec.Struct, frozen=True, tag="CheckpointCompleted", tag_field="kind", omit_defaults=True, gc=False
):
    """The only commit point: everything the manifest names is now true.

    It is part of no cycle, so the garbage collector passes over it; a driver may hold 36,000.
    """

    epoch: Epoch
    follows: Epoch
    manifest: ObjectRef
    duration_ms: int
    bytes_new: int
    bytes_total: int
    savepoint: str | None = None
    """The name that a user asked for; omitted from the JSON if there is none (P13)."""
    added: dict[str, tuple[int, ...]] = {}
    """Partitions that the checkpoint it follows lacks, by source; omitted from the JSON if there are none (P12)."""


class SavepointNamed(msgspec.Struct, frozen=True, tag="SavepointNamed", tag_field="kind"):
    """A completed checkpoint was named afterwards; the process that names it writes this, not the job's owner (P6)."""

    epoch: Epoch
    name: str


class Stopped(msgspec.Struct, frozen=True, tag="Stopped", tag_field="kind"):
    """The run ended after a last checkpoint; the job may be started again."""

    epoch: Epoch


class Finished(msgspec.Struct, frozen=True, tag="Finished", tag_field="kind"):
    """All input was read and all output delivered; there is nothing left to run."""

    epoch: Epoch


class Expired(msgspec.Struct, frozen=True, tag="Expired", tag_field="kind"):
    """Unnamed checkpoints up to this epoch have expired; objects that only they name may be deleted (P16)."""

    through: Epoch


class LogStart(msgspec.Struct, frozen=True, tag="LogStart", tag_field="kind"):
    """The fold of everything before: readers begin here, and prunable records before it are pruned (P7)."""

    job: Job


Body = (
    JobCreated
    | Forked
    | GenerationStarted
    | Rewound
    | CheckpointCompleted
    | SavepointNamed
    | Stopped
    | Finished
    | Expired
    | LogStart
)
STARTS = (GenerationStarted, Rewound)
"""Each of these records makes its writer the job's owner (P6)."""
PRUNABLE = (CheckpointCompleted, Expired, LogStart)
"""Only a generation's own driver appends these, so a stale driver's next record never meets one of them (P7)."""
_HASHED = 2
"""The first format whose records end with a hash."""
STARTS_KEPT = 100
"""How many starts the fold remembers, for human readers."""
OWNERS_KEPT = 1_000
"""How many owners the fold remembers: a target that none of them took over belongs to another history."""
_PIECE = 500
RECENT_KEPT = 512
"""How many completed epochs the fold remembers by content: local state left by a kill may be a few minutes old."""


def record_path(seq: int) -> str:
    """Return the path of the record with this sequence number."""
    return f"log/{seq:020d}.json"


class Record(msgspec.Struct, frozen=True):
    """One numbered record. `owner` distinguishes two writers of the same bytes (P4)."""

    seq: int
    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    owner: str
    at: int
    """Microseconds since 1970, UTC; for human readers, never for decisions (P3)."""
    body: Body
    v: int = _WRITTEN
    prev: str | msgspec.UnsetType = msgspec.UNSET
    """Hash of the previous record, empty in the first one; absent in formats 1 and 2."""
    xxh3: str | msgspec.UnsetType = msgspec.UNSET
    """Hash of the stored record, if it is known, or if an older version wrote other bytes than this one would."""

    @property
    def hash(self) -> str:
        """Return the value that `prev` of the next record must have."""
        return own_hash(encode(self)) if isinstance(self.xxh3, msgspec.UnsetType) else self.xxh3

    @property
    def path(self) -> str:
        """Return the path of the record."""
        return record_path(self.seq)

    @property
    def kind(self) -> str:
        """Return the record's kind as it appears in the JSON."""
        return type(self.body).__name__


class _Version(msgspec.Struct):
    v: int


class Completed(msgspec.Struct, frozen=True, gc=False):
    """A completed checkpoint as the log records it; part of no cycle, as `CheckpointCompleted`."""

    body: CheckpointCompleted
    generation: Generation
    timeline: Timeline
    at: int


if TYPE_CHECKING:
    Checkpoints = Sequence[Completed]
else:
    Checkpoints = tuple[Completed, ...]  # as it is read back from JSON


@dataclass(frozen=True)
class GenerationStart:
    """One start of a generation, for the list of restarts."""

    generation: Generation
    at: int
    cause: str
    host: str
    base_epoch: Epoch
    first_epoch: Epoch


@dataclass(frozen=True)
class Savepoint:
    """A completed checkpoint that a user named; it never expires."""

    name: str
    epoch: Epoch


@dataclass(frozen=True)
class Job:
    """The fold of the log so far."""

    uuid: JobUuid
    name: str
    key_groups: int
    created_at: int
    next_seq: int
    generation: Generation = Generation(0)
    timeline: Timeline = Timeline(1)
    owner: str = ""
    first_epoch: Epoch = Epoch(1)
    completed: Checkpoints = ()
    """Retained checkpoints of the job's lineage, oldest first. There may be a hundred thousand, and most steps must not
    look at all of them."""
    starts: tuple[GenerationStart, ...] = ()
    ended: Stopped | Finished | None = None
    ended_at: int | None = None
    savepoints: tuple[Savepoint, ...] = ()
    """In the order of naming; a checkpoint may have several names."""
    expired_through: Epoch = NO_EPOCH
    log_start: int = 0
    """Sequence number of the newest LogStart; 0 if there is none."""
    head: str = ""
    """Hash of the newest record: the next one must have it as `prev`."""
    recent: tuple[Cut, ...] = ()
    """Newest completed epochs of the lineage, oldest first, including expired ones: local state may belong to one."""
    rewinds: tuple[Rewind, ...] = ()
    abandoned: tuple[Completed, ...] = ()
    """Retained checkpoints that rewinds abandoned: listed and kept like others, but nothing builds on them."""
    owners: tuple[str, ...] = ()
    """Owner tokens of the newest starts, each once, oldest first; the job's own is the last."""
    reached: tuple[Tag, ...] = ()
    """The tag that each earlier owner had completed when the next owner started, oldest owner first. The current owner
    has no entry. A LogStart of format 3 does not record them, so tags of the oldest owners may be missing."""

    @property
    def base_epoch(self) -> Epoch:
        """Return the last completed epoch, 0 if there is none."""
        return self.completed[-1].body.epoch if self.completed else NO_EPOCH

    @property
    def reaches(self) -> dict[str, Tag]:
        """Return, by owner, the newest epoch that it has completed, or a later bound if that is unknown.

        In this history, the owner delivered nothing later.
        """
        known = (*self.reached, Tag(self.timeline, self.base_epoch))[-len(self.owners) :]
        missing = len(self.owners) - len(known)
        return dict(zip(self.owners, (*[known[0]] * missing, *known), strict=False))

    @property
    def before(self) -> Tag:
        """Return the last epoch that the job had completed when its owner started, with its timeline."""
        return self.reached[-1] if self.reached else Tag(Timeline(1), NO_EPOCH)

    @property
    def finished(self) -> bool:
        """Return whether the job has finished and can never run again."""
        return isinstance(self.ended, Finished)

    @property
    def retained(self) -> Sequence[Completed]:
        """Return the retained checkpoints of all timelines, in the order of their numbers."""
        if not self.abandoned:
            return self.completed
        return tuple(sorted((*self.completed, *self.abandoned), key=_epoch_of))

    @property
    def oldest(self) -> Completed | None:
        """Return the first of `retained`."""
        return min((*self.completed[:1], *self.abandoned), key=_epoch_of, default=None)

    @cached_property
    def abandoned_epochs(self) -> frozenset[Epoch]:
        """Return the epochs of the checkpoints that rewinds abandoned."""
        return frozenset(map(_epoch_of, self.abandoned))

    def checkpoint(self, epoch: int) -> Completed | None:
        """Return the retained checkpoint of this epoch in the job's lineage."""
        at = bisect_left(self.completed, epoch, key=_epoch_of)
        return self.completed[at] if at < len(self.completed) and self.completed[at].body.epoch == epoch else None

    @property
    def repair_due(self) -> bool:
        """Return whether targets may still show output that a rewind undoes: no checkpoint completed since (P21)."""
        return bool(self.rewinds) and self.base_epoch == self.rewinds[-1].base_epoch

    def savepoint(self, name: str) -> Savepoint | None:
        """Return the savepoint with this name."""
        return next((each for each in self.savepoints if each.name == name), None)

    @cached_property
    def _names(self) -> Mapping[Epoch, tuple[str, ...]]:
        names: dict[Epoch, tuple[str, ...]] = {}
        for each in self.savepoints:
            names[each.epoch] = (*names.get(each.epoch, ()), each.name)
        return names

    def names_of(self, epoch: Epoch) -> tuple[str, ...]:
        """Return the names that the checkpoint of this epoch has."""
        return self._names.get(epoch, ()) if self.savepoints else ()

    @cached_property
    def before_savepoints(self) -> tuple[int, ...]:
        """Return, per savepoint of the job's lineage, how many checkpoints without a name precede it, in order."""
        return tuple(at - number for number, at in enumerate(self.savepoints_at))

    @cached_property
    def savepoints_at(self) -> tuple[int, ...]:
        """Return where the savepoints are in `completed`, in order."""
        epochs = sorted(each for each in self._names if self.checkpoint(each) is not None)
        return tuple(bisect_left(self.completed, each, key=_epoch_of) for each in epochs)


def _epoch_of(completed: Completed) -> Epoch:
    return completed.body.epoch


def encode(record: Record) -> bytes:
    """Return the record as JSON, as it is stored."""
    data = msgspec.json.encode(msgspec.structs.replace(record, xxh3=msgspec.UNSET), enc_hook=in_pieces)
    return with_hash(data) if record.v >= _HASHED else data


def in_pieces(checkpoints: object) -> msgspec.Raw:
    """Encode a long sequence of checkpoints for a `LogStart` or a stored fold; other threads run between two pieces."""
    assert isinstance(checkpoints, Sequence)
    pieces = [checkpoints[at : at + _PIECE] for at in range(0, len(checkpoints), _PIECE)]
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(piece)[1:-1] for piece in pieces) + b"]")


def with_known_hash(record: Record, stored: bytes) -> Record:
    """Return a record that was stored as these bytes; that of a long one need not be computed again from the record."""
    return msgspec.structs.replace(record, xxh3=own_hash(stored)) if isinstance(record.body, LogStart) else record


_VERSION, _RECORD = msgspec.json.Decoder(_Version), msgspec.json.Decoder(Record)


def decode(data: bytes, path: str) -> Record:
    """Read a record back.

    Raises:
        Damaged: the bytes are not a record, or differ from those that were written.
        ConfigError: the record has a format of another version.
    """
    try:
        version, fits = _VERSION.decode(data).v, fits_hash(data)
        if fits is False or (fits is None and version >= _HASHED):
            raise _broken(f"job log record {path} does not match the hash at its end")
        if 1 <= version <= FORMAT_VERSION:
            return _with_its_hash(_RECORD.decode(data), own_hash(data))
    except msgspec.DecodeError as error:
        raise _broken(f"job log record {path} cannot be read: {error}") from error
    raise ConfigError(
        f"job log record {path} has format {version}; this version of Holdfast reads formats up to {FORMAT_VERSION}",
        not_done="the job was not started and nothing was written",
        next_step="run the job with the version that wrote it, or with a newer one",
    )


def _with_its_hash(record: Record, stored: str) -> Record:
    record = msgspec.structs.replace(record, xxh3=msgspec.UNSET)
    return record if record.hash == stored else msgspec.structs.replace(record, xxh3=stored)


def next_first_epoch(job: Job) -> Epoch:
    """Return the first epoch of the generation that starts next (P2).

    A generation may give up at most A epochs in a row before it must recover. So all numbers that it can have used are
    at most A above its last completed one, or above its own start.
    """
    if job.generation == 0:
        return Epoch(job.base_epoch + 1)  # 1, unless the job is a fork that has never run
    return Epoch(_last_usable(job) + 1)


def _last_usable(job: Job) -> Epoch:
    return Epoch(max(job.base_epoch, job.first_epoch - 1) + EPOCHS_GIVEN_UP_MAX)


def fold(job: Job | None, record: Record) -> Job:
    """Fold the next record; return the job after it. Raises Damaged if no correct run can have written it."""
    if job is None:
        return _fold_first(record)
    body = record.body
    _check_place(job, record)
    job = replace(job, next_seq=record.seq + 1, head=record.hash)
    if isinstance(body, GenerationStarted):
        return _fold_start(job, record, body, Tag(job.timeline, job.base_epoch))
    if isinstance(body, Rewound):
        return _fold_rewind(job, record, body)
    if isinstance(body, SavepointNamed):
        if record.generation != job.generation or job.checkpoint(body.epoch) is None:
            raise _broken(f"job log record {record.path} names epoch {body.epoch}, which is not completed")
        return _named(job, record, body.name, body.epoch)
    if job.ended is not None:
        raise _broken(f"job log record {record.path} ({record.kind}) follows the end of the run")
    if record.generation != job.generation or record.owner != job.owner:
        raise _broken(f"job log record {record.path} belongs to generation {record.generation}, not {job.generation}")
    match body:
        case CheckpointCompleted(epoch=epoch, follows=follows):
            first = max(job.first_epoch, job.base_epoch + 1)
            if not first <= epoch <= _last_usable(job) or follows != job.base_epoch:
                raise _broken(f"job log record {record.path}: epoch {epoch} cannot follow {job.base_epoch}")
            done = Completed(body, record.generation, record.timeline, record.at)
            recent = (*job.recent, Cut(epoch, body.manifest.sha256))[-RECENT_KEPT:]
            job = replace(job, completed=grown(job.completed, done), recent=recent)
            return job if body.savepoint is None else _named(job, record, body.savepoint, epoch)
        case Stopped(epoch=epoch) | Finished(epoch=epoch):
            if epoch != job.base_epoch:
                raise _broken(f"job log record {record.path} ends the run at epoch {epoch}, not at {job.base_epoch}")
            return replace(job, ended=body, ended_at=record.at)
        case Expired(through=through):
            if not job.expired_through < through < job.base_epoch:
                raise _broken(f"job log record {record.path} expires epochs through {through} of {job.base_epoch}")
            count = bisect_right(job.completed, through, key=_epoch_of)
            named = (job.completed[at] for at in job.savepoints_at if at < count)
            pinned = tuple(each for each in named if _outlives(job, each.body.epoch, through))
            left = tuple(each for each in job.abandoned if _outlives(job, each.body.epoch, through))
            kept = shortened(job.completed, count, pinned)
            return replace(job, completed=kept, abandoned=left, expired_through=through)
        case LogStart(job=said):
            known = said if record.v >= 3 else replace(said, owners=job.owners, recent=job.recent)
            known = known if record.v >= 4 else replace(known, reached=job.reached)
            if replace(known, next_seq=job.next_seq, head=job.head) != job:
                raise _broken(f"job log record {record.path} contradicts the records before it")
            return replace(job, log_start=record.seq)
        case JobCreated() | Forked():
            raise _broken(f"job log record {record.path} creates the job a second time")


def _fold_first(record: Record) -> Job:
    body = record.body
    if isinstance(body, LogStart):
        owners = body.job.owners or (body.job.owner,)
        return replace(body.job, next_seq=record.seq + 1, log_start=record.seq, head=record.hash, owners=owners)
    if not isinstance(body, JobCreated | Forked) or record.seq != 1:
        raise _broken(f"the job log begins with {record.kind} at {record.seq}, {record.path}")
    if record.prev not in (msgspec.UNSET, ""):
        raise _broken(f"job log record {record.path} names a previous record, but is the first")
    job = Job(record.job_uuid, body.name, body.key_groups, record.at, next_seq=2, head=record.hash)
    return job if isinstance(body, JobCreated) else _begun(job, record, body)


def _begun(job: Job, record: Record, body: Forked) -> Job:
    """Return a fork that has never run: a stopped job with one checkpoint, all of whose output is delivered."""
    size = body.bytes_total
    done = CheckpointCompleted(body.epoch, NO_EPOCH, body.manifest, body.duration_ms, size, size)
    return replace(
        job,
        completed=(Completed(done, record.generation, record.timeline, record.at),),
        recent=(Cut(body.epoch, body.manifest.sha256),),
        ended=Stopped(body.epoch),
        ended_at=record.at,
    )


def _check_place(job: Job, record: Record) -> None:
    """Refuse a record that is not the next one in this history."""
    if record.seq != job.next_seq:
        raise _broken(f"found job log record {record.path} where {record_path(job.next_seq)} was expected")
    if record.job_uuid != job.uuid:
        raise ConfigError(
            f"the job log of {job.name!r} holds a record of another job ({record.job_uuid}, expected {job.uuid})",
            next_step="give each job its own root or name",
            where=Where(job=job.name),
        )
    if record.prev not in (msgspec.UNSET, job.head):
        raise _broken(
            f"job log record {record.path} does not continue {record_path(record.seq - 1)}: one of the two belongs to "
            "another history of this job, that of a copy or from before a restore"
        )
    if record.timeline != job.timeline + isinstance(record.body, Rewound):
        raise _broken(f"job log record {record.path} belongs to timeline {record.timeline}, not {job.timeline}")


def _outlives(job: Job, epoch: Epoch, through: Epoch) -> bool:
    """P16: a savepoint is pinned; the expiry of other checkpoints does not affect it."""
    return epoch > through or bool(job.names_of(epoch))


def _named(job: Job, record: Record, name: str, epoch: Epoch) -> Job:
    if job.savepoint(name) is not None:
        raise _broken(f"job log record {record.path} gives the name {name!r} a second time")
    return replace(job, savepoints=(*job.savepoints, Savepoint(name, epoch)))


def _fold_rewind(job: Job, record: Record, body: Rewound) -> Job:
    """P6: a rewind is a start like any other, except for the checkpoint from which it continues."""
    base, last_tag = body.base_epoch, Tag(job.timeline, job.base_epoch)
    if job.checkpoint(base) is None:
        raise _broken(f"job log record {record.path} goes back to epoch {base}, which is not in the lineage")
    job = replace(
        job,
        timeline=record.timeline,
        completed=tuple(each for each in job.completed if each.body.epoch <= base),
        recent=tuple(each for each in job.recent if each.epoch <= base),
        abandoned=(*job.abandoned, *(each for each in job.completed if each.body.epoch > base)),
        # Epochs that another owner can have used count, whether or not they were abandoned just now (P2).
        first_epoch=Epoch(max(job.first_epoch, job.base_epoch + 1)),
        rewinds=(*job.rewinds, Rewind(record.timeline, base, body.first_epoch, record.at, body.accepted)),
    )
    return _fold_start(job, record, body, last_tag)


def _fold_start(job: Job, record: Record, body: GenerationStarted | Rewound, reached: Tag) -> Job:
    """Args: reached: The newest epoch that was completed before this record, on whichever timeline."""
    if job.finished:
        raise _broken(f"job log record {record.path} starts a finished job")
    if record.generation != job.generation + 1 or body.base_epoch != job.base_epoch:
        raise _broken(f"job log record {record.path}: generation {record.generation} cannot follow {job.generation}")
    if body.first_epoch < next_first_epoch(job):
        raise _broken(f"job log record {record.path}: first epoch {body.first_epoch} may have been used")
    start = GenerationStart(record.generation, record.at, body.cause, body.host, body.base_epoch, body.first_epoch)
    return replace(
        job,
        generation=record.generation,
        owner=record.owner,
        owners=(*(each for each in job.owners if each != record.owner), record.owner)[-OWNERS_KEPT:],
        reached=_reached(job, record.owner, reached),
        first_epoch=body.first_epoch,
        starts=(*job.starts, start)[-STARTS_KEPT:],
        ended=None,
        ended_at=None,
    )


def _reached(job: Job, owner: str, reached: Tag) -> tuple[Tag, ...]:
    """Return `Job.reached` after a start by this owner."""
    if not job.owners or owner == job.owners[-1]:
        return job.reached
    newest_first = zip(reversed(job.owners), reversed((*job.reached, reached)), strict=False)
    return tuple(reversed([tag for name, tag in newest_first if name != owner]))[-(OWNERS_KEPT - 1) :]


def _broken(what: str) -> Damaged:
    return Damaged(
        what,
        not_done="the job was not started and nothing was written",
        next_step="restore the job's log folder from a copy, or start the job under another name",
    )
