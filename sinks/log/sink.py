"""The embedded log as a target: the rows of an epoch and the writer's tag in one commit.

A commit of a log names the new rows of all partitions and the tag of the writer they come from, and is made by
conditional create. So an epoch appears in every partition at once or not at all, and only if the tag grows on
(timeline, epoch); a late writer finds the newer tag in the newest commit. One writer commits the rows of all; it only
names the uploads of others (sinks/log/uploads.py).

If the log has a key, a row goes to the partition of its key. Otherwise the batches of a delivery go round the
partitions, beginning with (subtask + epoch): one epoch of few rows costs one segment, and a repeated
delivery places its rows as before.

Invariants
    - The writer's name in the log holds the job's UUID: a job that was deleted and recreated has its own tags. It is
      refused before it starts if the log holds tags of the old job under its sink's name.
    - Nothing is appended while an earlier append is in doubt; reading the tag settles it first.
    - A log that was deleted and recreated under an open target is noticed before anything is written; one that was
      restored from a backup is read again, and its tag is compared with the delivered epochs.
    - A commit of a delivery or a repair names the driver on whose behalf it was made (owners.py).

An upsert stream needs a changelog (storage/log/changelog.py): its rows become records that put and delete, each key
once per delivery. Every row and record is kept, so there are no before-images: a rewind makes the offsets of the rows
that it takes back void (storage/log/voids.py). Users write `hf.Log` (runtime/sources/log.py), which hands over to
`LogSink`.

Source: PROTOCOL P1, P4, P17, P21; storage/log/log.py; docs/decisions/0052-changelogs-in-logs.md,
0056-one-committer.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Generation, Tag, Writer
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.audited import AuditQuery, Audits, TargetContents
from holdfast.sinks.contract.owners import Claim, Held, Holding, Ownership, check_continues
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink, check_key, check_null_keys
from holdfast.sinks.contract.target import (
    DELETE,
    OP,
    AlreadyDelivered,
    Delivered,
    Outcome,
    Target,
    UploadedOutput,
    already,
)
from holdfast.sinks.log import audit as log_audit
from holdfast.sinks.log.uploads import Leftovers, LogUploader, UploadPlace, found
from holdfast.sinks.protocol.staging import last_per_key
from holdfast.sinks.protocol.undo import SAMPLE_MAX, impossible, overtaken, refused, untouched
from holdfast.storage.bulk import delete_each
from holdfast.storage.log.changelog import puts_and_deletes, record_schema
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import Commit, LogMeta, LogOwner, LogSegment, VoidRange, check_meta, describe_column
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.partitioning import partition_rows, partitions_of
from holdfast.storage.log.reader import stored_meta
from holdfast.storage.log.voids import TakeBack, gathered, lost_to_compaction, moving, newest_tag
from holdfast.storage.objects import open_objects
from holdfast.traits import SinkTraits, local

_log = logging.getLogger(__name__)
Place: TypeAlias = Callable[[LogMeta, list[pa.RecordBatch], int], dict[int, pa.Table]]
"""Returns rows per partition; see `spread`."""


@dataclass(frozen=True)
class LogSink(Repairs, Audits, Ownership, Sink):
    """A log as users configure it; see contract.Sink.

    Args:
        path: A folder or URL, absolute.
        key: Columns by which rows are partitioned; None: that of the log, or none if it is created. For an upsert
            stream its key, which it must be.
        partitions: Number of partitions if the log is created.
        expected: The columns that the user declared for the log; None: those of the stream.
    """

    path: str
    key: tuple[str, ...] | None = None
    partitions: int = 4
    expected: pa.Schema | None = None

    @property
    def where(self) -> str:
        """How messages name the target."""
        return f"log {self.path}"

    @property
    def traits(self) -> SinkTraits:
        """Its key replaces nothing: every row is kept."""
        return SinkTraits(
            kind="Log",
            local_paths=local(self.path),
            place={"path": self.path},
            log=self.path,
            commits_once=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        upserts = upsert_key is not None
        check_key(self.where, schema, upsert_key, self.key if upserts else None)
        stored_schema = self._stored(schema, upserts)
        if self.expected is not None:
            self._check_columns(stored_schema, self._stored(self.expected, upserts), "the schema given to hf.Log")
        try:
            check_meta(LogMeta("", stored_schema, self.partitions, self.key or (), changelog=upserts))
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error.what}", next_step="correct the sink or the stream") from error
        self._check_key(schema, self.key or ())

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        upserts = upsert_key is not None
        store = open_objects(self.path)
        meta = read_meta(store)
        if meta is None:
            columns = schema if self.expected is None else self.expected
            create_log(store, columns, self.partitions, self.key, changelog=upserts)
        else:
            self._check_existing(store, meta, schema, upsert_key)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        store = open_objects(self.path, writable=False)
        meta = read_meta(store)
        if meta is None:
            return "the first start creates the log"
        self._check_existing(store, meta, schema, upsert_key)
        return "the log exists and fits the stream"

    def _check_existing(
        self, store: ObjectStore, meta: LogMeta, schema: pa.Schema, upsert_key: tuple[str, ...] | None
    ) -> None:
        """Refuse a log that the stream does not fit."""
        self._check_kind(meta, upsert_key)
        if self.key is not None and set(self.key) != set(meta.key):
            raise ConfigError(
                f"{self.where}: the log is partitioned by {list(meta.key) or 'no key'}, the sink by {list(self.key)}",
                not_done="the job was not started, the log was not changed",
                next_step="leave key out to take that of the log, or name another log",
            )
        # A log that has grown since still takes the same rows.
        stored = self._stored(schema, upsert_key is not None)
        fitting = pa.schema(list(meta.schema)[: len(stored)]) if meta.fits(stored) else meta.schema
        self._check_columns(stored, fitting, "the log")
        self._check_key(meta.schema, meta.key)
        if LogReader(store).sealed:
            raise ConfigError(
                f"{self.where}: the log is sealed; nothing can be appended to it",
                not_done="the job was not started",
                next_step="name another log; a missing one is created to fit",
            )

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        for writer_tag in LogReader(open_objects(self.path, writable=False)).tags():
            owner, _, rest = writer_tag.writer.partition("/")
            if rest.rpartition("/")[0] == name and owner != job_uuid:
                raise ConfigError(
                    f"{self.where}: holds output of a sink {name!r} of another job, {owner}, up to epoch "
                    f"{writer_tag.tag.epoch} of timeline {writer_tag.tag.timeline}",
                    not_done="the job was not started, the log was not changed",
                    next_step="if that job was deleted and recreated, its rows would be added twice: name another log. "
                    "If both jobs are to append here, give this sink another name",
                )

    def accept(self, batch: pa.RecordBatch) -> None:
        if OP in batch.schema.names:
            check_null_keys(self.where, self.key, batch)
            return
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ConfigError(
                    f"{self.where}: {column.null_count} rows have no value in the column {field.name!r}, "
                    "which must have one",
                    not_done="the rows were not written",
                    next_step=f"before the sink, leave them out with .filter(pl.col({field.name!r}).is_not_null())",
                )

    def holding(self, job_uuid: str, name: str) -> Holding:
        return holding(LogReader(open_objects(self.path, writable=False)).newest(), job_uuid, name)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> LogTarget:
        return LogTarget(self.where, lambda: open_objects(self.path, writable=False), job_uuid, writer, claim=claim)

    @property
    def uploads(self) -> LogUploader:
        return LogUploader(lambda: open_objects(self.path, writable=False), placed)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return plan_repair(self.where, open_objects(self.path, writable=False), rewinding)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return repair(self.where, open_objects(self.path, writable=False), rewinding)

    def contents(self, query: AuditQuery) -> TargetContents:
        return log_audit.contents(self.where, open_objects(self.path, writable=False), query)

    def _stored(self, schema: pa.Schema, upserts: bool) -> pa.Schema:
        """Return the columns of the log that takes a stream with these columns."""
        return record_schema(schema, self.key or ()) if upserts else schema

    def _check_kind(self, meta: LogMeta, upsert_key: tuple[str, ...] | None) -> None:
        if meta.changelog == (upsert_key is not None):
            return
        if meta.changelog:
            what = (
                "the log is a changelog, whose newest record of a key counts, but the stream only adds rows, and those "
                "of one key may come from several writers in any order"
            )
            next_step = f"aggregate the stream by {', '.join(meta.key)} first, or name another log"
        else:
            what = (
                f"the stream replaces rows by {list(upsert_key or ())}, but the log is not a changelog: it has no "
                "column that marks deletes"
            )
            next_step = "name another log; a missing one is created as a changelog"
        raise ConfigError(
            f"{self.where}: {what}", not_done="the job was not started, the log was not changed", next_step=next_step
        )

    def _check_columns(self, schema: pa.Schema, found: pa.Schema, of: str) -> None:
        if difference := misfit(schema, found):
            raise ConfigError(
                f"{self.where}: {of} does not take the stream's columns: {difference}",
                not_done="the job was not started, the log was not changed",
                next_step="select columns that fit before the sink, or name another log; a missing one is "
                "created to fit",
            )

    def _check_key(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        if not key:
            return
        try:
            partitions_of(schema.empty_table(), key, self.partitions)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error.what}", next_step=error.next_step) from error


class LogTarget(Target):
    """One writer's way into a log. See contract.Target.

    Args:
        where: How messages name the log.
        store: Opens the log's objects, at the first use.
        job_uuid: The job; part of the writer's name in the log.
        writer: Whose output this is.
        pause: Waits between two sends of a commit.
        claim: See Sink.open.
        place: Chooses the partitions of rows.
    """

    def __init__(
        self,
        where: str,
        store: Callable[[], ObjectStore],
        job_uuid: str,
        writer: Writer,
        pause: Callable[[float], None] = time.sleep,
        claim: Claim | None = None,
        place: Place | None = None,
    ) -> None:
        self._place = place or spread
        self._where = f"{where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._store, self._writer, self._pause = store, writer, pause
        self._job, self._claim = job_uuid, claim
        self._name = writer_name(job_uuid, writer)
        self._opened: tuple[ObjectStore, LogWriter] | None = None
        self._leftovers = Leftovers()

    def delivered(self) -> Tag | None:
        tail = self._log().newest()
        self._admit(tail)
        return tail.tag_of(self._name)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        log = self._log()
        tail = log.newest()
        self._admit(tail, known, tag)
        standing = tail.tag_of(self._name)
        if standing is not None and standing >= tag:
            return already(self._where, tag, standing)
        return self._append(log, tag, list(batches), (), known)

    def deliver_uploaded(self, output: UploadedOutput, known: Tag | None = None) -> Outcome:
        log, tag = self._log(), output.tag
        tail = log.newest()
        self._admit(tail, known, tag)
        standing = tail.tag_of(self._name)
        if standing is not None and standing >= tag:
            return already(self._where, tag, standing)
        store, place = self._store(), UploadPlace(self._job, self._writer.sink, tag.timeline)
        stored_paths = place.stored(store, self._leftovers.first(standing, tag, tail, self._name), tag.epoch)
        uploads = found(stored_paths, log.meta.uuid, output.uploads)
        staged_segments = [segment for each in uploads for segment in each or ()]
        left = output.read([place for place, each in enumerate(uploads) if each is None])
        outcome = self._append(log, tag, list(left), staged_segments, known)
        if isinstance(outcome, Delivered):
            self._sweep(
                store, self._leftovers.committed(tag, [segment.path for segment in staged_segments], stored_paths)
            )
        return outcome

    def _sweep(self, store: ObjectStore, paths: Sequence[str]) -> None:
        try:
            delete_each(store, paths)
        except Unavailable as error:
            # They take space and are never read; the remaining uploads of these epochs stay.
            _log.warning("%s: %d uploads that no commit names may be left: %s", self._where, len(paths), error.what)

    def _append(
        self,
        log: LogWriter,
        tag: Tag,
        batches: list[pa.RecordBatch],
        staged: Sequence[LogSegment],
        known: Tag | None,
    ) -> Outcome:
        rows = self._place(log.meta, as_stored(log.meta, batches), self._writer.subtask + tag.epoch)
        owned = owned_by(self._job, self._writer.sink, self._claim)
        admit = lambda tail: self._admit(tail, known, tag)
        if log.append_tagged(rows, self._name, tag, staged=staged, owned=owned, admit=admit) is None:
            return self._refused(log, tag)
        return Delivered(sum(table.num_rows for table in rows.values()) + sum(each.rows for each in staged))

    def forget(self, through: Tag) -> None:
        """A log replaces no row, so there are no before-images."""

    def close(self) -> None:
        """An append in doubt stays in doubt; the next target reads its outcome in the log."""
        self._opened = None

    def _log(self) -> LogWriter:
        if self._opened is None:
            store = self._store()
            if stored_meta(store) is None:  # a start has created it
                raise Damaged(
                    f"{self._where}: the log was deleted",
                    not_done="nothing was appended to it",
                    next_step="bring the log back from a backup and start the job: it continues. To compute its "
                    "records again, delete the job's folder too and run the job",
                )
            self._opened = store, LogWriter(store, pause=self._pause)
        store, log = self._opened
        uuid = log.stored_uuid()
        if uuid != log.meta.uuid:
            self._opened = None  # A commit would go into a log that counts from 1 again.
            raise Unavailable(
                f"{self._where}: the log was {'deleted' if uuid is None else 'replaced'} while it was open",
                not_done="nothing was appended to it",
                next_step="bring the log back from a backup: delivery retries. To compute its records again, delete "
                "the job's folder too and run the job",
            )
        if not log.holds_tail():  # Restored from a backup: a commit would leave a gap, or follow another history's.
            log = LogWriter(store, pause=self._pause)
            self._opened = store, log
        return log

    def _admit(self, tail: Commit, known: Tag | None = None, tag: Tag | None = None) -> None:
        """Refuse to append after a commit that shows that another history owns the log, or that it was restored."""
        if self._claim is not None:
            job, sink = self._job, self._writer.sink
            self._claim.must_take_over(self._where, held(tail, job, sink), lambda: newest_of(tail, job, sink))
        standing = tail.tag_of(self._name)
        if known is not None and not (standing is not None and tag is not None and standing >= tag):
            check_continues(self._where, standing, known)

    def _refused(self, log: LogWriter, tag: Tag) -> AlreadyDelivered:
        standing = log.tag_of(self._name)
        assert standing is not None, "only a standing tag refuses an append"
        return already(self._where, tag, standing)


SEALED = "the log is sealed: nothing can be added to it, not even the record of a rewind"


def plan_repair(where: str, store: ObjectStore, rewinding: Rewinding) -> Repair:
    """See Repairs.plan_repair."""
    commits = Commits(store, _meta_of(where, store))
    back = _back(where, rewinding)
    back.admit(commits.tail)
    if _stands(where, commits, back, rewinding):
        return untouched("truncate", rewinding)
    if commits.tail.sealed:
        return impossible(SEALED, takes_more=False)
    ranges = gathered(commits, back)
    lost = lost_to_compaction(commits, ranges)
    return _repaired(ranges, rewinding) if lost is None else impossible(lost)


def repair(where: str, store: ObjectStore, rewinding: Rewinding, pause: Callable[[float], None] = time.sleep) -> Repair:
    """See Repairs.repair. Tags and void ranges are one commit."""
    commits = Commits(store, _meta_of(where, store))
    back = _back(where, rewinding)
    back.admit(commits.tail)
    if _stands(where, commits, back, rewinding):
        return untouched("truncate", rewinding)
    if commits.tail.sealed:
        raise refused(where, SEALED)
    ranges = LogWriter(store, pause=pause).take_back(back)
    commits.refresh()
    _stands(where, commits, back, rewinding)
    return _repaired(ranges, rewinding)


def _stands(where: str, commits: Commits, back: TakeBack, rewinding: Rewinding) -> bool:
    newest = newest_tag(commits.tail, back)
    if newest is not None and newest.timeline > rewinding.to.timeline:
        raise overtaken(where, newest, rewinding)
    return not moving(commits.tail, back)


def _back(where: str, rewinding: Rewinding) -> TakeBack:
    job, sink, claim = rewinding.job_uuid, rewinding.sink, rewinding.claim

    def admit(tail: Commit) -> None:
        if claim is not None:
            claim.must_take_over(where, held(tail, job, sink), lambda: newest_of(tail, job, sink))

    return TakeBack(
        rewinding.to,
        tuple(writer_name(job, writer) for writer in rewinding.writers),
        lambda name: is_writer_of(name, job, sink),
        owned_by(job, sink, claim),
        admit,
    )


def _repaired(ranges: tuple[VoidRange, ...], rewinding: Rewinding) -> Repair:
    sample = tuple({"partition": r.partition, "first_offset": r.first, "end_offset": r.end} for r in ranges)
    reason = f"offsets of rows appended after epoch {rewinding.to.epoch} become void; a job that has read one stops"
    return Repair("truncate", 0, sum(map(len, ranges)), 0, sample[:SAMPLE_MAX], reason)


def _meta_of(where: str, store: ObjectStore) -> LogMeta:
    if (meta := read_meta(store)) is None:
        raise ConfigError(
            f"{where}: the log is missing; it existed when the job ran",
            not_done="the rewind did not change it",
            next_step="restore it, or start the job so that it is recreated, then rewind",
        )
    return meta


def writer_name(job_uuid: str, writer: Writer) -> str:
    """Return the writer's name in a log's commits; it names the job too (P1)."""
    return f"{job_uuid}/{writer.sink}/{writer.subtask}"


def is_writer_of(name: str, job_uuid: str, sink: str) -> bool:
    """Return whether this is the name of any writer of a sink."""
    prefix = f"{job_uuid}/{sink}/"
    return name.startswith(prefix) and name.removeprefix(prefix).isdecimal()


def holding(tail: Commit, job_uuid: str, sink: str) -> Holding:
    """Return who owns the log for a sink of a job, and the newest tag of its writers."""
    return Holding(held(tail, job_uuid, sink), newest_of(tail, job_uuid, sink))


def held(tail: Commit, job_uuid: str, sink: str) -> Held | None:
    """Return who owns the log for a sink of a job."""
    found = tail.owner_of(f"{job_uuid}/{sink}")
    return None if found is None else Held(found.owner, Generation(found.generation))


def newest_of(tail: Commit, job_uuid: str, sink: str) -> Tag | None:
    """Return the newest tag of a sink's writers."""
    return max((known.tag for known in tail.tags if is_writer_of(known.writer, job_uuid, sink)), default=None)


