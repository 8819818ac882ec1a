"""Reads and writes a job's log and manifests on an object store.

The only place of this folder that does I/O. Layout below the job's folder: `log/<20 digits>.json`
and `manifests/<generation>/<epoch>-<owner>.json`.

Invariants
    - A log record is only ever created conditionally, never replaced.
    - Every manifest is verified against the size and hash in its log record.

Source: DESIGN section 4 (job log); PROTOCOL P4, P7 (a missing record means: look again).
"""

from __future__ import annotations

import hashlib

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest, decode, encode
from holdfast.errors import AlreadyExists, Damaged, NotFound
from holdfast.model import ObjectRef
from holdfast.ports import ObjectStore


def record_path(seq: int) -> str:
    """Return where the record with this sequence number is kept."""
    return f"log/{seq:020d}.json"


class Repository:
    """The durable history of one job."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read_log(self) -> joblog.Job | None:
        """Fold the whole log; None if there is no job."""
        records = self.records()
        job: joblog.Job | None = None
        for record in records:
            job = joblog.fold(job, record)
        return job

    def records(self) -> list[joblog.Record]:
        """Return all records in order, those appended while reading included.

        Read by number, since a listing may miss a record that is created meanwhile and show its
        successor. Then listed, since the end is not where the first record is missing but where no
        higher one exists (P7): appending into a hole would rewrite history.

        Raises:
            Damaged: a record is missing before another one.
        """
        found: list[joblog.Record] = []
        while True:
            while (record := self.read_record(len(found) + 1)) is not None:
                found.append(record)
            path = record_path(len(found) + 1)
            higher = [name for name in self._store.list("log") if name.endswith(".json") and name >= path]
            if not higher:
                return found
            if self.read_record(len(found) + 1) is None:
                raise Damaged(
                    f"the job log has {higher[0]}, but not {path}",
                    not_done="the job was not started and nothing was written",
                    next_step="restore the job's log folder from a copy, or start under another name",
                )

    def read_record(self, seq: int) -> joblog.Record | None:
        """Return the record with this number, None if there is none yet."""
        try:
            return joblog.decode(self._store.get(record_path(seq)), record_path(seq))
        except NotFound:
            return None

    def create_record(self, record: joblog.Record) -> joblog.Record:
        """Create the record unless its number is taken; return what stands there now.

        Raises:
            Unavailable: the outcome is unknown; call again with the same record (P4).
        """
        path = record_path(record.seq)
        try:
            self._store.create(path, joblog.encode(record))
        except AlreadyExists:
            return joblog.decode(self._store.get(path), path)
        return record

    def store_manifest(self, manifest: Manifest, owner: str) -> ObjectRef:
        """Store the manifest under a name of its own; return how the log names it."""
        data = encode(manifest)
        path = f"manifests/{manifest.generation:08d}/{manifest.epoch:012d}-{owner}.json"
        self._store.put(path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())

    def load_manifest(self, ref: ObjectRef) -> Manifest:
        """Read a manifest and verify it."""
        return decode(read_verified(self._store, ref), ref)


def read_verified(store: ObjectStore, ref: ObjectRef) -> bytes:
    """Return the object's bytes. Raises Damaged if they are not those that were named."""
    try:
        data = store.get(ref.path)
    except NotFound:
        raise _damaged(ref, "is missing") from None
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise _damaged(ref, f"is not what was written ({len(data)} bytes, {ref.size} expected)")
    return data


def _damaged(ref: ObjectRef, what: str) -> Damaged:
    return Damaged(
        f"object {ref.path} {what}",
        not_done="nothing was restored from it",
        next_step="see which checkpoints are whole: holdfast checkpoints verify JOB",
    )
