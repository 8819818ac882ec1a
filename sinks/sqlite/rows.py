"""Tags on the rows of a SQLite table, for delivery="idempotent".

Every row carries the tag of the delivery that wrote it, in the column `_holdfast_tag`; a row that is deleted
leaves its tag in the table `holdfast_tombstone`. A put or a delete applies to a key only if its tag is newer than
the key's. So each key protects itself: a late or repeated change, from any writer, even one whose tag row was lost,
neither takes a key back nor revives a deleted row.

The tag is text: job UUID, timeline and epoch, the numbers with leading zeros, so that the tags of one job sort as
text. Tags of two jobs do not compare: what another job left is replaced, else a job that was deleted and made again
would write nothing until it came to the old one's epochs.

Invariants
    - Tombstones and rows change in the delivery's transaction, after its tag moved.
    - A key has a row or a tombstone of a job, never both.
    - The user's table holds only rows that are there; no reader has to leave deleted ones out.

Source: DESIGN section 7 (offset-tagged idempotent); PROTOCOL P1, P17.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from holdfast.model import Tag, Writer
from holdfast.sinks.contract import DELETE, OP, PUT
from holdfast.sinks.sqlite.file import json_object, quoted

TAG_COLUMN = "_holdfast_tag"
TOMBSTONE = "holdfast_tombstone"
RESTORED = "temp.holdfast_restored"
"""What a repair gives back: key and other columns of each row, and the three below."""
GONE, LAST_TAG, LAST_WRITER = "_holdfast_gone", "_holdfast_last_tag", "_holdfast_last_writer"
"""1: the row is deleted instead. Tag and writer of its last change, which is taken back."""
_TIMELINE_DIGITS, _EPOCH_DIGITS = 10, 16

CREATE_TOMBSTONE = f"""\
CREATE TABLE IF NOT EXISTS {TOMBSTONE} (
    "table" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    tag TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    PRIMARY KEY ("table", "key")
)"""


def row_tag(job_uuid: str, tag: Tag) -> str:
    """Return the tag as a row carries it; of one job, the text order is that of (timeline, epoch)."""
    return f"{job_uuid}/{tag.timeline:0{_TIMELINE_DIGITS}d}/{tag.epoch:0{_EPOCH_DIGITS}d}"


def last_tag(job_uuid: str) -> str:
    """Return what no tag of the job is above."""
    return f"{job_uuid}/{'9' * _TIMELINE_DIGITS}/{'9' * _EPOCH_DIGITS}"


class RowTags:
    """The guard of one table's rows, for one writer.

    Args:
        table: The user's table.
        key: Its key columns.
        incoming: The temporary table that holds a delivery's rows, as SQL names it.
        job_uuid: The job; only its own tags compare.
        writer: Who delivers.
    """

    def __init__(self, table: str, key: Iterable[str], incoming: str, job_uuid: str, writer: Writer) -> None:
        self._table, self._key, self._incoming = table, tuple(key), incoming
        self.named = folded(table)
        """The table as SQLite folds it."""
        self._job, self._writer = job_uuid, writer

    def leave_out_older(self, db: sqlite3.Connection, tag: Tag) -> None:
        """Delete from the delivery what is not newer than its key; equal is not newer."""
        self.leave_out(db, row_tag(self._job, tag), last_tag(self._job))

    def leave_out(self, db: sqlite3.Connection, first: str, last: str) -> None:
        """Delete from the delivery the keys whose tag lies between these two."""
        standing = first, last
        same = " AND ".join(f"t.{quoted(name)} = i.{quoted(name)}" for name in self._key)
        db.execute(
            f"DELETE FROM {self._incoming} AS i WHERE EXISTS (SELECT 1 FROM main.{quoted(self._table)} AS t "
            f"WHERE {same} AND t.{TAG_COLUMN} BETWEEN ? AND ?)",
            standing,
        )
        db.execute(
            f"DELETE FROM {self._incoming} AS i WHERE EXISTS (SELECT 1 FROM main.{TOMBSTONE} AS d "
            f'WHERE d."table" = ? AND d."key" = {json_object("i", self._key)} AND d.tag BETWEEN ? AND ?)',
            (self.named, *standing),
        )

    def bury(self, db: sqlite3.Connection, tag: Tag) -> None:
        """Leave a tombstone for every key that is deleted, whether it has a row or not; take those of puts away."""
        self.bury_as(db, row_tag(self._job, tag))

    def bury_as(self, db: sqlite3.Connection, text: str) -> None:
        """Do the same with the text of a tag."""
        key = json_object("i", self._key)
        db.execute(
            f'DELETE FROM main.{TOMBSTONE} WHERE "table" = ? '
            f'AND "key" IN (SELECT {key} FROM {self._incoming} AS i WHERE i.{OP} = {PUT})',
            (self.named,),
        )
        db.execute(
            f'INSERT INTO main.{TOMBSTONE} ("table", "key", tag, sink, writer) '
            f"SELECT ?, {key}, ?, ?, ? FROM {self._incoming} AS i WHERE i.{OP} = {DELETE} "
            f'ON CONFLICT ("table", "key") DO UPDATE SET '
            f"tag = excluded.tag, sink = excluded.sink, writer = excluded.writer",
            (self.named, text, self._writer.sink, self._writer.subtask),
        )

    def forget(self, db: sqlite3.Connection, through: Tag) -> None:
        """Drop the writer's tombstones up to a tag: nothing older than it is delivered any more."""
        db.execute(
            f'DELETE FROM main.{TOMBSTONE} WHERE "table" = ? AND sink = ? AND writer = ? AND tag BETWEEN ? AND ? '
            f"AND substr(tag, -{_EPOCH_DIGITS}) <= ?",
            (
                *(self.named, self._writer.sink, self._writer.subtask),
                *(f"{self._job}/", row_tag(self._job, through), f"{through.epoch:0{_EPOCH_DIGITS}d}"),
            ),
        )


