"""A SQL table that is written immediately: the fence of a partition, and rows with their tags, in one transaction.

The table `holdfast_fence` has one row per partition that a sink is written from: which generation owns it, how far the
partition had been read at the last write, and the identity of the code in between. The first statement of every write
moves that row, and only if it is still the writer's own; it also locks the row, so a writer that was overtaken
meanwhile changes nothing. Rows then apply by their tags alone (sinks/contract/immediate.py).

Rows are loaded into the temporary table of the connection before, as those of a delivery are; of every key only the
last is.

Invariants
    - Moving the fence's row is the first statement of a write's transaction; if it does not move, the transaction is
      rolled back.
    - Keys that belong to another partition are looked up in the same transaction, before anything is changed.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P22; docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Generation, Subtask, Timeline, Writer
from holdfast.sinks.contract.immediate import (
    ImmediateTarget,
    Origin,
    Owner,
    Written,
    after_all,
    elsewhere,
    immediate_tag,
    origin_prefix,
    refused_write,
)
from holdfast.sinks.contract.target import DELETE, OP, PUT, Fault, no_fault
from holdfast.sinks.protocol.staging import last_per_key
from holdfast.sinks.sql import claims, owners, tags
from holdfast.sinks.sql.connection import WriterConnection
from holdfast.sinks.sql.dialect import Dialect, Upsert, translated
from holdfast.sinks.sql.keyed import change
from holdfast.sinks.sql.row_tags import TOMBSTONE, RowTags
from holdfast.sinks.sql.session import Given, Session
from holdfast.sinks.sql.table import TAG_COLUMN, SqlTable

_KEY = ("job", "sink", "source", "partition")
_COLUMNS = (*_KEY, "generation", "timeline", "offset", "path")


def create_fence(dialect: Dialect) -> str:
    """Return the statement that creates the table of fences, unless it exists."""
    partition, offset = dialect.quoted("partition"), dialect.quoted("offset")
    return f"""\
