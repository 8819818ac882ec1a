"""A SQLite table that is written immediately: the fence of a partition, and rows with their tags, in one transaction.

The table `holdfast_fence` has one row per partition that a sink is written from: which generation owns it, how far the
partition had been read at the last write, and the identity of the code in between. The first statement of every write
moves that row, and only if it is still the writer's own; it also takes the file's lock, so whoever was overtaken
meanwhile changes nothing. Rows then apply by their tags alone (sinks/immediate.py).

Rows are loaded into the temporary table of the connection before, as those of a delivery are; of every key only the
last is.

Invariants
    - Moving the fence's row is the first statement of a write's transaction; row count 1, or roll back.
    - Which keys belong to another partition is looked at in the same transaction, before anything is changed.

Source: PROTOCOL P22; docs/design/0012.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Generation, Subtask, Timeline, Writer
from holdfast.sinks.contract import DELETE, OP, PUT, Fault, no_fault
from holdfast.sinks.immediate import (
    Origin,
    Owner,
    Written,
    after_all,
    elsewhere,
    immediate_tag,
    origin_prefix,
    refused_write,
)
from holdfast.sinks.sql import tags
from holdfast.sinks.sqlite import owners as sqlite_owners
from holdfast.sinks.sqlite.file import BUSY_TIMEOUT_MS, connect, json_object, listed, quoted, translated
from holdfast.sinks.sqlite.queue import begin
from holdfast.sinks.sqlite.rows import TAG_COLUMN, TOMBSTONE, RowTags
from holdfast.sinks.sqlite.target import INCOMING, SQLiteTable, SQLiteTarget
from holdfast.sinks.staging import last_per_key

FENCE = "holdfast_fence"
CREATE_FENCE = f"""\
CREATE TABLE IF NOT EXISTS {FENCE} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    source TEXT NOT NULL,
    "partition" BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    timeline BIGINT NOT NULL,
    "offset" BIGINT NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (job, sink, source, "partition")
)"""
_TAKE_OVER = (
    f'INSERT INTO {FENCE} (job, sink, source, "partition", generation, timeline, "offset", path) '
    f'VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, sink, source, "partition") DO UPDATE SET '
    f'"offset" = CASE WHEN {FENCE}.timeline = excluded.timeline THEN {FENCE}."offset" ELSE excluded."offset" END, '
    f"generation = excluded.generation, timeline = excluded.timeline, path = excluded.path "
    f"WHERE {FENCE}.generation <= excluded.generation"
)
_ROW = 'job = ? AND sink = ? AND source = ? AND "partition" = ?'
_MOVE = f'UPDATE {FENCE} SET "offset" = max("offset", ?) WHERE {_ROW} AND generation = ? AND "offset" >= ?'
_BURIED = f"SELECT 1 FROM main.{TOMBSTONE} WHERE tag BETWEEN ? AND ? LIMIT 1"
_STANDING = f'SELECT generation, timeline, "offset", path FROM {FENCE} WHERE {_ROW}'
_WRITTEN = f'SELECT source, "partition", generation, timeline, "offset", path FROM {FENCE} WHERE job = ? AND sink = ?'


class ImmediateSQLiteTarget:
    """One owner's connection to the file. See immediate.ImmediateTarget."""

    def __init__(self, sink: SQLiteTable, owner: Owner, fault: Fault = no_fault) -> None:
        self._sink, self._owner, self._fault = sink, owner, fault
        self._where = f"{sink.where}, sink {owner.sink!r}"
        self._file = _Connection(sink, owner.job_uuid, Writer(owner.sink, Subtask(0)))
        self._reached: dict[Origin, int] = {}
        """Per partition, the offset of the last write that is known to be in."""

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """See ImmediateTarget.fence."""
        owner = self._owner
        with self._file.session() as db:
            begin(db, self._sink.path, BUSY_TIMEOUT_MS)
            for origin, start in sorted(starts.items()):
                row = (*self._row(origin), owner.generation, owner.timeline, start, owner.path)
                if db.execute(_TAKE_OVER, row).rowcount != 1:
                    raise self._refused(db, origin)
            sqlite_owners.take_over(db, self._where, owner.job_uuid, owner.sink, owner.claim)
            db.execute("COMMIT")

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        """See ImmediateTarget.write."""
        assert self._sink.key is not None, "checked when the job was planned"
        rows = last_per_key(pa.Table.from_batches(batches), self._sink.key)
        with self._file.session() as db:
            self._file.load(db, rows.to_batches())
            self._fault("before_begin")
            begin(db, self._sink.path, BUSY_TIMEOUT_MS)
            moved = (offset, *self._row(origin), self._owner.generation, self._reached.get(origin, 0))
            if db.execute(_MOVE, moved).rowcount != 1:
                raise self._refused(db, origin)
            self._check_owner(db)
            self._fault("after_tag")
            self._refuse_elsewhere(db, origin)
            deleted = self._apply(db, origin, immediate_tag(self._owner, origin, offset))
            self._fault("before_commit")
            db.execute("COMMIT")
            self._fault("after_commit")
            self._reached[origin] = max(offset, self._reached.get(origin, 0))
            return deleted

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        """See ImmediateTarget.forget."""
        left = False
        with self._file.session() as db:
            begin(db, self._sink.path, BUSY_TIMEOUT_MS)
            self._check_owner(db)
            for origin, offset in sorted(committed.items()):
                prefix, through = self._prefix(origin), immediate_tag(self._owner, origin, offset)
                db.execute(f"DELETE FROM main.{TOMBSTONE} WHERE tag BETWEEN ? AND ?", (prefix, through))
                left = left or db.execute(_BURIED, (prefix, after_all(prefix))).fetchone() is not None
            db.execute("COMMIT")
        return left

    def close(self) -> None:
        """See ImmediateTarget.close."""
        self._file.close()

    def _row(self, origin: Origin) -> tuple[str, str, str, int]:
        return self._owner.job_uuid, self._owner.sink, origin.source, origin.partition

    def _prefix(self, origin: Origin) -> str:
        return origin_prefix(self._owner.job_uuid, self._owner.sink, origin)

    def _check_owner(self, db: sqlite3.Connection) -> None:
        owner = self._owner
        sqlite_owners.check(db, self._where, owner.job_uuid, owner.sink, owner.claim)

    def _refused(self, db: sqlite3.Connection, origin: Origin) -> Exception:
        self._check_owner(db)
        row = db.execute(_STANDING, self._row(origin)).fetchone()
        standing = None
        if row is not None:
            standing = Written(origin, Generation(row[0]), Timeline(row[1]), row[2], row[3])
        return refused_write(self._where, self._owner, origin, standing, self._reached.get(origin, 0))

    def _refuse_elsewhere(self, db: sqlite3.Connection, origin: Origin) -> None:
        """Look for keys whose row or tombstone carries a tag of this job with another origin."""
        key, prefix = self._sink.key or (), self._prefix(origin)
        same = " AND ".join(f"t.{quoted(name)} = i.{quoted(name)}" for name in key)
        ours = (f"{self._owner.job_uuid}/", after_all(f"{self._owner.job_uuid}/"), prefix, after_all(prefix))
        ask = "{0} BETWEEN ? AND ? AND {0} NOT BETWEEN ? AND ? LIMIT 1"
        found = db.execute(
            f"SELECT {json_object('i', key)}, t.{TAG_COLUMN} FROM {INCOMING} i JOIN main.{quoted(self._sink.table)} t "
            f"ON {same} WHERE {ask.format('t.' + TAG_COLUMN)}",
            ours,
        ).fetchone()
        if found is None:
            found = db.execute(
                f'SELECT d."key", d.tag FROM {INCOMING} i JOIN main.{TOMBSTONE} d '
                f'ON d."table" = ? AND d."key" = {json_object("i", key)} WHERE {ask.format("d.tag")}',
                (self._row_tags(origin).named, *ours),
            ).fetchone()
        if found is not None:
            raise elsewhere(self._where, origin, *found)

    def _apply(self, db: sqlite3.Connection, origin: Origin, tag: str) -> int:
        """Apply what is newer; return how many keys are deleted."""
        table, key, row_tags = quoted(self._sink.table), listed(self._sink.key or ()), self._row_tags(origin)
        row_tags.leave_out(db, tag, after_all(self._prefix(origin)))
        row_tags.bury_as(db, tag)
        gone = f"SELECT {key} FROM {INCOMING} WHERE {OP} = {DELETE}"
        db.execute(f"DELETE FROM main.{table} WHERE ({key}) IN ({gone})")
        names = self._file.columns
        values = [*(quoted(name) for name in names if name not in (self._sink.key or ())), TAG_COLUMN]
        db.execute(
            f"INSERT INTO main.{table} ({listed(names)}, {TAG_COLUMN}) SELECT {listed(names)}, ? FROM {INCOMING} "
            f"WHERE {OP} = {PUT} ORDER BY {key} "
            f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{v} = excluded.{v}' for v in values)}",
            (tag,),
        )
        deletes: int = db.execute(f"SELECT count(*) FROM {INCOMING} WHERE {OP} = {DELETE}").fetchone()[0]
        return deletes

    def _row_tags(self, origin: Origin) -> RowTags:
        who = Writer(self._owner.sink, Subtask(origin.partition))
        return RowTags(self._sink.table, self._sink.key or (), INCOMING, self._owner.job_uuid, who)


