"""The manifest: the content of a completed checkpoint.

One JSON object per completed epoch; the log record names it with its size and hash. It holds everything that
a later generation needs: source positions, how to rebuild every subtask's state, and the output
that is staged but not yet known to be delivered.

Invariants
    - Every (writer, epoch, staged output) not confirmed delivered is named (P18).
    - A segment names the completed epoch it follows (P8), and the handles' segments are in epoch order.
    - The next manifest is computed from the last one and the acks alone.

Pure: no clock, thread or I/O.
Source: PROTOCOL P8, P12, P18; DESIGN section 13.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import pyarrow as pa

from holdfast.checkpoint.audit import Audit, PartAudit, manifest_audit
from holdfast.checkpoint.bases import advanced, undelivered
from holdfast.checkpoint.deltas import difference, rebuilt
from holdfast.errors import ConfigError, Damaged
from holdfast.model import (
    CHANGELOG,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)

FORMAT_VERSION = 7
"""Manifests that are a difference from an earlier one; format 6 is a compressed manifest. Smaller ones are written as
the oldest version with the fields that they need: 5 with sinks that have one committer, since an earlier version would
deliver output of several writers as that of one, beside newer output of the others; 4 if the changelog goes to a topic,
since an earlier version would take the segments that they name for all of the state; 3 with state columns that are not
plain, 2 with operators that evolved, 1 without."""
COMPRESSED_VERSION = 6
_VERSION_WITH_COMMITTERS, _VERSION_WITH_TOPIC, _VERSION_WITH_TYPES, _VERSION_WITH_FIELDS, _FIRST_VERSION = 5, 4, 3, 2, 1
COMPRESSED_FROM_BYTES = 1 << 16
"""Ten workers with full histories have as much. Smaller ones are plain JSON, which earlier releases read."""
DELTA_SHARE = 3
"""A difference is stored only if the whole manifest has at least this many times its size."""
_PLAIN_TYPES = frozenset(
    (
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    )
)
"""Types of state columns that every release reads."""
FIELDS = "fields"
"""The part of an operator's schema that an earlier version would overlook, and read state by name."""


class Confirmed(msgspec.Struct, frozen=True):
    """How far a writer's output is known to be delivered."""

    writer: Writer
    tag: Tag


class OperatorState(msgspec.Struct, frozen=True):
    """Name, number and columns of one stateful operator; the number is part of every state key."""

    name: str
    id: int
    schema: dict[str, Any]
    dropped: bool = False
    """Its state is no longer read; its number is never reused."""
    given_up: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The arguments of `--drop-state` that are carried out for it and still given; omitted if there are none."""

    @property
    def carried_out(self) -> tuple[str, ...]:
        """Return the arguments of `--drop-state` that are carried out for it."""
        return () if self.given_up is msgspec.UNSET else self.given_up


class Manifest(msgspec.Struct, frozen=True):
    """One completed checkpoint."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    epoch: Epoch
    follows: Epoch
    parallelism: int
    key_groups: int
    positions: tuple[SourcePosition, ...]
    state: tuple[SnapshotHandle, ...]
    pending: tuple[Pending, ...]
    confirmed: tuple[Confirmed, ...]
    operators: tuple[OperatorState, ...]
    v: int = _FIRST_VERSION
    """Set when it is encoded."""
    audit: Audit | msgspec.UnsetType = msgspec.UNSET
    """Omitted if unknown, and in manifests of older versions."""
    shape: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """The shape of the job's code; omitted in manifests of older versions. Opaque here: shape.py makes it."""
    changelog: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """The place of the topic that holds the state but for the segments named here; omitted if these are all."""

    @property
    def topic(self) -> dict[str, str] | None:
        """Return the place of the changelog's topic, None if there is none."""
        return None if self.changelog is msgspec.UNSET else self.changelog

    committed_once: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Sinks whose pending output is that of all writers, under the tag of the first; omitted if there are none."""

    orders: tuple[ObjectRef, ...] | msgspec.UnsetType = msgspec.UNSET
    """The steps of the subtasks in this epoch, in order; omitted if they were not recorded. Opaque here."""

    @property
    def recorded(self) -> tuple[ObjectRef, ...] | None:
        """Return the records of the order in which subtasks took their input; None if there are none."""
        return None if self.orders is msgspec.UNSET else self.orders

    @property
    def with_committer(self) -> tuple[str, ...]:
        """Return the sinks whose output one committer delivers for all writers."""
        return () if self.committed_once is msgspec.UNSET else self.committed_once

    @property
    def audited(self) -> Audit | None:
        """Return the audit digests, None if they are unknown."""
        return None if self.audit is msgspec.UNSET else self.audit


@dataclass(frozen=True)
class Named:
    """The objects that one manifest names, and itself."""

    epoch: Epoch
    paths: tuple[str, ...]
    """Some may be named twice."""


class _ManifestVersion(msgspec.Struct):
    v: int


class _Compressed(msgspec.Struct):
    """A manifest of an earlier version, as a frame of zstd; JSON, so that earlier releases see the version."""

    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    """Bytes of the manifest."""
    zstd: bytes
    """Base64 in JSON."""
    v: int = COMPRESSED_VERSION


class _Delta(msgspec.Struct):
    """A manifest as a difference from an earlier one of version 6 (deltas.py), compressed; JSON as well."""

    base: ObjectRef
    sha256: str
    """Hash of the manifest's JSON, uncompressed."""
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    """Bytes of the difference."""
    zstd: bytes
    v: int = FORMAT_VERSION


