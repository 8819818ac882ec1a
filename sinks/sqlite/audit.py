"""What a SQLite table holds of a job's output: read back from the table and `holdfast_undo`.

Rows without a key: every delivery recorded the rowids of the rows it added; rows outside all of them are older output,
or written by others. Rows with a key: the row that a delivery wrote is the before-image of the next change of its key,
or the current row if no change followed. So every delivery that still has before-images can be reported.

A read keeps deliveries out of the file, so the audit reads in short pieces. It still shows one moment: that of the
tags, which are read first. Later deliveries are left out; where one changed a key, its first before-image holds the
earlier row. A rewind or a VACUUM between two pieces changes more than that, so the audit then starts over. Memory grows
with the number of keys reported.

Invariants
    - No transaction reads more than one piece, or what was delivered while the others were read; the rows of a table
      with a key are counted in one.
    - Rows that another sink is known to have added to the table are not held against this one's.
    - Nothing is written; what the images say of rowids is checked by nothing but the digest of what lies there.

Source: sinks/sqlite/sink.py, sinks/sqlite/added.py; docs/design/0018-audit.md; PROTOCOL P21.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from holdfast.errors import Unavailable
from holdfast.model import Epoch, RowDigest, Subtask, Tag, Timeline
from holdfast.sinks.audited import (
    Asked,
    Delivery,
    Gone,
    Misfit,
    Others,
    Shown,
    batch_of,
    digest_of_changes,
    digest_of_rows,
)
from holdfast.sinks.sql import tags
from holdfast.sinks.sql.values import from_json
from holdfast.sinks.sqlite.added import AddedRange, range_in, range_of, rowid_of
from holdfast.sinks.sqlite.file import connect, listed, quoted, table_columns, translated
from holdfast.storage.digests import whole
from holdfast.storage.rowhash import row_hashes

ROWS_AT_A_TIME = 10_000
KEYS_AT_A_TIME = 500
ROUNDS_MAX = 3
"""Attempts at an audit that a rewind or a VACUUM interrupts."""
MISFIT_HASH = np.uint64(0)
"""Stands for a row that has no hash, as no output of the job can look so."""


Between = Callable[[], None]
"""Called before each piece is read, while the file is free."""


def _nothing() -> None:
    """Take the place of what happens between two pieces."""


def shown(
    where: str,
    path: str,
    table: str,
    key: tuple[str, ...] | None,
    asked: Asked,
    between: Between = _nothing,
    at_a_time: int = ROWS_AT_A_TIME,
) -> Shown:
    """See AuditableSink.shown."""
    if not os.path.isfile(path):
        raise Gone(f"{where}: the file is not there; it was, when the job ran")
    try:
        with translated(where):
            return _shown(where, path, table, key, asked, between, at_a_time)
    except Unavailable as error:
        raise Unavailable(
            error.what,
            not_done="nothing of it was read",
            next_step="audit again; if it stays so, look who holds the file",
        ) from error


def _shown(
    where: str, path: str, table: str, key: tuple[str, ...] | None, asked: Asked, between: Between, at_a_time: int
) -> Shown:
    with closing(connect(path, "rw")) as db:
        names = [name for name, _, _ in table_columns(db, table)]
        if missing := [name for name in asked.schema.names if name not in names]:
            raise Gone(f"{where}: the table or its columns {missing} are not there; they were, when the job ran")
        for _ in range(ROUNDS_MAX):
            reading = _Reading(db, table, asked, between, at_a_time)
            age = reading.age()
            found = reading.keyed(key) if key is not None else reading.added()
            if reading.age() == age:
                return found
    raise Unavailable(f"{where}: a rewind or a VACUUM came between {ROUNDS_MAX} times", next_step="audit again")


class _Image(NamedTuple):
    """A before-image: what a delivery found under a key, or which rows it added."""

    delivery: Delivery
    key: str
    before: str | None


def _image(row: tuple[int, int, int, str, str | None]) -> _Image:
    writer, timeline, epoch, key, before = row
    return _Image((Subtask(writer), Tag(Timeline(timeline), Epoch(epoch))), key, before)


def _is_in(image: _Image, standing: Mapping[Subtask, Tag]) -> bool:
    """Say whether the writer had delivered it when it stood there."""
    subtask, tag = image.delivery
    return subtask in standing and tag <= standing[subtask]


class _Strange(NamedTuple):
    """A sink, of this job or another one, that may add rows to the table too."""

    name: str
    ranges: tuple[AddedRange, ...]
    lost: bool
    """The rows that it added first are no longer known."""
    certain: bool
    """The plan says that it writes to this table."""


class _Reading:
    """One look at one table."""

    def __init__(self, db: sqlite3.Connection, table: str, asked: Asked, between: Between, at_a_time: int) -> None:
        self._db, self._table, self._asked, self._between, self._at_a_time = db, table, asked, between, at_a_time
        self._names = asked.schema.names
        self._ours = (asked.job_uuid, asked.sink)
        self._wrong: dict[Delivery, str] = {}

    def age(self) -> tuple[int, int | None]:
        """Return what changes when rows or rowids change otherwise than by a delivery."""
        timeline = f"SELECT max(timeline) FROM {tags.PROGRESS} WHERE job = ? AND sink = ?"
        version = self._db.execute("PRAGMA schema_version").fetchone()[0]
        return version, self._db.execute(timeline, self._ours).fetchone()[0]

    @contextmanager
    def _piece(self) -> Iterator[None]:
        """Read as of one moment, and let go of the file."""
        self._between()
        self._db.execute("BEGIN")
        yield
        self._db.execute("COMMIT")

    def keyed(self, key: tuple[str, ...]) -> Shown:
        """Go from the newest change of each key to the oldest that is told."""
        standing = self._tags(tags.PROGRESS)
        images = [image for image in self._images() if _is_in(image, standing)]
        stands = self._rows(key, list(dict.fromkeys(image.key for image in images)))
        with self._piece():
            newer = [image for image in self._newer(standing) if not _is_in(image, standing)]
            lost = self._tags(tags.HORIZON)
            changed = {image.key: image.before for image in reversed(newer)}  # the first change of a key counts
            there = self._count(key, list(changed)) if self._asked.everything else None
        unseen = (
            None
            if there is None
            else there
            + sum(before is not None for name, before in changed.items() if name not in stands)
            - sum(row is not None for name, row in stands.items() if name not in changed)
        )
        for image in reversed(newer):
            if image.key in stands:
                stands[image.key] = None if image.before is None else from_json(image.before)
        found: defaultdict[Delivery, list[tuple[dict[str, Any], Any]]] = defaultdict(list)
        for image in images:
            found[image.delivery].append((from_json(image.key), stands[image.key]))
            stands[image.key] = None if image.before is None else from_json(image.before)
        rows: dict[Delivery, RowDigest] = {}
        for delivery, changes in found.items():
            keys, after = [name for name, _ in changes], [row for _, row in changes]
            upsert = self._asked.upsert_key is not None
            try:
                rows[delivery] = digest_of_changes(keys, after, self._asked.schema, key, upsert)
            except Misfit as misfit:
                self._wrong[delivery] = str(misfit)
        return Shown(standing, rows, lost, self._wrong, unseen=unseen)

    def _count(self, key: tuple[str, ...], without: list[str]) -> int:
        """Return how many rows there are now, without those under these keys."""
        rows: int = self._db.execute(f"SELECT count(*) FROM main.{quoted(self._table)}").fetchone()[0]
        return rows - sum(self._row(key, from_json(name)) is not None for name in without)

    def _images(self) -> Iterator[_Image]:
        """Read the before-images after the epoch that is asked for, newest first."""
        lowest, highest = self._db.execute(f"SELECT min(rowid), max(rowid) FROM {tags.UNDO}").fetchone()
        while highest is not None and highest >= lowest:
            with self._piece():
                # The + keeps SQLite from another order, which it would have to sort in every piece.
                images = self._db.execute(
                    f'SELECT writer, timeline, epoch, "key", "before" FROM {tags.UNDO} WHERE rowid BETWEEN ? AND ? '
                    "AND +job = ? AND +sink = ? AND +epoch > ? ORDER BY rowid DESC",
                    (highest - self._at_a_time + 1, highest, *self._ours, self._asked.after),
                ).fetchall()
            yield from map(_image, images)
            highest -= self._at_a_time

    def _newer(self, standing: Mapping[Subtask, Tag]) -> list[_Image]:
        """Return before-images after the oldest of these tags, oldest first."""
        after = min((tag.epoch for tag in standing.values()), default=self._asked.after)
        images = self._db.execute(
            f'SELECT writer, timeline, epoch, "key", "before" FROM {tags.UNDO} WHERE job = ? AND sink = ? '
            "AND epoch > ? ORDER BY rowid",
            (*self._ours, after),
        )
        return [_image(image) for image in images]

    def _rows(self, key: tuple[str, ...], names: list[str]) -> dict[str, Any]:
        """Return the rows that stand there now."""
        found: dict[str, Any] = {}
        for start in range(0, len(names), KEYS_AT_A_TIME):
            with self._piece():
                found |= {name: self._row(key, from_json(name)) for name in names[start : start + KEYS_AT_A_TIME]}
        return found

    def added(self) -> Shown:
        """Read the ranges of rowids that deliveries left, and what lies outside them."""
        with self._piece():
            rowid = rowid_of(self._db, self._table)
            standing, lost = self._tags(tags.PROGRESS), self._tags(tags.HORIZON)
            if rowid is None:
                return Shown(standing, {}, standing)
            images = self._db.execute(
                f'SELECT writer, timeline, epoch, "key", NULL FROM {tags.UNDO} WHERE job = ? AND sink = ? '
                "AND epoch > ?",
                (*self._ours, 0 if self._asked.everything else self._asked.after),
            ).fetchall()
            newest = self._db.execute(f"SELECT max({rowid}) FROM main.{quoted(self._table)}").fetchone()[0]
            strange = self._strange() if self._asked.everything else []
        ranges: defaultdict[Delivery, list[AddedRange]] = defaultdict(list)
        for image in map(_image, images):
            ranges[image.delivery].append(range_of(image.key))
        rows: dict[Delivery, RowDigest] = {}
        for delivery, of_delivery in ranges.items():
            try:
                rows[delivery] = whole(
                    digest_of_rows(piece, self._asked.schema)
                    for each in of_delivery
                    for piece in self._pieces(rowid, each.first, each.last)
                )
            except Misfit as misfit:
                self._wrong[delivery] = str(misfit)
        told = [each for of_delivery in ranges.values() for each in of_delivery]
        if not self._asked.everything:
            return Shown(standing, rows, lost, self._wrong)
        mixed = None
        for each_strange in strange:
            mine = [each for each in each_strange.ranges if each_strange.certain or self._fits(rowid, each)]
            if each_strange.lost and (mine or each_strange.certain):
                mixed = each_strange.name
            told += mine
        return Shown(standing, rows, lost, self._wrong, self._others(rowid, told, newest, mixed))

    def _strange(self) -> list[_Strange]:
        """Return who else may have added rows to the table: images do not say to which table they belong."""
        found, (job, sink) = [], self._ours
        lost = set(self._db.execute(f"SELECT job, sink FROM {tags.HORIZON}")) if self._has(tags.HORIZON) else set()
        for theirs in self._db.execute(f"SELECT DISTINCT job, sink FROM {tags.PROGRESS}").fetchall():
            ours = theirs[0] == job
            if theirs == (job, sink) or (ours and theirs[1] in self._asked.elsewhere):
                continue
            images = self._db.execute(f'SELECT "key" FROM {tags.UNDO} WHERE job = ? AND sink = ?', theirs)
            ranges = [] if (first := images.fetchone()) is None else [range_in(first[0])]
            if ranges != [None]:  # else it is a sink with a key
                ranges += [range_in(key) for (key,) in images]
            name = f"sink {theirs[1]!r}{'' if ours else ' of another job'}"
            known = tuple(each for each in ranges if each is not None)
            found.append(_Strange(name, known, theirs in lost, ours and theirs[1] in self._asked.beside))
        return found

    def _fits(self, rowid: str, added: AddedRange) -> bool:
        """Say whether these are rows of this table, as they were when they were added."""
        state = xxhash.xxh3_64()
        for rows in self._tuples(rowid, sorted(self._names), added.first, added.last):
            for row in rows:
                state.update(msgspec.msgpack.encode(row))
        return state.hexdigest() == added.xxh3

    def _others(self, rowid: str, told: list[AddedRange], newest: int | None, mixed: str | None) -> Others:
        """Return the rows outside all ranges, and how many of them lie before the first range."""
        hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        older, last = 0, -(1 << 63)
        for n, each in enumerate([*sorted(told, key=lambda one: one.first), None]):
            end = (last - 1 if newest is None else newest) if each is None else each.first - 1
            for piece in self._pieces(rowid, last, end):
                hashes.append(self._hashes(piece))
                older += len(piece) if n == 0 else 0
            if each is not None:
                last = max(last, each.last + 1)
        return Others(np.concatenate(hashes) if hashes else np.empty(0, np.uint64), older, mixed)

    def _hashes(self, rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        try:
            hashes = row_hashes(batch_of(rows, self._asked.schema))
        except Misfit:
            hashes = None
        return np.full(len(rows), MISFIT_HASH, np.uint64) if hashes is None else hashes

    def _pieces(self, rowid: str, first: int, last: int) -> Iterator[list[dict[str, Any]]]:
        for rows in self._tuples(rowid, self._names, first, last):
            yield [dict(zip(self._names, row[1:], strict=True)) for row in rows]

    def _tuples(self, rowid: str, names: list[str], first: int, last: int) -> Iterator[list[tuple[Any, ...]]]:
        """Read rows, each with its rowid before these columns."""
        statement = (
            f"SELECT {rowid}, {listed(names)} FROM main.{quoted(self._table)} WHERE {rowid} BETWEEN ? AND ? "
            f"ORDER BY {rowid} LIMIT ?"
        )
        while first <= last:
            with self._piece():
                rows = self._db.execute(statement, (first, last, self._at_a_time)).fetchall()
            if not rows:
                return
            yield rows
            first = rows[-1][0] + 1

    def _row(self, key: tuple[str, ...], wanted: dict[str, Any]) -> dict[str, Any] | None:
        """Return the row that stands there now, without its key; None if there is none."""
        same = " AND ".join(f"{quoted(name)} = ?" for name in key)
        names = [name for name in self._names if name not in key]
        found = self._db.execute(
            f"SELECT {', '.join(['1', *map(quoted, names)])} FROM main.{quoted(self._table)} WHERE {same}",
            [wanted[name] for name in key],
        ).fetchone()
        return None if found is None else dict(zip(names, found[1:], strict=True))

    def _tags(self, table: str) -> dict[Subtask, Tag]:
        """Return one tag per writer; none if the table is not there, as in files of older versions."""
        if not self._has(table):
            return {}
        rows = self._db.execute(f"SELECT writer, timeline, epoch FROM {table} WHERE job = ? AND sink = ?", self._ours)
        return {Subtask(writer): Tag(Timeline(timeline), Epoch(epoch)) for writer, timeline, epoch in rows}

    def _has(self, table: str) -> bool:
        found = self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        return found.fetchone() is not None
