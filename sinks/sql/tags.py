"""SQL for the tag that makes a delivery happen once, and for the before-images that let it be undone.

Every SQL target holds four tables of ours. `holdfast_progress` has one row per writer: the tag of
the last epoch whose output is in. `holdfast_undo` has one row per row that a delivery replaced,
deleted or added, with what was there before, so that a rewind can put it back. `holdfast_horizon`
has the tag of the newest delivery of a writer whose before-images were dropped. `holdfast_owner` has
one row per sink: the driver that last took the target over (see owners.py).

Advancing the tag is the first statement of the delivery transaction. It takes the row lock, and
it changes one row only if (timeline, epoch) grows; with any other count the transaction is rolled
back and the tag is read again. Where one transaction delivers several epochs, the tag moves to the
last of them, and only from below the first. That needs no generation: a zombie that holds an epoch
already delivered changes nothing, and one that holds the next epoch delivers exactly what its
successor would have.

Invariants
    - Statements hold values as parameters only; no text of a user's is ever pasted in.
    - The text is the same for SQLite and Postgres, but for the parameter mark.

Pure: text only. PROTOCOL P1 (`job` holds the job UUID), P17, P21.
"""

from __future__ import annotations

from holdfast.model import Tag, Writer

PROGRESS = "holdfast_progress"
UNDO = "holdfast_undo"
HORIZON = "holdfast_horizon"
OWNER = "holdfast_owner"

CREATE_PROGRESS = f"""\
CREATE TABLE IF NOT EXISTS {PROGRESS} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (job, sink, writer)
)"""

CREATE_UNDO = f"""\
CREATE TABLE IF NOT EXISTS {UNDO} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    n BIGINT NOT NULL,
    "key" TEXT NOT NULL,
    "before" TEXT,
    PRIMARY KEY (job, sink, writer, timeline, epoch, n)
)"""

CREATE_HORIZON = f"""\
CREATE TABLE {HORIZON} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (job, sink, writer)
)"""

CREATE_OWNER = f"""\
CREATE TABLE IF NOT EXISTS {OWNER} (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    owner TEXT NOT NULL,
    generation BIGINT NOT NULL,
    PRIMARY KEY (job, sink)
)"""

UNDO_COLUMNS = 'job, sink, writer, timeline, epoch, n, "key", "before"'
"""For the target's own INSERT ... SELECT; the first five are `tag_row`, `before` NULL means no row."""

WriterRow = tuple[str, str, int]
"""Job UUID, sink, writer: the parameters that every statement begins with."""


def writer_row(job_uuid: str, writer: Writer) -> WriterRow:
    """Return the primary key of the writer's tag."""
    return job_uuid, writer.sink, writer.subtask


def tag_row(job_uuid: str, writer: Writer, tag: Tag) -> tuple[str, str, int, int, int]:
    """Return the parameters of `advance` and `forget`, and the first five of a before-image."""
    return *writer_row(job_uuid, writer), tag.timeline, tag.epoch


def read_tag(mark: str = "?") -> str:
    """Select timeline and epoch of a writer; no row means that it never delivered."""
    return f"SELECT timeline, epoch FROM {PROGRESS} WHERE job = {mark} AND sink = {mark} AND writer = {mark}"


def advance(mark: str = "?") -> str:
    """Move the tag forward. Row count 1: go on. Anything else: roll back and read the tag again."""
    return _forward(PROGRESS, f"VALUES ({_marks(mark, 5)})")


def advance_over(mark: str = "?") -> str:
    """Move the tag over several epochs, if it stands below the first: parameters are `tag_row` of the last, the first.

    Compared with the last alone, epochs that the target holds already would be delivered again.
    """
    return _forward(PROGRESS, f"VALUES ({_marks(mark, 5)})", f"({_marks(mark, 2)})")


def advance_first(mark: str = "?") -> str:
    """Note the tag of a writer that has none; parameters are `tag_row`."""
    row = f"INSERT INTO {PROGRESS} (job, sink, writer, timeline, epoch) VALUES ({_marks(mark, 5)})"
    return f"{row} ON CONFLICT DO NOTHING"


def advance_from(mark: str = "?") -> str:
    """Move the tag, if it stands at another one: parameters are the new timeline and epoch, `writer_row`, the old."""
    return (
        f"UPDATE {PROGRESS} SET timeline = {mark}, epoch = {mark} WHERE job = {mark} AND sink = {mark} "
        f"AND writer = {mark} AND (timeline, epoch) = ({mark}, {mark})"
    )


def read_newest(mark: str = "?") -> str:
    """Select the newest tag of all writers of a sink."""
    return (
        f"SELECT timeline, epoch FROM {PROGRESS} WHERE job = {mark} AND sink = {mark} "
        "ORDER BY timeline DESC, epoch DESC LIMIT 1"
    )


def read_owner(mark: str = "?") -> str:
    """Select owner and generation of a sink's target."""
    return f"SELECT owner, generation FROM {OWNER} WHERE job = {mark} AND sink = {mark}"


def take_over(mark: str = "?") -> str:
    """Note the owner of a sink's target; whether it may be is decided before, in the same transaction."""
    return (
        f"INSERT INTO {OWNER} (job, sink, owner, generation) VALUES ({_marks(mark, 4)}) "
        "ON CONFLICT (job, sink) DO UPDATE SET owner = excluded.owner, generation = excluded.generation"
    )


def lose(mark: str = "?") -> str:
    """Note that there is no before-image of a delivery, so that no rewind tries to take it back."""
    return _forward(HORIZON, f"VALUES ({_marks(mark, 5)})")


def adopt_horizon() -> str:
    """Note, once, when the table of horizons is new, that earlier deliveries may lack before-images."""
    return f"INSERT INTO {HORIZON} SELECT job, sink, writer, timeline, epoch FROM {PROGRESS}"


def note_horizon(mark: str = "?") -> str:
    """Note, before `forget`, the newest delivery whose before-images it drops; nothing if it drops none."""
    return _forward(
        HORIZON,
        f"SELECT job, sink, writer, timeline, epoch FROM {UNDO} WHERE job = {mark} AND sink = {mark} "
        f"AND writer = {mark} AND timeline <= {mark} AND epoch <= {mark} ORDER BY timeline DESC, epoch DESC LIMIT 1",
    )


def forget(mark: str = "?") -> str:
    """Delete a writer's before-images up to a tag; those of older timelines too, but none of a later epoch."""
    return (
        f"DELETE FROM {UNDO} WHERE job = {mark} AND sink = {mark} AND writer = {mark} "
        f"AND timeline <= {mark} AND epoch <= {mark}"
    )


def _forward(table: str, source: str, below: str = "(excluded.timeline, excluded.epoch)") -> str:
    return (
        f"INSERT INTO {table} (job, sink, writer, timeline, epoch) {source} "
        f"ON CONFLICT (job, sink, writer) DO UPDATE SET timeline = excluded.timeline, epoch = excluded.epoch "
        f"WHERE ({table}.timeline, {table}.epoch) < {below}"
    )


def _marks(mark: str, count: int) -> str:
    return ", ".join([mark] * count)
