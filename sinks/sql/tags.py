"""Tables of Holdfast in a SQL target: tags that make a delivery happen once, and before-images that undo it.

`holdfast_progress` has one row per writer: the tag of the last epoch whose output is in the target. `holdfast_undo` has
one row per row that a delivery replaced, deleted or added, with its table and its earlier values, so that a rewind can
restore them. `holdfast_horizon` has the tag of the newest delivery of a writer whose before-images were dropped.
`holdfast_owner` has one row per sink: the driver that last took the target over (see owners.py). `holdfast_table`
records which sinks write to a table (see claims.py).

Advancing the tag is the first statement of the delivery transaction. It takes the row lock, and it changes one row
only if (timeline, epoch) grows; otherwise the transaction is rolled back and the tag is read again. Where one
transaction delivers several epochs, the tag moves to the last of them, and only from below the first. That needs no
generation: a zombie that holds an epoch already delivered changes nothing, and one that holds the next epoch delivers
    exactly the rows that its successor would have.

Invariants
    - Statements hold values as parameters only; no text of a user's is ever pasted in.
    - A tag moves in one call, and the call reports whether it moved.

Pure: no clock, thread or I/O of its own. PROTOCOL P1 (`job` holds the job UUID), P17, P21.
"""

from __future__ import annotations

from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.sql.dialect import Dialect, Upsert
from holdfast.sinks.sql.session import Given, Session

PROGRESS = "holdfast_progress"
UNDO = "holdfast_undo"
HORIZON = "holdfast_horizon"
OWNER = "holdfast_owner"
TABLE = "holdfast_table"
FENCE = "holdfast_fence"
OF_EVERY_SINK = (PROGRESS, UNDO, HORIZON, OWNER, TABLE)
"""Tables that every sink writes."""

IN_TABLE = "table"
"""The column of `holdfast_undo` with the user's table; NULL in rows that a version wrote which did not note it."""
UNDO_COLUMNS = ("job", "sink", "writer", "timeline", "epoch", "n", "key", "before", IN_TABLE)
"""The first five are a `TagRow`; `before` NULL means that there was no row."""
_WRITER = ("job", "sink", "writer")
_TAG = (*_WRITER, "timeline", "epoch")

WriterRow = tuple[str, str, int]
"""Job UUID, sink, writer: the primary key of a tag."""
TagRow = tuple[str, str, int, int, int]
"""A `WriterRow`, timeline, epoch."""


def writer_row(job_uuid: str, writer: Writer) -> WriterRow:
    """Return the primary key of the writer's tag."""
    return job_uuid, writer.sink, writer.subtask


def tag_row(job_uuid: str, writer: Writer, tag: Tag) -> TagRow:
    """Return a tag as a row of `holdfast_progress`."""
    return *writer_row(job_uuid, writer), tag.timeline, tag.epoch


def create_progress(dialect: Dialect) -> str:
    """Return the statement that creates the table of tags, unless it exists."""
    return f"CREATE TABLE IF NOT EXISTS {_tags(dialect, PROGRESS)}"


def create_horizon(dialect: Dialect) -> str:
    """Return the statement that creates the table of horizons."""
    return f"CREATE TABLE {_tags(dialect, HORIZON)}"


def create_undo(dialect: Dialect) -> str:
    """Return the statement that creates the table of before-images, unless it exists."""
    number = f"{dialect.row_order_column},\n    " if dialect.row_order_column else ""
    return f"""\
CREATE TABLE IF NOT EXISTS {dialect.own(UNDO)} (
    {number}job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    n BIGINT NOT NULL,
    {dialect.quoted("key")} TEXT NOT NULL,
    {dialect.quoted("before")} TEXT,
    {dialect.quoted(IN_TABLE)} TEXT,
    PRIMARY KEY (job, sink, writer, timeline, epoch, n)
)"""


def create_owner(dialect: Dialect) -> str:
    """Return the statement that creates the table of owners, unless it exists."""
    return f"""\
CREATE TABLE IF NOT EXISTS {dialect.own(OWNER)} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    owner TEXT NOT NULL,
    generation BIGINT NOT NULL,
    PRIMARY KEY (job, sink)
)"""


def create_table_claims(dialect: Dialect) -> str:
    """Return the statement that creates the table of the tables that sinks write, unless it exists."""
    return f"""\
CREATE TABLE IF NOT EXISTS {dialect.own(TABLE)} (
    {dialect.quoted("table")} TEXT NOT NULL,
    share TEXT NOT NULL,
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    PRIMARY KEY ({dialect.quoted("table")}, share)
)"""


def standing(s: Session, writer: WriterRow) -> Tag | None:
    """Return the tag of a writer; None if it never delivered."""
    given = s.given()
    row = s.execute(f"SELECT timeline, epoch FROM {s.own(PROGRESS)} WHERE {_of_writer(given, writer)}", given)
    return _tag_of(row.fetchone())


