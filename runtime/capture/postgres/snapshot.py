"""The rows of a table as they were at the position where its slot begins.

The server exports the view of a new slot as a snapshot, which another transaction adopts: it sees exactly the
transactions that the slot will not send. The rows are staged in pieces and become visible in one commit, so a crash
leaves nothing in the log, and memory stays bounded.

The snapshot of a table is not safe against a change of its form or a truncation in between; so a lock that only those
wait for is held from before the slot is created until the rows were read.

Source: postgresql.org/docs/current: protocol-replication.html (CREATE_REPLICATION_SLOT), mvcc-caveats.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
from psycopg import sql

from holdfast.runtime.capture.postgres.messages import lsn_of
from holdfast.runtime.capture.postgres.stream import Replication
from holdfast.runtime.capture.sessions import CaptureStopped
from holdfast.runtime.capture.target import CaptureTarget
from holdfast.runtime.sources.postgres.catalogue import Db
from holdfast.runtime.sources.postgres.columns import values_of
from holdfast.runtime.sources.postgres.table import SourceTable
from holdfast.storage.log.changelog import puts_and_deletes
from holdfast.storage.log.format import LogSegment

PIECE_ROWS = 20_000
PIECE_BYTES = 16 * 1024 * 1024


def create_slot(replication: Replication, slot: str) -> tuple[int, str]:
    """Create a slot; return the position where it begins, and the name of its snapshot, which ends with the connection.

    Waits for the transactions that run now. Raises psycopg.Error, CaptureStopped.
    """
    row = replication.command(f"CREATE_REPLICATION_SLOT \"{slot}\" LOGICAL pgoutput (SNAPSHOT 'export')")
    return lsn_of(row[1]), row[2]


def lock_shape(db: Db, table: SourceTable) -> None:
    """Begin a transaction that keeps the form of the table until it ends. Reads and writes do not wait for it."""
    db.execute("BEGIN")
    db.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(sql.Identifier(table.schema, table.name)))


def stage_rows(
    db: Db, table: SourceTable, snapshot: str, target: CaptureTarget, stopping: Callable[[], bool]
) -> tuple[list[LogSegment], int]:
    """Stage the rows of a snapshot; return the segments, and how many rows they have.

    Raises:
        psycopg.Error: the server cannot read them.
        ConfigError: a value cannot be held by its column.
        Stopped, Unavailable
    """
    segments, count = list[LogSegment](), 0
    db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    db.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    db.execute("SET LOCAL row_security = off")  # rows that a policy hides are an error, not missing
    query = sql.SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        sql.Identifier(table.schema, table.name),
    )
    with db.cursor().copy(query) as copy:
        for rows in _pieces(copy.rows()):
            if stopping():
                raise CaptureStopped
            segments += target.stage(_records(table, rows))
            count += len(rows)
    db.execute("COMMIT")
    return segments, count


def _pieces(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[str | None, ...]]]:
    """Return rows in pieces that are limited in rows and bytes."""
    while first := list(islice(rows, 1)):
        piece, size = first, 0
        for row in islice(rows, PIECE_ROWS - 1):
            piece.append(row)
            size += sum(len(value) for value in row if value is not None)
            if size >= PIECE_BYTES:
                break
        yield piece


def _records(table: SourceTable, rows: list[tuple[str | None, ...]]) -> pa.Table:
    """Return rows as records that put them."""
    arrays = [
        values_of(table.where, pa.array(texts, pa.utf8()), column)
        for column, texts in zip(table.columns, zip(*rows, strict=True), strict=True)
    ]
    puts = pa.chunked_array([pa.array([False] * len(rows), pa.bool_())])
    return puts_and_deletes(pa.Table.from_arrays(arrays, schema=table.rows()), puts, table.key)
