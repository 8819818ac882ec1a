"""Finds the rows of the embedded log that a rewind took back, and reads past them.

Appended rows never change. A commit of kind `void` lists the offsets whose rows no longer count, and moves the tags of
the writers in the same step. So an append of an older timeline that is still in flight fails. A later reader skips from
the row before a void range to the row after it. Its position is the beginning of the range until that row exists. So a
reader whose position is inside a void range or at its end has read rows that no longer count.

Invariants
    - A void range consists of whole segments; the ranges of two rewinds never overlap.
    - Only appends of the given writers are taken back; the rows of other writers between them stay.
    - A running reader gets an error if rows that it has read become void; a restarted reader gets it if its position
      is inside a void range or at its end.

Source: DESIGN section 13 (hf.Log); PROTOCOL P17, P21; docs/decisions/0011-repairing-outputs.md.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

from holdfast.errors import ConfigError, Damaged, Where
from holdfast.model import Tag
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import Commit, Draft, LogOwner, VoidRange, WriterTag


@dataclass(frozen=True)
class TakeBack:
    """The change that a rewind makes to a log.

    Args:
        to: The new tag of every writer; appends with a later epoch and an older timeline are taken back.
        writers: Writers that the rewind knows.
        owns: Whether a writer in the log also belongs to the rewound sink.
        owned: The owner that takes the log over with the commit.
        admit: Called with the commit that this one would follow; raises to refuse it.
    """

    to: Tag
    writers: tuple[str, ...]
    owns: Callable[[str], bool]
    owned: LogOwner | None = None
    admit: Callable[[Commit], None] = lambda _tail: None


def void_ranges(commits: Commits) -> tuple[VoidRange, ...]:
    """Return the void ranges as of the newest commit."""
    tail = commits.tail
    return commits.at(tail.void).voids if tail.void else ()


def taken_back_since(commits: Commits, sequence: int) -> tuple[VoidRange, ...]:
    """Return the void ranges that commits after this one added."""
    known = commits.at(sequence).void
    before = set(commits.at(known).voids) if known else set()
    return tuple(one for one in void_ranges(commits) if one not in before)


def newest_tag(tail: Commit, back: TakeBack) -> Tag | None:
    """Return the newest tag of all rewound writers."""
    return max((known.tag for known in tail.tags if _is_ours(known.writer, back)), default=None)


def moving(tail: Commit, back: TakeBack) -> tuple[WriterTag, ...]:
    """Return the tags that move, including tags of writers that have none yet; empty if all have moved."""
    known = {tag.writer: tag.tag for tag in tail.tags if _is_ours(tag.writer, back)}
    behind = [name for name in {*known, *back.writers} if name not in known or known[name] < back.to]
    return tuple(WriterTag(name, back.to) for name in sorted(behind))


def gathered(commits: Commits, back: TakeBack) -> tuple[VoidRange, ...]:
    """Return the offsets that become void; reads the commits since the base epoch, newest first."""
    old_ranges = set(void_ranges(commits))
    new_ranges: list[VoidRange] = []
    commit = commits.tail
    while any(_is_ours(known_tag.writer, back) and known_tag.tag.epoch > back.to.epoch for known_tag in commit.tags):
        if commit.tag is not None and _is_ours(commit.tag.writer, back) and _is_undone(commit.tag.tag, back.to):
            new_ranges += [VoidRange(s.partition, s.base, s.base + s.rows) for s in commit.segments]
        commit = commits.at(commit.sequence - 1)
    return _joined(one for one in new_ranges if not any(_inside(one, other) for other in old_ranges))


def lost_to_compaction(commits: Commits, ranges: Iterable[VoidRange]) -> str | None:
    """Return why rows can no longer be taken back; None if they can.

    Rows that a compaction reached may have replaced older rows of their keys, which no longer exist.
    """
    if (left := commits.left) is None:
        return None
    hit = next((one for one in ranges if one.first < left.end(one.partition)), None)
    if hit is None:
        return None
    return (
        f"the rows from offset {hit.first} to before {hit.end} of partition {hit.partition} cannot be removed: "
        f"the log was compacted up to offset {left.end(hit.partition)}, which removed the rows that they replaced"
    )


def drafted(commits: Commits, back: TakeBack, at_us: int) -> tuple[Draft, tuple[VoidRange, ...]]:
    """Return the commit that takes rows back, drafted to follow the newest one, and the offsets that it voids.

    Raises:
        ConfigError: some of the rows were compacted.
    """
    new = gathered(commits, back)
    if problem := lost_to_compaction(commits, new):
        raise ConfigError(
            problem,
            not_done="no row was removed, and no tag was moved",
            next_step="restore the log from a backup made before it was compacted, or give the sink another log",
        )
    every = tuple(sorted((*void_ranges(commits), *new), key=lambda one: (one.partition, one.first)))
    tail = commits.tail
    moved = moving(tail, back)
    owner = uuid.uuid4().hex
    draft = Draft(
        "void", owner, at_us, after=tail.sequence, voids=every, moved=moved, owned=back.owned, admit=back.admit
    )
    return draft, new


class Passage:
    """How one reader skips the void ranges of a log, partition by partition.

    One thread may take rows while another one refreshes: rows taken before new void ranges are known count as
    read, rows taken after that are refused. All other methods are called by one thread at a time.
    """

    def __init__(self, commits: Commits, name: str) -> None:
        self._commits, self._name = commits, name
        self._known = void_ranges(commits)
        self._reached: dict[int, int] = {}
        self._news = Lock()

    @property
    def known(self) -> object:
        """Another object after every `refreshed` that took in new ranges."""
        return self._known

    def take(self, partition: int, offset: int, following: int, known: object) -> bool:
        """Note that the rows from an offset on count as read, if no ranges became void since `known` was asked for.

        Raises:
            Damaged: rows before the offset are void, though they were read.
        """
        with self._news:
            self.reached(partition, offset)
            if self._known is not known:
                return False
            self.reached(partition, following)
            return True

    def refreshed(self) -> None:
        """Read the new void ranges. Raises Damaged if this reader has read rows of one."""
        if (ranges := void_ranges(self._commits)) is self._known or ranges == self._known:
            return
        with self._news:
            new = set(ranges).difference(self._known)
            for one in sorted(new, key=lambda one: (one.partition, one.first)):
                if one.first < (reached := self._reached.get(one.partition, 0)):
                    raise self._passed(one, reached)
            self._known = ranges

    def reached(self, partition: int, offset: int) -> None:
        """Record how far a partition was read. Raises Damaged if that is inside a void range or at its end."""
        if (at := self._before(partition, offset)) is not None and at.first < offset <= at.end:
            raise self._passed(at, offset)
        self._reached[partition] = max(offset, self._reached.get(partition, 0))

    def onward(self, partition: int, offset: int) -> int:
        """Return an offset from which the next row is not void: at most that row's offset, or the end."""
        while True:
            if (at := self._before(partition, offset + 1)) is not None and at.first <= offset < at.end:
                offset = at.end
            elif (behind := self.behind_gap(partition, offset)) != offset:
                offset = behind
            else:
                return offset

    def begin(self, partition: int, offset: int) -> int:
        """Return where to start for this offset: before the void range that contains it or ends at it, if any."""
        while (at := self._before(partition, offset)) is not None and offset <= at.end:
            offset = at.first
        return offset

    def void(self, partition: int) -> list[tuple[int, int]]:
        """Return first offset and end of the partition's void ranges, in order."""
        return [(one.first, one.end) for one in self._known if one.partition == partition]

    def rows(self, partition: int, end: int) -> int:
        """Return how many rows before this end are neither void nor compacted away."""
        left = self._commits.left
        first, rows = (0, 0) if left is None else (left.end(partition), left.rows(partition))
        void = (v.end - max(v.first, first) for v in self._known if v.partition == partition and v.end > first)
        return rows + end - first - sum(void)

    def back(self, partition: int, end: int) -> int:
        """Return the position of a reader that has read all rows before this end."""
        while (at := self._before(partition, end)) is not None and at.end == end:
            end = at.first
        if (left := self._commits.left) is not None and end <= left.end(partition):
            return left.stop(partition)  # Void rows below this were compacted away too.
        return end

    def before(self, partition: int, end: int, rows: int, floor: int) -> tuple[int, int]:
        """Go back from an offset over this many rows that are not void, at most to `floor`.

        Returns:
            The offset of the first of them, and how many of them are missing because they are below `floor`.
        """
        for void in reversed([v for v in self._known if v.partition == partition and floor < v.end <= end]):
            if end - void.end >= rows:
                break
            rows, end = rows - (end - void.end), void.first
        reached = max(floor, end - rows) if end > floor else end
        return reached, rows - (end - reached)

    def beyond(self, partition: int, offset: int, rows: int, end: int) -> int:
        """Go forward from an offset over this many offsets that are not void, at most to `end`.

        Returns:
            A position: it is before a void range that follows it, never inside one or at its end.
        """
        for first, behind in self.void(partition):
            if behind <= offset:
                continue
            if rows <= first - offset:
                break
            rows, offset = rows - max(0, first - offset), behind
        return min(offset + rows, end)

    def behind_gap(self, partition: int, offset: int) -> int:
        """Return the same offset, or the one after the gap that a compaction left between two segments."""
        left = self._commits.left
        if left is None or offset >= left.end(partition):
            return offset
        found = left.at_or_after(partition, offset)
        return left.end(partition) if found is None else max(offset, found.first)

    def _before(self, partition: int, offset: int) -> VoidRange | None:
        """Return the last range that begins before an offset."""
        place = bisect_right(self._known, (partition, offset - 1), key=lambda one: (one.partition, one.first))
        found = self._known[place - 1] if place else None
        return found if found is not None and found.partition == partition else None

    def _passed(self, void: VoidRange, offset: int) -> Damaged:
        return Damaged(
            f"{self._name}: the rows from offset {void.first} to before {void.end} of partition {void.partition} were "
            f"removed by a rewind of the job that wrote them, but this reader had read up to offset {offset}",
            not_done="no further row was read",
            next_step=f"rewind the job that read them, too, to before it read offset {void.first} of this partition "
            "(holdfast rewind JOB --to-offset SOURCE:PARTITION:OFFSET shows the effect)",
            where=Where(partition=void.partition, offset=void.first),
        )


def _is_ours(writer: str, back: TakeBack) -> bool:
    return writer in back.writers or back.owns(writer)


def _is_undone(tag: Tag, to: Tag) -> bool:
    return tag.timeline < to.timeline and tag.epoch > to.epoch


def _inside(one: VoidRange, other: VoidRange) -> bool:
    return one.partition == other.partition and other.first <= one.first and one.end <= other.end


def _joined(ranges: Iterable[VoidRange]) -> tuple[VoidRange, ...]:
    """Return the ranges in order, adjacent ones merged."""
    merged_ranges: list[VoidRange] = []
    for one in sorted(ranges, key=lambda one: (one.partition, one.first)):
        if merged_ranges and (merged_ranges[-1].partition, merged_ranges[-1].end) == (one.partition, one.first):
            merged_ranges[-1] = VoidRange(one.partition, merged_ranges[-1].first, one.end)
        else:
            merged_ranges.append(one)
    return tuple(merged_ranges)
