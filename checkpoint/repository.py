"""Reads and writes a job's log and manifests on an object store.

The only module of this package that does I/O. Layout below the job's folder: `log/<20 digits>.json`,
`folds/<20 digits>.json` and `manifests/<generation>/<epoch>-<owner>.json`, or `-delta.json` for a difference.

Invariants
    - A log record is only ever created conditionally, never replaced.
    - Every manifest is verified against the size and hash in its log record.
    - A record is created only in a root that has the first record of the job and the one before it.

Source: DESIGN section 4 (job log); PROTOCOL P4, P7 (if a record is missing, list again);
docs/decisions/0116-roots-that-go.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from msgspec import UNSET

from holdfast.checkpoint import folds, joblog
from holdfast.checkpoint.deltas import DELTA_ENDING, WHOLE_ENDING
from holdfast.checkpoint.manifest import Manifest, Named, base_of, decode, named_in, plain, stored, stored_delta
from holdfast.errors import AlreadyExists, Damaged, Fenced, NotFound, Unavailable, Where
from holdfast.model import Epoch, ObjectRef
from holdfast.ports import ObjectStore, TidyStore
from holdfast.storage.bulk import delete_each, get_each, list_behind, parts, read_together
from holdfast.storage.hashed import fits_hash, own_hash
from holdfast.storage.hashing import ByteSink, hash_file
from holdfast.storage.objects import FileStore
from holdfast.storage.once import create_same, write_same

WHOLE_BYTES_MAX = 1 << 16
"""A larger object is not read whole where it can be read as a file."""

FIRST_READ = 32
"""How many records are first read together; then twice as many each time, since most of them may not be needed."""
TOGETHER_BYTES_MAX = 16 << 20
"""How many bytes of staged output are read together at most, unless one object has more."""
MANIFESTS_READ = 8
"""How many manifests are read together: at 200 workers each has megabytes."""

record_path = joblog.record_path


class Repository:
    """The durable history of one job."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last: _StoredManifest | None = None

    def read_log(self, *, every_record: bool = False) -> joblog.Job | None:
        """Fold the log; None if there is no job.

        Args:
            every_record: Read all records, and so find damage in them, although a stored fold holds their fold.
        """
        job, records = self._read(from_fold=not every_record)
        for record in records:
            job = joblog.fold(job, record)
        return job

    def origins(self) -> tuple[joblog.ForkOrigin, ...]:
        """Return the checkpoints from which the job was forked, oldest first; none if it is not a fork."""
        first = self.forked()
        return first.body.origins if first is not None and isinstance(first.body, joblog.Forked) else ()

    def forked(self) -> joblog.Record | None:
        """Return the first record of a fork, which is never pruned; None for other jobs. Read the log before.

        None also if it is damaged: then the log starts over after it, and nothing else needs the record.
        """
        try:
            first = self.read_record(1)
        except Damaged:
            return None
        return first if first is not None and isinstance(first.body, joblog.Forked) else None

    def records(self) -> list[joblog.Record]:
        """Return the records from the newest `LogStart` on, else all, in order, including those appended meanwhile.

        Raises:
            Damaged: a record is missing before another one.
        """
        return self._read(from_fold=False)[1]

    def _read(self, from_fold: bool) -> tuple[joblog.Job | None, list[joblog.Record]]:
        """Return the stored fold from which the log was read, None if from its start, and the records after it.

        Reads backwards from the highest listed number, then forwards by number: a listing may miss a record that is
        created meanwhile and show its successor. Then lists again, since the log ends where no higher record exists,
        not where the first one is missing (P7): appending into a hole would rewrite history. A missing record may have
        been pruned meanwhile; then a higher `LogStart` exists.
        """
        missing: set[str] = set()
        while True:
            numbers = self._numbers()
            highest = numbers[-1] if numbers else 0
            fold = self._stored_fold(highest) if from_fold and len(numbers) > folds.EVERY else None
            fold, records, at = self._backwards(highest, fold)
            if at > 0:
                _look_again(record_path(at), numbers, missing)
                continue
            following = highest + 1
            while (record := self.read_record(following)) is not None:
                records.append(record)
                following += 1
            higher = self._numbers(following - 1)
            if not higher:
                return fold, records
            if self.read_record(following) is None:
                _look_again(record_path(following), higher, missing)

    def _backwards(self, highest: int, fold: joblog.Job | None) -> tuple[joblog.Job | None, list[joblog.Record], int]:
        """Read from this number back to a stored fold, the newest `LogStart`, or the first record.

        Returns:
            The fold if it was reached and the log has its last record; the records after it, in order; and the number
            of a missing record, 0 if none is missing.
        """
        records, at, count = list[joblog.Record](), highest, min(FIRST_READ, read_together(self._store))
        while at > 0:
            paths = [record_path(number) for number in range(at, max(at - count, 0), -1)]
            data = get_each(self._store, paths)
            for number, path in zip(range(at, 0, -1), paths, strict=False):
                if path not in data:
                    return None, [], number
                record = _decoded(data[path], path)
                if fold is not None and number == folds.last_of(fold) and record.hash == fold.head:
                    return fold, records[::-1], 0
                records.append(record)
                if isinstance(record.body, joblog.LogStart):
                    return None, records[::-1], 0
            at, count = at - len(paths), min(2 * count, read_together(self._store))
        return None, records[::-1], 0

    def _stored_fold(self, highest: int) -> joblog.Job | None:
        """Return the newest stored fold that can be read and is not beyond this record; None if there is none."""
        numbers = [number for path in self._store.list(folds.FOLDER) if (number := folds.number_in(path)) is not None]
        for number in sorted(number for number in numbers if number <= highest)[: -folds.KEPT - 1 : -1]:
            try:
                job = folds.decode(self._store.get(folds.path_of(number)), number)
            except NotFound:
                continue  # replaced by a newer one just now
            if job is not None:
                return job
        return None

    def store_fold(self, job: joblog.Job) -> None:
        """Store the fold of the log up to its last record known here, and delete older ones that no reader needs."""
        last = folds.last_of(job)
        with suppress(AlreadyExists):
            self._store.create(folds.path_of(last), folds.encode(job))
        numbers = [number for path in self._store.list(folds.FOLDER) if (number := folds.number_in(path)) is not None]
        older = sorted(number for number in numbers if number <= last)[: -folds.KEPT]
        delete_each(self._store, [folds.path_of(number) for number in older])

    def prune(self, below: int, kept: set[int]) -> int:
        """Delete the prunable records before the `LogStart` with this number; return how many (P7).

        Args:
            kept: Numbers of records that are known to stay; the ones found here are added.
        """
        count = 0
        numbers = [number for number in self._numbers() if number < below and number not in kept]
        for part in parts(numbers, read_together(self._store)):
            found = get_each(self._store, [record_path(number) for number in part])
            records = [_decoded(data, path) for path, data in found.items()]
            doomed = [record.path for record in records if isinstance(record.body, joblog.PRUNABLE)]
            kept |= {record.seq for record in records if not isinstance(record.body, joblog.PRUNABLE)}
            delete_each(self._store, doomed)
            count += len(doomed)
        return count

    def _numbers(self, after: int = 0) -> list[int]:
        """Return the numbers of the records above this one, in order."""
        names = self._store.list("log") if after == 0 else list_behind(self._store, "log", record_path(after))
        numbers = (int(name[4:-5]) for name in names if name.endswith(".json") and name[4:-5].isdigit())
        return sorted(number for number in numbers if number > after)

    def read_record(self, seq: int) -> joblog.Record | None:
        """Return the record with this number, None if there is none yet."""
        path = record_path(seq)
        try:
            return _decoded(self._store.get(path), path)
        except NotFound:
            return None

    def create_record(self, record: joblog.Record) -> joblog.Record:
        """Create the record unless its number is taken; return the record now stored under that number.

        Raises:
            Unavailable: the outcome is unknown; call again with the same record (P4).
            Fenced: the number was free only because its record was pruned: the log is far ahead.
            RootLost: the log no longer has the records before it; nothing was created.
        """
        if record.seq > 1:
            self._prove_root(record)
        path, data = record_path(record.seq), joblog.encode(record)
        winner = joblog.with_known_hash(record, data)
        try:
            self._store.create(path, data)
        except AlreadyExists:
            there = self.read_record(record.seq)
            if there is None:
                raise Unavailable(f"{path} was pruned while it was read", next_step="try again") from None
            winner = there
        own = winner.owner == record.owner and not isinstance(record.body, joblog.PRUNABLE)
        if own or isinstance(winner.body, joblog.SavepointNamed):  # the writer of a name may have read the log long ago
            self._refuse_hole(record)
        return winner

    def _prove_root(self, record: joblog.Record) -> None:
        """Prove that the root still has the first record of the job, which is never pruned, and the one before this.

        The first one alone may be that of an older copy; the one before may be ours, created while the root went.
        """
        before, first = record_path(record.seq - 1), record_path(1)
        found = get_each(self._store, [before, first] if record.seq > 2 else [first])
        if first in found and before in found and _may_precede(found[before], record):
            return
        try:
            job = self.read_log()
        except Damaged as error:
            raise RootLost(before, error.what) from error
        if job is None or job.uuid != record.job_uuid or job.next_seq <= record.seq:
            raise RootLost(before, 0 if job is None else job.next_seq - 1)
        # A newer owner may have pruned the record before: then its own are found at this number or above.

    def _refuse_hole(self, record: joblog.Record) -> None:
        """P7: below a `LogStart` there are holes, and a record created in a hole has no effect."""
        for number in reversed(self._numbers(record.seq)):
            above = self.read_record(number)
            if above is None or isinstance(above.body, joblog.LogStart):  # listed but gone: it was pruned just now
                where = "further" if above is None else f"to generation {above.generation}"
                raise Fenced(
                    f"the job log advanced {where} while this {record.kind} was in flight",
                    not_done="it has no effect; nothing was changed",
                    next_step="let this process exit, do not retry it",
                )

    def store_manifest(self, manifest: Manifest, owner: str) -> ObjectRef:
        """Store the manifest under a unique name; return the reference for the log.

        If it follows the one stored last, it may be stored as a difference from the last one that was stored whole.
        That one is completed then, or is named by a completed one, and so is not swept. A manifest that is stored
        again is the same object.
        """
        path = f"manifests/{manifest.generation:08d}/{manifest.epoch:012d}-{owner}"
        data, last = plain(manifest), self._last
        digest = hashlib.sha256(data).hexdigest()
        if last is not None and last.name == path and last.sha256 == digest:
            return last.ref
        base = last if last is not None and last.epoch == manifest.follows else None
        delta = None if base is None else stored_delta(data, base.whole, base.whole_data)
        if base is None or delta is None:
            ref = self._put(f"{path}{WHOLE_ENDING}", stored(data))
            self._last = _StoredManifest(path, manifest.epoch, ref, digest, ref, data)
            return ref
        ref = self._put(f"{path}{DELTA_ENDING}", delta)
        self._last = replace(base, name=path, epoch=manifest.epoch, ref=ref, sha256=digest)
        return ref

    def _put(self, path: str, data: bytes) -> ObjectRef:
        create_same(self._store, path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())

    def load_manifest(self, ref: ObjectRef) -> Manifest:
        """Read a manifest, and the one that it is a difference from, and verify them."""
        data = read_verified(self._store, ref)
        base = base_of(data, ref)
        return decode(data, ref, None if base is None else read_verified(self._store, base))

    def named_in(self, refs: Sequence[ObjectRef]) -> Iterator[Named]:
        """Read and verify manifests, some together where the store can; yield the names in each of them."""
        base, base_data = None, None
        for part in parts(refs, min(MANIFESTS_READ, read_together(self._store))):
            found = get_each(self._store, [ref.path for ref in part])
            for ref in part:
                if (data := found.pop(ref.path, None)) is None:
                    raise _damaged(ref, "is missing")
                if (needed := base_of(verified(data, ref), ref)) is not None and needed != base:
                    base, base_data = needed, read_verified(self._store, needed)
                yield named_in(data, ref, base_data)

    def read(self, ref: ObjectRef) -> bytes:
        """Return the bytes of an object that a manifest names, verified."""
        return read_verified(self._store, ref)

    def names(self, folder: str) -> Sequence[str]:
        """Return the paths of all objects in one of the job's folders."""
        return self._store.list(folder)

    def tidy(self) -> None:
        """Remove the files that killed writers left in a local root: temporary files, and folders without objects."""
        if isinstance(self._store, TidyStore):
            self._store.tidy()

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete objects that nothing needs; the caller has checked that (P16)."""
        delete_each(self._store, paths)


class RootLost(Damaged):
    """The root was deleted or replaced while the job runs."""

    def __init__(self, path: str, there: int | str) -> None:
        """Args: there: The number of the last record there now, 0 if there is no log; or the fault of the log."""
        if isinstance(there, int):
            there = f"its log ends at {joblog.record_path(there)}" if there else "it has no log"
        super().__init__(
            f"the job's root no longer has {path}, which this run has read or written, and {there}: it was deleted, or "
            "replaced by another copy, while the job runs",
            not_done="nothing more was committed",
            next_step="put the root back as it was, then run the job again",
        )


def _may_precede(stored: bytes, record: joblog.Record) -> bool:
    """Return whether this may be the preceding record; True if it is too damaged, which the next start reports."""
    return own_hash(stored) == record.prev or record.prev is UNSET or not fits_hash(stored)


@dataclass(frozen=True)
class _StoredManifest:
    """The manifest that was stored last."""

    name: str
    """Its path, without the suffix for its stored form."""
    epoch: Epoch
    ref: ObjectRef
    sha256: str
    """Hash of its JSON."""
    whole: ObjectRef
    """The manifest that it is a difference from, or itself."""
    whole_data: bytes
    """The JSON of that one."""


def _decoded(data: bytes, path: str) -> joblog.Record:
    """Return the record that is stored under this path."""
    record = joblog.decode(data, path)
    if record.path != path:
        raise Damaged(
            f"{path} holds the record of {record.path}: the two were swapped, or one was copied over the other",
            not_done="the job was not started and nothing was written",
            next_step="restore the job's log folder from a copy, or start the job under another name",
        )
    return record


def read_verified(store: ObjectStore, ref: ObjectRef) -> bytes:
    """Return the object's bytes. Raises Damaged if they do not match the reference."""
    try:
        return verified(store.get(ref.path), ref)
    except NotFound:
        raise _damaged(ref, "is missing") from None


