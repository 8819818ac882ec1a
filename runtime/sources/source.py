"""What a source is: a configuration that travels, and the open connection that a worker reads.

A `Source` is written down in the user's program, pickled to the workers and opened there. Offsets are per partition
and name the next record to read; they live in checkpoints alone, so an open source keeps no position of its own.

Invariants
    - Reading the same partition at the same offset always gives the same records, or an error. Of a source whose
      records may be compacted away (`SparseSource`), it gives those that are left.
    - `ended` is true only when no record can ever follow; reaching `end_offsets` is not enough.
    - `read` does not wait for records; it is called from the operator thread.

    - Two histories of a source that differ in a record before an offset have different identities there.

Source: DESIGN section 6; PROTOCOL P12: only the master discovers partitions. docs/design/0022-source-identity.md: a
log that was recreated, or restored from an older copy, is not the one that the job has read.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

OFFSETS = "_holdfast_offset"
"""Last column of a batch whose records do not follow each other by offset; no column of a user has this name."""


class Source(Protocol):
    """Configuration of a source; picklable, and cheap to create. Nothing is opened before `check` or `open`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of every batch that is read. Raises ConfigError if they cannot be known."""

    def check(self) -> None:
        """Look at the outside at plan time. Raises ConfigError, Unavailable."""

    def open(self) -> OpenSource:
        """Connect. Raises ConfigError, Damaged, Unavailable."""


class OpenSource(Protocol):
    """A connection of one worker; used by one thread."""

    def identity(self, partition: int, offset: int) -> str:
        """Return what tells the records before this offset, which is above 0, from those of another history.

        Asked at every barrier: where records were just read, it costs no request. Raises Damaged, Unavailable.
        """

    def changed(self, identity: str) -> str | None:
        """Say why the source no longer has the history that gave this identity; None if it has.

        Looks at the source as it stands now. Raises Damaged, Unavailable.
        """

    def partitions(self) -> list[int]:
        """Return the partitions that exist now; more may appear, none goes away."""

    def end_offsets(self) -> dict[int, int]:
        """Return per partition the offset after the last record that exists now."""

    def retention_start(self, partition: int) -> int:
        """Return the lowest offset that can still be read."""

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Return records from the offset on and the offset after them; None and the same offset if there are none.

        Records that cannot be decoded are among them, as runtime/dead_letters.py says (`with_refused`); or they have
        a null where `schema` allows none. What becomes of them is not the source's affair.

        Where the offsets of the records have gaps between them, they are the last column, `OFFSETS`.

        At most max_bytes are returned, but at least one record. Raises Damaged, Unavailable, JobFailed.
        """

    def ended(self, partition: int, offset: int) -> bool:
        """Say whether no record can ever come at this offset or after it."""

    def close(self) -> None:
        """Let go of connections and files. Batches that were read stay valid."""


@runtime_checkable
class SparseSource(Protocol):
    """An open source of which single records may go away, with others before and behind them staying."""

    def whole_from(self, partition: int) -> int:
        """Return the lowest offset from which on no record that ever was there is missing."""


def same_from(opened: OpenSource, partition: int) -> int:
    """Return the lowest offset from which on reading again gives what it gave the first time."""
    start = opened.retention_start(partition)
    return max(start, opened.whole_from(partition)) if isinstance(opened, SparseSource) else start
