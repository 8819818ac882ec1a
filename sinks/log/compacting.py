"""Compaction of a log that holds a changelog: how far, and when it is worth it.

A compaction keeps rows and drops tags, so it ends after a commit at which no writer was beyond the horizon: every row
that it leaves then counts for every epoch that is restored. Between such commits may be those that a rewind took back.

Invariants
    - At the commit after which a compaction ends, no writer is beyond the horizon. It never ends at another one,
      however many segments are in between.
    - A commit is read once, not at each attempt.

Source: docs/decisions/0055-changelog-topic.md, 0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.model import CHANGELOG, Epoch, Stretch
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.changelogs import ChangelogCompaction, is_on
from holdfast.sinks.log.records import newest_epoch, tag_of
from holdfast.sinks.log.sink import held
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import NEVER
from holdfast.storage.log.compaction import SEGMENTS_MAX, Compactor, Wishes
from holdfast.storage.log.format import Commit, VoidRange
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.voids import void_ranges

KEEP_TOMBSTONES_US = 24 * 3_600_000_000


@dataclass(frozen=True)
class When:
    """When a log is compacted.

    Args:
        bytes_min: A log is compacted once it has grown by this much, and has doubled, since its last compaction.
        segments_max: A log with this many new segments is compacted in any case.
        grace_s: How long a compaction waits between its commit and the deletion of the objects that it replaced.
    """

    bytes_min: int
    grace_s: float
    segments_max: int = SEGMENTS_MAX


@dataclass
class Scan:
    """How far the commits were looked at, as of one lineage, compaction and set of void ranges."""

    history: tuple[Stretch, ...]
    compacted: int
    voids: tuple[VoidRange, ...]
    through: int
    best: int
    """The last commit that was looked at, at which no writer was beyond the horizon."""
    appended: int = 0
    """Bytes appended up to `through`."""
    segments: int = 0
    fresh: int = 0
    """Bytes appended up to `best`."""
    fresh_segments: int = 0


class TopicCompaction(ChangelogCompaction):
    """Compacts one changelog, again and again. See changelogs.Compaction."""

    def __init__(self, where: str, store: Callable[[], ObjectStore], job_uuid: str, when: When) -> None:
        self._where, self._store, self._job_uuid, self._when = where, store, job_uuid, when
        self._commits: Commits | None = None
        self._scan: Scan | None = None

    def compact(self, owner: str, history: Sequence[Stretch], horizon: Epoch) -> bool:
        commits = self._newest()
        by = held(commits.tail, self._job_uuid, CHANGELOG)
        if by is None or by.owner != owner:
            return False
        scan = self._looked(commits, tuple(history), horizon)
        left = sum(segment.size for segment in (commits.at(commits.tail.compact).compaction or NEVER).segments)
        many = scan.fresh_segments >= self._when.segments_max
        if not scan.fresh_segments or (scan.fresh < max(self._when.bytes_min, left) and not many):
            return False
        # One segment more than there are: also commits without segments, after the last one, are taken in.
        limit = scan.fresh_segments + 1
        wishes = Wishes(0, KEEP_TOMBSTONES_US, self._when.grace_s, segments_max=limit, through_max=scan.best)
        return Compactor(self._store()).compact(wishes).committed

    def _newest(self) -> Commits:
        if self._commits is None or not self._commits.holds_tail():  # restored from a backup, or replaced
            store = self._store()
            self._commits, self._scan = Commits(store, existing_meta(store)), None
        self._commits.catch_up()
        return self._commits

    def _looked(self, commits: Commits, history: tuple[Stretch, ...], horizon: Epoch) -> Scan:
        """Look at the commits that were not looked at before, as far as the horizon permits."""
        voids, compaction_sequence = void_ranges(commits), commits.tail.compact
        scan = self._scan
        if scan is None or (scan.history, scan.compacted, scan.voids) != (history, compaction_sequence, voids):
            through = (commits.at(compaction_sequence).compaction or NEVER).through
            scan = Scan(history, compaction_sequence, voids, through, through)
        self._scan = scan
        while scan.through < commits.tail.sequence:
            commit = commits.ahead(scan.through + 1)
            if commit.segments and not self._may_go(commit, scan, horizon):
                break
            scan.through += 1
            scan.appended += sum(segment.size for segment in commit.segments)
            scan.segments += len(commit.segments)
            first = not scan.fresh_segments
            if newest_epoch(commit, self._job_uuid) <= horizon and (first or scan.segments <= self._when.segments_max):
                scan.best, scan.fresh, scan.fresh_segments = scan.through, scan.appended, scan.segments
        return scan

    def _may_go(self, commit: Commit, scan: Scan, horizon: Epoch) -> bool:
        """Return whether the records of a commit may be compacted: all are void, or count at the horizon."""
        tag = tag_of(self._where, commit, self._job_uuid)
        if tag.epoch <= horizon and is_on(scan.history, tag.timeline, tag.epoch):
            return True
        return all(
            any(v.partition == s.partition and v.first <= s.base < v.end for v in scan.voids) for s in commit.segments
        )