def read_each(store: ObjectStore, refs: Sequence[ObjectRef]) -> Iterator[bytes]:
    """Yield the bytes of each object in order; small ones are read side by side if the store can. Raises Damaged."""
    for together in _groups(refs, read_together(store)):
        found = get_each(store, [ref.path for ref in together])
        for ref in together:
            if (data := found.pop(ref.path, None)) is None:
                raise _damaged(ref, "is missing")
            yield verified(data, ref)


def _groups(refs: Sequence[ObjectRef], most: int) -> Iterator[list[ObjectRef]]:
    """Yield the references in order, in groups of at most this many, and of few bytes."""
    group, size = list[ObjectRef](), 0
    for ref in refs:
        if group and (len(group) >= most or size + ref.size > TOGETHER_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(ref)
        size += ref.size
    if group:
        yield group


def verified(data: bytes, ref: ObjectRef) -> bytes:
    """Return the bytes of an object. Raises Damaged if they do not match the reference."""
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise _damaged(ref, f"differs from what was written ({len(data)} bytes, {ref.size} expected)")
    return data


def open_verified(store: ObjectStore, ref: ObjectRef) -> pa.NativeFile:
    """Return the object for reads at any place, after verifying all of it; large objects are not held in memory.

    Raises:
        Damaged: its bytes do not match the reference.
    """
    if ref.size <= WHOLE_BYTES_MAX or not isinstance(store, FileStore):
        return pa.BufferReader(read_verified(store, ref))
    try:
        file = store.opened(ref.path)
    except NotFound:
        raise _damaged(ref, "is missing") from None
    try:
        size = file.size()
        digest = hash_file(file, hashlib.sha256(), size)
    except OSError as error:
        file.close()
        raise Unavailable(
            f"reading object {ref.path} failed: {error}", next_step="check the store, then retry"
        ) from error
    if size != ref.size or digest.hexdigest() != ref.sha256:
        file.close()
        raise _damaged(ref, f"differs from what was written ({size} bytes, {ref.size} expected)")
    return file


def write_object(store: ObjectStore, path: str, write: Callable[[ByteSink], object], next_step: str) -> ObjectRef:
    """Create an object part by part and return its reference; it becomes visible, whole, at the end.

    Args:
        write: Writes the bytes into the sink that it receives; it may read files meanwhile.
        next_step: Next step to report if a file cannot be read or written.

    Raises:
        NameTaken: it exists and holds other bytes.
        Unavailable: the object may exist or not.
    """
    try:
        written = write_same(store, path, write)
    except OSError as error:
        raise Unavailable(f"writing {path} failed: {error}", next_step=next_step) from error
    return ObjectRef(path, written.size, written.sha256)


def _look_again(path: str, listed: list[int], missing: set[str]) -> None:
    """Handle a record missing below others: the first time it may just have been pruned, the second time it is lost."""
    if path in missing:
        raise Damaged(
            f"the job log has {record_path(listed[-1])}, but not {path}",
            not_done="the job was not started and nothing was written",
            next_step="restore the job's log folder from a copy, or start under another name",
        )
    missing.add(path)


def _damaged(ref: ObjectRef, what: str) -> Damaged:
    return Damaged(
        f"object {ref.path} {what}",
        not_done="nothing was restored from it",
        next_step="restore it from a copy and start the job again; or, without a copy, compute it again from an older "
        "checkpoint: holdfast checkpoints verify JOB names the newest intact one, and holdfast rewind JOB.py "
        "--to-epoch N takes the job and its outputs back to it",
        where=Where(object=ref.path),
    )