class _Object(msgspec.Struct, gc=False):
    path: str


class _Segment(msgspec.Struct, gc=False):
    object: _Object


class _Handle(msgspec.Struct):
    base: list[_Object]
    segments: list[_Segment]


class _StagedObjects(msgspec.Struct):
    parts: list[_Object]


class _Pending(msgspec.Struct):
    staged: _StagedObjects


class _ManifestObjects(msgspec.Struct):
    """The members of a manifest that name objects."""

    epoch: Epoch
    state: list[_Handle]
    pending: list[_Pending]
    orders: list[_Object] = []


Read = TypeVar("Read")
_ZSTD = pa.Codec("zstd", compression_level=1)
_VERSION, _COMPRESSED, _DELTA, _MANIFEST, _PARTS = (
    msgspec.json.Decoder(_ManifestVersion),
    msgspec.json.Decoder(_Compressed),
    msgspec.json.Decoder(_Delta),
    msgspec.json.Decoder(Manifest),
    msgspec.json.Decoder(_ManifestObjects),
)


class SubtaskPart(msgspec.Struct, frozen=True):
    """One worker's contribution to a checkpoint: the content of its ack."""

    subtask: Subtask
    positions: tuple[SourcePosition, ...]
    segment: SegmentRef | None
    """None if no key changed since the epoch that it follows."""
    staged: dict[str, Staged]
    """Per sink; sinks without output are absent."""
    delivered: tuple[Confirmed, ...]
    compacted: SegmentRef | None = None
    """Replaces this subtask's segments after the epoch that it follows, up to its own (DESIGN section 5)."""
    audit: PartAudit | None = None
    """None if nothing is digested."""
    further: tuple[SegmentRef, ...] = ()
    """Segments of other operators of the subtask, if tasks of their own ran these (microbatch mode)."""
    orders: tuple[ObjectRef, ...] | None = None
    """The recorded steps of the subtask, those of epochs that were given up first; None: they are not recorded."""


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as it is stored whole."""
    return stored(plain(manifest))


def plain(manifest: Manifest) -> bytes:
    """Return the manifest as JSON of the oldest version that has all its fields."""
    version = max(map(_version_of, manifest.operators), default=_FIRST_VERSION)
    version = version if manifest.topic is None else _VERSION_WITH_TOPIC
    version = _VERSION_WITH_COMMITTERS if manifest.with_committer else version
    return msgspec.json.encode(msgspec.structs.replace(manifest, v=version))


def stored(data: bytes) -> bytes:
    """Return a manifest's JSON as it is stored whole: compressed if it is large."""
    if len(data) < COMPRESSED_FROM_BYTES:
        return data
    return msgspec.json.encode(_Compressed(len(data), _ZSTD.compress(data, asbytes=True)))


