"""The source contract: a configuration that is sent to workers, and the open connection that a worker reads.

A `Source` is created in the user's program, pickled to the workers and opened there. Offsets are per partition and name
the next record to read; only checkpoints hold them, so an open source keeps no position of its own.

Invariants
    - Reading the same partition at the same offset always returns the same records, or an error. If records may be
      compacted away (`OpenSource.whole_from`), it returns those that are left.
    - `ended` is true only when no record can ever follow; reaching `end_offsets` is not enough.
    - Neither `read` nor a reader waits for records that are not there yet.
    - Records that were removed before they were read are an error, or are reported by a reader as lost (`Read.lost`).
    - Two histories of a source that differ in a record before an offset have different identities there.

Source: DESIGN section 6; PROTOCOL P12: only the master discovers partitions. docs/decisions/0022-source-identity.md: a
log that was recreated, or restored from an older copy, is not the log that the job has read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from holdfast.runtime.plan.ahead import Ahead, DirectReader, Read
from holdfast.traits import SourceTraits, missing

COPIES = "sources"
"""The folder of a job in which every source with the trait `copied` has its own, under its name."""
OFFSETS = "_holdfast_offset"
"""Last column of a batch whose records are not contiguous in their offsets; no user's column has this name."""


class Source(ABC):
    """Configuration of a source; picklable, and cheap to create. Nothing is opened before `check` or `open`."""

    if TYPE_CHECKING:  # at run time these would be the defaults of a dataclass's fields

        @property
        @abstractmethod
        def schema(self) -> pa.Schema:
            """Columns of every batch that is read. Raises ConfigError if they are unknown."""

        @property
        @abstractmethod
        def row_type(self) -> type | None:
            """The dataclass that describes the rows; None if there is none."""

        @property
        @abstractmethod
        def where(self) -> str:
            """How messages name it."""

        @property
        @abstractmethod
        def traits(self) -> SourceTraits:
            """Traits of the source, as data."""

    @abstractmethod
    def open(self) -> OpenSource:
        """Connect. Raises ConfigError, Damaged, Unavailable."""

    def check(self) -> None:
        """Check the outside system at plan time. Raises ConfigError, Unavailable."""

    def would_read(self, target: Mapping[str, str]) -> bool:
        """Return whether it finds a sink's output; only a source that searches, with the trait `finds`, can.

        Args:
            target: `SinkTraits.place`.
        """
        return False

    def in_folder(self, folder: str) -> Source:
        """Return a source with the trait `copied` with the folder, a path or a URL, that belongs to it alone."""
        return self

    def copied(self, *, again: bool) -> Source:
        """Return the source that reads its copy, and make the copy unless there is one. The driver calls it.

        Args:
            again: Make another copy even if there is one: no checkpoint refers to it.

        Raises:
            ConfigError: the records cannot be copied.
            Unavailable: the folder cannot be written.
        """
        return self

    def unpaced(self, ends: Mapping[int, int] | None = None) -> Source:
        """Return a source with the trait `paced` without its rate; it differs in nothing else.

        It reads records that have appeared.

        Args:
            ends: Per partition, the offset after the last record that is read; None: unknown. Later records need not be
                computed or fetched.
        """
        return self

    @property
    def captured(self) -> Captured | None:
        """The process of `holdfast capture` that fills the log that it reads; None: it reads no captured log."""
        return None

    @property
    def publishes(self) -> OffsetPublisher | None:
        """Return a new way to show tools of its own system how far a job is; it connects when it is used first."""
        return None


class PartitionReader(Protocol):
    """Reads one partition from one offset on, for the operator thread; it ends with the generation."""

    def poll(self, bytes_max: int) -> Read | None:
        """Return the records that follow those returned before, as `OpenSource.read` describes them; never waits.

        None: it is not known yet whether there are any; ask again later. A `Read` without a batch: there are none now.

        Raises:
            Damaged, Unavailable, JobFailed: nothing was taken; asking again reads again.
        """

    def close(self) -> None:
        """Drop records that were not returned."""


