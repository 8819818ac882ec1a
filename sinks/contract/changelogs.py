"""The contract of a place, besides the job's root, where a job keeps the changelog of its state.

With a *topic*, the records of every committed epoch are delivered to it as if to a sink: with tags, fences, pending
output, and repairs of rewinds. A restore reads the topic as of an epoch, then the segments that are not delivered yet.
The root as the only place is the changelog that does nothing of this.

Invariants
    - A topic holds all of a writer's records of an epoch, or none.
    - A read gives, for every key, its records in the order of their epochs.

Pure: no clock, thread or I/O. Source: docs/decisions/0055-changelog-topic.md, 0057-what-owners-completed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, Damaged, HoldfastError, Unavailable
from holdfast.model import NO_EPOCH, Epoch, Stretch, Subtask
from holdfast.sinks.contract.owners import Claim, Holding
from holdfast.sinks.contract.sink import Sink


@dataclass(frozen=True)
class AsOf:
    """Which records to read.

    Args:
        job_uuid: The job that wrote them.
        history: Its lineage; records of other epochs do not count.
        through: The last epoch.
        after: Only later epochs.
        key_groups: Half-open range; records of other key groups may be among those read.
        count: Key groups of the job.
    """

    job_uuid: str
    history: tuple[Stretch, ...]
    through: Epoch
    after: Epoch
    key_groups: tuple[int, int]
    count: int


class CompactedMeanwhile(Unavailable):
    """The topic was compacted while it was read: begin the read again."""


def unseen(done_bytes: int, all_bytes: int) -> None:
    """Take notice of an advance that is shown nowhere."""


class OpenChangelog(Protocol):
    """The contents of a topic, as of the moment in which it was opened."""

    @property
    def empty(self) -> bool:
        """Return whether it holds nothing."""

    @property
    def holding(self) -> Holding:
        """Return its owner, and the newest tag of its writers."""

    @property
    def delivered(self) -> Mapping[Subtask, Epoch]:
        """Return, by writer, the epoch through which the topic has everything."""

    @property
    def floor(self) -> Epoch:
        """Return the epoch up to which it is compacted: it lacks records that were replaced or deleted before."""

    def records(self, which: AsOf, advanced: Callable[[int, int], object] = unseen) -> Iterator[pa.RecordBatch]:
        """Yield records of a key in the order of their epochs, each key at most once in a batch.

        Args:
            advanced: Called again and again while the read is under way, also while it finds nothing, with the bytes
                read so far and an estimate of all bytes.

        Raises:
            CompactedMeanwhile: a record was compacted away.
            Damaged: a record differs from what was written, or another writer's is among them.
            Unavailable: the topic cannot be read now.
        """


class ChangelogCompaction(Protocol):
    """The compactions of one job's changelog; for use by one thread at a time."""

    def compact(self, owner: str, history: Sequence[Stretch], horizon: Epoch) -> bool:
        """Remove records that newer ones replace, if that is worth it; return whether it was done.

        Args:
            owner: The driver on whose behalf. While another one owns the topic, nothing is removed: it may be that of
                another history of the job, whose horizon is older.
            horizon: The oldest epoch that may be restored. The records that it needs stay.
        """


class Changelog(Protocol):
    """A changelog's place as users configure it: cheap, picklable, without a connection."""

    @property
    def place(self) -> Mapping[str, str]:
        """Return where it is, for plans, status and manifests: as `kind` the registered name of its connector, and the
        arguments that it takes."""

    @property
    def commits_once(self) -> bool:
        """Return whether one writer delivers the segments of all; as the trait of its sink."""

    def sink(self, schema: pa.Schema, key: tuple[str, ...], key_groups: int) -> Sink | None:
        """Return the sink that takes the records; None if segments stay in the root.

        Args:
            schema: The columns of the records.
            key: The columns that identify a record.
            key_groups: Key groups of the job.
        """

    def open(self, job_uuid: str) -> OpenChangelog:
        """Open it for reading. Raises ConfigError if it is missing, Unavailable, Damaged."""

    def in_memory(self, name: str) -> Changelog:
        """Return the same place in the memory of this process, for tests."""

    def compaction(self, job_uuid: str) -> ChangelogCompaction:
        """Return its compactions; no connection is made yet."""