def stored_delta(data: bytes, base: ObjectRef, base_data: bytes) -> bytes | None:
    """Return a manifest's JSON as its difference from the base; None if the base is small or too much has changed.

    Args:
        base: A manifest that is stored whole.
        base_data: Its JSON.
    """
    if len(base_data) < COMPRESSED_FROM_BYTES:
        return None
    steps = difference(base_data, data)
    digest = hashlib.sha256(data).hexdigest()
    delta = msgspec.json.encode(_Delta(base, digest, len(steps), _ZSTD.compress(steps, asbytes=True)))
    return delta if len(delta) * DELTA_SHARE <= base.size else None


def _version_of(operator: OperatorState) -> int:
    """Return the oldest version with the recorded fields of an operator."""
    if not all(type_name in _PLAIN_TYPES for _, type_name in operator.schema.get("columns", ())):
        return _VERSION_WITH_TYPES
    return _VERSION_WITH_FIELDS if FIELDS in operator.schema else _FIRST_VERSION


def base_of(data: bytes, ref: ObjectRef) -> ObjectRef | None:
    """Return the manifest that this one is a difference from; None if it is stored whole. Raises Damaged."""
    try:
        return _DELTA.decode(data).base if _VERSION.decode(data).v == FORMAT_VERSION else None
    except msgspec.DecodeError as error:
        raise _unreadable(ref, error) from error


def decode(data: bytes, ref: ObjectRef, base: bytes | None = None) -> Manifest:
    """Read a manifest back; the reader of the bytes has verified their hashes.

    Args:
        base: The bytes of the manifest that `base_of` names.
    """
    return _decoded(_MANIFEST, data, ref, base)


def named_in(data: bytes, ref: ObjectRef, base: bytes | None = None) -> Named:
    """Read the names in a manifest, and the manifest that it needs, in a tenth of the time for all of it."""
    manifest_parts = _decoded(_PARTS, data, ref, base)
    base_ref = base_of(data, ref)
    object_paths = [each.path for handle in manifest_parts.state for each in handle.base]
    object_paths += [each.object.path for handle in manifest_parts.state for each in handle.segments]
    object_paths += [each.path for item in manifest_parts.pending for each in item.staged.parts]
    object_paths += [each.path for each in manifest_parts.orders]
    return Named(manifest_parts.epoch, (ref.path, *(() if base_ref is None else (base_ref.path,)), *object_paths))