class _Connection(SQLiteTarget):
    """The connection of a delivery, and its temporary table."""

    def session(self) -> AbstractContextManager[sqlite3.Connection]:
        """Lend the connection; whatever is raised meanwhile drops it, and so rolls back."""
        return self._session()

    def load(self, db: sqlite3.Connection, batches: Iterable[pa.RecordBatch]) -> None:
        """Fill the temporary table."""
        self._load(db, INCOMING, batches)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the stream's columns, as the table has them."""
        return self._columns


def refuse_fenced(sink: SQLiteTable, job_uuid: str | None, name: str) -> None:
    """Refuse to write a table at the commit that this sink of this job has written immediately.

    Raises:
        ConfigError: it has.
    """
    with translated(sink.where), closing(connect(sink.path, "rw")) as db:
        there = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (FENCE,)).fetchone()
        if there and db.execute(_WRITTEN, (job_uuid or "", name)).fetchone():
            raise other_mode(sink.where, name, "immediately", "at each commit")


def refuse_delivered(sink: SQLiteTable, job_uuid: str | None, name: str) -> None:
    """Refuse to write a table immediately that this sink of this job has written at the commit.

    Raises:
        ConfigError: it has.
    """
    with translated(sink.where), closing(connect(sink.path, "rw")) as db:
        used = f"SELECT 1 FROM {tags.PROGRESS} WHERE job = ? AND sink = ? LIMIT 1"
        if db.execute(used, (job_uuid or "", name)).fetchone():
            raise other_mode(sink.where, name, "at each commit", "immediately")


def create_fence(sink: SQLiteTable) -> None:
    """Create the table of fences where it is missing."""
    with translated(sink.where), closing(connect(sink.path, "rw")) as db:
        db.execute(CREATE_FENCE)


def written(sink: SQLiteTable, job_uuid: str, name: str) -> tuple[Written, ...]:
    """See ImmediateSink.written."""
    with translated(sink.where), closing(connect(sink.path, "rw")) as db:
        return tuple(
            Written(Origin(source, partition), Generation(generation), Timeline(timeline), offset, path)
            for source, partition, generation, timeline, offset, path in db.execute(_WRITTEN, (job_uuid, name))
        )


def other_mode(where: str, sink: str, before: str, now: str) -> ConfigError:
    """Return the error for a sink that is to be written at another moment than until now."""
    return ConfigError(
        f"{where}: sink {sink!r} of this job was written {before} until now, and would be written {now}; "
        "the tags of the two do not compare",
        not_done="the job was not started, the table was not changed",
        next_step="take back the change of partitioned_by, of the log's key or of the steps before the sink; "
        "or give the sink another name and another table",
    )
