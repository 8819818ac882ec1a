"""A Redis database as a target: rows, tag and owner in one script.

A target reads the book, compares tag and owner, and reads the rows of the delivery. Then one request carries them
together with the values that were read. The script compares those with the present book, and changes everything or
nothing. If another process was faster, the book is read and compared again.

A request whose reply was lost may run late, even after the next attempt. Then the tag that it names is no longer there,
and it changes nothing.

Invariants
    - A change of the target names the tag and, under a claim, the owner that were read.
    - A change under a claim names the sink to which the rows belong, and notes this one.
    - A takeover also names the tags of all writers of the sink, and the number of fields: a writer that is new since
      then is noticed.
    - The book is read again after every failure.

Pure: no clock, thread or I/O of its own; client.py has the connection.
Source: PROTOCOL P17, P24; docs/decisions/0021-owned-targets.md, 0057-what-owners-completed.md, 0081-redis-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, belongs_to, check_continues
from holdfast.sinks.contract.phrases import NOTHING, RETRIES
from holdfast.sinks.contract.target import (
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    Fault,
    Merges,
    Outcome,
    Target,
    already,
    no_fault,
)
from holdfast.sinks.redis.book import SINK, RedisBook, owner_field, owner_value, sink_value, tag_field, tag_value
from holdfast.sinks.redis.script import REQUEST_BYTES_MAX, BookChange, packed

Pairs = Iterable[tuple[bytes, bytes | None]]
ATTEMPTS_MAX = 5
"""How often a delivery starts over because another process changed the book meanwhile."""


class BookConnection(Protocol):
    """A target's connection to the server. Its calls raise a HoldfastError."""

    def book(self) -> RedisBook:
        """Read the book."""

    def apply(self, change: BookChange) -> bool:
        """Make a change; return whether it was made. After an error its outcome is unknown."""

    def close(self) -> None:
        """Release the connection; the next call opens another."""


class RedisTarget(Merges, Target):
    """One writer's access to the keys. See contract.Merges.

    Args:
        where: How messages name the target.
        connection: Opens the connection at the first use.
        pairs: Returns rows as keys and values. Raises ConfigError.
        job_uuid: The job.
        writer: Whose output this is.
        claim: See Sink.open.
        fault: Called at every fault point of a delivery; for tests.
    """

    def __init__(
        self,
        where: str,
        connection: BookConnection,
        pairs: Callable[[pa.RecordBatch], Pairs],
        job_uuid: str,
        writer: Writer,
        claim: Claim | None = None,
        fault: Fault = no_fault,
    ) -> None:
        self._where = f"{where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._connection, self._pairs = connection, pairs
        self._job, self._writer, self._claim, self._fault = job_uuid, writer, claim, fault

    def delivered(self) -> Tag | None:
        book = self._connection.book()
        self._must_take_over(book)
        return book.tag_of(self._job, self._writer)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        return self.deliver_together([EpochOutput(tag, batches)], known)

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        first, last = epochs[0].tag, epochs[-1].tag
        book = self._connection.book()
        if (prior_outcome := self._covered(book, first, known)) is not None:
            return prior_outcome
        rows, chunks = self._read(epochs)
        self._fault("before_begin")
        for _ in range(ATTEMPTS_MAX):
            change = self._change(book, last, chunks)
            self._fault("after_tag")  # Rows and tag are one request, so there is one point for all of these.
            for _ in epochs[1:]:
                self._fault("between_epochs")
            self._fault("before_commit")
            if self._connection.apply(change):
                self._fault("after_commit")
                return Delivered(rows)
            book = self._connection.book()
            if (prior_outcome := self._covered(book, first, known)) is not None:
                return prior_outcome
        raise Unavailable(
            f"{self._where}: another process changed tags or owner {ATTEMPTS_MAX} times while this delivery was made",
            not_done=NOTHING,
            next_step=RETRIES,
        )

    def forget(self, through: Tag) -> None:
        """There are no before-images."""

    def close(self) -> None:
        self._connection.close()

    def _covered(self, book: RedisBook, first: Tag, known: Tag | None) -> AlreadyDelivered | None:
        """Return the tag if it covers the delivery; else compare it with the tag that the writer knows.

        Raises:
            Fenced, Damaged, Unavailable: see Target.deliver.
        """
        self._must_take_over(book)
        standing = book.tag_of(self._job, self._writer)
        if standing is not None and standing >= first:
            return already(self._where, first, standing)
        if known is not None:
            check_continues(self._where, standing, known)
        return None

    def _must_take_over(self, book: RedisBook) -> bool:
        if self._claim is None:
            return False
        job, sink = self._job, self._writer.sink
        rival = book.noted_rival(job, sink)
        if rival is not None and not self._claim.displaces(rival):
            raise belongs_to(self._where, job, rival)
        return self._claim.must_take_over(self._where, book.held(job, sink), lambda: book.newest(job, sink))

    def _change(self, book: RedisBook, last: Tag, chunks: Sequence[bytes]) -> BookChange:
        """Return the change that moves the tag from its place in the book, and takes the target over if necessary."""
        tag, owner = tag_field(self._job, self._writer), owner_field(self._job, self._writer.sink)
        expected_fields, sets = {tag: book.raw(tag)}, {tag: tag_value(last)}
        if self._claim is None:
            return BookChange(expected_fields, sets, None, chunks)
        expected_fields[owner], expected_fields[SINK] = book.raw(owner), book.raw(SINK)
        sets[SINK] = sink_value(self._job, self._writer.sink)
        if (rival := book.noted_rival(self._job, self._writer.sink)) is not None:  # the user moves the rows from it
            theirs = owner_field(rival.job_uuid, rival.sink)
            expected_fields[theirs] = book.raw(theirs)
        if not self._must_take_over(book):
            return BookChange(expected_fields, sets, None, chunks)
        sets[owner] = owner_value(self._claim)
        expected_fields.update((each, book.raw(each)) for each in book.tag_fields(self._job, self._writer.sink))
        return BookChange(expected_fields, sets, len(book), chunks)

    def _read(self, epochs: Sequence[EpochOutput]) -> tuple[int, list[bytes]]:
        """Read all rows; return their number, and them as chunks."""
        rows, size, chunks = 0, 0, list[bytes]()

        def pairs() -> Iterator[tuple[bytes, bytes | None]]:
            nonlocal rows
            for epoch in epochs:
                for batch in epoch.batches:
                    rows += batch.num_rows
                    yield from self._pairs(batch)

        for chunk in packed(pairs()):
            size += len(chunk)
            if size > REQUEST_BYTES_MAX:
                raise self._too_large(epochs[-1].tag)
            chunks.append(chunk)
        return rows, chunks

    def _too_large(self, tag: Tag) -> ConfigError:
        return ConfigError(
            f"{self._where}: the rows up to epoch {tag.epoch} take more than {REQUEST_BYTES_MAX:,} bytes, which is too "
            "much for one request",
            not_done="no rows of this or a later epoch were written",
            next_step="rewind to the epoch that was last delivered (holdfast status JOB; holdfast rewind JOB.py "
            "--to-epoch N --apply), with shorter checkpoint intervals or more workers",
        )
