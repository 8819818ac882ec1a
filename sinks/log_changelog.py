"""A log as the topic of a job's changelog: one partition per range of key groups, records that put and delete by key.

It is a changelog in the sense of storage/log/changelog.py, so commands and other jobs read it as any other; its records
are delivered by `LogSink`'s target, with tags, owners and void ranges. Only the choice of the partition differs: that
of a record follows its key group, so a restore of some key groups reads only some partitions.

The epoch of a record is that of its commit's tag. A compaction keeps rows and drops tags, so it stops at the oldest
epoch that may be restored: the rows that it leaves count for every epoch that is asked for.

Invariants
    - Reads are as of one commit.
    - Every appended commit is a delivery of this job; a read refuses any other.

Source: docs/design/0055-changelog-topic.md, 0052-changelogs-in-logs.md, 0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, Damaged, NotFound
from holdfast.model import CHANGELOG, NO_EPOCH, Epoch, Stretch, Subtask, Tag, Writer
from holdfast.ports import ObjectStore
from holdfast.sinks.changelogs import AsOf, Changelog, CompactedMeanwhile, is_on
from holdfast.sinks.contract import Repair, Rewinding, Sink
from holdfast.sinks.log import LogSink, LogTarget, holding, is_writer_of
from holdfast.sinks.owners import Claim, Holding
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import NEVER, CompactedSegment
from holdfast.storage.log.compaction import Compactor, Wishes
from holdfast.storage.log.format import Commit, LogMeta, LogSegment
from holdfast.storage.log.log import LogReader, read_meta
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.segment import verified_batches
from holdfast.storage.log.voids import void_ranges
from holdfast.storage.objects import open_objects
from holdfast.traits import SinkTraits, local

COMPACTED_FROM_BYTES = 64 << 20
"""Less is never compacted."""
KEEP_TOMBSTONES_US = 24 * 3_600_000_000
GRACE_S = 10.0
_GROUP_AT = 2
"""Where the key group is in a key."""


@dataclass(frozen=True)
class LogChangelog:
    """The changelog of a job in a log.

    Args:
        path: A folder or URL, absolute.
        partitions: Number of partitions if the log is created; at most as many as there are key groups are used.
        compacted_from: In bytes; a log with less since its last compaction is not compacted.
        grace_s: How long a compaction waits between its commit and the deletion of what it replaced.
    """

    path: str
    partitions: int
    compacted_from: int = COMPACTED_FROM_BYTES
    grace_s: float = GRACE_S

    @property
    def place(self) -> Mapping[str, str]:
        """See Changelog.place."""
        return {"kind": "log", "path": self.path}

    def sink(self, schema: pa.Schema, key: tuple[str, ...], key_groups: int) -> Sink:
        """See Changelog.sink."""
        return TopicSink(LogSink(self.path, key, min(self.partitions, key_groups)), key_groups)

    def open(self, job_uuid: str) -> OpenLogChangelog:
        """See Changelog.open."""
        store = open_objects(self.path, writable=False)
        return OpenLogChangelog(self.path, job_uuid, store, Commits(store, existing_meta(store)))

    def in_memory(self, name: str) -> Changelog:
        """See Changelog.in_memory."""
        return LogChangelog(f"memory://{name}", self.partitions, self.compacted_from, 0.0)

    def compact(self, job_uuid: str, owner: str, history: Sequence[Stretch], horizon: Epoch) -> bool:
        """See Changelog.compact: done once the rows to compact are as large as what the last compaction left."""
        found = self.open(job_uuid)
        if found.holding.held is None or found.holding.held.owner != owner:
            return False
        through, fresh, left = found.compactable(history, horizon)
        if fresh < max(self.compacted_from, left):
            return False
        wishes = Wishes(0, KEEP_TOMBSTONES_US, self.grace_s, through_max=through)
        return Compactor(open_objects(self.path)).compact(wishes).committed


@dataclass(frozen=True)
class TopicSink:
    """The sink of the records; see contract.Sink."""

    log: LogSink
    key_groups: int

    @property
    def key(self) -> tuple[str, ...] | None:
        """See Sink.key."""
        return self.log.key

    @property
    def where(self) -> str:
        """See Sink.where."""
        return f"changelog {self.log.path}"

    @property
    def traits(self) -> SinkTraits:
        """See Sink.traits."""
        path = self.log.path
        return SinkTraits(
            kind="Log",
            local_paths=local(path),
            place={"path": path},
            log=path,
            repairs=True,
            checks_owner=True,
            remembers_owner=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.check."""
        self.log.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.prepare."""
        meta = read_meta(open_objects(self.log.path))
        if meta is not None and not meta.changelog:
            raise self._refused("is a log without deletes, which cannot hold a changelog")
        if meta is not None and meta.partitions != self.log.partitions:
            raise self._refused(f"has {meta.partitions} partitions, but the job asks for {self.log.partitions}")
        self.log.prepare(schema, upsert_key)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """See OwnedSink.check_owner."""
        tail = LogReader(open_objects(self.log.path, writable=False)).newest()
        others = [t for t in tail.tags if job_uuid is None or not is_writer_of(t.writer, job_uuid, name)]
        if others:
            owner = others[0].writer.partition("/")[0]
            raise self._refused(f"holds records of another job or sink, {owner}, up to epoch {others[0].tag.epoch}")
        if not tail.tags and any(tail.ends):
            raise self._refused("holds records that no job wrote")

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept: whatever is in the state can be written."""

    def holding(self, job_uuid: str, name: str) -> Holding:
        """See HeldSink.holding."""
        return self.log.holding(job_uuid, name)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> LogTarget:
        """See Sink.open."""
        store = lambda: open_objects(self.log.path, writable=False)
        return LogTarget(self.where, store, job_uuid, writer, claim=claim, place=self._by_key_group)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.plan_repair. Records of an abandoned timeline are never left in the log."""
        return replace(self.log.plan_repair(rewinding, schema, upsert_key), takes_more=False)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.repair."""
        return self.log.repair(rewinding, schema, upsert_key)

    def _by_key_group(self, meta: LogMeta, batches: list[pa.RecordBatch], _first: int) -> dict[int, pa.Table]:
        if not batches:
            return {}
        records = pa.Table.from_batches(batches)
        places = partitions_of(records.column("key").combine_chunks(), meta.partitions, self.key_groups)
        return {int(p): records.take(pa.array(np.flatnonzero(places == p))) for p in np.unique(places)}

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.where}: {what}",
            not_done="the job was not started, the log was not changed",
            next_step="name another log as the changelog; a missing one is created to fit",
        )