CREATE TABLE IF NOT EXISTS {dialect.own(tags.FENCE)} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    source TEXT NOT NULL,
    {partition} BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    timeline BIGINT NOT NULL,
    {offset} BIGINT NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (job, sink, source, {partition})
)"""


class ImmediateSqlTarget(ImmediateTarget):
    """One owner's access to the table. See immediate.ImmediateTarget."""

    def __init__(self, sink: SqlTable, owner: Owner, fault: Fault = no_fault) -> None:
        self._sink, self._owner, self._fault = sink, owner, fault
        self._where = f"{sink.where}, sink {owner.sink!r}"
        self._connection = WriterConnection(sink, self._where)
        self._reached: dict[Origin, int] = {}
        """Per partition, the offset of the last write that is known to be in."""

    def fence(self, starts: Mapping[Origin, int]) -> None:
        owner = self._owner
        with self._connection.session() as s:
            s.dialect.begin_write(s.db)
            for origin, start in sorted(starts.items()):
                if not self._fenced(s, origin, start):
                    raise self._refused(s, origin)
            owners.take_over(s, self._where, owner.job_uuid, owner.sink, owner.claim)
            claims.take(s, self._sink, self._where, (owner.job_uuid, owner.sink), owner.claim)
            s.commit()

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        assert self._sink.key is not None, "checked when the job was planned"
        rows = last_per_key(pa.Table.from_batches(batches), self._sink.key)
        with self._connection.session() as s:
            self._connection.load(s, self._connection.incoming(), rows.to_batches())
            self._fault("before_begin")
            s.dialect.begin_write(s.db)
            if not self._moved(s, origin, offset):
                raise self._refused(s, origin)
            self._check_owner(s, hold=True)
            self._fault("after_tag")
            self._refuse_elsewhere(s, origin)
            delete_count = self._apply(s, origin, immediate_tag(self._owner, origin, offset))
            self._fault("before_commit")
            s.commit()
            self._fault("after_commit")
            self._reached[origin] = max(offset, self._reached.get(origin, 0))
            return delete_count

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        left = False
        with self._connection.session() as s:
            s.dialect.begin_write(s.db)
            self._check_owner(s, hold=True)
            for origin, offset in sorted(committed.items()):
                prefix, through = self._prefix(origin), immediate_tag(self._owner, origin, offset)
                params = s.given()
                s.execute(
                    f"DELETE FROM {s.own(TOMBSTONE)} WHERE tag BETWEEN {params(prefix)} AND {params(through)}", params
                )
                params = s.given()
                later = f"tag BETWEEN {params(prefix)} AND {params(after_all(prefix))}"
                buried = s.execute(f"SELECT 1 FROM {s.own(TOMBSTONE)} WHERE {later} LIMIT 1", params).fetchone()
                left = left or buried is not None
            s.commit()
        return left

    def close(self) -> None:
        self._connection.close()

    def _fenced(self, s: Session, origin: Origin, start: int) -> bool:
        """Take a partition over; return whether no newer generation owns it. In one timeline its offset stays."""
        owner, offset, params = self._owner, s.quoted("offset"), s.given()
        row = (*self._row(origin), owner.generation, owner.timeline, start, owner.path)
        sets = {name: f"excluded.{s.quoted(name)}" for name in ("generation", "timeline", "path")}
        sets["offset"] = f"CASE WHEN t.timeline = excluded.timeline THEN t.{offset} ELSE excluded.{offset} END"
        source, only_if = f"VALUES ({params(*row)})", "t.generation <= excluded.generation"
        put = Upsert(s.own(tags.FENCE), _COLUMNS, _KEY, source, params.values, sets, only_if)
        return s.dialect.upsert(s.db, put) == 1

    def _moved(self, s: Session, origin: Origin, offset: int) -> bool:
        """Move the fence's row to an offset, if it is still this owner's, with the values that it wrote."""
        params, column = s.given(), s.quoted("offset")
        update = s.execute(
            f"UPDATE {s.own(tags.FENCE)} SET {column} = CASE WHEN {column} > {params(offset)} THEN {column} "
            f"ELSE {params(offset)} END WHERE {self._at(s, params, origin)} "
            f"AND generation = {params(self._owner.generation)} AND {column} >= {params(self._reached.get(origin, 0))}",
            params,
        )
        return update.rowcount == 1

    def _row(self, origin: Origin) -> tuple[str, str, str, int]:
        return self._owner.job_uuid, self._owner.sink, origin.source, origin.partition

    def _at(self, s: Session, given: Given, origin: Origin) -> str:
        row = zip(_KEY, self._row(origin), strict=True)
        return " AND ".join(f"{s.quoted(name)} = {given(value)}" for name, value in row)

    def _prefix(self, origin: Origin) -> str:
        return origin_prefix(self._owner.job_uuid, self._owner.sink, origin)

    def _check_owner(self, s: Session, hold: bool = False) -> None:
        owner = self._owner
        owners.check(s, self._where, owner.job_uuid, owner.sink, owner.claim, hold)
        claims.check(s, self._sink, self._where, (owner.job_uuid, owner.sink), owner.claim, hold)

    def _refused(self, s: Session, origin: Origin) -> Exception:
        self._check_owner(s)
        params = s.given()
        row = s.execute(
            f"SELECT generation, timeline, {s.quoted('offset')}, path FROM {s.own(tags.FENCE)} "
            f"WHERE {self._at(s, params, origin)}",
            params,
        ).fetchone()
        standing = None
        if row is not None:
            standing = Written(origin, Generation(row[0]), Timeline(row[1]), row[2], row[3])
        return refused_write(self._where, self._owner, origin, standing, self._reached.get(origin, 0))

    def _refuse_elsewhere(self, s: Session, origin: Origin) -> None:
        """Look for keys whose row or tombstone carries a tag of this job with another origin."""
        table, incoming_table = self._connection.table, self._connection.incoming().name
        ours, prefix, key = f"{self._owner.job_uuid}/", self._prefix(origin), s.dialect.row_json("i", table.key)

        def strange(given: Given, tag: str) -> str:
            own, here = f"{given(ours)} AND {given(after_all(ours))}", f"{given(prefix)} AND {given(after_all(prefix))}"
            return f"{tag} BETWEEN {own} AND {tag} NOT BETWEEN {here} LIMIT 1"

        params, tag = s.given(), f"t.{s.quoted(TAG_COLUMN)}"
        conflict = s.execute(
            f"SELECT {key}, {tag} FROM {incoming_table} i JOIN {table.name} t ON {s.same('t', 'i', table.key_names)} "
            f"WHERE {strange(params, tag)}",
            params,
        ).fetchone()
        if conflict is None:
            params = s.given()
            conflict = s.execute(
                f"SELECT d.{s.quoted('key')}, d.tag FROM {incoming_table} i JOIN {s.own(TOMBSTONE)} d "
                f"ON d.{s.quoted('table')} = {params(self._row_tags(s, origin).named)} AND d.{s.quoted('key')} = {key} "
                f"WHERE {strange(params, 'd.tag')}",
                params,
            ).fetchone()
        if conflict is not None:
            raise elsewhere(self._where, origin, *conflict)

    def _apply(self, s: Session, origin: Origin, tag: str) -> int:
        """Apply newer rows; return how many keys are deleted."""
        row_tags, incoming_table = self._row_tags(s, origin), self._connection.incoming().name
        row_tags.leave_out(tag, after_all(self._prefix(origin)))
        row_tags.bury(tag)
        change(s, self._connection.table, incoming_table, f"{OP} = {DELETE}", f"{OP} = {PUT}", tag)
        deletes: int = s.execute(f"SELECT count(*) FROM {incoming_table} WHERE {OP} = {DELETE}").fetchone()[0]
        return deletes

    def _row_tags(self, s: Session, origin: Origin) -> RowTags:
        who = Writer(self._owner.sink, Subtask(origin.partition))
        loaded = self._connection.incoming().name
        return RowTags(s, self._connection.table, self._sink.table, loaded, self._owner.job_uuid, who)


