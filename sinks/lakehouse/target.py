"""A table as a target: rows, tag and owner in one commit, on exactly the version whose book was compared.

A target loads the newest version v, compares tag and owner in its book, and reads the rows of the delivery. Then it
loads the newest version again, compares again, and commits on v + 1 or not at all. A commit of anyone else in between
takes v + 1, so ours fails, and the target loads and compares again. The library's retries are off (P23): two appends do
not conflict for it, so it would commit on a version that was not compared.

Invariants
    - A commit lands on the version after the one whose tag and owner were compared, and the sink that it belongs to:
      of two first commits, one is made, and the other sees the first.
    - A delivery continues the rows of the sink's newest one: a table that another program took back is refused.
    - Nothing is taken from an error: after one, the newest version is loaded and its book decides.

Pure: no clock, thread or I/O of its own; the format's client.py has the table.
Source: PROTOCOL P17, P23, P24; docs/decisions/0021-owned-targets.md, 0084-delta-sink.md, 0099-iceberg-sink.md,
0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, check_continues, rows_taken_back
from holdfast.sinks.contract.phrases import NOTHING, RETRIES, persists
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, Fault, Outcome, Target, already, no_fault
from holdfast.sinks.lakehouse.book import Book, Numbers, delivery_numbers
from holdfast.sinks.lakehouse.history import Entry, taken_back

Read = Callable[[Iterable[pa.RecordBatch]], tuple[int, pa.Table | None]]
ATTEMPTS_MAX = 5
"""How often a delivery starts over because another commit was first."""


@dataclass(frozen=True)
class TableCommit:
    """One commit.

    Args:
        numbers: Names of the book and their numbers.
        info: The commit's description, for people and for the plan of a rewind.
        rows: Rows to add, or to merge by key; None: none.
        key: None: the rows are added. Else they have the column `_op` last, and each key once.
        restore: The version whose rows the table gets back.
    """

    numbers: Numbers
    info: Mapping[str, Any]
    rows: pa.Table | None = None
    key: tuple[str, ...] | None = None
    restore: int | None = None


class Version(Protocol):
    """The table as it was when it was loaded. Its calls raise a HoldfastError."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def continues(self) -> bool:
        """Whether the newest commit is the last one that this process made, so that no other program made one since."""

    def number(self, name: str) -> int | None:
        """Return the number of a name of the book; None if the table has none."""

    def history(self) -> Iterable[Entry]:
        """Return the commits that the table's history still has, the newest first."""

    def commit(self, change: TableCommit) -> bool:
        """Commit as the next version; return whether it was done. After an error the outcome is unknown."""


class LakehouseConnection(Protocol):
    """A way to the table. Its calls raise a HoldfastError."""

    def latest(self) -> Version:
        """Load the newest version."""

    def close(self) -> None:
        """Release connections; the next use opens them again."""


@dataclass(frozen=True)
class TableTarget(Target):
    """One writer's access to a table. See contract.Target.

    Args:
        where: How messages name the table.
        connection: Loads the table at the first use.
        read: Returns the number of rows, and the rows as a commit writes them. Raises ConfigError.
        key: The key of the sink.
        job_uuid: The job.
        writer: Whose output this is.
        claim: See Sink.open.
        fault: Called at every fault point of a delivery; for tests.
    """

    where: str
    connection: LakehouseConnection
    read: Read
    key: tuple[str, ...] | None
    job_uuid: str
    writer: Writer
    claim: Claim | None = None
    fault: Fault = field(default=no_fault)

    def delivered(self) -> Tag | None:
        book = self._book(self.connection.latest())
        self._check_owner(book)
        return book.tag_of(self.job_uuid, self.writer)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        if (prior_outcome := self._covered(self._book(self.connection.latest()), tag, known)) is not None:
            return prior_outcome
        count, rows = self.read(batches)
        self.fault("before_begin")
        for _ in range(ATTEMPTS_MAX):
            version = self.connection.latest()
            book = self._book(version)
            if (prior_outcome := self._covered(book, tag, known)) is not None:
                return prior_outcome
            self._check_rows(version, book, tag)
            change = self._change(book, tag, version.version, rows)
            self.fault("after_tag")  # Rows and tag are one commit, so there is one point for both.
            self.fault("before_commit")
            if version.commit(change):
                self.fault("after_commit")
                return Delivered(count)
        raise Unavailable(
            f"{self._where}: other commits were first {ATTEMPTS_MAX} times while this delivery was made",
            not_done=NOTHING,
            next_step=persists(RETRIES, "let other writers of the table commit less often"),
        )

    def forget(self, through: Tag) -> None:
        """Older versions of the table are the before-images; its own maintenance drops them."""

    def close(self) -> None:
        self.connection.close()

    @property
    def _where(self) -> str:
        return f"{self.where}, sink {self.writer.sink!r}, writer {self.writer.subtask}"

    def _book(self, version: Version) -> Book:
        return Book(self._where, version.number)

    def _covered(self, book: Book, tag: Tag, known: Tag | None) -> AlreadyDelivered | None:
        """Return the tag if it covers the delivery; else compare it with the tag that the writer knows.

        Raises:
            Fenced, Damaged, Unavailable: see Target.deliver.
        """
        self._check_owner(book)
        newest = book.newest(self.job_uuid, self.writer.sink)
        if newest is not None and newest.timeline > tag.timeline:
            return already(self._where, tag, newest)  # fenced, also if the writer has no tag on the new timeline
        standing = book.tag_of(self.job_uuid, self.writer)
        if standing is not None and standing >= tag:
            return already(self._where, tag, standing)
        if known is not None:
            check_continues(self._where, standing, known)
        return None

    def _check_rows(self, version: Version, book: Book, tag: Tag) -> None:
        """Refuse a table whose older version another program has restored since the newest delivery. Raises Damaged.

        A rewind, which begins a timeline, has either brought the rows in order or was told to leave them.
        """
        newest = book.newest(self.job_uuid, self.writer.sink)
        if newest is None or newest.timeline < tag.timeline or version.continues:
            return
        if (by := taken_back(version.history(), self.job_uuid, self.writer.sink, newest)) is not None:
            raise rows_taken_back(self._where, newest, by)

    def _check_owner(self, book: Book) -> None:
        book.must_take_over(self.job_uuid, self.writer.sink, self.key is not None, self.claim)

    def _change(self, book: Book, tag: Tag, version: int, rows: pa.Table | None) -> TableCommit:
        job, sink = self.job_uuid, self.writer.sink
        numbers = delivery_numbers(book, job, self.writer, tag)
        numbers.update(book.claim_numbers(job, sink, self.key is not None, self.claim))
        return TableCommit(numbers, commit_info(job, sink, tag, version + 1), rows, self.key)


def commit_info(job_uuid: str, sink: str, tag: Tag, version: int) -> dict[str, Any]:
    """Return the description of a commit."""
    return {"job": job_uuid, "sink": sink, "timeline": tag.timeline, "epoch": tag.epoch, "version": version}
