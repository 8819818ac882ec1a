"""Compaction of a keyed log: among old rows, the newest row of every key stays and earlier rows are removed.

The compactor rewrites the remaining rows of all commits up to `through` into new objects; one commit of kind
`compact`, made by conditional create, then replaces those commits in all partitions. Rows after `through` do not
change, and do not count as newer rows of their keys: a rewind may still take them back.

Invariants
    - Offsets do not move; the newest row of a key below `through` stays, unless it is a tombstone that has been among
      compacted rows for `keep_tombstones_us`.
    - The commit takes effect only if no other compaction and no rewind committed since its inputs were chosen;
      appends and the seal may commit in between. Until then the log is unchanged.
    - A compactor deletes objects only after it has read its commit back, and only objects that no commit can name any
      more: objects of commits up to `through`, and objects below `compacted/<n>/` that the new commit does not name,
      where n is at most the compaction that it was built on. Another compaction built on that one can no longer
      commit, because a commit must build on the newest.
    - The clock decides how much is compacted and how long tombstones stay, never which row is the newest (P3).

A reader that knows only the older commits finds an object missing and refreshes (P7).

Source: PROTOCOL P3, P4, P7, P16, P21; docs/decisions/0014-log-compaction.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, NotFound, Unavailable
from holdfast.ports import ObjectStore
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import (
    COMPACTED_FOLDER,
    NEVER,
    CompactedSegment,
    Compaction,
    Covered,
    covered_with,
    due,
)
from holdfast.storage.log.format import Commit
from holdfast.storage.log.keyhash import key_hashes
from holdfast.storage.log.log import LogWriter, wall_us
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.rewrite import CompactionPart, Input, Sizes, parts_of, rewrite

ROUNDS_MAX = 3
"""How often a compaction starts over because another compaction or a rewind committed first."""
SEGMENTS_MAX = 100_000
"""How many appended segments one compaction takes in; the rest is left to the next one."""


@dataclass(frozen=True)
class Wishes:
    """Options of a compaction, as the user gives them.

    Args:
        older_than_us: The first commit younger than this, and all commits after it, are left out; 0: none is.
        keep_tombstones_us: How long a tombstone stays after the first compaction that reached it.
        grace_s: How long to wait between the commit and the deletion of the objects that it replaced.
        dry_run: Read and count, write nothing.
    """

    older_than_us: int
    keep_tombstones_us: int
    grace_s: float = 0.0
    dry_run: bool = False
    sizes: Sizes = field(default=Sizes())
    segments_max: int = SEGMENTS_MAX
    through_max: int | None = None
    """The last commit to compact; None: any."""


@dataclass(frozen=True)
class PartitionResult:
    """Effects of a compaction on one partition; of a dry run, the effects that it would have."""

    partition: int
    records_before: int
    """Records stored in the compacted range, including void ones."""
    records_after: int
    bytes_before: int
    bytes_after: int
    tombstones: int
    """Tombstones that stay."""
    untouched: int
    """Offsets after the compacted range."""


@dataclass(frozen=True)
class CompactionResult:
    """Effects of a compaction; of a dry run, the effects that it would have."""

    committed: bool
    """False: there was nothing to do, or it was a dry run."""
    deleted: int
    """Deleted objects."""
    more: bool
    """There was too much for one compaction; the next one continues."""
    partitions: tuple[PartitionResult, ...]


class Compactor:
    """Compacts one log.

    Raises:
        ConfigError: there is no log, or it has no key by which to compact it.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        pause: Callable[[float], None] = time.sleep,
        wall_us: Callable[[], int] = wall_us,
    ) -> None:
        self._store, self._pause, self._wall_us = store, pause, wall_us
        self.meta = existing_meta(store)
        if not self.meta.key:
            raise ConfigError(
                f"the log in {store!r} has no key, so no row replaces another",
                not_done="the log was not compacted",
                next_step="create a log with --key and append the rows to it; a key cannot be added later",
            )
        key_hashes(pa.RecordBatch.from_pylist([], self.meta.schema), self.meta.key)

    def compact(self, wishes: Wishes) -> CompactionResult:
        """Compact once.

        Raises:
            Damaged: a row cannot be read; nothing was changed.
            Unavailable: others committed first every time; or the store failed, and the log may or may not have been
                compacted.
        """
        for _ in range(ROUNDS_MAX):
            commits = Commits(self._store, self.meta)
            job = self._job(commits, wishes)
            try:
                result = self._once(commits, job, wishes)
            except Damaged as error:
                if isinstance(error.__cause__, NotFound) and self._is_overtaken(commits):
                    continue
                raise
            if result is not None:
                return result
        raise Unavailable(
            f"another compaction or a rewind of the log in {self._store!r} committed first {ROUNDS_MAX} times",
            not_done="this compaction changed nothing",
            next_step="wait until it is done; if rows are left to compact, run the command again",
        )

    def _job(self, commits: Commits, wishes: Wishes) -> _CompactionJob:
        before = commits.at(commits.tail.compact).compaction or NEVER
        now = self._wall_us()
        through, new_segments = _chosen(commits, before, now, wishes)
        sequence = due((*before.since, Covered(through, now)), now - wishes.keep_tombstones_us)
        since = covered_with(before.since, Covered(through, now), sequence)
        parts = parts_of(commits, (*before.segments, *new_segments), commits.at(sequence).ends)
        return _CompactionJob(
            before, through, since, parts, bool(new_segments), len(new_segments) >= wishes.segments_max
        )

    def _once(self, commits: Commits, job: _CompactionJob, wishes: Wishes) -> CompactionResult | None:
        """Compact, or return None if another compaction or a rewind committed first."""
        if job.is_idle():
            return CompactionResult(False, 0, False, job.results(commits, {}))
        tail, owner = commits.tail, uuid.uuid4().hex
        folder = f"{COMPACTED_FOLDER}/{tail.compact:020d}/{owner}"
        put = _put_nothing if wishes.dry_run else self._store.put
        left = {
            part.partition: rewrite(self._store, commits.meta, part, folder, put, wishes.sizes) for part in job.parts
        }
        results = job.results(commits, left)
        if wishes.dry_run:
            return CompactionResult(False, 0, job.more, results)
        segments = tuple(segment for part in left.values() for segment in part)
        compaction = Compaction(job.through, self._swept(commits, job.before), job.since, segments)
        writer = LogWriter(self._store, pause=self._pause, wall_us=self._wall_us)
        commit = writer.compact(compaction, (tail.compact, tail.void), owner)
        if commit is None:
            return None
        self._read_back(commit)
        self._pause(wishes.grace_s)
        return CompactionResult(True, self._sweep(commits, commit.compact, tail.compact, compaction), job.more, results)

    def _is_overtaken(self, commits: Commits) -> bool:
        newest = Commits(self._store, self.meta).tail
        return newest.compact != commits.tail.compact

    def _read_back(self, commit: Commit) -> None:
        found = Commits(self._store, self.meta).at(commit.sequence)
        assert found == commit, "a commit that took effect can be read back"

    def _swept(self, commits: Commits, before: Compaction) -> int:
        """Return the last commit up to which all objects are deleted.

        A sweep deletes in order: if the last object of a sweep no longer exists, neither do the objects before it.
        """
        for sequence in range(before.through, before.swept, -1):
            if segments := commits.at(sequence).segments:
                last = segments[-1]
                gone = last.path not in self._store.list(last.path.rpartition("/")[0])
                return before.through if gone else before.swept
        return before.through

    def _sweep(self, commits: Commits, sequence: int, built_on: int, compaction: Compaction) -> int:
        """Delete the objects that no commit can name any longer; return how many there were."""
        delete_count = 0
        try:
            for path in self._dead(commits, built_on, compaction):
                self._store.delete(path)
                delete_count += 1
        except Unavailable as error:
            raise Unavailable(
                f"the log in {self._store!r} was compacted by commit {sequence}, but the deletion of the replaced "
                f"objects failed after {delete_count} of them: {error.what}",
                not_done="the remaining replaced objects were not deleted; they take space and are never read",
                next_step="run the command again later; the next compaction that commits deletes them",
            ) from error
        return delete_count

    def _dead(self, commits: Commits, built_on: int, compaction: Compaction) -> Iterator[str]:
        named = {segment.path for segment in compaction.segments}
        for path in self._store.list(COMPACTED_FOLDER):
            if (base := path.split("/")[1]).isdecimal() and int(base) <= built_on and path not in named:
                yield path
        for sequence in range(compaction.swept + 1, compaction.through + 1):
            for segment in commits.at(sequence).segments:
                yield segment.path


