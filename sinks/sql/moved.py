"""Whose before-images are those of a sink that was pointed at another table.

Tags and before-images have the key (job, sink, writer), and a version of a job may give its sink another table of the
same place. So each before-image names its table, and a rewind of one table uses no image of another. Where images of
another table would have to be undone as well, the rewind is impossible: the version of the job that wrote there takes
them back.

An earlier version noted no tables. Its images belong to the table that the sink has claimed, if that is one.

Invariants
    - No value of one table is ever written into another one.
    - Rows that the rewind would leave in another table are reported, and nothing is undone then.

Pure: no clock, thread or I/O of its own. Source: PROTOCOL P21; docs/decisions/0106-sinks-that-move.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import Epoch, Subtask, Tag, Timeline
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.sql import claims, tags
from holdfast.sinks.sql.session import Given, Session
from holdfast.sinks.sql.table import SqlTable


def note_tables(s: Session) -> None:
    """Inside a transaction that creates tables: let before-images that an earlier version keeps name their table."""
    if not are_noted(s):
        s.execute(f"ALTER TABLE {s.own(tags.UNDO)} ADD COLUMN {s.quoted(tags.IN_TABLE)} TEXT")


def upgrade(s: Session) -> None:
    """Run `note_tables` in a place that was not prepared since; in a separate transaction."""
    if s.has(tags.UNDO) and not are_noted(s):
        s.dialect.begin_schema(s.db)
        note_tables(s)
        s.commit()


def are_noted(s: Session) -> bool:
    """Return whether before-images can name their table."""
    return any(column.name == tags.IN_TABLE for column in s.dialect.columns(s.db, tags.UNDO))


def of_this(s: Session, given: Given, table: SqlTable) -> str:
    """Return the condition that a before-image belongs to this table, or to one that was not noted."""
    if not are_noted(s):
        return "1 = 1"
    named = s.quoted(tags.IN_TABLE)
    return f"({named} = {given(s.dialect.folded(table.table))} OR {named} IS NULL)"


def delivered_elsewhere(s: Session, table: SqlTable, sink: tuple[str, str]) -> Iterator[tuple[Subtask, Tag]]:
    """Yield writers of a sink with tags of deliveries to other tables than this one."""
    if not are_noted(s):
        return
    params = s.given()
    images = s.execute(
        f"SELECT DISTINCT writer, timeline, epoch FROM {s.own(tags.UNDO)} WHERE {tags.of_sink(params, *sink)} "
        f"AND {s.quoted(tags.IN_TABLE)} <> {params(s.dialect.folded(table.table))}",
        params,
    )
    for writer, timeline, epoch in images:
        yield Subtask(writer), Tag(Timeline(timeline), Epoch(epoch))


def left_elsewhere(s: Session, table: SqlTable, rewinding: Rewinding, given: Given, undone: str) -> str | None:
    """Return why a rewind cannot undo the output of this sink in this table alone; None if it can.

    Args:
        given: The values of `undone`.
        undone: The condition of the before-images that the rewind undoes.
    """
    noted = s.quoted(tags.IN_TABLE) if are_noted(s) else "NULL"
    images = f"SELECT {noted}, max(epoch) FROM {s.own(tags.UNDO)} WHERE {undone} GROUP BY 1"
    newest: dict[str | None, int] = dict(s.execute(images, given).fetchall())
    here = s.dialect.folded(table.table)
    there = {name: epoch for name, epoch in newest.items() if name not in (here, None)}
    if there:
        name, epoch = max(there.items(), key=lambda each: each[1])
        return (
            f"this sink wrote to the table {name!r} up to epoch {epoch}, and a rewind undoes only what is in the table "
            f"that it writes to now; with this version of the job rewind to epoch {epoch} or later, and from there "
            f"with the version that wrote to {name!r}"
        )
    claimed = claims.tables_of(s, (rewinding.job_uuid, rewinding.sink)) - {here}
    if None in newest and claimed:
        return (
            f"this sink wrote to the table {min(claimed)!r} too, and the version of Holdfast that delivered epochs up "
            f"to {newest[None]} did not note to which; rewind to epoch {newest[None]} or later"
        )
    return None
