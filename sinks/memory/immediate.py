"""A table in memory that is written immediately, for tests and the simulator: fences, tags, tombstones, no database.

A write checks the fence before it builds anything, and publishes under the table's lock, as a transaction would.

Invariants
    - Rows, tags and the fence's offset change together or not at all.

Source: PROTOCOL P22; the contract suite holds this and the SQLite target to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.sinks.contract.immediate import (
    ImmediateTarget,
    Origin,
    Owner,
    Written,
    elsewhere,
    immediate_tag,
    origin_prefix,
    overtaken,
    refused_write,
)
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.contract.target import DELETE, OP, Fault, no_fault
from holdfast.sinks.memory.sink import Key, MemorySink, Row

WHERE = "memory table"


@dataclass(frozen=True)
class KeyTag:
    """The tag of a key, and whether it is a tombstone."""

    tag: str
    deleted: bool


class ImmediateTable(MemorySink, ImmediateSink):
    """A table that is written immediately. All targets that it opens share its contents."""

    def __init__(self, key: Sequence[str], fault: Fault = no_fault) -> None:
        super().__init__(key, fault)
        self._guard = Lock()
        self.tags: dict[Key, KeyTag] = {}
        self.fences: dict[tuple[str, str, Origin], Written] = {}

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return MemoryImmediateTarget(self, owner)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        with self._guard:
            return tuple(fence for (job, name, _), fence in self.fences.items() if (job, name) == (job_uuid, sink))

    def fence(self, owner: Owner, starts: Mapping[Origin, int]) -> None:
        """Make an owner the only writer of partitions."""
        with self._guard:
            self.check_claim(owner.job_uuid, owner.sink, owner.claim)
            new_fences = {}
            for origin, start in starts.items():
                standing = self.fences.get((owner.job_uuid, owner.sink, origin))
                if standing is not None and standing.generation > owner.generation:
                    raise overtaken(WHERE, origin, owner.generation, standing.generation)
                same = standing is not None and standing.timeline == owner.timeline
                offset = standing.offset if standing is not None and same else start
                written = Written(origin, owner.generation, owner.timeline, offset, owner.path)
                new_fences[owner.job_uuid, owner.sink, origin] = written
            self.fences |= new_fences
            self.take_over(owner.job_uuid, owner.sink, owner.claim)

    def write(
        self, owner: Owner, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch], reached: int = 0
    ) -> int:
        """`reached` is the offset of the owner's last write."""
        latest: dict[Key, Row] = {}
        for batch in batches:
            self.accept(batch)
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                latest[tuple(row[name] for name in self.key or ())] = row
        self.fault("before_begin")
        with self._guard:
            self.check_claim(owner.job_uuid, owner.sink, owner.claim)
            self.fence_holds(owner, origin)
            standing = self.fences[owner.job_uuid, owner.sink, origin]
            if standing.offset < reached:
                raise refused_write(WHERE, owner, origin, standing, reached)
            self.fault("after_tag")
            self._refuse_elsewhere(owner, origin, latest)
            self.fault("before_commit")
            delete_count = self._apply(self.tag_of(owner, origin, offset), latest)
            fence = self.fences[owner.job_uuid, owner.sink, origin]
            self.fences[owner.job_uuid, owner.sink, origin] = replace(fence, offset=max(offset, fence.offset))
        self.fault("after_commit")
        return delete_count

    def forget_tombstones(self, owner: Owner, committed: Mapping[Origin, int]) -> bool:
        """Drop an owner's tombstones before these offsets; return whether later ones are left."""
        left = False
        with self._guard:
            self.check_claim(owner.job_uuid, owner.sink, owner.claim)
            for origin, offset in committed.items():
                prefix = origin_prefix(owner.job_uuid, owner.sink, origin)
                through = immediate_tag(owner, origin, offset)
                buried = [key for key, known in self.tags.items() if known.deleted and known.tag.startswith(prefix)]
                over = [key for key in buried if self.tags[key].tag <= through]
                left = left or len(over) < len(buried)
                for key in over:
                    del self.tags[key]
        return left

    def check_fence(self, owner: Owner, origin: Origin) -> None:
        """Refuse an owner that no longer owns the partition."""
        standing = self.fences.get((owner.job_uuid, owner.sink, origin))
        if standing is None:
            raise ConfigError(f"{WHERE}: {origin} was not fenced", next_step="fence it first")
        if standing.generation != owner.generation:
            raise refused_write(WHERE, owner, origin, standing, 0)

    def fence_holds(self, owner: Owner, origin: Origin) -> None:
        """Look at the fence inside of a write."""
        self.check_fence(owner, origin)

    def is_newer(self, key: Key, tag: str) -> bool:
        """Return whether a write with this tag applies to the key; other jobs' tags do not compare."""
        known = self.tags.get(key)
        return known is None or not known.tag.startswith(tag.rsplit("/", 2)[0] + "/") or tag > known.tag

    def tag_of(self, owner: Owner, origin: Origin, offset: int) -> str:
        """Return the tag of a write."""
        return immediate_tag(owner, origin, offset)

    def bury(self, key: Key, tag: str) -> None:
        """Keep the tag of a deleted key."""
        self.tags[key] = KeyTag(tag, deleted=True)

    def is_elsewhere(self, owner: Owner, origin: Origin, tag: str) -> bool:
        """Return whether a key with this tag belongs to this job, but not to this partition."""
        ours = tag.startswith(f"{owner.job_uuid}/")
        return ours and not tag.startswith(origin_prefix(owner.job_uuid, owner.sink, origin))

    def _refuse_elsewhere(self, owner: Owner, origin: Origin, latest: Mapping[Key, Row]) -> None:
        for key in latest:
            known = self.tags.get(key)
            if known is not None and self.is_elsewhere(owner, origin, known.tag):
                raise elsewhere(WHERE, origin, str(key), known.tag)

    def _apply(self, tag: str, latest: Mapping[Key, Row]) -> int:
        delete_count = 0
        for key, row in latest.items():
            if not self.is_newer(key, tag):
                continue
            if row.get(OP) == DELETE:
                self._kept.pop(key, None)
                self.tags.pop(key, None)
                self.bury(key, tag)
                delete_count += 1
            else:
                self._kept[key] = {name: value for name, value in row.items() if name != OP}
                self.tags[key] = KeyTag(tag, deleted=False)
        return delete_count


class MemoryImmediateTarget(ImmediateTarget):
    """One owner's access to an ImmediateTable. See immediate.ImmediateTarget."""

    def __init__(self, table: ImmediateTable, owner: Owner) -> None:
        self._table, self._owner = table, owner
        self._reached: dict[Origin, int] = {}

    def fence(self, starts: Mapping[Origin, int]) -> None:
        self._table.fence(self._owner, starts)

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        deleted = self._table.write(self._owner, origin, offset, batches, self._reached.get(origin, 0))
        self._reached[origin] = max(offset, self._reached.get(origin, 0))
        return deleted

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        return self._table.forget_tombstones(self._owner, committed)

    def close(self) -> None:
        """Nothing is held."""
