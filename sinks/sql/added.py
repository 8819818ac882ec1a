"""Rows that are only added to a table: which ones a delivery added, and whether they are unchanged.

In a table without a key, only the number of a row identifies it (`Dialect.row_number`): in SQLite its rowid. The
before-image of a delivery therefore names ranges of numbers, with a digest of the rows in them. A number may come to
mean another row: in SQLite, VACUUM renumbers rows, and the number of a deleted last row is reused. So nothing is
deleted by its number unless the digest of the range is unchanged.

Invariants
    - A range is recorded in the transaction that adds its rows.
    - A table whose rows have no numbers gets no before-images, and its horizon records that.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P21; sqlite.org/rowidtable.html, sqlite.org/lang_vacuum.html.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import msgspec
import xxhash

from holdfast.sinks.sql import tags
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.table import DatabaseTable

ROWS_PER_READ = 10_000


@dataclass(frozen=True)
class AddedRange:
    """Rows of one delivery with neighbouring numbers, both ends included."""

    first: int
    last: int
    xxh3: str

    def __len__(self) -> int:
        return self.last - self.first + 1


_RANGE = msgspec.json.Decoder(AddedRange)


def add_rows(s: Session, table: DatabaseTable, number: str | None, loaded: str, tag: tags.TagRow) -> None:
    """Add all loaded rows to the table, in order, and record which they are.

    Args:
        number: The name of the rows' number in the table; None: they have none.
    """
    named = s.listed(table.names)
    insert = f"INSERT INTO {table.name} ({named}) SELECT {named} FROM {loaded} ORDER BY {s.dialect.row_order}"
    if number is None:
        s.execute(insert)
        tags.lose(s, tag)
        return
    added = sorted(row[0] for row in s.execute(f"{insert} RETURNING {number}"))
    images = [
        (*tag, n, image_of(AddedRange(first, last, digest(s, table, number, first, last))), None, table.noted)
        for n, (first, last) in enumerate(ranges_of(added))
    ]
    s.db.executemany(
        f"INSERT INTO {s.own(tags.UNDO)} ({s.listed(tags.UNDO_COLUMNS)}) VALUES ({s.marks(len(tags.UNDO_COLUMNS))})",
        images,
    )


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return runs of neighbouring numbers, first and last of each; the numbers are sorted."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def digest(s: Session, table: DatabaseTable, number: str, first: int, last: int) -> str:
    """Return the xxh3-64 of the rows in a range: number and columns by name, as MessagePack, one after the other."""
    names = ", ".join(s.dialect.readable("t", column) for column in sorted(table.columns, key=attrgetter("name")))
    params = s.given()
    rows = s.execute(
        f"SELECT t.{number}, {names} FROM {table.name} t WHERE t.{number} BETWEEN {params(first)} AND {params(last)} "
        f"ORDER BY t.{number}",
        params,
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
    """Return the range that a before-image of any sink names; None if it names a key."""
    try:
        return range_of(image)
    except msgspec.ValidationError:
        return None
