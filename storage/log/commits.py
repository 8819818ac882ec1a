"""The commits of one embedded log: its tail, random access by sequence, and the commit that holds an offset.

A log may have very many commits, so no function here reads them all. tail.py finds the tail, requests for the
next sequence follow it, and galloping and bisection over the `ends` of the commits find an offset.

Invariants
    - `tail` only moves forward, by commits that fit their predecessor.
    - At most CACHED_COMMITS_MAX commits and PACKS_CACHED packs are kept in memory.
    - A commit that can be packed counts only if its pack does not exist after its object was read; if the pack exists,
      the commit in it counts (packs.py). So a missing next sequence means the end of the log only if it is not packed.

A compaction deletes the segments of commits; `left` then locates the rows.
Not safe to share between threads.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from holdfast.errors import Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.storage.bulk import OrderedStore, get_each, read_together
from holdfast.storage.log.compacted import CompactedSegment, Left
from holdfast.storage.log.format import (
    COMMITS_FOLDER,
    META_PATH,
    Commit,
    LogMeta,
    LogSegment,
    before_the_first,
    check_follows,
    commit_path,
    damaged,
    decode_commit,
    decode_schema,
    extends,
    hash_in,
)
from holdfast.storage.log.packs import Packing, decode_pack, pack_path
from holdfast.storage.log.tail import newest_sequence

CACHED_COMMITS_MAX = 4_096
PACKS_CACHED = 4
LISTINGS_MAX = 10
"""How often the newest commit is looked for again because it was packed meanwhile."""


def refuse_remains(store: ObjectStore) -> None:
    """Refuse to create a log in a folder that holds commits but no `meta.json`.

    Raises:
        Damaged: the folder holds commits and no `meta.json`.
    """
    if not (remains := store.list(COMMITS_FOLDER)):
        return
    try:
        store.get(META_PATH)  # after the listing, since creating a log begins with this object
    except NotFound as error:
        raise Damaged(
            f"{store!r} has commits of a log, such as {remains[0]}, but no {META_PATH}",
            not_done="no log was created there",
            next_step=f"restore {META_PATH} from a backup; or, if you do not need the rows, remove the folder",
        ) from error


class Commits:
    """A view of the commits that exist; `refresh` moves it forward."""

    def __init__(self, store: ObjectStore, meta: LogMeta) -> None:
        self._store, self._meta = store, meta
        self._cached: dict[int, Commit] = {0: before_the_first(meta)}
        self._hashes: dict[int, str] = {0: ""}
        """By sequence; for the commits in `_cached`."""
        self._packs = OrderedDict[int, list[bytes]]()
        """By the sequence of the last commit."""
        self._packed_through = 0
        """The last commit of the newest pack that was read; packs leave no gap."""
        self.tail = self._cached[0]
        self.tail = self._newest()
        self._left: tuple[int, Left] | None = None
        self._grown: tuple[int, LogMeta] | None = None
        self.refresh()

    @property
    def created(self) -> LogMeta:
        """Return the log's description as of its creation, against which commits are checked."""
        return self._meta

    def refresh(self) -> bool:
        """Read the commits that were added since; return whether there were any."""
        before = self.tail
        while self.step():
            pass
        return self.tail is not before

    def catch_up(self) -> None:
        """Move to the newest commit; read as few of those in between as the store allows. For writers."""
        if not isinstance(self._store, OrderedStore):
            self.refresh()
        elif self.step():
            self.tail = self._newest()

    def packed(self, sequence: int) -> Commit | None:
        """Return the commit with this sequence from its pack; None if that does not exist. Reads the store."""
        data = self._in_pack(self.tail.packs, sequence)
        return None if data is None else decode_commit(self._meta, sequence, data)

    def adopt(self, sequence: int, data: bytes) -> None:
        """Move to a commit that this process has just created with these bytes, after the newest one known here."""
        assert sequence == self.tail.sequence + 1
        self.tail = self._keep(decode_commit(self._meta, sequence, data), hash_in(data))

    def step(self) -> bool:
        """Move to the next commit; return whether there is one."""
        sequence = self.tail.sequence + 1
        if (commit := self._cached.get(sequence)) is None:
            try:
                commit, xxh3 = self._read(sequence)
            except NotFound:
                return False
        else:
            xxh3 = self._hashes[sequence]
        check_follows(commit, self.tail)
        self.tail = self._keep(commit, xxh3)
        return True

    def hash_of(self, sequence: int) -> str:
        """Return the hash of the commit with this sequence as it was read; empty before the first. Raises Damaged."""
        self.at(sequence)
        return self._hashes[sequence]

    def is_still(self, sequence: int, xxh3: str) -> bool:
        """Ask the store, not the cache, whether it holds the commit with this sequence and hash."""
        try:
            if not sequence or hash_in(self._store.get(commit_path(sequence))) == xxh3:
                return True  # no process has read a ghost as a commit
        except NotFound:
            pass
        self._packs.clear()
        data = self._in_pack(self.tail.packs, sequence)
        return data is not None and hash_in(data) == xxh3

    @property
    def meta(self) -> LogMeta:
        """Return the log's description, with the columns and partitions that it has now. Raises Damaged."""
        if (growth_sequence := self.tail.grown) and (self._grown is None or self._grown[0] != growth_sequence):
            schema = decode_schema(commit_path(growth_sequence), self.at(growth_sequence).schema)
            if not extends(schema, self._meta.schema):
                raise damaged(commit_path(growth_sequence), "changes existing columns of the log")
            self._grown = growth_sequence, replace(self._meta, schema=schema, created_with=len(self._meta.schema))
        meta, partitions = self._meta if self._grown is None else self._grown[1], len(self.tail.ends)
        return meta if meta.partitions == partitions else replace(meta, partitions=partitions)

    @property
    def left(self) -> Left | None:
        """The rows that the newest compaction left, None if there was none."""
        sequence = self.tail.compact
        if sequence and (self._left is None or self._left[0] != sequence):
            compaction = self.at(sequence).compaction
            assert compaction is not None, "decoding checked that this commit is a compaction"
            self._left = sequence, Left(compaction, self.at(compaction.through).ends)
        return None if self._left is None else self._left[1]

    def at(self, sequence: int) -> Commit:
        """Return the commit with this sequence, which must exist. Raises Damaged."""
        if (cached := self._cached.get(sequence)) is not None:
            return cached
        try:
            return self._keep(*self._read(sequence))
        except NotFound as error:
            raise damaged(commit_path(sequence), "is missing, but a later commit exists") from error

    def ahead(self, sequence: int) -> Commit:
        """Return the commit with this sequence, and read those after it side by side, for a caller that needs all."""
        if sequence not in self._cached and (together := read_together(self._store)) > 1:
            end = min(sequence + together, self.tail.sequence)
            paths = {commit_path(each): each for each in range(sequence, end) if each not in self._cached}
            unpacked = set[int]()
            for path, data in get_each(self._store, list(paths)).items():
                self._keep(*self._counted(paths[path], data, unpacked))
        return self.at(sequence)

    def _counted(self, sequence: int, data: bytes, unpacked: set[int]) -> tuple[Commit, str]:
        """Return a commit whose object was read, or the one in its pack: the object may be a ghost.

        Args:
            unpacked: Names of packs that did not exist after the object was read; is added to.
        """
        commit, xxh3 = self._decoded(sequence, data)
        last = 0 if commit.packs is None or not commit.packs.covers(sequence) else commit.packs.last_of(sequence)
        if not last or last in unpacked:
            return commit, xxh3
        if (packed := self._in_pack(commit.packs, sequence)) is None:
            unpacked.add(last)
            return commit, xxh3
        return self._decoded(sequence, packed)

    def find(self, partition: int, offset: int, after: int = 0) -> tuple[int, LogSegment | CompactedSegment]:
        """Return the segment that holds an offset below the end, and the sequence of its commit.

        Below the end of the compacted range, that is the segment with the next remaining row, which must exist.

        Args:
            partition: The partition.
            offset: The offset; must be below the end of the partition.
            after: A sequence to search from; a good guess saves reads of commits, a wrong one costs a few.
        """
        assert offset < self.tail.end_of(partition)
        if (left := self.left) is not None and offset < left.end(partition):
            segment = left.at_or_after(partition, offset)
            assert segment is not None, "the caller skips gaps at the end"
            return left.through, segment
        high = self._first_beyond(partition, offset, after)
        for one in self.at(high).segments:
            if one.partition == partition and one.base <= offset < one.base + one.rows:
                return high, one
        raise damaged(commit_path(high), f"does not hold offset {offset} of partition {partition}, as its ends say")

    def reaching(self, partition: int, offset: int) -> int:
        """Return the sequence of the first commit after which the partition ends at this offset or beyond it."""
        assert 0 <= offset <= self.tail.end_of(partition)
        return self._first_beyond(partition, offset - 1, 0) if offset else 0

    def _first_beyond(self, partition: int, offset: int, after: int) -> int:
        """Return the sequence of the first commit after which the partition ends beyond this offset."""
        low = after if after <= self.tail.sequence and self.at(after).end_of(partition) <= offset else 0
        step = 1
        while (high := min(low + step, self.tail.sequence)) and self.at(high).end_of(partition) <= offset:
            low, step = high, step * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).end_of(partition) <= offset else (low, middle)
        return high

    def holds_tail(self) -> bool:
        """Return whether the log still has the newest commit known here; False if it was restored from a backup."""
        tail = self.tail
        return self.is_still(tail.sequence, self._hashes[tail.sequence])

    def _newest(self) -> Commit:
        """Return the newest commit. Raises Damaged if it is missing."""
        for _ in range(LISTINGS_MAX):
            sequence = newest_sequence(self._store, self.tail.sequence)
            if sequence == self.tail.sequence:
                return self.tail
            try:
                return self._keep(*self._read(sequence))
            except NotFound:
                continue  # packed since the listing, so there are later ones
        raise damaged(commit_path(sequence), "is listed, but cannot be read")

    def _read(self, sequence: int) -> tuple[Commit, str]:
        """Return a commit and its hash. Raises NotFound, Damaged."""
        packing = self.tail.packs
        if sequence <= self._packed_through and (data := self._in_pack(packing, sequence)) is not None:
            return self._decoded(sequence, data)
        try:
            commit, xxh3 = self._decoded(sequence, self._store.get(commit_path(sequence)))
        except NotFound:
            return self._decoded(sequence, self._in_pack(packing, sequence))
        if (data := self._in_pack(commit.packs, sequence)) is not None:
            return self._decoded(sequence, data)  # the object may be a ghost
        return commit, xxh3

    def _decoded(self, sequence: int, data: bytes | None) -> tuple[Commit, str]:
        if data is None:
            raise NotFound(commit_path(sequence))
        return decode_commit(self._meta, sequence, data), hash_in(data)

    def _in_pack(self, packing: Packing | None, sequence: int) -> bytes | None:
        """Return a commit from its pack; None if that does not exist now. Raises Damaged."""
        if packing is None or not packing.covers(sequence):
            return None
        last = packing.last_of(sequence)
        if last not in self._packs:
            try:
                data = self._store.get(pack_path(last))
            except NotFound:
                return None
            self._packs[last] = decode_pack(pack_path(last), data, packing.block)
            self._packed_through = max(last, self._packed_through)
        self._packs.move_to_end(last)
        while len(self._packs) > PACKS_CACHED:
            self._packs.popitem(last=False)
        return self._packs[last][sequence - last - 1]

    def _keep(self, commit: Commit, xxh3: str) -> Commit:
        if len(self._cached) >= CACHED_COMMITS_MAX:
            oldest = next(sequence for sequence in self._cached if sequence not in (0, self.tail.sequence))
            del self._cached[oldest], self._hashes[oldest]
        self._cached[commit.sequence], self._hashes[commit.sequence] = commit, xxh3
        return commit
