"""Rows that are only added to a SQLite table: which ones a delivery added, and whether they are unchanged.

In a table without a key, only the rowid identifies a row. The before-image of a delivery therefore names ranges of
rowids, with a digest of the rows in them. A rowid may come to mean another row: VACUUM renumbers rows, and SQLite
reuses the rowid of a deleted last row. So nothing is deleted by rowid unless the digest of the range is unchanged.

Invariants
    - A range is recorded in the transaction that adds its rows.
    - A table whose rows cannot be named gets no before-images, and its horizon says so.

Source: sqlite.org/rowidtable.html, sqlite.org/lang_vacuum.html.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from holdfast.sinks.sql import tags
from holdfast.sinks.sqlite.file import listed, quoted, table_columns

ROWS_PER_READ = 10_000
_ALIASES = ("rowid", "_rowid_", "oid")


@dataclass(frozen=True)
class AddedRange:
    """Rows of one delivery with neighbouring rowids, both ends included."""

    first: int
    last: int
    xxh3: str

    def __len__(self) -> int:
        return self.last - self.first + 1


_RANGE = msgspec.json.Decoder(AddedRange)


def add_rows(
    db: sqlite3.Connection, table: str, columns: Sequence[str], incoming: str, tag_row: tuple[str, str, int, int, int]
) -> None:
    """Add all rows of `incoming` to the table, in order, and record which they are."""
    rowid = rowid_of(db, table)
    named = listed(columns)
    insert = f"INSERT INTO main.{quoted(table)} ({named}) SELECT {named} FROM {incoming} ORDER BY rowid"
    if rowid is None:
        db.execute(insert)
        db.execute(tags.lose(), tag_row)
        return
    added = sorted(row[0] for row in db.execute(f"{insert} RETURNING {rowid}"))
    images = [
        (*tag_row, n, image_of(AddedRange(first, last, digest(db, table, columns, rowid, first, last))), None)
        for n, (first, last) in enumerate(ranges_of(added))
    ]
    db.executemany(f"INSERT INTO {tags.UNDO} ({tags.UNDO_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", images)


def rowid_of(db: sqlite3.Connection, table: str) -> str | None:
    """Return the name under which the table gives its rowids; None if it has none, or columns hide them all."""
    taken = {name.lower() for name, _, _ in table_columns(db, table)}
    without = db.execute("SELECT wr FROM pragma_table_list(?) WHERE schema = 'main'", (table,)).fetchone()
    return next((name for name in _ALIASES if name not in taken), None) if without and not without[0] else None


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return runs of neighbouring numbers, first and last of each; the numbers are sorted."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def digest(db: sqlite3.Connection, table: str, columns: Iterable[str], rowid: str, first: int, last: int) -> str:
    """Return the xxh3-64 of the rows in a range: rowid and columns by name, as MessagePack, one after the other."""
    names = ", ".join(f"t.{quoted(name)}" for name in sorted(columns))
    rows = db.execute(
        f"SELECT t.{rowid}, {names} FROM main.{quoted(table)} t WHERE t.{rowid} BETWEEN ? AND ? ORDER BY t.{rowid}",
        (first, last),
    )
    state = xxhash.xxh3_64()
    while some := rows.fetchmany(ROWS_PER_READ):
        for row in some:
            state.update(msgspec.msgpack.encode(row))
    return state.hexdigest()


def image_of(added: AddedRange) -> str:
    """Return the `key` of a range's before-image, canonical JSON."""
    return msgspec.json.encode(added).decode()


def range_of(image: str) -> AddedRange:
    """Return the range that a before-image names."""
    return _RANGE.decode(image)


def range_in(image: str) -> AddedRange | None:
    """Return the range that a before-image of whatever sink names; None if it names a key."""
    try:
        return range_of(image)
    except msgspec.ValidationError:
        return None