def owned_by(job_uuid: str, sink: str, claim: Claim | None) -> LogOwner | None:
    """Return how a commit names its owner."""
    return None if claim is None else LogOwner(f"{job_uuid}/{sink}", claim.owner, claim.generation)


def as_stored(meta: LogMeta, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows of a delivery as the log stores them: in a changelog, the last change of each key as a record."""
    if not meta.changelog or not batches or OP not in batches[0].schema.names:
        return batches
    changes = pa.Table.from_batches(batches)
    if len(batches) > 1:
        changes = last_per_key(changes, meta.key)
    deleted = pc.equal(changes.column(OP), DELETE)
    return list(puts_and_deletes(changes.drop_columns([OP]), deleted, meta.key).to_batches())


def placed(meta: LogMeta, batches: list[pa.RecordBatch], first: int) -> dict[int, pa.Table]:
    """Return the rows of a delivery per partition, as the log stores them; see `spread`."""
    return spread(meta, as_stored(meta, batches), first)


def spread(meta: LogMeta, batches: list[pa.RecordBatch], first: int) -> dict[int, pa.Table]:
    """Return the rows per partition: by key; without a key, batch after batch, beginning with partition `first`.

    Args:
        meta: The log.
        batches: Rows in order; the order within a partition is theirs.
        first: Any number; counts modulo the partitions.
    """
    if meta.key:
        table = pa.Table.from_batches(batches, meta.schema if not batches else None)
        return partition_rows(table, meta.key, meta.partitions) if table.num_rows else {}
    places: dict[int, list[pa.RecordBatch]] = {}
    for n, batch in enumerate(batches):
        places.setdefault((first + n) % meta.partitions, []).append(batch)
    return {partition: pa.Table.from_batches(parts) for partition, parts in places.items()}


def misfit(stream: pa.Schema, log: pa.Schema) -> str | None:
    """Return why a log with these columns cannot take a stream's rows; None if it can."""
    if stream.names != log.names or stream.types != log.types:
        return f"needed are {_listed(log)}, the stream has {_listed(stream)}"
    strict = [name for name in log.names if stream.field(name).nullable and not log.field(name).nullable]
    return f"{strict} may be null in the stream only" if strict else None


def _listed(schema: pa.Schema) -> str:
    return ", ".join(map(describe_column, schema))
