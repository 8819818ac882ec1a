"""Changes of a table with a key: before-images, and putting and deleting loaded rows, a whole set at a time.

Source: PROTOCOL P21 (before-images are written in the delivery's transaction).
"""

from __future__ import annotations

from holdfast.sinks.sql import tags
from holdfast.sinks.sql.dialect import Upsert
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.table import TAG_COLUMN, DatabaseTable


def record_before(s: Session, table: DatabaseTable, loaded: str, tag: tags.TagRow) -> None:
    """Write one before-image per loaded key, in key order; `before` is NULL where there is no row."""
    order = ", ".join(f"i.{s.quoted(name)}" for name in table.key_names)
    params = s.given()
    s.execute(
        f"INSERT INTO {s.own(tags.UNDO)} ({s.listed(tags.UNDO_COLUMNS)}) "
        f"SELECT {params(*tag)}, row_number() OVER (ORDER BY {order}) - 1, {s.dialect.row_json('i', table.key)}, "
        f"CASE WHEN t.{s.quoted(table.key_names[0])} IS NULL THEN NULL "
        f"ELSE {s.dialect.row_json('t', table.values)} END, {params(table.noted)} "
        f"FROM {loaded} i LEFT JOIN {table.name} t ON {s.same('t', 'i', table.key_names)} ORDER BY {order}",
        params,
    )


def change(s: Session, table: DatabaseTable, loaded: str, deletes: str, puts: str, row_tag: str | None) -> None:
    """Delete the rows under some of the loaded keys, and put the others' rows.

    Args:
        loaded: A temporary table with the columns of the stream.
        deletes: The condition of those whose row is deleted.
        puts: The condition of those whose row is put.
        row_tag: The tag that a row carries from now on; None: rows carry none.
    """
    key, names, params = s.listed(table.key_names), table.names, s.given()
    s.execute(f"DELETE FROM {table.name} WHERE ({key}) IN (SELECT {key} FROM {loaded} WHERE {deletes})")
    source = s.listed(names)
    if row_tag is not None:
        names, source = (*names, TAG_COLUMN), f"{source}, {params(row_tag)}"
    source = f"SELECT {source} FROM {loaded} WHERE {puts} ORDER BY {key}"
    s.dialect.upsert(s.db, Upsert(table.name, names, table.key_names, source, params.values))
