"""Tags on the rows of a table, for delivery="idempotent".

Every row carries the tag of the delivery that wrote it, in the column `_holdfast_tag`; a row that is deleted
leaves its tag in the table `holdfast_tombstone`. A put or a delete applies to a key only if its tag is newer than
the key's. So each key protects itself: a late or repeated change, from any writer, even one whose tag row was lost,
neither takes a key back nor revives a deleted row.

The tag is text: job UUID, timeline and epoch, the numbers with leading zeros, so that the tags of one job sort as
text. Tags of two jobs do not compare: tags of another job are replaced. Otherwise a job that was deleted and
recreated would write nothing until it reached the old job's epochs.

Invariants
    - Tombstones and rows change in the delivery's transaction, after its tag moved.
    - A key has a row or a tombstone of a job, never both.
    - The user's table holds only rows that are there; no reader has to leave deleted ones out.

Pure: no clock, thread or I/O of its own. Source: DESIGN section 7 (offset-tagged idempotent); PROTOCOL P1, P17.
"""

from __future__ import annotations

from holdfast.model import Tag, Writer
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.sql.dialect import Dialect, Upsert
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.table import TAG_COLUMN, DatabaseTable

TOMBSTONE = "holdfast_tombstone"
GONE, LAST_TAG, LAST_WRITER = "_holdfast_gone", "_holdfast_last_tag", "_holdfast_last_writer"
"""Columns of a repair's loaded rows. 1: the row is deleted. Tag and writer of its last change, which is taken back."""
_COLUMNS = ("table", "key", "tag", "sink", "writer")
_KEY = ("table", "key")
_TIMELINE_DIGITS, _EPOCH_DIGITS = 10, 16


def create_tombstone(dialect: Dialect) -> str:
    """Return the statement that creates the table of tombstones, unless it exists."""
    table, key = map(dialect.quoted, _KEY)
    return f"""\
CREATE TABLE IF NOT EXISTS {dialect.own(TOMBSTONE)} (
    {table} TEXT NOT NULL,
    {key} TEXT NOT NULL,
    tag {dialect.tag_type} NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    PRIMARY KEY ({table}, {key})
)"""


def row_tag(job_uuid: str, tag: Tag) -> str:
    """Return the tag as a row carries it; of one job, the text order is that of (timeline, epoch)."""
    return f"{job_uuid}/{tag.timeline:0{_TIMELINE_DIGITS}d}/{tag.epoch:0{_EPOCH_DIGITS}d}"


def last_tag(job_uuid: str) -> str:
    """Return a text that no tag of the job is above."""
    return f"{job_uuid}/{'9' * _TIMELINE_DIGITS}/{'9' * _EPOCH_DIGITS}"


