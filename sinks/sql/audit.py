"""The output of a job that a table holds, read back from the table and `holdfast_undo`.

Rows without a key: every delivery recorded the numbers of the rows it added; rows outside all of them are older output,
or written by others. Rows with a key: the row that a delivery wrote is the before-image of the next change of its key,
or the current row if no change followed. So every delivery that still has before-images can be reported.

In SQLite a read keeps deliveries out of the file, so the audit reads in short pieces; elsewhere one transaction reads
everything. It shows one moment either way: that of the tags, which are read first. Where it reads in pieces, later
deliveries are left out; where one changed a key, its first before-image holds the earlier row. A rewind or a
renumbering of rows between two pieces changes more than that, so the audit then starts over. Memory grows with the
number of keys reported.

Invariants
    - Where a read keeps deliveries out, no transaction reads more than one piece, or the deliveries since the others
      were read; the rows of a table with a key are counted in one.
    - Rows that another sink is known to have added to the table are not held against this one's.
    - Nothing is written; only the digest of the rows that lie there confirms the numbers of a before-image.

Pure: no clock, thread or I/O of its own.
Source: sinks/sql/target.py, sinks/sql/added.py; docs/decisions/0018-audit.md; PROTOCOL P21.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from holdfast.errors import Unavailable
from holdfast.model import Epoch, RowDigest, Subtask, Tag, Timeline
from holdfast.sinks.contract.audited import (
    AuditQuery,
    Delivery,
    ForeignValue,
    Gone,
    Others,
    TargetContents,
    batch_of,
    digest_of_changes,
    digest_of_rows,
)
from holdfast.sinks.sql import moved, tags
from holdfast.sinks.sql.added import AddedRange, range_in, range_of
from holdfast.sinks.sql.dialect import Column, Missing, translated
from holdfast.sinks.sql.session import Given, Session
from holdfast.sinks.sql.table import SqlTable
from holdfast.sinks.sql.values import from_json
from holdfast.storage.digests import whole
from holdfast.storage.rowhash import row_hashes

ROWS_AT_A_TIME = 10_000
KEYS_AT_A_TIME = 500
ROUNDS_MAX = 3
"""Attempts at an audit that a rewind or a renumbering interrupts."""
MISFIT_HASH = np.uint64(0)
"""Marks a row that has no hash, as it cannot be output of the job."""


Between = Callable[[], None]
"""Called before each piece is read, while the target is free."""


def _nothing() -> None:
    """Do nothing between two pieces."""


def contents(
    sink: SqlTable, query: AuditQuery, between: Between = _nothing, at_a_time: int = ROWS_AT_A_TIME
) -> TargetContents:
    """See Audits.contents."""
    try:
        sink.dialect.identity()
    except Missing as missing:
        raise Gone(f"{sink.where}: {missing.what}; it existed when the job ran") from missing
    try:
        with translated(sink.dialect, sink.where):
            return _contents(sink, query, between, at_a_time)
    except Unavailable as error:
        raise Unavailable(
            error.what,
            not_done="nothing of it was read",
            next_step=f"audit again; if this persists, find the process that locks the {sink.dialect.place}",
        ) from error


def _contents(sink: SqlTable, query: AuditQuery, between: Between, at_a_time: int) -> TargetContents:
    with closing(sink.dialect.connect("read")) as db:
        columns = {column.name: column for column in sink.dialect.columns(db, sink.table)}
        if missing := [name for name in query.schema.names if name not in columns]:
            raise Gone(f"{sink.where}: the table or its columns {missing} are missing; they existed when the job ran")
        of_stream = [columns[name] for name in query.schema.names]
        for _ in range(ROUNDS_MAX):
            s = Session(sink.dialect, db)
            reading = _Reading(s, sink, of_stream, query, between, at_a_time)
            with reading.whole():
                age = reading.age()
                found = reading.keyed(sink.key) if sink.key is not None else reading.added()
                if reading.age() == age:
                    return found
    renumbered = sink.dialect.renumbered_by
    raise Unavailable(
        f"{sink.where}: a rewind or a renumbering of rows{renumbered} interrupted the audit {ROUNDS_MAX} times",
        next_step="audit again",
    )


class _Image(NamedTuple):
    """A before-image: the row that a delivery found under a key, or the rows that it added."""

    delivery: Delivery
    key: str
    before: str | None


def _image(row: tuple[int, int, int, str, str | None]) -> _Image:
    writer, timeline, epoch, key, before = row
    return _Image((Subtask(writer), Tag(Timeline(timeline), Epoch(epoch))), key, before)


def _is_in(image: _Image, standing: Mapping[Subtask, Tag]) -> bool:
    """Return whether the writer had delivered it at that tag."""
    subtask, tag = image.delivery
    return subtask in standing and tag <= standing[subtask]


class _Strange(NamedTuple):
    """A sink, of this job or another one, that may add rows to the table too."""

    name: str
    ranges: tuple[AddedRange, ...]
    lost: bool
    """The rows that it added first are no longer known."""
    certain: bool
    """According to the plan, it writes to this table."""


class _Reading:
    """One look at one table."""

    def __init__(
        self, s: Session, sink: SqlTable, columns: list[Column], query: AuditQuery, between: Between, at_a_time: int
    ) -> None:
        self._s, self._sink, self._query, self._between, self._at_a_time = s, sink, query, between, at_a_time
        self._columns, self._names = columns, query.schema.names
        self._table, self._undo, self._order = s.dialect.table(sink.table), s.own(tags.UNDO), s.dialect.row_order
        self._ours = (query.job_uuid, query.sink)
        self._wrong: dict[Delivery, str] = {}

    def age(self) -> tuple[object, int | None]:
        """Return a value that changes if rows or their numbers change other than by a delivery."""
        numbering, given = self._s.dialect.numbering(self._s.db), self._s.given()
        timeline = f"SELECT max(timeline) FROM {self._s.own(tags.PROGRESS)} WHERE {tags.of_sink(given, *self._ours)}"
        return numbering, self._s.execute(timeline, given).fetchone()[0]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Read everything as of one moment, unless that keeps deliveries out; closing the connection ends it too."""
        if self._s.dialect.reads_in_pieces:
            yield
            return
        self._s.dialect.begin_read(self._s.db)
        yield
        self._s.commit()

    @contextmanager
    def _piece(self) -> Iterator[None]:
        """Read as of one moment, then let deliveries in, if reading keeps them out."""
        self._between()
        if not self._s.dialect.reads_in_pieces:
            yield
            return
        self._s.dialect.begin_read(self._s.db)
        yield
        self._s.commit()

    def keyed(self, key: tuple[str, ...]) -> TargetContents:
        """Go from the newest change of each key to the oldest that is reported."""
        standing = self._tags(tags.PROGRESS)
        images = [image for image in self._images() if _is_in(image, standing)]
        stands = self._rows(key, list(dict.fromkeys(image.key for image in images)))
        with self._piece():
            newer = [image for image in self._newer(standing) if not _is_in(image, standing)]
            lost_tags = self._lost()
            values_before = {image.key: image.before for image in reversed(newer)}  # the first change of a key counts
            there = self._count(key, list(values_before)) if self._query.everything else None
        unseen = (
            None
            if there is None
            else there
            + sum(before is not None for name, before in values_before.items() if name not in stands)
            - sum(row is not None for name, row in stands.items() if name not in values_before)
        )
        for image in reversed(newer):
            if image.key in stands:
                stands[image.key] = None if image.before is None else from_json(image.before)
        changes_by_delivery: defaultdict[Delivery, list[tuple[dict[str, Any], Any]]] = defaultdict(list)
        for image in images:
            changes_by_delivery[image.delivery].append((from_json(image.key), stands[image.key]))
            stands[image.key] = None if image.before is None else from_json(image.before)
        rows: dict[Delivery, RowDigest] = {}
        for delivery, changes in changes_by_delivery.items():
            keys, after = [name for name, _ in changes], [row for _, row in changes]
            upsert = self._query.upsert_key is not None
            try:
                rows[delivery] = digest_of_changes(keys, after, self._query.schema, key, upsert)
            except ForeignValue as misfit:
                self._wrong[delivery] = str(misfit)
        return TargetContents(standing, rows, lost_tags, self._wrong, unseen=unseen)

    def _count(self, key: tuple[str, ...], without: list[str]) -> int:
        """Return how many rows there are now, without those under these keys."""
        rows: int = self._s.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0]
        return rows - sum(self._row(key, from_json(name)) is not None for name in without)

    def _images(self) -> Iterator[_Image]:
        """Read the before-images after the epoch that is asked for, newest first."""
        s, order = self._s, self._order
        lowest, highest = s.execute(f"SELECT min({order}), max({order}) FROM {self._undo}").fetchone()
        while highest is not None and highest >= lowest:
            with self._piece():
                params = s.given()
                piece = f"{order} BETWEEN {params(highest - self._at_a_time + 1)} AND {params(highest)}"
                ours = f"{self._of_images(params)} AND epoch > {params(self._query.after)}"
                # The CASE keeps the planner from the index of `ours`, whose rows it would have to sort in every piece.
                images = s.execute(
                    f"SELECT {self._image_columns()} FROM {self._undo} WHERE {piece} "
                    f"AND CASE WHEN {ours} THEN 1 ELSE 0 END = 1 ORDER BY {order} DESC",
                    params,
                ).fetchall()
            yield from map(_image, images)
            highest -= self._at_a_time

    def _newer(self, standing: Mapping[Subtask, Tag]) -> list[_Image]:
        """Return before-images after the oldest of these tags, oldest first."""
        after = min((tag.epoch for tag in standing.values()), default=self._query.after)
        params = self._s.given()
        images = self._s.execute(
            f"SELECT {self._image_columns()} FROM {self._undo} WHERE {self._of_images(params)} "
            f"AND epoch > {params(after)} ORDER BY {self._order}",
            params,
        )
        return [_image(image) for image in images]

    def _of_images(self, given: Given) -> str:
        """Return the condition of this sink's before-images of this table."""
        return f"{tags.of_sink(given, *self._ours)} AND {moved.of_this(self._s, given, self._sink)}"

    def _image_columns(self) -> str:
        return self._s.listed(("writer", "timeline", "epoch", "key", "before"))

    def _rows(self, key: tuple[str, ...], names: list[str]) -> dict[str, Any]:
        """Return the present rows."""
        rows: dict[str, Any] = {}
        for start in range(0, len(names), KEYS_AT_A_TIME):
            with self._piece():
                rows |= {name: self._row(key, from_json(name)) for name in names[start : start + KEYS_AT_A_TIME]}
        return rows

    def added(self) -> TargetContents:
        """Read the ranges of row numbers that deliveries left, and the rows outside them."""
        s = self._s
        with self._piece():
            number = s.dialect.row_number(s.db, self._sink.table)
            standing, lost_tags = self._tags(tags.PROGRESS), self._lost()
            if number is None:
                return TargetContents(standing, {}, standing)
            params = s.given()
            images = s.execute(
                f"SELECT {self._image_columns()} FROM {self._undo} WHERE {self._of_images(params)} "
                f"AND epoch > {params(0 if self._query.everything else self._query.after)}",
                params,
            ).fetchall()
            newest = s.execute(f"SELECT max({number}) FROM {self._table}").fetchone()[0]
            strange = self._strange() if self._query.everything else []
        ranges: defaultdict[Delivery, list[AddedRange]] = defaultdict(list)
        for image in map(_image, images):
            ranges[image.delivery].append(range_of(image.key))
        rows: dict[Delivery, RowDigest] = {}
        for delivery, of_delivery in ranges.items():
            try:
                rows[delivery] = whole(
                    digest_of_rows(piece, self._query.schema)
                    for each in of_delivery
                    for piece in self._pieces(number, each.first, each.last)
                )
            except ForeignValue as misfit:
                self._wrong[delivery] = str(misfit)
        known_ranges = [each for of_delivery in ranges.values() for each in of_delivery]
        if not self._query.everything:
            return TargetContents(standing, rows, lost_tags, self._wrong)
        ambiguous_sink = None
        for each_strange in strange:
            mine = [each for each in each_strange.ranges if each_strange.certain or self._fits(number, each)]
            if each_strange.lost and (mine or each_strange.certain):
                ambiguous_sink = each_strange.name
            known_ranges += mine
        return TargetContents(
            standing, rows, lost_tags, self._wrong, self._others(number, known_ranges, newest, ambiguous_sink)
        )

    def _strange(self) -> list[_Strange]:
        """Return which other sinks may have added rows to the table: images of earlier versions name no table."""
        s, strange_sinks, (job, sink) = self._s, [], self._ours
        lossy_sinks = set(s.execute(f"SELECT job, sink FROM {s.own(tags.HORIZON)}")) if s.has(tags.HORIZON) else set()
        for theirs in s.execute(f"SELECT DISTINCT job, sink FROM {s.own(tags.PROGRESS)}").fetchall():
            ours = theirs[0] == job
            if theirs == (job, sink) or (ours and theirs[1] in self._query.elsewhere):
                continue
            params = s.given()
            images = s.execute(
                f"SELECT {s.quoted('key')} FROM {self._undo} WHERE {tags.of_sink(params, *theirs)} "
                f"AND {moved.of_this(s, params, self._sink)}",
                params,
            )
            ranges = [] if (first := images.fetchone()) is None else [range_in(first[0])]
            if ranges != [None]:  # else it is a sink with a key
                ranges += [range_in(key) for (key,) in images]
            name = f"sink {theirs[1]!r}{'' if ours else ' of another job'}"
            known = tuple(each for each in ranges if each is not None)
            strange_sinks.append(_Strange(name, known, theirs in lossy_sinks, ours and theirs[1] in self._query.beside))
        return strange_sinks

    def _fits(self, number: str, added: AddedRange) -> bool:
        """Return whether these are rows of this table, as they were when they were added."""
        state = xxhash.xxh3_64()
        columns = sorted(self._columns, key=lambda column: column.name)
        for rows in self._tuples(number, columns, added.first, added.last):
            for row in rows:
                state.update(msgspec.msgpack.encode(row))
        return state.hexdigest() == added.xxh3

    def _others(self, number: str, known: list[AddedRange], newest: int | None, mixed: str | None) -> Others:
        """Return the rows outside all ranges, and how many of them lie before the first range."""
        hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        older, last = 0, -(1 << 63)
        for n, each in enumerate([*sorted(known, key=lambda one: one.first), None]):
            end = (last - 1 if newest is None else newest) if each is None else each.first - 1
            for piece in self._pieces(number, last, end):
                hashes.append(self._hashes(piece))
                older += len(piece) if n == 0 else 0
            if each is not None:
                last = max(last, each.last + 1)
        return Others(np.concatenate(hashes) if hashes else np.empty(0, np.uint64), older, mixed)

    def _hashes(self, rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        try:
            hashes = row_hashes(batch_of(rows, self._query.schema))
        except ForeignValue:
            hashes = None
        return np.full(len(rows), MISFIT_HASH, np.uint64) if hashes is None else hashes

    def _pieces(self, number: str, first: int, last: int) -> Iterator[list[dict[str, Any]]]:
        for rows in self._tuples(number, self._columns, first, last):
            yield [dict(zip(self._names, row[1:], strict=True)) for row in rows]

    def _tuples(self, number: str, columns: list[Column], first: int, last: int) -> Iterator[list[tuple[Any, ...]]]:
        """Read rows, each with its number before these columns."""
        names = ", ".join(self._s.dialect.readable("t", column) for column in columns)
        while first <= last:
            params = self._s.given()
            statement = (
                f"SELECT t.{number}, {names} FROM {self._table} t WHERE t.{number} BETWEEN {params(first)} "
                f"AND {params(last)} ORDER BY t.{number} LIMIT {params(self._at_a_time)}"
            )
            with self._piece():
                rows = self._s.execute(statement, params).fetchall()
            if not rows:
                return
            yield rows
            first = rows[-1][0] + 1

    def _row(self, key: tuple[str, ...], wanted: dict[str, Any]) -> dict[str, Any] | None:
        """Return the present row, without its key; None if there is none."""
        s, params = self._s, self._s.given()
        values = [column for column in self._columns if column.name not in key]
        same = [
            f"t.{s.quoted(column.name)} = {params(s.dialect.bound(column, wanted[column.name]))}"
            for column in self._columns
            if column.name in key
        ]
        row = s.execute(
            f"SELECT {', '.join(['1', *(s.dialect.readable('t', column) for column in values)])} "
            f"FROM {self._table} t WHERE {' AND '.join(same)}",
            params,
        ).fetchone()
        return None if row is None else dict(zip((column.name for column in values), row[1:], strict=True))

    def _lost(self) -> dict[Subtask, Tag]:
        """Return, per writer, its newest delivery whose images were dropped, or that went to another table."""
        lost = self._tags(tags.HORIZON)
        for subtask, tag in moved.delivered_elsewhere(self._s, self._sink, self._ours):
            lost[subtask] = max(tag, lost.get(subtask, tag))
        return lost

    def _tags(self, table: str) -> dict[Subtask, Tag]:
        """Return one tag per writer; none if the table is missing, as in targets of older versions."""
        return tags.of_all_writers(self._s, table, *self._ours) if self._s.has(table) else {}
