"""A SQL table as a target: rows, tag and before-images in one transaction.

A delivery first loads its rows into a temporary table of its own connection, which blocks no other connection. Then one
short transaction moves the tag, writes the before-images of every key it touches, and puts and deletes the rows
set-wise. Several epochs of a writer that has fallen behind are loaded into a table each, and applied in order by one
transaction.

A table without a key gets before-images too: which rows a delivery added, by their numbers (added.py). repair.py takes
deliveries back.

With delivery="idempotent" every row carries its tag as well, and each key takes only newer rows (row_tags.py).
Everything else is the same: one transaction, after the commit of the epoch.

Invariants
    - Moving the tag is the first statement of the delivery transaction; if it does not move, the transaction is rolled
      back.
    - A statement holds values as parameters only, and names only quoted.

Pure: no clock, thread or I/O of its own. PROTOCOL P17, P21 (before-images), P24.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import NEVER, Claim, check_continues
from holdfast.sinks.contract.phrases import NOTHING, READS_TAG
from holdfast.sinks.contract.target import (
    DELETE,
    OP,
    PUT,
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
from holdfast.sinks.sql import claims, owners, tags
from holdfast.sinks.sql.added import add_rows
from holdfast.sinks.sql.connection import WriterConnection
from holdfast.sinks.sql.dialect import TemporaryTable
from holdfast.sinks.sql.keyed import change, record_before
from holdfast.sinks.sql.row_tags import RowTags, row_tag
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.table import SqlTable


class SqlTarget(Merges, Target):
    """One writer's access to the table. See contract.Target."""

    def __init__(
        self, sink: SqlTable, job_uuid: str, writer: Writer, fault: Fault = no_fault, claim: Claim | None = None
    ) -> None:
        self._sink, self._job, self._writer, self._fault, self._claim = sink, job_uuid, writer, fault, claim
        self._where = f"{sink.where}, sink {writer.sink!r}, writer {writer.subtask}"
        self._connection = WriterConnection(sink, self._where)

    def delivered(self) -> Tag | None:
        with self._connection.session() as s:
            return self._look(s)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        return self.deliver_together([EpochOutput(tag, batches)], known)

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        first, last = epochs[0].tag, epochs[-1].tag
        with self._connection.session() as s:
            standing = self._look(s)
            if standing is not None and standing >= first:
                return already(self._where, first, standing)
            incoming_tables = [self._connection.incoming(n) for n in range(len(epochs))]
            rows = [
                self._connection.load(s, to, epoch.batches) for to, epoch in zip(incoming_tables, epochs, strict=True)
            ]
            self._fault("before_begin")
            s.dialect.begin_write(s.db)
            if not self._moved(s, first, last, known):
                s.rollback()
                return self._refused(s, first, known)
            owners.take_over(s, self._where, self._job, self._writer.sink, self._claim, moved=self._writer)
            claims.take(s, self._sink, self._where, (self._job, self._writer.sink), self._claim)
            self._fault("after_tag")
            for n, epoch in enumerate(epochs):
                if n:
                    self._fault("between_epochs")
                if rows[n]:
                    self._apply(s, incoming_tables[n], epoch.tag)
            self._fault("before_commit")
            s.commit()
            self._fault("after_commit")
            for each in incoming_tables:
                s.dialect.clear(s.db, each)
            return Delivered(sum(rows))

    def forget(self, through: Tag) -> None:
        with self._connection.session() as s:
            s.dialect.begin_write(s.db)
            self._check_owner(s, hold=True)
            tags.forget(s, tags.tag_row(self._job, self._writer, through))
            if self._sink.tags_rows:
                self._row_tags(s, self._connection.incoming()).forget(through)
            s.commit()

    def close(self) -> None:
        self._connection.close()

    def _look(self, s: Session) -> Tag | None:
        """Compare the owner and read the tag, before anything is loaded or written."""

        def look() -> Tag | None:
            self._check_owner(s)
            return self._standing(s)

        return s.dialect.look(s.db, lambda: s.at_one_moment(look))

    def _standing(self, s: Session) -> Tag | None:
        return tags.standing(s, tags.writer_row(self._job, self._writer))

    def _check_owner(self, s: Session, hold: bool = False) -> None:
        owners.check(s, self._where, self._job, self._writer.sink, self._claim, hold)
        claims.check(s, self._sink, self._where, (self._job, self._writer.sink), self._claim, hold)

    def _moved(self, s: Session, first: Tag, last: Tag, known: Tag | None) -> bool:
        """Move the tag to the last one if it is `known` or, without `known`, below the first one."""
        row = tags.tag_row(self._job, self._writer, last)
        if known is None:
            return tags.advance_over(s, row, first)
        if known == NEVER:
            return tags.advance_first(s, row)
        assert known < first
        return tags.advance_from(s, row, known)

    def _refused(self, s: Session, tag: Tag, known: Tag | None) -> AlreadyDelivered:
        standing = self._look(s)
        if standing is None or standing < tag:
            if known is not None:
                check_continues(self._where, standing, known)
            raise Unavailable(
                f"{self._where}: the tag did not move, although it is at {standing}: another process changed it",
                not_done=NOTHING,
                next_step=READS_TAG,
            )
        return already(self._where, tag, standing)

    def _row_tags(self, s: Session, loaded: TemporaryTable) -> RowTags:
        return RowTags(s, self._connection.table, self._sink.table, loaded.name, self._job, self._writer)

    def _apply(self, s: Session, loaded: TemporaryTable, tag: Tag) -> None:
        table, of_tag = self._connection.table, tags.tag_row(self._job, self._writer, tag)
        if not table.key:
            add_rows(s, table, s.dialect.row_number(s.db, self._sink.table), loaded.name, of_tag)
            return
        carried_tag = row_tag(self._job, tag) if self._sink.tags_rows else None
        if carried_tag is not None:
            row_tags = self._row_tags(s, loaded)
            row_tags.leave_out_older(tag)
            row_tags.bury(carried_tag)
        record_before(s, table, loaded.name, of_tag)
        change(s, table, loaded.name, f"{OP} = {DELETE}", f"{OP} = {PUT}", carried_tag)
