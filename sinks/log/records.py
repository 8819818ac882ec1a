"""Reads the records of a changelog from a log, as of one commit: commits and segments side by side where that is fast.

The epoch of a record is that of its commit's tag. So all commits of the range are read, and the segments of the
requested partitions of the commits that count. The data in memory at any time is bounded.

Invariants
    - Records of a partition come in the order of their offsets.
    - Every appended commit is a delivery of the job; any other is refused.

Source: docs/decisions/0055-changelog-topic.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import Damaged, NotFound
from holdfast.model import CHANGELOG, NO_EPOCH, Epoch, Subtask, Tag
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.changelogs import AsOf, CompactedMeanwhile, is_on
from holdfast.sinks.log.sink import is_writer_of
from holdfast.storage.bulk import get_each, read_together
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import NEVER, CompactedSegment
from holdfast.storage.log.format import Commit, LogSegment
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.segment import verified_batches, verified_bytes

TOGETHER_BYTES_MAX = 16 << 20
"""Segments of this many bytes are read side by side; a larger one is read alone."""

Segment = LogSegment | CompactedSegment


@dataclass
class Advance:
    """How far a read is, for display."""

    show: Callable[[int, int], object]
    commits: int = 0
    seen: int = 0
    """Commits to look at, and those that were looked at."""
    compacted: int = 0
    appended: int = 0
    """Bytes of segments that are read: those that a compaction left, and those of commits that were looked at."""
    done: int = 0
    """Bytes read."""

    def report(self) -> None:
        """Show it; the commits that were not looked at are taken to be like those that were."""
        appended = self.appended * self.commits // self.seen if self.seen else self.appended
        self.show(self.done, max(self.done, self.compacted + appended))


class RecordsReader:
    """Reads the records of one job in a log.

    Args:
        where: How messages name the log.
    """

    def __init__(self, where: str, job_uuid: str, store: ObjectStore, commits: Commits) -> None:
        self._where, self._job_uuid, self._store, self._commits = where, job_uuid, store, commits
        self._compaction = commits.at(commits.tail.compact).compaction or NEVER

    @property
    def floor(self) -> Epoch:
        """Return the epoch up to which the log is compacted."""
        return self._newest(self._compaction.through)

    def read(self, which: AsOf, advanced: Callable[[int, int], object]) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of epochs, each key at most once in a batch."""
        schema, at = self._commits.meta.schema, Advance(advanced)
        for group in self._groups(self._segments(which, at)):
            data = {} if len(group) == 1 else get_each(self._store, [segment.path for segment in group])
            for segment in group:
                for batch in self._batches(schema, segment, data):
                    yield pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
                data.pop(segment.path, None)
                at.done += segment.size
                at.report()

    def _segments(self, which: AsOf, at: Advance) -> Iterator[Segment]:
        """Yield the segments to read, in order; report each commit that was looked at."""
        partitions = self._commits.meta.partitions
        first, last = which.key_groups[0], max(which.key_groups[1] - 1, which.key_groups[0])
        partition_range = range(first * partitions // which.count, last * partitions // which.count + 1)
        if which.after == NO_EPOCH:
            left = [segment for segment in self._compaction.segments if segment.partition in partition_range]
            at.compacted = sum(segment.size for segment in left)
            yield from left
        begin = self._first(which.after)
        at.commits = self._commits.tail.sequence + 1 - begin
        for sequence in range(begin, self._commits.tail.sequence + 1):
            commit = self._commits.ahead(sequence)
            at.seen += 1
            if commit.segments:
                tag = tag_of(self._where, commit, self._job_uuid)
                if which.after < tag.epoch <= which.through and is_on(which.history, tag.timeline, tag.epoch):
                    counting = [segment for segment in commit.segments if segment.partition in partition_range]
                    at.appended += sum(segment.size for segment in counting)
                    yield from counting
            at.report()

    def _groups(self, segments: Iterator[Segment]) -> Iterator[list[Segment]]:
        """Yield the segments in order, in groups that are read side by side."""
        group, size, most = list[Segment](), 0, read_together(self._store)
        for segment in segments:
            if group and (len(group) == most or size + segment.size > TOGETHER_BYTES_MAX):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _batches(self, schema: pa.Schema, segment: Segment, data: dict[str, bytes]) -> list[pa.RecordBatch]:
        try:
            if segment.path in data:
                return verified_bytes(pa.py_buffer(data[segment.path]), schema, segment)
            return verified_batches(self._store, schema, segment)
        except Damaged as error:
            if not isinstance(error.__cause__, NotFound) or not self._compacted_since():
                raise
            raise CompactedMeanwhile(
                f"{self._where}: was compacted while it was read",
                not_done="no state was restored",
                next_step="no action needed: the read begins again",
            ) from error

    def _compacted_since(self) -> bool:
        return Commits(self._store, existing_meta(self._store)).tail.compact != self._commits.tail.compact

    def _first(self, after: Epoch) -> int:
        """Return the commit after which any record of a later epoch is.

        That is true of each commit at which no writer was beyond the epoch, so any of them will do; the search gallops
        back from the newest, since it is asked for epochs near the end.
        """
        first = self._compaction.through + 1
        if after == NO_EPOCH:
            return first
        beyond, step = self._commits.tail.sequence + 1, 1
        while (probe := beyond - step) >= first and self._newest(probe) > after:
            beyond, step = probe, 2 * step
        within = max(probe, first - 1)
        while beyond - within > 1:
            middle = (within + beyond) // 2
            within, beyond = (middle, beyond) if self._newest(middle) <= after else (within, middle)
        return within + 1

    def _newest(self, sequence: int) -> Epoch:
        return newest_epoch(self._commits.at(sequence), self._job_uuid)


def tags_of(commit: Commit, job_uuid: str) -> dict[Subtask, Tag]:
    """Return how far each writer of the changelog had come as of a commit."""
    mine = (t for t in commit.tags if is_writer_of(t.writer, job_uuid, CHANGELOG))
    return {Subtask(int(known.writer.rpartition("/")[2])): known.tag for known in mine}


def newest_epoch(commit: Commit, job_uuid: str) -> Epoch:
    """Return the newest epoch that any writer had delivered as of a commit."""
    return max((tag.epoch for tag in tags_of(commit, job_uuid).values()), default=NO_EPOCH)


def tag_of(where: str, commit: Commit, job_uuid: str) -> Tag:
    """Return the tag of a delivery. Raises Damaged."""
    if commit.tag is None or not is_writer_of(commit.tag.writer, job_uuid, CHANGELOG):
        raise Damaged(
            f"{where}: commit {commit.sequence} holds records that this job did not write",
            not_done="no state was restored",
            next_step="restore the log from a backup from before that commit; nothing else may write to it",
        )
    return commit.tag.tag
