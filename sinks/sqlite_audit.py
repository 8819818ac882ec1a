"""What a SQLite table shows of a job's output: read back from the table and `holdfast_undo`.

Rows without a key: every delivery left the rowids of the rows it added; what lies outside all of them is older output,
or others'. Rows with a key: the row that a delivery wrote is what the next change of its key found, its before-image,
or the row that stands there now if none followed. So all deliveries that still have before-images can be told.

All of it is read in one transaction, as of one moment. Memory is taken for every key that is told.

Invariants
    - Nothing is written; what the images say of rowids is checked by nothing but the digest of what lies there.

Source: sinks/sqlite.py, sinks/sqlite_added.py; docs/design/0018-audit.md; PROTOCOL P21.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from holdfast.errors import Unavailable
from holdfast.model import Epoch, RowDigest, Subtask, Tag, Timeline
from holdfast.sinks import tags
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
from holdfast.sinks.sql_values import from_json
from holdfast.sinks.sqlite_added import AddedRange, range_of, rowid_of
from holdfast.sinks.sqlite_file import connect, listed, quoted, table_columns, translated
from holdfast.storage.digests import whole
from holdfast.storage.rowhash import row_hashes

ROWS_AT_A_TIME = 10_000
MISFIT_HASH = np.uint64(0)
"""Stands for a row that has no hash, as no output of the job can look so."""


def shown(where: str, path: str, table: str, key: tuple[str, ...] | None, asked: Asked) -> Shown:
    """See AuditableSink.shown."""
    if not os.path.isfile(path):
        raise Gone(f"{where}: the file is not there; it was, when the job ran")
    try:
        with translated(where):
            return _shown(where, path, table, key, asked)
    except Unavailable as error:
        raise Unavailable(error.what, not_done="nothing of it was read",
                          next_step="audit again; if it stays so, look who holds the file") from error  # fmt: skip


def _shown(where: str, path: str, table: str, key: tuple[str, ...] | None, asked: Asked) -> Shown:
    with closing(connect(path, "rw")) as db:
        db.execute("BEGIN")
        names = [name for name, _, _ in table_columns(db, table)]
        if missing := [name for name in asked.schema.names if name not in names]:
            raise Gone(f"{where}: the table or its columns {missing} are not there; they were, when the job ran")
        reading = _Reading(db, table, asked)
        return reading.keyed(key) if key is not None else reading.added()


class _Reading:
    """One look at one table."""

    def __init__(self, db: sqlite3.Connection, table: str, asked: Asked) -> None:
        self._db, self._table, self._asked = db, table, asked
        self._names = asked.schema.names
        self._ours = (asked.job_uuid, asked.sink)
        self._wrong: dict[Delivery, str] = {}

    def keyed(self, key: tuple[str, ...]) -> Shown:
        """Go from the newest change of each key to the oldest that is told."""
        images = self._db.execute(
            f'SELECT writer, timeline, epoch, "key", "before" FROM {tags.UNDO} WHERE job = ? AND sink = ? '
            "AND epoch > ? ORDER BY rowid DESC",
            (*self._ours, self._asked.after),
        )
        stands: dict[str, Any] = {}
        found: defaultdict[Delivery, list[tuple[dict[str, Any], Any]]] = defaultdict(list)
        for writer, timeline, epoch, name, before in images:
            wanted = from_json(name)
            row = stands[name] if name in stands else self._row(key, wanted)
            found[Subtask(writer), Tag(Timeline(timeline), Epoch(epoch))].append((wanted, row))
            stands[name] = None if before is None else from_json(before)
        rows: dict[Delivery, RowDigest] = {}
        for delivery, changes in found.items():
            keys, after = [name for name, _ in changes], [row for _, row in changes]
            upsert = self._asked.upsert_key is not None
            try:
                rows[delivery] = digest_of_changes(keys, after, self._asked.schema, key, upsert)
            except Misfit as misfit:
                self._wrong[delivery] = str(misfit)
        return Shown(self._tags(tags.PROGRESS), rows, self._tags(tags.HORIZON), self._wrong)

    def added(self) -> Shown:
        """Read the ranges of rowids that deliveries left, and what lies outside them."""
        rowid = rowid_of(self._db, self._table)
        standing, lost = self._tags(tags.PROGRESS), self._tags(tags.HORIZON)
        if rowid is None:
            return Shown(standing, {}, standing)
        ranges: defaultdict[Delivery, list[AddedRange]] = defaultdict(list)
        for writer, timeline, epoch, image in self._db.execute(
            f'SELECT writer, timeline, epoch, "key" FROM {tags.UNDO} WHERE job = ? AND sink = ? AND epoch > ?',
            (*self._ours, 0 if self._asked.everything else self._asked.after),
        ):
            ranges[Subtask(writer), Tag(Timeline(timeline), Epoch(epoch))].append(range_of(image))
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
        return Shown(standing, rows, lost, self._wrong, self._others(rowid, told) if self._asked.everything else None)

    def _others(self, rowid: str, told: list[AddedRange]) -> Others:
        """Return the rows outside all ranges, and how many of them lie before the first range."""
        hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        older, last = 0, -(1 << 63)
        for n, each in enumerate([*sorted(told, key=lambda one: one.first), None]):
            end = (1 << 63) - 1 if each is None else each.first - 1
            for piece in self._pieces(rowid, last, end) if last <= end else ():
                hashes.append(self._hashes(piece))
                older += len(piece) if n == 0 else 0
            if each is not None:
                last = max(last, each.last + 1)
        return Others(np.concatenate(hashes) if hashes else np.empty(0, np.uint64), older)

    def _hashes(self, rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        try:
            hashes = row_hashes(batch_of(rows, self._asked.schema))
        except Misfit:
            hashes = None
        return np.full(len(rows), MISFIT_HASH, np.uint64) if hashes is None else hashes

    def _pieces(self, rowid: str, first: int, last: int) -> Iterator[list[dict[str, Any]]]:
        cursor = self._db.execute(
            f"SELECT {listed(self._names)} FROM main.{quoted(self._table)} WHERE {rowid} BETWEEN ? AND ? "
            f"ORDER BY {rowid}",
            (first, last),
        )
        while rows := cursor.fetchmany(ROWS_AT_A_TIME):
            yield [dict(zip(self._names, row, strict=True)) for row in rows]

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
        there = self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
        if there is None:
            return {}
        rows = self._db.execute(f"SELECT writer, timeline, epoch FROM {table} WHERE job = ? AND sink = ?", self._ours)
        return {Subtask(writer): Tag(Timeline(timeline), Epoch(epoch)) for writer, timeline, epoch in rows}