def folded(table: str) -> str:
    """Return the table's name as SQLite compares it."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in table)


def bury_repaired(db: sqlite3.Connection, table: str, key: Iterable[str], standing: str, sink: str) -> None:
    """Leave a tombstone with the rewind's tag for every row that it deletes; take those of restored rows away."""
    name = json_object("r", key)
    db.execute(
        f'DELETE FROM main.{TOMBSTONE} WHERE "table" = ? '
        f'AND "key" IN (SELECT {name} FROM {RESTORED} AS r WHERE {GONE} = 0)',
        (folded(table),),
    )
    db.execute(
        f'INSERT INTO main.{TOMBSTONE} ("table", "key", tag, sink, writer) '
        f"SELECT ?, {name}, ?, ?, {LAST_WRITER} FROM {RESTORED} AS r WHERE {GONE} = 1 "
        f'ON CONFLICT ("table", "key") DO UPDATE SET '
        f"tag = excluded.tag, sink = excluded.sink, writer = excluded.writer",
        (folded(table), standing, sink),
    )


def changed_by_others(db: sqlite3.Connection, table: str, key: Iterable[str]) -> int | None:
    """Count rows that do not carry the tag of the job's last change, or are gone without its tombstone.

    Who changes a row and leaves its tag is not seen; so none found is None, not 0.
    """
    names = tuple(key)
    same = " AND ".join(f"t.{quoted(name)} = r.{quoted(name)}" for name in names)
    count: int = db.execute(
        f"SELECT count(*) FROM {RESTORED} AS r LEFT JOIN main.{quoted(table)} AS t ON {same} "
        f'LEFT JOIN main.{TOMBSTONE} AS d ON d."table" = ? AND d."key" = {json_object("r", names)} '
        f"WHERE CASE WHEN t.{quoted(names[0])} IS NULL THEN d.tag ELSE t.{TAG_COLUMN} END IS NOT r.{LAST_TAG}",
        (folded(table),),
    ).fetchone()[0]
    return count or None
