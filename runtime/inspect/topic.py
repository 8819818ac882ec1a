"""The state that a job keeps in its changelog's topic, as an object of a checkpoint.

Readers of state know stored objects alone. For a job with a topic, each subtask's records as of the checkpoint become
one more object, a base. It exists only in the store that the reader receives. Segments that the topic holds are left
out, so a read needs the same objects of the root as a restore.

Invariants
    - The base has the newest record of every key through the checkpoint's epoch, on its lineage.

Memory: the records of the key groups that are read.
Source: docs/decisions/0055-changelog-topic.md, docs/decisions/0037-state-inspection.md.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from holdfast.checkpoint.bases import undelivered
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.timeline import lineage_of
from holdfast.errors import ConfigError, Where
from holdfast.model import CHANGELOG, NO_EPOCH, Epoch, ObjectRef, SnapshotHandle, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.inspect.view import view_of
from holdfast.runtime.sources.connector import changelog_of
from holdfast.runtime.sources.installed import connector_class
from holdfast.sinks.contract.changelogs import (
    AsOf,
    OpenChangelog,
    check_holds,
    check_ours,
    check_reaches,
    is_on,
    shown_place,
)
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.protocol.staging import last_per_key
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.compact import compact
from holdfast.state.records import deltas_in
from holdfast.state.tables.spec import TableSpec
from holdfast.storage.objects import read_buffer


@dataclass(frozen=True)
class WithRecords:
    """The objects of a job, and those made of a topic's records."""

    store: ObjectStore
    made: Mapping[str, bytes]

    def get(self, path: str) -> bytes:
        """See ObjectStore.get."""
        return self.made[path] if path in self.made else self.store.get(path)

    def mapped(self, path: str) -> pa.Buffer:
        """See MappedStore.mapped."""
        return pa.py_buffer(self.made[path]) if path in self.made else read_buffer(self.store, path)

    def create(self, path: str, data: bytes) -> None:
        """See ObjectStore.create."""
        self.store.create(path, data)

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore.put."""
        self.store.put(path, data)

    def list(self, prefix: str) -> list[str]:
        """See ObjectStore.list."""
        return self.store.list(prefix)

    def delete(self, path: str) -> None:
        """See ObjectStore.delete."""
        self.store.delete(path)


def with_topic(stored: Stored, manifest: Manifest, span: tuple[int, int]) -> tuple[Stored, Manifest]:
    """Return the job and its checkpoint with the state of the key groups [first, end) in objects alone.

    Raises:
        ConfigError: a rewind abandoned the checkpoint, or the topic is missing or compacted beyond it.
        Damaged: the topic lacks delivered records, differs from what was written, or has records of another
            history of the job.
        Fenced: another history owns it.
        Unavailable: it cannot be reached, or was compacted meanwhile.
    """
    if manifest.topic is None:
        return stored, manifest
    changelog = _opened(stored, manifest, manifest.topic)
    specs = [view_of(each).spec for each in manifest.operators if not each.dropped]
    segments, handles = dict[str, bytes](), list[SnapshotHandle]()
    for handle in manifest.state:
        handle = undelivered(handle, changelog.delivered)
        first, end = max(span[0], handle.key_groups[0]), min(span[1], handle.key_groups[1])
        if first < end:
            data = _base(stored, manifest, changelog, specs, (first, end))
            path = f"topic/{manifest.epoch:012d}/{first}-{end}.segment"
            segments[path] = data
            ref = ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())
            handle = replace(handle, base=(ref,), base_epoch=_label(manifest, handle))
        handles.append(handle)
    store = WithRecords(stored.store, segments)
    return replace(stored, store=store), msgspec.structs.replace(manifest, state=tuple(handles))


def check_topic(stored: Stored, manifests: Sequence[Manifest]) -> None:
    """Check that the topic has the records that the oldest checkpoint needs, and read all those of the newest one.

    Args:
        manifests: Oldest first; those without a topic, or that a rewind abandoned, do not count.

    Raises:
        ConfigError: the topic is missing or compacted beyond a checkpoint.
        Damaged: it lacks delivered records, differs from what was written, or has records of another history of
            the job.
        Fenced: another history owns it.
        Unavailable: it cannot be reached, or was compacted meanwhile.
    """
    history = lineage_of(stored.job.rewinds)
    kept = [each for each in manifests if each.topic is not None and is_on(history, each.timeline, each.epoch)]
    for oldest in kept[:1]:
        _opened(stored, oldest, oldest.topic or {})
    for newest in kept[-1:]:
        found, count = _opened(stored, newest, newest.topic or {}), newest.key_groups
        specs = {each.id: view_of(each).spec for each in newest.operators if not each.dropped}
        which = AsOf(newest.job_uuid, history, newest.epoch, NO_EPOCH, (0, count), count)
        for records in found.records(which):
            for _ in deltas_in(records, specs, (0, count), count, newest.epoch):
                pass


def _opened(stored: Stored, manifest: Manifest, place: Mapping[str, str]) -> OpenChangelog:
    history = lineage_of(stored.job.rewinds)
    if not is_on(history, manifest.timeline, manifest.epoch):
        raise ConfigError(
            f"a rewind of job {stored.name!r} abandoned the checkpoint of epoch {manifest.epoch}, and took its records "
            "back in the changelog's topic",
            not_done="no state was read",
            next_step="read a checkpoint of the present timeline",
            where=Where(job=stored.name, epoch=manifest.epoch),
        )
    changelog = changelog_of(connector_class(place["kind"]).placed(place))
    open_changelog = changelog.open(manifest.job_uuid)
    where = f"changelog {shown_place(place)}"
    # After the topic: a driver may have started, or delivered, meanwhile.
    now = stored.repository.read_log() or stored.job
    check_ours(
        where, open_changelog, Claim("", now.generation, now.reaches, now.base_epoch if now.repair_due else None)
    )
    done = (each for each in manifest.confirmed if each.writer.sink == CHANGELOG)
    check_holds(where, open_changelog, {each.writer.subtask: each.tag.epoch for each in done})
    check_reaches(where, open_changelog, manifest.epoch)
    return open_changelog


def _label(manifest: Manifest, handle: SnapshotHandle) -> Epoch:
    """Return an epoch for the base that no piece behind it precedes."""
    return min([manifest.epoch, *(each.epoch for each in handle.segments)])


def _base(
    stored: Stored, manifest: Manifest, found: OpenChangelog, specs: Iterable[TableSpec], span: tuple[int, int]
) -> bytes:
    """Return the newest records of these key groups as one segment."""
    count, epoch, history = manifest.key_groups, manifest.epoch, lineage_of(stored.job.rewinds)
    records = list(found.records(AsOf(manifest.job_uuid, history, epoch, NO_EPOCH, span, count)))
    header = SegmentHeader(
        manifest.job_uuid, manifest.generation, manifest.timeline, epoch, NO_EPOCH, WorkerId("topic")
    )
    pieces = list[tuple[bytes, tuple[int, int]]]()
    if records:
        newest = last_per_key(pa.Table.from_batches(records), ("key",)).combine_chunks()
        by_number = {spec.operator: spec for spec in specs}
        for batch in newest.to_batches():
            pieces += [(seal(header, [delta]), span) for delta in deltas_in(batch, by_number, span, count, epoch)]
    into = io.BytesIO()
    compact(header, pieces, specs, into)
    return into.getvalue()