class OpenSource(ABC):
    """A connection of one worker.

    Used by one thread. If its readers read ahead, a lane calls its read methods at the same time, and another lane
    `end_offsets`.
    """

    @abstractmethod
    def identity(self, partition: int, offset: int) -> str:
        """Return the identity of the history of the records before this offset, which is above 0.

        Called at every barrier; right after records were read, it makes no request. Raises Damaged, Unavailable.
        """

    @abstractmethod
    def changed(self, identity: str) -> str | None:
        """Return why the source no longer has the history with this identity; None if it has.

        Checks the present state of the source. Raises Damaged, Unavailable.
        """

    @abstractmethod
    def partitions(self) -> list[int]:
        """Return the partitions that exist now; more may appear, none disappears.

        Called by the driver before a run, and from time to time while the job runs. A new partition can be read by
        connections that were opened before it existed. Raises Damaged, Unavailable; a list that may lack partitions is
        `Unavailable`.
        """

    @abstractmethod
    def end_offsets(self) -> dict[int, int]:
        """Return, per partition, the offset after the last record that exists now.

        A source with the trait `paced` and an end returns its end: see `appeared`.
        """

    @abstractmethod
    def retention_start(self, partition: int) -> int:
        """Return the lowest offset that can still be read."""

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        """Return a reader that begins at the offset.

        Where reading waits for a disk or a network it reads ahead (`ReaderAhead`); else each poll calls `read`.
        """
        return direct_reader(self, partition, offset)

    @abstractmethod
    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Return records from the offset on and the offset after them; None and the same offset if there are none.

        None and a later offset: no record lies before that offset, now or later.

        They include undecodable records, either as runtime/rows/dead_letters.py describes (`with_refused`) or with a
        null where `schema` allows none. The source does not decide what happens to those.

        If the offsets of the records have gaps, they are the last column, `OFFSETS`.

        At most max_bytes are returned, but at least one record. Raises Damaged, Unavailable, JobFailed.
        """

    def ended(self, partition: int, offset: int) -> bool:
        """Return whether no record can ever appear at this offset or after it."""
        return False

    def close(self) -> None:
        """Release connections and files. Batches that were read stay valid."""

    def whole_from(self, partition: int) -> int:
        """Return the lowest offset from which on no record has ever been removed, while others before it stayed."""
        return self.retention_start(partition)

    def watermark(self, partition: int, offset: int) -> int | None:
        """Return a time, in microseconds since 1970, up to which no record follows at or after the offset.

        None: only the records show their time.
        """
        return None

    def kept(self, within_s: float) -> Mapping[int, Kept]:
        """Return, per partition, the existing records, and those removed within this time. Raises as `end_offsets`.

        Called of a source with the trait `removes_old`: records go by their age or number, read or not.
        """
        return {}

    def gone(self, partition: int) -> str | None:
        """Return why nothing of a partition can be read again, as a clause; None if it still exists.

        A source with the trait `loses_partitions` may lose a partition with its records, while the others are read on.
        """
        return None

    def appeared(self, begun: Mapping[int, int]) -> Mapping[int, int]:
        """Return, per partition, the offset after the last record that has appeared, whether it was read or not.

        Args:
            begun: Per partition, where the run begins to read: a rate counts from there, since the source was opened.
        """
        return self.end_offsets()


@dataclass(frozen=True)
class Kept:
    """Records that a source keeps of one partition, and those that it removes soon.

    Args:
        first: The lowest offset that can still be read.
        end: The offset after the last record.
        by_age: Records before this offset are removed for their age within the time that was asked about; None: none
            are, or it is unknown.
        by_size: The oldest records are removed as new ones arrive.
        called: The name of the partition in its system, if the number is one of the source's own.
    """

    first: int
    end: int
    by_age: int | None = None
    by_size: bool = False
    called: str | None = None


class Captured(Protocol):
    """Configuration of a process of `holdfast capture`, as the connector gives it."""

    @property
    def log(self) -> str:
        """The path of the log that it fills."""

    @property
    def capturer(self) -> str:
        """The module that captures it, by its full name; see runtime/capture/capturer.py."""


class OffsetPublisher(Protocol):
    """Shows positions of checkpoints in the source's own system; used by one thread of the driver."""

    def publish(self, offsets: Mapping[int, int]) -> None:
        """Show, per partition, the offset that is read next. Raises ConfigError, Unavailable."""

    def close(self) -> None:
        """Release connections."""


def direct_reader(opened: OpenSource, partition: int, offset: int) -> PartitionReader:
    """Return a reader that calls `read` on every poll."""
    return DirectReader(lambda at, bytes_max: Read(*opened.read(partition, at, bytes_max)), offset)


def same_from(opened: OpenSource, partition: int) -> int:
    """Return the lowest offset from which on reading again returns the same records as the first time."""
    return max(opened.retention_start(partition), opened.whole_from(partition))


def not_a_source(given: object) -> str | None:
    """Return why a job cannot read an object; None if it can."""
    if given is None:
        return "no source is given"
    if not isinstance(given, Source):
        return f"{given!r} is not a source; a source derives from holdfast.connectors.Source"
    if lacking := list(missing(given, ("traits", "schema", "row_type", "where"))):
        return f"{given!r} is not a source: it has no {', '.join(lacking)}"
    traits: object = given.traits
    return None if isinstance(traits, SourceTraits) else f"{given!r} is not a source: its traits are {traits!r}"
