"""The contract of a sink that is written immediately, before the epoch of its rows is committed.

If there is no shuffle between a source and a sink, and every key of the target comes from one source partition, the
offset of a row orders all writes to its key. The value is stored with its tag: (job, sink, source, partition, timeline,
offset). The offset is how far the partition had been read when the value was the key's last one. So a value with a
higher offset is never the older one, for any batches, before a failure or after it. An index of the rows of one record
is not needed: a write applies only the last row of each key.

A sink with the trait `repeats` has no tags. It is written immediately from any place in the job, and gets rows a second
time after a failure. All its rows have the origin ANYWHERE, and of the contract below it keeps: a write that returns
has put every row, in order; a write that is repeated with the same rows loses none.

After a crash the partition is read again from the checkpoint. Repeated writes meet their own tags: nothing is applied
twice, and no older value replaces a newer one. The guarantee holds for deterministic code, and readers of the target
see uncommitted values.

Invariants
    - The fence of a partition is written before the first row, and checked in the transaction that writes rows.
    - A write applies to a key only if its tag is newer than the key's; equal is not newer.
    - A key that carries the tag of another partition, or of another sink, is an error and changes nothing.
    - A deleted key keeps its tag in a tombstone until the delete is committed and every older generation fenced.

Pure: no clock, thread or I/O.
Source: PROTOCOL P1, P22; docs/decisions/0012, 0093.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, Fenced
from holdfast.model import Generation, Timeline
from holdfast.sinks.contract.owners import Claim

IMMEDIATE = "Immediate"
"""Prefix of the kind of an immediate sink; the rest is the kind of the same target, written at the commit."""
_TIMELINE_DIGITS, _OFFSET_DIGITS = 10, 19


@dataclass(frozen=True, order=True)
class Origin:
    """Where the rows of a write come from: one partition of one source."""

    source: str
    partition: int


ANYWHERE = Origin("", 0)
"""The origin of all rows of a sink that repeats."""


@dataclass(frozen=True)
class Owner:
    """The writer: one sink of a job, in one generation."""

    job_uuid: str
    sink: str
    generation: Generation
    timeline: Timeline
    path: str
    """Identity of the code between source and sink."""
    claim: Claim | None = None
    """The driver on whose behalf; None checks no owner: for tests."""


@dataclass(frozen=True)
class Written:
    """The target's entry for one partition."""

    origin: Origin
    generation: Generation
    timeline: Timeline
    offset: int
    """How far the partition was read when it was last written from, in this timeline."""
    path: str


class ImmediateTarget(Protocol):
    """One owner's access to a target. One call at a time, from any thread; every call may be repeated."""

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """Take these partitions over, so that no older generation writes from them any longer.

        Args:
            starts: The offset from which each is read.

        Raises:
            Fenced: a newer generation owns one of them, or another history of the job has taken the target over;
                nothing was changed.
            Unavailable: the outcome is unknown.
        """

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        """Apply the last row of every key if it is newer, in one transaction; return how many keys are deleted.

        Args:
            offset: How far the partition has been read.
            batches: All rows that came from the records since the last write, in order.

        Raises:
            Fenced: a newer generation owns the partition, or another history the target; nothing was changed.
            Damaged: the target no longer holds the fence or the writes of this owner: it was restored from a backup.
            ConfigError: a key belongs to another partition, or the target does not take the rows; nothing was changed.
            Unavailable: the outcome is unknown.
        """

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        """Drop tombstones that lie before the offsets of a completed checkpoint; return whether later ones are left.

        The partitions are fenced.
        """

    def close(self) -> None:
        """Release the connection; an unfinished write is undone."""


class AheadTarget(ImmediateTarget, Protocol):
    """A target of a sink that repeats, which takes the rows of a write before those of the one before are confirmed.

    Rows that were begun stay with the target until they are confirmed, in order, whatever fails meanwhile; then it
    sends them again. One call at a time, but `ring`.
    """

    @property
    def room(self) -> int:
        """How many more writes may be begun now."""

    def begin(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Take the rows of the next write. There is room."""

    def advance(self, wait_s: float) -> int:
        """Send what was begun; return how many of the first writes have become confirmed since the last call.

        Args:
            wait_s: How long to wait for the first one of them.

        Raises:
            HoldfastError: as `write`; after Unavailable, the next call goes on.
        """

    def ring(self) -> None:
        """Let a call of `advance` return soon. Any thread may call it."""


def origin_prefix(job_uuid: str, sink: str, origin: Origin) -> str:
    """Return the prefix of the tags of one partition; `@` sorts them after those of sinks that write at the commit."""
    return f"{job_uuid}/@{sink}/{origin.source}/{origin.partition}/"


def immediate_tag(owner: Owner, origin: Origin, offset: int) -> str:
    """Return the tag as a row carries it; within one partition, the text order is that of (timeline, offset)."""
    prefix = origin_prefix(owner.job_uuid, owner.sink, origin)
    return f"{prefix}{owner.timeline:0{_TIMELINE_DIGITS}d}/{offset:0{_OFFSET_DIGITS}d}"


def after_all(prefix: str) -> str:
    """Return an upper bound of the tags with this prefix."""
    return f"{prefix}~"


def elsewhere(where: str, origin: Origin, key: str, tag: str) -> ConfigError:
    """Return the error for a key that was written from another origin, as `tag` shows."""
    parts = tag.split("/")
    found = f"partition {parts[3]} of source {parts[2]!r} by sink {parts[1][1:]!r}" if len(parts) == 6 else "a commit"
    return ConfigError(
        f"{where}: the key {key} comes from partition {origin.partition} of source {origin.source!r}, but was written "
        f"from {found}; a key of a target that is written immediately belongs to one partition of one sink",
        not_done="the rows were not written; rows written before stay",
        next_step="if the source is not partitioned by this key, take partitioned_by (or the key of hf.Log) out of "
        "the code and write to a new table, which is then written at each commit; if the sink was renamed, "
        "restore its old name",
    )


def overtaken(where: str, origin: Origin, generation: Generation, standing: int) -> Fenced:
    """Return the error for a writer whose partition a newer generation has taken over."""
    return Fenced(
        f"{where}: generation {generation} no longer writes from partition {origin.partition} of source "
        f"{origin.source!r}: generation {standing} does",
        not_done="nothing was written to the target",
        next_step="no action needed: this process belongs to a run, or a part of one, that was replaced",
    )


def refused_write(
    where: str, owner: Owner, origin: Origin, standing: Written | None, reached: int
) -> ConfigError | Damaged | Fenced:
    """Return the error for a write whose fence is not the one that this owner wrote.

    Args:
        standing: The target's present entry for the partition.
        reached: The offset that this owner's last write reached.
    """
    if standing is None:
        return ConfigError(
            f"{where}: the fence of partition {origin.partition} of source {origin.source!r} does not "
            "exist: the table was emptied, or the file replaced",
            not_done="nothing was written",
            next_step="restore the file, or name another one",
        )
    if standing.generation > owner.generation:
        return overtaken(where, origin, owner.generation, standing.generation)
    return Damaged(
        f"{where}: partition {origin.partition} of source {origin.source!r} is at generation "
        f"{standing.generation}, offset {standing.offset}, but generation {owner.generation} wrote up to offset "
        f"{reached}: the target was restored from a backup, replaced or emptied",
        not_done="nothing more was written to it",
        next_step="restore the newer target; or write to a new table under another job name, from the beginning",
    )