def partitions_of(keys: pa.LargeBinaryArray, partitions: int, key_groups: int) -> NDArray[np.int64]:
    """Return the partition of every record: those of neighbouring key groups are together."""
    offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys)]
    data = np.frombuffer(keys.buffers()[2], np.uint8)
    groups = data[offsets[:, None] + np.arange(_GROUP_AT, _GROUP_AT + 2)].view(">u2").reshape(-1).astype(np.int64)
    places: NDArray[np.int64] = groups * partitions // key_groups
    return places


def refuse_changelog_of_a_job(store: ObjectStore, not_done: str) -> None:
    """Refuse to change a log by hand that holds the state of a job.

    Raises:
        ConfigError: it does.
    """
    for known in LogReader(store).tags():
        job, _, rest = known.writer.partition("/")
        if rest.rpartition("/")[0] == CHANGELOG:
            raise ConfigError(
                f"the log in {store!r} is the changelog of job {job}: its state is in there",
                not_done=not_done,
                next_step="leave it to the job, which also compacts it; to change records, copy them to another log",
            )


class OpenLogChangelog:
    """What a log holds of a job's changelog, as of one commit; see OpenChangelog."""

    def __init__(self, path: str, job_uuid: str, store: ObjectStore, commits: Commits) -> None:
        self._where, self._job_uuid, self._store, self._commits = f"changelog {path}", job_uuid, store, commits
        self._tail = commits.tail
        self._compaction = commits.at(self._tail.compact).compaction or NEVER

    @property
    def empty(self) -> bool:
        """See OpenChangelog.empty."""
        return not any(self._tail.ends)

    @property
    def holding(self) -> Holding:
        """See OpenChangelog.holding."""
        return holding(self._tail, self._job_uuid, CHANGELOG)

    @cached_property
    def delivered(self) -> Mapping[Subtask, Epoch]:
        """See OpenChangelog.delivered."""
        return {writer: tag.epoch for writer, tag in self._tags(self._tail).items()}

    @cached_property
    def floor(self) -> Epoch:
        """See OpenChangelog.floor."""
        return self._newest(self._compaction.through)

    def records(self, which: AsOf) -> Iterator[pa.RecordBatch]:
        """See OpenChangelog.records."""
        partitions = self._commits.meta.partitions
        first, last = which.key_groups[0], max(which.key_groups[1] - 1, which.key_groups[0])
        wanted = range(first * partitions // which.count, last * partitions // which.count + 1)
        assert which.after == NO_EPOCH or which.after >= self.floor, "deletes may be gone"
        if which.after == NO_EPOCH:
            yield from self._batches(self._compaction.segments, wanted)
        for sequence in range(self._first(which.after), self._tail.sequence + 1):
            commit = self._commits.at(sequence)
            if not commit.segments:
                continue
            tag = self._tag(commit)
            if which.after < tag.epoch <= which.through and is_on(which.history, tag.timeline, tag.epoch):
                yield from self._batches(commit.segments, wanted)

    def compactable(self, history: Sequence[Stretch], horizon: Epoch) -> tuple[int, int, int]:
        """Return through which commit the log may be compacted, the bytes appended up to there, and those left before.

        At that commit no writer is beyond the horizon, so no row of a later epoch is compacted, except void ones.
        """
        through = best = self._compaction.through
        fresh = gathered = 0
        voids = void_ranges(self._commits)
        while through < self._tail.sequence:
            commit = self._commits.at(through + 1)
            if commit.segments:
                tag = self._tag(commit)
                void = all(
                    any(v.partition == s.partition and v.first <= s.base < v.end for v in voids)
                    for s in commit.segments
                )
                if not void and not (tag.epoch <= horizon and is_on(history, tag.timeline, tag.epoch)):
                    break
            through += 1
            gathered += sum(segment.size for segment in commit.segments)
            if self._newest(through) <= horizon:
                best, fresh = through, gathered
        return best, fresh, sum(segment.size for segment in self._compaction.segments)

    def _first(self, after: Epoch) -> int:
        """Return the commit behind which any record of a later epoch is."""
        first = self._compaction.through + 1
        if after == NO_EPOCH:
            return first
        sequence = self._tail.sequence
        while sequence >= first and self._newest(sequence) > after:
            sequence -= 1
        return sequence + 1

    def _newest(self, sequence: int) -> Epoch:
        """Return the newest epoch that any writer had delivered as of a commit."""
        return max((tag.epoch for tag in self._tags(self._commits.at(sequence)).values()), default=NO_EPOCH)

    def _tags(self, commit: Commit) -> dict[Subtask, Tag]:
        mine = (t for t in commit.tags if is_writer_of(t.writer, self._job_uuid, CHANGELOG))
        return {Subtask(int(known.writer.rpartition("/")[2])): known.tag for known in mine}

    def _tag(self, commit: Commit) -> Tag:
        """Return the tag of a delivery."""
        if commit.tag is None or not is_writer_of(commit.tag.writer, self._job_uuid, CHANGELOG):
            raise Damaged(
                f"{self._where}: commit {commit.sequence} holds records that this job did not write",
                not_done="no state was restored",
                next_step="restore the log from a backup from before that commit; nothing else may write to it",
            )
        return commit.tag.tag

    def _batches(self, segments: Sequence[LogSegment | CompactedSegment], wanted: range) -> Iterator[pa.RecordBatch]:
        schema = self._commits.meta.schema
        for segment in segments:
            if segment.partition not in wanted:
                continue
            try:
                batches = verified_batches(self._store, schema, segment)
            except Damaged as error:
                if not isinstance(error.__cause__, NotFound) or not self._compacted_since():
                    raise
                raise CompactedMeanwhile(
                    f"{self._where}: was compacted while it was read",
                    not_done="no state was restored",
                    next_step="nothing: the read begins again",
                ) from error
            for batch in batches:
                yield pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)

    def _compacted_since(self) -> bool:
        return Commits(self._store, existing_meta(self._store)).tail.compact != self._tail.compact
