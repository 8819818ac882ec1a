"""A fork: another job that begins with a checkpoint of this one, and owes nothing to it afterwards.

The state of the checkpoint is copied below the fork's own folder. Output that the checkpoint still owes to targets is
not copied: the original job delivers it, under its own identity.

Invariants
    - The fork has its own UUID, so tags, fences and segments of the two jobs are never confused (P1).
    - Its checkpoint has the same epoch, offsets, watermarks, key groups and operators; it names copies alone.
    - It names no output, neither pending nor confirmed, and its audit has counted nothing.

Pure: no clock, thread or I/O. runtime/fork copies the objects.
Source: DESIGN section 9; PROTOCOL P1, P16, P18; docs/decisions/0086-fork.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.audit import Audit
from holdfast.checkpoint.joblog import FORMAT_VERSION, Forked, ForkOrigin, Record
from holdfast.checkpoint.manifest import Manifest
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, ObjectRef, SnapshotHandle, Timeline

GENERATION = Generation(0)
"""The generation of everything that a fork copies. No driver has it, so the first sweep of the fork's first run deletes
the objects of killed attempts, and none of them proves that a log was cut short (beyond.py)."""
TIMELINE = Timeline(1)
NOTHING_STAGED = Audit((), (), (), (), NO_EPOCH)
"""The fork itself took no record and staged no output by then, so its audit is complete from there on."""


@dataclass(frozen=True)
class NewJob:
    """The job that a fork creates.

    Args:
        owner: Token of this attempt: its names are its own, and it recognises its record.
        at_us: Microseconds since 1970, UTC.
    """

    name: str
    uuid: JobUuid
    owner: str
    at_us: int


def copy_path(new: NewJob, epoch: Epoch, number: int) -> str:
    """Return the name of the copy of a stored object.

    Args:
        epoch: Epoch of the checkpoint.
        number: Distinguishes the copies of one attempt.
    """
    return f"base/{GENERATION:08d}/{epoch:012d}/{new.owner}-{number}.segment"


def objects_of(manifest: Manifest) -> tuple[ObjectRef, ...]:
    """Return the objects with the state of a checkpoint, each once: several subtasks may share one."""
    refs = [ref for handle in manifest.state for ref in handle.base]
    refs += [segment.object for handle in manifest.state for segment in handle.segments]
    return tuple({ref.path: ref for ref in refs}.values())


def forked_manifest(of: Manifest, new: NewJob, copy: Callable[[ObjectRef], ObjectRef]) -> Manifest:
    """Return the first checkpoint of a fork.

    Args:
        of: The checkpoint, with all of its state in objects.
        copy: Returns the copy of an object.
    """
    return msgspec.structs.replace(
        of,
        job_uuid=new.uuid,
        generation=GENERATION,
        timeline=TIMELINE,
        follows=NO_EPOCH,
        state=tuple(_copied(handle, copy) for handle in of.state),
        pending=(),
        confirmed=(),
        audit=NOTHING_STAGED,
        changelog=msgspec.UNSET,
        orders=msgspec.UNSET,
        committed_once=msgspec.UNSET,
    )


def first_record(
    new: NewJob, of: Manifest, origins: tuple[ForkOrigin, ...], manifest: ObjectRef, duration_ms: int, bytes_total: int
) -> Record:
    """Return the record whose conditional creation is the fork."""
    body = Forked(new.name, of.key_groups, origins, of.epoch, manifest, duration_ms, bytes_total)
    return Record(1, new.uuid, GENERATION, TIMELINE, new.owner, new.at_us, body, v=FORMAT_VERSION, prev="")


def _copied(handle: SnapshotHandle, copy: Callable[[ObjectRef], ObjectRef]) -> SnapshotHandle:
    segments = tuple(msgspec.structs.replace(s, object=copy(s.object), writer=None) for s in handle.segments)
    return replace(handle, base=tuple(map(copy, handle.base)), segments=segments)