def newest(s: Session, job_uuid: str, sink: str, but: Writer | None = None) -> Tag | None:
    """Return the newest tag of all writers of a sink.

    Args:
        but: Leave this one out.
    """
    params = s.given()
    rows = of_sink(params, job_uuid, sink) + ("" if but is None else f" AND writer <> {params(but.subtask)}")
    row = s.execute(
        f"SELECT timeline, epoch FROM {s.own(PROGRESS)} WHERE {rows} ORDER BY timeline DESC, epoch DESC LIMIT 1",
        params,
    )
    return _tag_of(row.fetchone())


def of_all_writers(s: Session, table: str, job_uuid: str, sink: str) -> dict[Subtask, Tag]:
    """Return the tags of a sink's writers in `PROGRESS` or `HORIZON`."""
    given = s.given()
    rows = s.execute(
        f"SELECT writer, timeline, epoch FROM {s.own(table)} WHERE {of_sink(given, job_uuid, sink)}", given
    )
    return {Subtask(writer): Tag(Timeline(timeline), Epoch(epoch)) for writer, timeline, epoch in rows}


def of_sink(given: Given, job_uuid: str, sink: str) -> str:
    """Return the condition that a row belongs to this sink of this job."""
    return f"job = {given(job_uuid)} AND sink = {given(sink)}"


def advance(s: Session, row: TagRow) -> bool:
    """Move the tag forward; return whether it moved. If not, roll back and read it again."""
    given = s.given()
    return _forward(s, PROGRESS, f"VALUES ({given(*row)})", given)


def advance_over(s: Session, row: TagRow, first: Tag) -> bool:
    """Move the tag over several epochs to `row`, if it is below the first of them.

    Compared with the last alone, epochs that the target holds already would be delivered again.
    """
    given = s.given()
    source = f"VALUES ({given(*row)})"
    return _forward(s, PROGRESS, source, given, f"({given(first.timeline)}, {given(first.epoch)})")


def advance_first(s: Session, row: TagRow) -> bool:
    """Note the tag of a writer that has none; return whether it had none."""
    given = s.given()
    source = f"VALUES ({given(*row)})"
    return s.dialect.upsert(s.db, Upsert(s.own(PROGRESS), _TAG, _WRITER, source, given.values, sets={})) == 1


def advance_from(s: Session, row: TagRow, known: Tag) -> bool:
    """Move the tag, if it is exactly `known`; return whether it moved."""
    job_uuid, sink, writer, timeline, epoch = row
    params = s.given()
    update = s.execute(
        f"UPDATE {s.own(PROGRESS)} SET timeline = {params(timeline)}, epoch = {params(epoch)} "
        f"WHERE {_of_writer(params, (job_uuid, sink, writer))} "
        f"AND timeline = {params(known.timeline)} AND epoch = {params(known.epoch)}",
        params,
    )
    return update.rowcount == 1


def lose(s: Session, row: TagRow) -> None:
    """Note that a delivery has no before-image, so that no rewind tries to take it back."""
    given = s.given()
    _forward(s, HORIZON, f"VALUES ({given(*row)})", given)


def adopt_horizon(s: Session) -> None:
    """Note, once, when the table of horizons is new, that earlier deliveries may lack before-images."""
    columns = ", ".join(_TAG)
    s.execute(f"INSERT INTO {s.own(HORIZON)} ({columns}) SELECT {columns} FROM {s.own(PROGRESS)}")


def forget(s: Session, row: TagRow) -> None:
    """Drop a writer's before-images up to a tag, of older timelines too, but none of a later epoch.

    The horizon notes the newest delivery that loses its images; nothing if none does.
    """
    params = s.given()
    _forward(
        s,
        HORIZON,
        f"SELECT {', '.join(_TAG)} FROM {s.own(UNDO)} WHERE {_up_to(params, row)} "
        "ORDER BY timeline DESC, epoch DESC LIMIT 1",
        params,
    )
    params = s.given()
    s.execute(f"DELETE FROM {s.own(UNDO)} WHERE {_up_to(params, row)}", params)


def _forward(s: Session, table: str, source: str, given: Given, below: str = "") -> bool:
    """Move a tag to the value that the source returns, if it is below that, or below a row of marks."""
    only_if = f"(t.timeline, t.epoch) < {below or '(excluded.timeline, excluded.epoch)'}"
    return s.dialect.upsert(s.db, Upsert(s.own(table), _TAG, _WRITER, source, given.values, only_if=only_if)) == 1


def _of_writer(given: Given, writer: WriterRow) -> str:
    job_uuid, sink, subtask = writer
    return f"{of_sink(given, job_uuid, sink)} AND writer = {given(subtask)}"


def _up_to(given: Given, row: TagRow) -> str:
    job_uuid, sink, subtask, timeline, epoch = row
    writer = _of_writer(given, (job_uuid, sink, subtask))
    return f"{writer} AND timeline <= {given(timeline)} AND epoch <= {given(epoch)}"


def _tags(dialect: Dialect, table: str) -> str:
    return f"""\
{dialect.own(table)} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (job, sink, writer)
)"""


def _tag_of(row: tuple[int, int] | None) -> Tag | None:
    return None if row is None else Tag(Timeline(row[0]), Epoch(row[1]))
