"""Taking deliveries to a SQLite table back, up to the base epoch of a rewind: one transaction.

The tags of all writers move first, to the new timeline and the base epoch, which fences every later writer of an older
timeline, including one that never delivered before. Then every row changed since is restored from the before-images,
and the images are dropped, in the same transaction. A plan gathers the same in a reading transaction and changes
nothing but a temporary table of its own connection.

Rows that were added to a table without a key are deleted by their rowids, if the digests recorded with them show
that they are unchanged. If not, another process changed them or VACUUM renumbered the table; which rows are the job's
is no longer known, and nothing is deleted.

Invariants
    - Rows, tags and before-images change together or not at all.
    - Nothing is taken back unless everything after the base epoch can be: a horizon past it refuses the repair.
    - Done again, nothing changes: no tag moves.

Source: PROTOCOL P17, P21; docs/design/0011-repairing-outputs.md.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract import Fault, Repair, Rewinding, Verdict, no_fault
from holdfast.sinks.sql import tags
from holdfast.sinks.sql.values import Value, from_json
from holdfast.sinks.sqlite import owners as sqlite_owners
from holdfast.sinks.sqlite.added import AddedRange, digest, range_of, rowid_of
from holdfast.sinks.sqlite.file import BUSY_TIMEOUT_MS, connect, json_object, listed, quoted, table_columns, translated
from holdfast.sinks.sqlite.queue import begin
from holdfast.sinks.sqlite.rows import (
    GONE,
    LAST_TAG,
    LAST_WRITER,
    RESTORED,
    TAG_COLUMN,
    bury_repaired,
    changed_by_others,
    row_tag,
)
from holdfast.sinks.undo import SAMPLE_MAX, Change, dropped, impossible, overtaken, refused, take_back, untouched

_UNDONE = "timeline < ? AND epoch > ?"
_OURS = "job = ? AND sink = ?"


@dataclass(frozen=True)
class RepairedTable:
    """The table of a sink.

    Args:
        where: How messages name it.
        path: The file.
        table: Its name.
        columns: Those of the stream.
        key: The sink's key; None: rows are only added.
        tags_rows: Whether every row carries its tag.
    """

    where: str
    path: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...] | None
    tags_rows: bool


def create_horizon(db: sqlite3.Connection) -> None:
    """Create the table of horizons if it is missing; what an earlier version delivered lies beyond them."""
    if not _has_table(db, tags.HORIZON):
        db.execute(tags.CREATE_HORIZON)
        db.execute(tags.adopt_horizon())


def plan_repair(table: RepairedTable, rewinding: Rewinding) -> Repair:
    """See RepairableSink.plan_repair."""
    with _opened(table, "rw") as db:
        db.execute("BEGIN")
        sqlite_owners.check(db, table.where, *_ours(rewinding), rewinding.claim)
        standing = _standing(db, table, rewinding)
        if all(standing.get(writer, _BEFORE_ALL) >= rewinding.to for writer in _writers(standing, rewinding)):
            return untouched(_verdict(table), rewinding)
        found, _ = _gathered(db, table, rewinding)
        return found


def repair(table: RepairedTable, rewinding: Rewinding, fault: Fault = no_fault) -> Repair:
    """See RepairableSink.repair."""
    with _opened(table, "rw") as db:
        fault("before_begin")
        begin(db, table.path, BUSY_TIMEOUT_MS)
        sqlite_owners.take_over(db, table.where, *_ours(rewinding), rewinding.claim)
        writers = _writers(_standing(db, table, rewinding), rewinding)
        moved = sum(_moves(db, rewinding, writer) for writer in writers)
        fault("after_tag")
        if not moved:
            db.execute("COMMIT")  # The owner may be new.
            return untouched(_verdict(table), rewinding)
        found, take = _gathered(db, table, rewinding)
        if found.verdict == "impossible":
            raise refused(table.where, found.reason)
        take()
        fault("before_commit")
        db.execute("COMMIT")
        fault("after_commit")
        return found


_BEFORE_ALL = Tag(Timeline(-1), Epoch(0))


def _moves(db: sqlite3.Connection, rewinding: Rewinding, writer: Writer) -> int:
    return db.execute(tags.advance(), tags.tag_row(rewinding.job_uuid, writer, rewinding.to)).rowcount


def _standing(db: sqlite3.Connection, table: RepairedTable, rewinding: Rewinding) -> dict[Writer, Tag]:
    """Return the tags of the writers that have one. Raises Fenced."""
    rows = db.execute(f"SELECT writer, timeline, epoch FROM {tags.PROGRESS} WHERE {_OURS}", _ours(rewinding))
    standing = {Writer(rewinding.sink, Subtask(w)): Tag(Timeline(t), Epoch(e)) for w, t, e in rows}
    newest = max(standing.values(), default=rewinding.to)
    if newest.timeline > rewinding.to.timeline:
        raise overtaken(table.where, newest, rewinding)
    return standing


def _writers(standing: dict[Writer, Tag], rewinding: Rewinding) -> list[Writer]:
    return sorted({*standing, *rewinding.writers}, key=lambda writer: writer.subtask)


def _gathered(db: sqlite3.Connection, table: RepairedTable, rewinding: Rewinding) -> tuple[Repair, Callable[[], None]]:
    """Return what is to be done, and what does it."""
    if not _has_table(db, tags.HORIZON):
        reason = "an earlier version wrote it, and did not note which before-images it dropped; run the job once"
        return impossible(reason, takes_more=False), _nothing
    lost = db.execute(
        f"SELECT max(epoch) FROM {tags.HORIZON} WHERE {_OURS} AND {_UNDONE}", (*_ours(rewinding), *_beyond(rewinding))
    ).fetchone()[0]
    if lost is not None:
        return impossible(dropped(lost, rewinding)), _nothing
    if table.key is None:
        return _gathered_ranges(db, table, rewinding)
    return _gathered_rows(db, table, table.key, rewinding)


def _gathered_ranges(
    db: sqlite3.Connection, table: RepairedTable, rewinding: Rewinding
) -> tuple[Repair, Callable[[], None]]:
    images = db.execute(
        f'SELECT "key" FROM {tags.UNDO} WHERE {_OURS} AND {_UNDONE} ORDER BY rowid DESC',
        (*_ours(rewinding), *_beyond(rewinding)),
    )
    ranges = [range_of(image) for (image,) in images]
    rowid = rowid_of(db, table.table)
    others = [r for r in ranges if rowid is None or not _is_intact(db, table, rowid, r)]
    if others:
        count = sum(map(len, others))
        reason = (
            f"of the rows that were added since, {count} are among some that others changed, deleted or numbered anew "
            "(VACUUM does); which are the job's cannot be told any more"
        )
        return Repair("impossible", 0, 0, count, _places(others), reason), _nothing

    def take() -> None:
        delete = f"DELETE FROM main.{quoted(table.table)} WHERE {rowid} BETWEEN ? AND ?"
        db.executemany(delete, [(added.first, added.last) for added in ranges])
        _drop_images(db, rewinding)

    reason = f"rows added after epoch {rewinding.to.epoch} are removed"
    return Repair("truncate", 0, sum(map(len, ranges)), 0, _places(ranges), reason), take


def _gathered_rows(
    db: sqlite3.Connection, table: RepairedTable, key: tuple[str, ...], rewinding: Rewinding
) -> tuple[Repair, Callable[[], None]]:
    values = tuple(name for name in table.columns if name not in key)
    rewritten = _fill_restored(db, table, key, values, rewinding)
    named, same = f"main.{quoted(table.table)}", " AND ".join(f"t.{quoted(n)} = r.{quoted(n)}" for n in key)
    restore = db.execute(f"SELECT count(*) FROM {RESTORED} WHERE {GONE} = 0").fetchone()[0]
    delete = db.execute(f"SELECT count(*) FROM {RESTORED} r JOIN {named} t ON {same} WHERE r.{GONE} = 1").fetchone()[0]
    others = changed_by_others(db, table.table, key) if table.tags_rows else None
    sample = db.execute(f"SELECT {json_object('r', key)} FROM {RESTORED} r LIMIT {SAMPLE_MAX}").fetchall()

    def take() -> None:
        gone = f"SELECT {listed(key)} FROM {RESTORED} WHERE {GONE} = 1"
        db.execute(f"DELETE FROM {named} WHERE ({listed(key)}) IN ({gone})")
        replaced, into, from_ = list(values), listed(table.columns), listed(table.columns)
        given: tuple[str, ...] = ()
        if table.tags_rows:
            standing = row_tag(rewinding.job_uuid, rewinding.to)
            bury_repaired(db, table.table, key, standing, rewinding.sink)
            replaced, into, from_, given = [*values, TAG_COLUMN], f"{into}, {TAG_COLUMN}", f"{from_}, ?", (standing,)
        sets = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in replaced)
        db.execute(
            f"INSERT INTO {named} ({into}) SELECT {from_} FROM {RESTORED} WHERE {GONE} = 0 "
            f"ON CONFLICT ({listed(key)}) {f'DO UPDATE SET {sets}' if sets else 'DO NOTHING'}",
            given,
        )
        db.executemany(f'UPDATE {tags.UNDO} SET "before" = ? WHERE rowid = ?', rewritten)
        _drop_images(db, rewinding)

    reason = f"rows get back what they held after epoch {rewinding.to.epoch}"
    return Repair("overwrite", restore, delete, others, tuple(from_json(text) for (text,) in sample), reason), take


def _fill_restored(
    db: sqlite3.Connection, table: RepairedTable, key: tuple[str, ...], values: tuple[str, ...], rewinding: Rewinding
) -> list[tuple[str | None, int]]:
    """Put every row that has to change into the temporary table; return the images that stay and have to change.

    The order of changes is that in which they came, by rowid of their images; epochs of writers may be ahead of
    each other.
    """
    declared = {name: kind for name, kind, _ in table_columns(db, table.table)}
    columns = [f"{quoted(name)} {declared[name]}" for name in (*key, *values)]
    columns += [f"{GONE} INTEGER NOT NULL", f"{LAST_TAG} TEXT NOT NULL", f"{LAST_WRITER} INTEGER NOT NULL"]
    columns.append(f"PRIMARY KEY ({listed(key)})")
    db.execute(f"CREATE TABLE {RESTORED} ({', '.join(columns)}) WITHOUT ROWID")
    images = db.execute(
        f'SELECT "key", rowid, writer, timeline, epoch, "before", {_UNDONE} FROM {tags.UNDO} WHERE {_OURS} '
        f'AND "key" IN (SELECT "key" FROM {tags.UNDO} WHERE {_OURS} AND {_UNDONE}) ORDER BY "key", rowid',
        (*_beyond(rewinding), *_ours(rewinding), *_ours(rewinding), *_beyond(rewinding)),
    )
    rewritten: list[tuple[str | None, int]] = []

    def rows() -> Iterator[tuple[Value, ...]]:
        for text, changes in groupby(images, key=itemgetter(0)):
            taken = take_back(
                Change((rowid, writer, Tag(timeline, epoch)), before, bool(undone))
                for _, rowid, writer, timeline, epoch, before, undone in changes
            )
            rewritten.extend((before, rowid) for (rowid, _, _), before in taken.rewritten)
            if taken.last is None:
                continue
            row = {**from_json(text), **(from_json(taken.before) if taken.before is not None else {})}
            if taken.before is not None and set(row) != {*key, *values}:
                raise _other_columns(table, set(row))
            _, writer, last = taken.last
            tag = row_tag(rewinding.job_uuid, last)
            yield (*(row.get(name) for name in (*key, *values)), int(taken.before is None), tag, writer)

    marks = ", ".join("?" * (len(columns) - 1))
    db.executemany(f"INSERT INTO {RESTORED} VALUES ({marks})", rows())
    return rewritten


def _is_intact(db: sqlite3.Connection, table: RepairedTable, rowid: str, added: AddedRange) -> bool:
    return digest(db, table.table, table.columns, rowid, added.first, added.last) == added.xxh3


def _places(ranges: list[AddedRange]) -> tuple[dict[str, int], ...]:
    return tuple({"first_rowid": added.first, "last_rowid": added.last} for added in ranges[:SAMPLE_MAX])


def _drop_images(db: sqlite3.Connection, rewinding: Rewinding) -> None:
    db.execute(f"DELETE FROM {tags.UNDO} WHERE {_OURS} AND {_UNDONE}", (*_ours(rewinding), *_beyond(rewinding)))


def _ours(rewinding: Rewinding) -> tuple[str, str]:
    return rewinding.job_uuid, rewinding.sink


def _beyond(rewinding: Rewinding) -> tuple[int, int]:
    return rewinding.to.timeline, rewinding.to.epoch


def _verdict(table: RepairedTable) -> Verdict:
    return "truncate" if table.key is None else "overwrite"


def _nothing() -> None:
    """An impossible repair does nothing."""


@contextmanager
def _opened(table: RepairedTable, mode: str) -> Iterator[sqlite3.Connection]:
    """Lend a connection to a file that has our tables and the user's; what is not committed is undone."""
    if not os.path.exists(table.path):
        raise _not_there(table, "the file is not there")
    with translated(table.where), closing(connect(table.path, mode)) as db:
        if not (_has_table(db, tags.PROGRESS) and _has_table(db, tags.UNDO)):
            raise _not_there(table, "no job ever delivered to this file")
        found = {name for name, _, _ in table_columns(db, table.table)} - ({TAG_COLUMN} if table.tags_rows else set())
        if not found:
            raise _not_there(table, "the table is not there")
        if found != set(table.columns):
            raise _other_columns(table, found)
        yield db


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    found = db.execute("SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
    return found is not None


def _not_there(table: RepairedTable, what: str) -> ConfigError:
    return ConfigError(
        f"{table.where}: {what}; it was, when the job ran",
        not_done="the rewind did not change it",
        next_step="bring it back, or start the job so that it is made anew, then rewind",
    )


def _other_columns(table: RepairedTable, found: set[str]) -> ConfigError:
    return ConfigError(
        f"{table.where}: has or had the columns {sorted(found)}, the job has {sorted(table.columns)}",
        not_done="the rewind did not change it",
        next_step="rewind with the version of the job that wrote to it",
    )