class RowTags:
    """The guard of one table's rows, for one writer.

    Args:
        table: The user's table.
        name: Its name, as the user gave it.
        loaded: The temporary table that holds a delivery's rows, as SQL names it.
        job_uuid: The job; only its own tags compare.
        writer: The writer that delivers.
    """

    def __init__(self, s: Session, table: DatabaseTable, name: str, loaded: str, job_uuid: str, writer: Writer) -> None:
        self._s, self._table, self._loaded = s, table, loaded
        self.named = s.dialect.folded(name)
        """The table, as `holdfast_tombstone` names it."""
        self._job, self._writer = job_uuid, writer

    def leave_out_older(self, tag: Tag) -> None:
        """Delete rows from the delivery that are not newer than their key; equal is not newer."""
        self.leave_out(row_tag(self._job, tag), last_tag(self._job))

    def leave_out(self, first: str, last: str) -> None:
        """Delete from the delivery the keys whose tag lies between these two."""
        s, params = self._s, self._s.given()
        s.execute(
            f"DELETE FROM {self._loaded} AS i WHERE EXISTS (SELECT 1 FROM {self._table.name} AS t "
            f"WHERE {s.same('t', 'i', self._table.key_names)} "
            f"AND t.{s.quoted(TAG_COLUMN)} BETWEEN {params(first)} AND {params(last)})",
            params,
        )
        params = s.given()
        s.execute(
            f"DELETE FROM {self._loaded} AS i WHERE EXISTS (SELECT 1 FROM {s.own(TOMBSTONE)} AS d "
            f"WHERE d.{s.quoted('table')} = {params(self.named)} AND d.{s.quoted('key')} = {self._key('i')} "
            f"AND d.tag BETWEEN {params(first)} AND {params(last)})",
            params,
        )

    def bury(self, text: str) -> None:
        """Leave a tombstone with a tag for every key that is deleted, whether it has a row or not; drop those of puts.

        Args:
            text: The tag, as a row would carry it.
        """
        unbury(self._s, self.named, self._key("i"), f"{self._loaded} AS i WHERE i.{OP} = {PUT}")
        given = self._s.given()
        values = f"{given(self.named)}, {self._key('i')}, {given(text, self._writer.sink, self._writer.subtask)}"
        source = f"SELECT {values} FROM {self._loaded} AS i WHERE i.{OP} = {DELETE}"
        self._s.dialect.upsert(self._s.db, Upsert(self._s.own(TOMBSTONE), _COLUMNS, _KEY, source, given.values))

    def forget(self, through: Tag) -> None:
        """Drop the writer's tombstones up to a tag: nothing older than it is delivered any longer."""
        s, params = self._s, self._s.given()
        s.execute(
            f"DELETE FROM {s.own(TOMBSTONE)} WHERE {s.quoted('table')} = {params(self.named)} "
            f"AND sink = {params(self._writer.sink)} AND writer = {params(self._writer.subtask)} "
            f"AND tag BETWEEN {params(f'{self._job}/')} AND {params(row_tag(self._job, through))} "
            f"AND substr(tag, length(tag) - {_EPOCH_DIGITS - 1}) <= {params(f'{through.epoch:0{_EPOCH_DIGITS}d}')}",
            params,
        )

    def _key(self, alias: str) -> str:
        return self._s.dialect.row_json(alias, self._table.key)


def bury_repaired(s: Session, table: DatabaseTable, name: str, restored: str, standing: str, sink: str) -> None:
    """Leave a tombstone with the rewind's tag for every row that it deletes; drop those of restored rows.

    Args:
        restored: The temporary table with the rows that a repair restores: key and values of each, `GONE`, `LAST_TAG`
            and `LAST_WRITER`.
        standing: The rewind's tag, as a row carries it.
    """
    key, folded, params = s.dialect.row_json("r", table.key), s.dialect.folded(name), s.given()
    unbury(s, folded, key, f"{restored} AS r WHERE {s.quoted(GONE)} = 0")
    values = f"{params(folded)}, {key}, {params(standing, sink)}, {s.quoted(LAST_WRITER)}"
    source = f"SELECT {values} FROM {restored} AS r WHERE {s.quoted(GONE)} = 1"
    s.dialect.upsert(s.db, Upsert(s.own(TOMBSTONE), _COLUMNS, _KEY, source, params.values))


def unbury(s: Session, folded: str, key: str, rows: str) -> None:
    """Drop the tombstones of the keys that an expression gives over some rows."""
    params = s.given()
    s.execute(
        f"DELETE FROM {s.own(TOMBSTONE)} WHERE {s.quoted('table')} = {params(folded)} "
        f"AND {s.quoted('key')} IN (SELECT {key} FROM {rows})",
        params,
    )


def changed_by_others(s: Session, table: DatabaseTable, name: str, restored: str) -> int | None:
    """Count rows that do not carry the tag of the job's last change, or were deleted without its tombstone.

    A row that another process changed, leaving its tag, is not seen; so none found is None, not 0.
    """
    params, first = s.given(), s.quoted(table.key_names[0])
    count: int = s.execute(
        f"SELECT count(*) FROM {restored} AS r LEFT JOIN {table.name} AS t ON {s.same('t', 'r', table.key_names)} "
        f"LEFT JOIN {s.own(TOMBSTONE)} AS d ON d.{s.quoted('table')} = {params(s.dialect.folded(name))} "
        f"AND d.{s.quoted('key')} = {s.dialect.row_json('r', table.key)} "
        f"WHERE coalesce(CASE WHEN t.{first} IS NULL THEN d.tag ELSE t.{s.quoted(TAG_COLUMN)} END, '') "
        f"<> r.{s.quoted(LAST_TAG)}",
        params,
    ).fetchone()[0]
    return count or None