def _decoded(decoder: msgspec.json.Decoder[Read], data: bytes, ref: ObjectRef, base: bytes | None) -> Read:
    try:
        data = _plain(data, base)
        version = _VERSION.decode(data).v  # a later release may use a compression that this one cannot read
        if _FIRST_VERSION <= version < COMPRESSED_VERSION:
            return decoder.decode(data)
    except (msgspec.DecodeError, pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(ref, error) from error
    raise ConfigError(
        f"manifest {ref.path} has format {version}; this version of Holdfast reads formats up to {FORMAT_VERSION}",
        not_done="no state was restored from it",
        next_step="run the job with the version that wrote it, or with a newer one",
    )


def _plain(data: bytes, base: bytes | None) -> bytes:
    """Return a stored manifest's JSON. Raises ValueError if it is not the stored one, and as `_decompressed`."""
    version = _VERSION.decode(data).v
    if version == FORMAT_VERSION:
        delta = _DELTA.decode(data)
        if base is None or _VERSION.decode(base).v != COMPRESSED_VERSION:
            raise ValueError(f"{delta.base.path} is not a manifest that a difference can refer to")
        found = rebuilt(_plain(base, None), _decompressed(delta))
        if hashlib.sha256(found).hexdigest() != delta.sha256:
            raise ValueError(f"it does not fit {delta.base.path}")
        return found
    return _decompressed(_COMPRESSED.decode(data)) if version == COMPRESSED_VERSION else data


def _decompressed(compressed: _Compressed | _Delta) -> bytes:
    """Return the decompressed bytes. Raises OSError if the frame is not one of this size."""
    data: bytes = _ZSTD.decompress(compressed.zstd, decompressed_size=compressed.size, asbytes=True)
    return data


def _unreadable(ref: ObjectRef, error: Exception) -> Damaged:
    return Damaged(
        f"manifest {ref.path} cannot be read: {error}",
        not_done="no state was restored from it",
        next_step="check the storage; an older checkpoint may still be good: holdfast checkpoints verify JOB",
    )


def follow(
    handles: Iterable[SnapshotHandle],
    positions: Iterable[SourcePosition],
    pending: Iterable[Pending],
    confirmed: Mapping[Writer, Tag],
    header: Manifest,
    parts: Iterable[SubtaskPart],
    audit: Audit | None = None,
) -> Manifest:
    """Build the next manifest from the generation's knowledge and its workers' acks.

    Args:
        handles: State of each subtask as of the previous epoch.
        positions: How far each partition was read as of the previous epoch, and those that this one assigns.
        pending: Undelivered output as of the previous epoch.
        confirmed: Newest known tag of every writer.
        header: A manifest whose identity fields are the new one's; its other fields are ignored.
        parts: One ack per subtask.
        audit: Digests as of the previous epoch; None if they are unknown.
    """
    parts = sorted(parts, key=lambda part: part.subtask)
    assert [part.subtask for part in parts] == list(range(header.parallelism)), "a part is missing"
    offsets = {(at.source, at.partition): at for at in positions}
    tags = dict(confirmed)
    fresh: list[Pending] = []
    for part in parts:
        mine = (msgspec.structs.replace(at, subtask=part.subtask) for at in part.positions)
        offsets.update({(at.source, at.partition): at for at in mine})
        for done in part.delivered:
            tags[done.writer] = max(done.tag, tags.get(done.writer, done.tag))
        for segment in (*(() if part.segment is None else (part.segment,)), *part.further):
            assert segment.epoch == header.epoch, "a segment of another epoch"
            assert segment.follows <= header.follows, "changes between two completed epochs are missing"
        if part.compacted is not None:
            assert part.compacted.epoch <= header.follows, "a merge of epochs that are not completed"
        for sink, staged in sorted(part.staged.items()):
            if staged.parts:
                fresh.append(Pending(Writer(sink, part.subtask), Tag(header.timeline, header.epoch), staged))
    digests = manifest_audit(header.follows, audit, [part.audit for part in parts])
    open_pending = [item for item in pending if item.writer not in tags or tags[item.writer] < item.tag]
    changelog_epochs = {writer.subtask: tag.epoch for writer, tag in tags.items() if writer.sink == CHANGELOG}
    return msgspec.structs.replace(
        header,
        audit=msgspec.UNSET if digests is None else digests,
        orders=_orders(parts),
        positions=tuple(offsets[partition] for partition in sorted(offsets)),
        state=tuple(undelivered(_advanced(handle, parts[handle.subtask]), changelog_epochs) for handle in handles),
        pending=(*open_pending, *fresh),
        confirmed=tuple(
            Confirmed(writer, tag) for writer, tag in sorted(tags.items(), key=lambda kv: (kv[0].sink, kv[0].subtask))
        ),
    )


def _orders(parts: Sequence[SubtaskPart]) -> tuple[ObjectRef, ...] | msgspec.UnsetType:
    """Return the records of all subtasks; unset if one has none: a part of the order does not help."""
    if any(part.orders is None for part in parts):
        return msgspec.UNSET
    return tuple(ref for part in parts for ref in part.orders or ())


def _advanced(handle: SnapshotHandle, part: SubtaskPart) -> SnapshotHandle:
    return advanced(handle, part.segment, part.compacted, part.further)


def objects(manifest: Manifest) -> list[ObjectRef]:
    """Return every object that the manifest names, each once."""
    ref_by_path: dict[str, ObjectRef] = {}
    for handle in manifest.state:
        for ref in (*handle.base, *(segment.object for segment in handle.segments)):
            ref_by_path[ref.path] = ref
    for item in manifest.pending:
        for ref in item.staged.parts:
            ref_by_path[ref.path] = ref
    for ref in manifest.recorded or ():
        ref_by_path[ref.path] = ref
    return list(ref_by_path.values())
