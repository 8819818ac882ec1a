"""A log as the topic of a job's changelog: one partition per range of key groups, records that put and delete by key.

It is a changelog in the sense of storage/log/changelog.py, so commands and other jobs read it as any other; its records
are delivered by `LogSink`'s target, with tags, owners and void ranges. Only the choice of the partition differs: that
of a record follows its key group, so a restore of some key groups reads only some partitions.

The epoch of a record is that of its commit's tag. A compaction keeps rows and drops tags, so it stops at the oldest
epoch that may be restored: the rows that it leaves count for every epoch that is asked for.

Invariants
    - Reads are as of one commit.
    - Every appended commit is a delivery of this job; a read refuses any other.

Source: docs/decisions/0055-changelog-topic.md, 0052-changelogs-in-logs.md, 0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import CHANGELOG, NO_EPOCH, Epoch, Subtask, Writer
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.changelogs import AsOf, Changelog, OpenChangelog, partitions_of, unseen
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink
from holdfast.sinks.log.compacting import TopicCompaction, When
from holdfast.sinks.log.records import RecordsReader, tags_of
from holdfast.sinks.log.sink import LogSink, LogTarget, Place, holding, is_writer_of
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import LogMeta
from holdfast.storage.log.log import LogReader, read_meta
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.objects import open_objects
from holdfast.traits import SinkTraits, local

COMPACTED_FROM_BYTES = 64 << 20
"""Less is never compacted."""
GRACE_S = 10.0


@dataclass(frozen=True)
class LogChangelog(Changelog):
    """The changelog of a job in a log.

    Args:
        path: A folder or URL, absolute.
        partitions: Number of partitions if the log is created; at most as many as there are key groups are used.
        compacted_from: In bytes; a log with less since its last compaction is not compacted.
        grace_s: How long a compaction waits between its commit and the deletion of the objects that it replaced.
    """

    path: str
    partitions: int
    compacted_from: int = COMPACTED_FROM_BYTES
    grace_s: float = GRACE_S

    @property
    def place(self) -> Mapping[str, str]:
        return {"kind": "log", "path": self.path}

    @property
    def commits_once(self) -> bool:
        """Every writer commits its own segment."""
        return False

    def sink(self, schema: pa.Schema, key: tuple[str, ...], key_groups: int) -> Sink:
        return TopicSink(LogSink(self.path, key, min(self.partitions, key_groups)), key_groups)

    def open(self, job_uuid: str) -> OpenLogChangelog:
        store = open_objects(self.path, writable=False)
        return OpenLogChangelog(self.path, job_uuid, store, Commits(store, existing_meta(store)))

    def in_memory(self, name: str) -> Changelog:
        return LogChangelog(f"memory://{name}", self.partitions, self.compacted_from, 0.0)

    def compaction(self, job_uuid: str) -> TopicCompaction:
        """Done once the rows to compact are as large as the result of the last compaction."""
        when = When(self.compacted_from, self.grace_s)
        return TopicCompaction(f"changelog {self.path}", lambda: open_objects(self.path), job_uuid, when)


@dataclass(frozen=True)
class TopicSink(Repairs, Ownership, Sink):
    """The sink of the records; see contract.Sink."""

    log: LogSink
    key_groups: int

    @property
    def key(self) -> tuple[str, ...] | None:
        return self.log.key

    @property
    def where(self) -> str:
        return f"changelog {self.log.path}"

    @property
    def traits(self) -> SinkTraits:
        path = self.log.path
        return SinkTraits(
            kind="Log",
            local_paths=local(path),
            place={"path": path},
            log=path,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.log.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        meta = read_meta(open_objects(self.log.path))
        if meta is not None and not meta.changelog:
            raise self._refused("is a log without deletes, which cannot hold a changelog")
        if meta is not None and meta.partitions != self.log.partitions:
            raise self._refused(f"has {meta.partitions} partitions, but the job asks for {self.log.partitions}")
        self.log.prepare(schema, upsert_key)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        tail = LogReader(open_objects(self.log.path, writable=False)).newest()
        others = [t for t in tail.tags if job_uuid is None or not is_writer_of(t.writer, job_uuid, name)]
        if others:
            owner = others[0].writer.partition("/")[0]
            raise self._refused(f"holds records of another job or sink, {owner}, up to epoch {others[0].tag.epoch}")
        if not tail.tags and any(tail.ends):
            raise self._refused("holds records that no job wrote")

    def accept(self, batch: pa.RecordBatch) -> None:
        """Everything in the state can be written."""

    def holding(self, job_uuid: str, name: str) -> Holding:
        return self.log.holding(job_uuid, name)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> LogTarget:
        store = lambda: open_objects(self.log.path, writable=False)
        return LogTarget(self.where, store, job_uuid, writer, claim=claim, place=by_key_group(self.key_groups))

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Records of an abandoned timeline are never left in the log."""
        return replace(self.log.plan_repair(rewinding, schema, upsert_key), takes_more=False)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return self.log.repair(rewinding, schema, upsert_key)

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.where}: {what}",
            not_done="the job was not started, the log was not changed",
            next_step="name another log as the changelog; a missing one is created to fit",
        )


def by_key_group(key_groups: int) -> Place:
    """Return how records are placed: by the key group of their key."""

    def placed(meta: LogMeta, batches: list[pa.RecordBatch], _first: int) -> dict[int, pa.Table]:
        if not batches:
            return {}
        records = pa.Table.from_batches(batches)
        places = partitions_of(records.column("key").combine_chunks(), meta.partitions, key_groups)
        return {int(p): records.take(pa.array(np.flatnonzero(places == p))) for p in np.unique(places)}

    return placed


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


class OpenLogChangelog(OpenChangelog):
    """A job's changelog in a log, as of one commit; see OpenChangelog."""

    def __init__(self, path: str, job_uuid: str, store: ObjectStore, commits: Commits) -> None:
        self._job_uuid, self._commits, self._tail = job_uuid, commits, commits.tail
        self._reader = RecordsReader(f"changelog {path}", job_uuid, store, commits)

    @property
    def empty(self) -> bool:
        return not any(self._tail.ends)

    @property
    def holding(self) -> Holding:
        return holding(self._tail, self._job_uuid, CHANGELOG)

    @cached_property
    def delivered(self) -> Mapping[Subtask, Epoch]:
        return {writer: tag.epoch for writer, tag in tags_of(self._tail, self._job_uuid).items()}

    @cached_property
    def floor(self) -> Epoch:
        return self._reader.floor

    def records(self, which: AsOf, advanced: Callable[[int, int], object] = unseen) -> Iterator[pa.RecordBatch]:
        assert which.after == NO_EPOCH or which.after >= self.floor, "deletes may be gone"
        return self._reader.read(which, advanced)
