"""Taking deliveries to a table back, up to the base epoch of a rewind: one transaction.

The tags of all writers move first, to the new timeline and the base epoch. This fences every later writer of an older
timeline, including one that never delivered before. Then every row changed since is restored from the before-images,
and the images are dropped, in the same transaction. A plan gathers the same in a reading transaction and changes
nothing but a temporary table of its own connection.

Rows that were added to a table without a key are deleted by their numbers, if the digests recorded with them show
that they are unchanged. If not, another process changed them or the database renumbered them; which rows are the job's
is no longer known, and nothing is deleted.

Invariants
    - Rows, tags and before-images change together or not at all.
    - Nothing is taken back unless everything after the base epoch can be: a horizon past it refuses the repair, and
      so does output in another table (moved.py).
    - Repeated, a repair changes nothing: no tag moves.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P17, P21; docs/decisions/0011-repairing-outputs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Tag, Timeline, Writer
from holdfast.sinks.contract.sink import Repair, Rewinding, Verdict
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.protocol.undo import (
    SAMPLE_MAX,
    RowChange,
    dropped,
    impossible,
    overtaken,
    refused,
    take_back,
    untouched,
)
from holdfast.sinks.sql import claims, moved, owners, tags
from holdfast.sinks.sql.added import AddedRange, digest, range_of
from holdfast.sinks.sql.dialect import Column, Missing, TemporaryTable, translated
from holdfast.sinks.sql.keyed import change
from holdfast.sinks.sql.row_tags import GONE, LAST_TAG, LAST_WRITER, bury_repaired, changed_by_others, row_tag
from holdfast.sinks.sql.session import Given, Session
from holdfast.sinks.sql.table import DatabaseTable, SqlTable, stored
from holdfast.sinks.sql.values import Value, from_json

RESTORED = "holdfast_restored"
"""The temporary table of the rows that a repair restores: key and other columns of each, `GONE`, `LAST_TAG` and
`LAST_WRITER`."""
_BEFORE_ALL = Tag(Timeline(-1), Epoch(0))


def create_horizon(s: Session) -> None:
    """Create the table of horizons if it is missing; deliveries of an earlier version lie beyond them."""
    if not s.has(tags.HORIZON):
        s.execute(tags.create_horizon(s.dialect))
        tags.adopt_horizon(s)


def plan_repair(sink: SqlTable, rewinding: Rewinding, schema: pa.Schema) -> Repair:
    """See Repairs.plan_repair."""
    with _opened(sink, rewinding, schema) as undoing:
        s = undoing.s
        s.dialect.begin_read(s.db)
        owners.check(s, sink.where, rewinding.job_uuid, rewinding.sink, rewinding.claim)
        claims.check(s, sink, sink.where, (rewinding.job_uuid, rewinding.sink), rewinding.claim)
        standing = undoing.standing()
        if all(standing.get(writer, _BEFORE_ALL) >= rewinding.to for writer in undoing.writers(standing)):
            return untouched(undoing.verdict, rewinding)
        found, _ = undoing.gathered()
        return found


def repair(sink: SqlTable, rewinding: Rewinding, schema: pa.Schema, fault: Fault = no_fault) -> Repair:
    """See Repairs.repair."""
    with _opened(sink, rewinding, schema) as undoing:
        s = undoing.s
        fault("before_begin")
        s.dialect.begin_write(s.db)
        owners.take_over(s, sink.where, rewinding.job_uuid, rewinding.sink, rewinding.claim)
        claims.take(s, sink, sink.where, (rewinding.job_uuid, rewinding.sink), rewinding.claim)
        writers = undoing.writers(undoing.standing())
        rows = [tags.tag_row(rewinding.job_uuid, writer, rewinding.to) for writer in writers]
        moved = [tags.advance(s, row) for row in rows]
        fault("after_tag")
        if not any(moved):
            s.commit()  # The owner may be new.
            return untouched(undoing.verdict, rewinding)
        repair_plan, take = undoing.gathered()
        if repair_plan.verdict == "impossible":
            raise refused(sink.where, repair_plan.reason)
        take()
        fault("before_commit")
        s.commit()
        fault("after_commit")
        return repair_plan


@dataclass(frozen=True)
class _Undoing:
    """One rewind of one table, within one transaction."""

    s: Session
    sink: SqlTable
    table: DatabaseTable
    rewinding: Rewinding

    @property
    def verdict(self) -> Verdict:
        return "overwrite" if self.table.key else "truncate"

    def standing(self) -> dict[Writer, Tag]:
        """Return the tags of the writers that have one. Raises Fenced."""
        to = self.rewinding
        tag_by_subtask = tags.of_all_writers(self.s, tags.PROGRESS, to.job_uuid, to.sink)
        newest = max(tag_by_subtask.values(), default=to.to)
        if newest.timeline > to.to.timeline:
            raise overtaken(self.sink.where, newest, to)
        return {Writer(to.sink, subtask): tag for subtask, tag in tag_by_subtask.items()}

    def writers(self, standing: dict[Writer, Tag]) -> list[Writer]:
        return sorted({*standing, *self.rewinding.writers}, key=lambda writer: writer.subtask)

    def gathered(self) -> tuple[Repair, Callable[[], None]]:
        """Return the repair, and the function that carries it out."""
        s = self.s
        if not s.has(tags.HORIZON):
            reason = "an earlier version wrote it, and did not note which before-images it dropped; run the job once"
            return impossible(reason, takes_more=False), _nothing
        params = s.given()
        lost_epoch = s.execute(
            f"SELECT max(epoch) FROM {s.own(tags.HORIZON)} WHERE {self._ours(params)} AND {self._undone(params)}",
            params,
        ).fetchone()[0]
        if lost_epoch is not None:
            return impossible(dropped(lost_epoch, self.rewinding)), _nothing
        params = s.given()
        undone = f"{self._ours(params)} AND {self._undone(params)}"
        if (left := moved.left_elsewhere(s, self.sink, self.rewinding, params, undone)) is not None:
            return impossible(left), _nothing
        return self._gathered_rows() if self.table.key else self._gathered_ranges()

    def _gathered_ranges(self) -> tuple[Repair, Callable[[], None]]:
        s, table, params = self.s, self.table, self.s.given()
        images = s.execute(
            f"SELECT {s.quoted('key')} FROM {s.own(tags.UNDO)} WHERE {self._ours(params)} AND {self._undone(params)} "
            f"ORDER BY {s.dialect.row_order} DESC",
            params,
        )
        ranges = [range_of(image) for (image,) in images]
        number = s.dialect.row_number(s.db, self.sink.table)
        others = [r for r in ranges if number is None or digest(s, table, number, r.first, r.last) != r.xxh3]
        if others:
            count = sum(map(len, others))
            reason = (
                f"of the rows that were added since, {count} are in ranges where another process changed, deleted or "
                f"renumbered rows{s.dialect.renumbered_by}; which rows are the job's is no longer known"
            )
            return Repair("impossible", 0, 0, count, _places(others), reason), _nothing

        def take() -> None:
            mark = s.dialect.mark
            delete = f"DELETE FROM {table.name} WHERE {number} BETWEEN {mark(1)} AND {mark(2)}"
            s.db.executemany(delete, [(added.first, added.last) for added in ranges])
            self._drop_images()

        reason = f"rows added after epoch {self.rewinding.to.epoch} are removed"
        return Repair("truncate", 0, sum(map(len, ranges)), 0, _places(ranges), reason), take

    def _gathered_rows(self) -> tuple[Repair, Callable[[], None]]:
        s, table, table_name = self.s, self.table, self.sink.table
        restored_rows, rewritten = self._fill_restored()
        gone_column, same = s.quoted(GONE), s.same("t", "r", table.key_names)
        restore = s.execute(f"SELECT count(*) FROM {restored_rows} WHERE {gone_column} = 0").fetchone()[0]
        delete = s.execute(
            f"SELECT count(*) FROM {restored_rows} r JOIN {table.name} t ON {same} WHERE r.{gone_column} = 1"
        ).fetchone()[0]
        others = changed_by_others(s, table, table_name, restored_rows) if self.sink.tags_rows else None
        key = s.dialect.row_json("r", table.key)
        sample = s.execute(f"SELECT {key} FROM {restored_rows} r LIMIT {SAMPLE_MAX}").fetchall()

        def take() -> None:
            carried = row_tag(self.rewinding.job_uuid, self.rewinding.to) if self.sink.tags_rows else None
            if carried is not None:
                bury_repaired(s, table, table_name, restored_rows, carried, self.rewinding.sink)
            change(s, table, restored_rows, f"{gone_column} = 1", f"{gone_column} = 0", carried)
            mark, place = s.dialect.mark, s.dialect.row_order
            update = f"UPDATE {s.own(tags.UNDO)} SET {s.quoted('before')} = {mark(1)} WHERE {place} = {mark(2)}"
            s.db.executemany(update, rewritten)
            self._drop_images()

        reason = f"rows get back their values as of epoch {self.rewinding.to.epoch}"
        return Repair("overwrite", restore, delete, others, tuple(from_json(text) for (text,) in sample), reason), take

    def _fill_restored(self) -> tuple[str, list[tuple[str | None, int]]]:
        """Put every row that has to change into a temporary table.

        The order of changes is that in which they came, by the order of their images; epochs of writers may be ahead of
        each other.

        Returns:
            The table, as SQL names it; and the images that stay and have to change, each with its place.
        """
        s, rewritten = self.s, list[tuple[str | None, int]]()
        columns = (
            *(*self.table.key, *self.table.values),
            *(Column(GONE, "INTEGER"), Column(LAST_TAG, s.dialect.tag_type), Column(LAST_WRITER, "INTEGER")),
        )
        restored_rows = TemporaryTable(s.dialect.temporary(RESTORED), columns, self.table.key_names)
        s.dialect.create_temporary(s.db, restored_rows)
        names = self.table.key_names + tuple(column.name for column in self.table.values)
        images = self._changes()

        def rows() -> Iterator[tuple[Value, ...]]:
            for text, changes in groupby(images, key=itemgetter(0)):
                reversal = take_back(
                    RowChange((place, writer, Tag(timeline, epoch)), before, bool(undone))
                    for _, place, writer, timeline, epoch, before, undone in changes
                )
                rewritten.extend((before, place) for (place, _, _), before in reversal.rewritten)
                if reversal.last is None:
                    continue
                row = {**from_json(text), **(from_json(reversal.before) if reversal.before is not None else {})}
                if reversal.before is not None and set(row) != set(names):
                    raise _other_columns(self.sink, set(row), set(names))
                _, writer, last = reversal.last
                tag = row_tag(self.rewinding.job_uuid, last)
                yield (*(row.get(name) for name in names), int(reversal.before is None), tag, writer)

        s.dialect.load(s.db, restored_rows, rows())
        return restored_rows.name, rewritten

    def _changes(self) -> Iterator[tuple[str, int, int, Timeline, Epoch, str | None, bool]]:
        """Read the images of all keys that the rewind changes: those of a key together, oldest first."""
        s, params = self.s, self.s.given()
        key, before, order, undo = s.quoted("key"), s.quoted("before"), s.dialect.row_order, s.own(tags.UNDO)
        undone = f"CASE WHEN {self._undone(params)} THEN 1 ELSE 0 END"
        return iter(
            s.execute(
                f"SELECT {key}, {order}, writer, timeline, epoch, {before}, {undone} FROM {undo} "
                f"WHERE {self._ours(params)} AND {moved.of_this(s, params, self.sink)} AND {key} IN "
                f"(SELECT {key} FROM {undo} WHERE {self._ours(params)} AND {self._undone(params)}) "
                f"ORDER BY {key}, {order}",
                params,
            )
        )

    def _drop_images(self) -> None:
        given = self.s.given()
        images = f"{self._ours(given)} AND {self._undone(given)}"
        self.s.execute(f"DELETE FROM {self.s.own(tags.UNDO)} WHERE {images}", given)

    def _ours(self, given: Given) -> str:
        return tags.of_sink(given, self.rewinding.job_uuid, self.rewinding.sink)

    def _undone(self, given: Given) -> str:
        return f"timeline < {given(self.rewinding.to.timeline)} AND epoch > {given(self.rewinding.to.epoch)}"


@contextmanager
def _opened(sink: SqlTable, rewinding: Rewinding, schema: pa.Schema) -> Iterator[_Undoing]:
    """Lend a connection to a place that has our tables and the user's; uncommitted changes are rolled back."""
    dialect = sink.dialect
    try:
        dialect.identity()
    except Missing as missing:
        raise _missing(sink, f"{missing.what}; it existed") from missing
    with translated(dialect, sink.where), closing(dialect.connect("read")) as db:
        s = Session(dialect, db)
        if not (s.has(tags.PROGRESS) and s.has(tags.UNDO)):
            raise _missing(sink, f"the {dialect.place} has no tables of Holdfast; they existed")
        table = stored(s, sink)
        if table is None:
            raise _missing(sink, "the table is missing; it existed")
        if set(table.names) != set(schema.names):
            raise _other_columns(sink, set(table.names), set(schema.names))
        yield _Undoing(s, sink, table, rewinding)


def _places(ranges: list[AddedRange]) -> tuple[dict[str, int], ...]:
    return tuple({"first_rowid": added.first, "last_rowid": added.last} for added in ranges[:SAMPLE_MAX])


def _nothing() -> None:
    """An impossible repair does nothing."""


def _missing(sink: SqlTable, what: str) -> ConfigError:
    return ConfigError(
        f"{sink.where}: {what} when the job ran",
        not_done="the rewind did not change it",
        next_step="restore the missing tables, or start the job, which recreates it; then rewind",
    )


def _other_columns(sink: SqlTable, found: set[str], expected: set[str]) -> ConfigError:
    return ConfigError(
        f"{sink.where}: has or had the columns {sorted(found)}, the job has {sorted(expected)}",
        not_done="the rewind did not change it",
        next_step="rewind with the version of the job that wrote to it",
    )