@dataclass(frozen=True)
class _CompactionJob:
    """The work of one compaction."""

    before: Compaction
    through: int
    since: tuple[Covered, ...]
    parts: tuple[CompactionPart, ...]
    news: bool
    """Whether rows were appended since the previous compaction."""
    more: bool

    def is_idle(self) -> bool:
        """Return whether there is nothing to do: no row is new and no tombstone is due for removal."""
        return not self.news and not any(
            isinstance(one, CompactedSegment) and one.has_tombstone_below(part.tombstones_below)
            for part in self.parts
            for one in part.inputs
        )

    def results(self, commits: Commits, left: dict[int, list[CompactedSegment]]) -> tuple[PartitionResult, ...]:
        """Return the figures per partition; a partition that is not rewritten is unchanged."""
        ends, compacted_ends = commits.tail.ends, commits.at(self.through).ends
        results = []
        for part in self.parts:
            inputs = part.inputs
            outputs = left.get(part.partition, [one for one in inputs if isinstance(one, CompactedSegment)])
            results.append(
                PartitionResult(
                    part.partition,
                    sum(i.rows for i in inputs),
                    sum(i.rows for i in outputs),
                    sum(i.size for i in inputs),
                    sum(i.size for i in outputs),
                    sum(i.tombstones for i in outputs),
                    ends[part.partition] - compacted_ends[part.partition],
                )
            )
        return tuple(results)


def _chosen(commits: Commits, before: Compaction, now_us: int, wishes: Wishes) -> tuple[int, list[Input]]:
    """Return the commit through which to compact, and the segments appended since the previous compaction."""
    segments: list[Input] = []
    through = before.through
    while through < commits.tail.sequence and len(segments) < wishes.segments_max:
        if wishes.through_max is not None and through >= wishes.through_max:
            break
        commit = commits.at(through + 1)
        if wishes.older_than_us and commit.at_us > now_us - wishes.older_than_us:
            break
        segments += commit.segments
        through += 1
    return through, segments


def _put_nothing(path: str, data: bytes) -> None:
    """Replaces `put` in a dry run."""