def refuse_fenced(sink: SqlTable, job_uuid: str | None, name: str) -> None:
    """Refuse to write a table at the commit that this sink of this job has written immediately.

    Raises:
        ConfigError: it has.
    """
    with translated(sink.dialect, sink.where), closing(sink.dialect.connect("read")) as db:
        s = Session(sink.dialect, db)
        if s.has(tags.FENCE) and _fences(s, job_uuid or "", name):
            raise other_mode(sink.where, name, "immediately", "at each commit")


def refuse_delivered(sink: SqlTable, job_uuid: str | None, name: str) -> None:
    """Refuse to write a table immediately that this sink of this job has written at the commit.

    Raises:
        ConfigError: it has.
    """
    with translated(sink.dialect, sink.where), closing(sink.dialect.connect("read")) as db:
        if tags.newest(Session(sink.dialect, db), job_uuid or "", name) is not None:
            raise other_mode(sink.where, name, "at each commit", "immediately")


def prepare_fence(sink: SqlTable) -> None:
    """Create the table of fences where it is missing."""
    with translated(sink.dialect, sink.where), closing(sink.dialect.connect("read")) as db:
        sink.dialect.begin_schema(db)
        db.execute(create_fence(sink.dialect))
        db.execute("COMMIT")


def written(sink: SqlTable, job_uuid: str, name: str) -> tuple[Written, ...]:
    """See ImmediateSink.written."""
    with translated(sink.dialect, sink.where), closing(sink.dialect.connect("read")) as db:
        return _fences(Session(sink.dialect, db), job_uuid, name)


def _fences(s: Session, job_uuid: str, name: str) -> tuple[Written, ...]:
    params = s.given()
    rows = s.execute(
        f"SELECT source, {s.quoted('partition')}, generation, timeline, {s.quoted('offset')}, path "
        f"FROM {s.own(tags.FENCE)} WHERE {tags.of_sink(params, job_uuid, name)}",
        params,
    )
    return tuple(
        Written(Origin(source, partition), Generation(generation), Timeline(timeline), offset, path)
        for source, partition, generation, timeline, offset, path in rows
    )


def other_mode(where: str, sink: str, before: str, now: str) -> ConfigError:
    """Return the error for a sink that is to be written at another moment than until now."""
    return ConfigError(
        f"{where}: sink {sink!r} of this job was written {before} until now, and would be written {now}; "
        "the tags of the two do not compare",
        not_done="the job was not started, the table was not changed",
        next_step="undo the change of partitioned_by, of the log's key or of the steps before the sink; "
        "or give the sink another name and another table",
    )