class Nothing(OpenChangelog):
    """The contents of a changelog that is kept only in the root."""

    empty = True
    holding = Holding(None, None)
    delivered: Mapping[Subtask, Epoch] = MappingProxyType({})
    floor = NO_EPOCH

    def records(self, which: AsOf, advanced: Callable[[int, int], object] = unseen) -> Iterator[pa.RecordBatch]:
        return iter(())


@dataclass(frozen=True)
class NoCompaction(ChangelogCompaction):
    """Segments in the root are merged by the workers."""

    def compact(self, owner: str, history: Sequence[Stretch], horizon: Epoch) -> bool:
        return False


@dataclass(frozen=True)
class Root(Changelog):
    """The changelog in the job's root: segments stay where they were sealed, and are merged there."""

    @property
    def place(self) -> Mapping[str, str]:
        return {"kind": "root"}

    @property
    def commits_once(self) -> bool:
        return False

    def sink(self, schema: pa.Schema, key: tuple[str, ...], key_groups: int) -> Sink | None:
        return None

    def open(self, job_uuid: str) -> OpenChangelog:
        return Nothing()

    def in_memory(self, name: str) -> Changelog:
        return self

    def compaction(self, job_uuid: str) -> ChangelogCompaction:
        return NoCompaction()


ROOT: Changelog = Root()
_GROUP_AT = 2
"""Where the key group is in the key of a record."""


def partitions_of(keys: pa.LargeBinaryArray, partitions: int, key_groups: int) -> NDArray[np.int64]:
    """Return the partition of every record: those of neighbouring key groups are together."""
    offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys)]
    data = np.frombuffer(keys.buffers()[2], np.uint8)
    groups = data[offsets[:, None] + np.arange(_GROUP_AT, _GROUP_AT + 2)].view(">u2").reshape(-1).astype(np.int64)
    places: NDArray[np.int64] = groups * partitions // key_groups
    return places


def shown_place(place: Mapping[str, str]) -> str:
    """Return a changelog's place for people, without the options by which it is reached."""
    return " ".join(value for name, value in place.items() if name != "options")


def is_on(history: Sequence[Stretch], timeline: int, epoch: Epoch) -> bool:
    """Return whether a delivery's tag is on a lineage."""
    return any(s.timeline == timeline and s.first <= epoch <= s.last for s in history)


def check_ours(where: str, found: OpenChangelog, claim: Claim) -> None:
    """Refuse to read a topic to which another history of the job delivered: its records have the same numbers.

    Raises:
        Fenced: another history owns it.
        Damaged: a driver that both histories have delivered an epoch that it did not complete in this one.
    """
    try:
        claim.must_take_over(where, found.holding.held, lambda: found.holding.newest)
    except HoldfastError as error:
        error.not_done = "no state was restored"
        raise


def check_holds(where: str, found: OpenChangelog, delivered: Mapping[Subtask, Epoch]) -> None:
    """Refuse a topic that lacks delivered records.

    Raises:
        Damaged: it was restored from a backup, replaced or emptied.
    """
    for writer, epoch in sorted(delivered.items()):
        if (stands := found.delivered.get(writer, NO_EPOCH)) < epoch:
            raise Damaged(
                f"{where}: holds the changelog of writer {writer} through epoch {stands}, but epoch {epoch} was "
                "delivered to it: it was restored from a backup, replaced or emptied",
                not_done="no state was restored",
                next_step="bring the newer log back; the job's root does not hold this state",
            )


def check_reaches(where: str, found: OpenChangelog, through: Epoch) -> None:
    """Refuse to read a topic as of an epoch below its compaction.

    Raises:
        ConfigError: records that were replaced since then no longer exist.
    """
    if found.floor > through:
        raise ConfigError(
            f"{where}: is compacted through epoch {found.floor}, and no longer holds the state as of epoch {through}",
            not_done="no state was restored",
            next_step=f"choose a checkpoint from epoch {found.floor} on; let the job compact its topic, which keeps "
            "what its checkpoints need",
        )
