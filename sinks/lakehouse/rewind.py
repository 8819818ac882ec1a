"""Taking the output of a sink back: the table gets the rows of an older version, in one commit that moves the tags too.

The commits of the sink are found in the history of the table, where each has its tag. From the newest one back, those
that the rewind undoes are followed until the first that stays; the version before the oldest of them is restored. That
version's book has to agree. So a history with gaps, or a late commit of an old epoch, refuses the rewind instead of
restoring too little.

That takes back everything that came after a version. So another program's commit in between refuses the rewind, but for
maintenance, which changes no rows. It is refused, too, if maintenance has deleted the files of the older version.

Pure: no clock, thread or I/O of its own; the format's client.py has the table.
Source: PROTOCOL P21; docs/decisions/0084-delta-sink.md, 0099-iceberg-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import polars as pl
import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.sinks.contract.sink import Repair, Rewinding, Verdict
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.lakehouse.book import Book, rewind_numbers
from holdfast.sinks.lakehouse.history import UNKNOWN, Entry, said, tag_of
from holdfast.sinks.lakehouse.target import ATTEMPTS_MAX, TableCommit, Version, commit_info
from holdfast.sinks.protocol.undo import SAMPLE_MAX, impossible, is_undone, overtaken, refused, untouched

ROWS_COMPARED_MAX = 20_000_000
"""Rows of files that are read to count the changes of a rewind of a table with a key; beyond, files are counted."""
HARMLESS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "replace")
"""Operations of other programs that leave every row as it is; the last one is Iceberg's."""
DIGEST = "_digest"
"""The column with a hash of a whole row."""


class RewindVersion(Version, Protocol):
    """A version of the table as rewinds see it. Its calls raise a HoldfastError."""

    def history(self) -> Iterable[Entry]:
        """Return the commits that the log still has, the newest first."""

    def at(self, version: int) -> RewindVersion | None:
        """Load an older version; None if the log no longer has it."""

    def files(self) -> Mapping[str, int]:
        """Return the files of the table, each with its number of rows."""

    def missing(self, files: Iterable[str]) -> int:
        """Return how many of these files no longer exist."""

    def digests(self, files: Iterable[str], key: Sequence[str]) -> pl.DataFrame:
        """Return the key and a hash of each row of these files."""


class RewindConnection(Protocol):
    """A way to the table."""

    def latest(self) -> RewindVersion:
        """Load the newest version."""


@dataclass(frozen=True)
class Undo:
    """Changes of a rewind to a table that is not on its timeline yet.

    Args:
        since: The oldest version that it takes back; None: no rows are taken back.
        others: Changes of other programs to rows after it, newest first.
        base: The version before `since`.
    """

    since: int | None
    others: tuple[str, ...] = ()
    base: int = UNKNOWN


@dataclass(frozen=True)
class RewindPlan:
    """A repair, and the version that it restores, if any."""

    repair: Repair
    restore: int | None = None
    done: bool = False
    """Whether the table is on the new timeline already."""


def plan(where: str, table: RewindVersion, rewinding: Rewinding, key: tuple[str, ...] | None) -> RewindPlan:
    """Decide how a rewind changes this version of the table. Only reads.

    Raises:
        Fenced: a later rewind was first, another history owns the target, or another sink the table.
        Damaged: see Claim.must_take_over.
    """
    book = Book(where, table.number)
    book.must_take_over(rewinding.job_uuid, rewinding.sink, key is not None, rewinding.claim)
    verdict: Verdict = "truncate" if key is None else "overwrite"
    newest = book.newest(rewinding.job_uuid, rewinding.sink)
    if newest is not None and newest.timeline > rewinding.to.timeline:
        raise overtaken(where, newest, rewinding)
    if newest is not None and newest.timeline == rewinding.to.timeline:
        return RewindPlan(untouched(verdict, rewinding), done=True)
    undo = undone(table.history(), table.version, rewinding)
    if undo is None:
        return RewindPlan(
            impossible("commits of the table's history are missing, so its versions cannot be told apart")
        )
    if undo.since is None:
        if newest is not None and is_undone(newest, rewinding):
            return RewindPlan(impossible(_gone(rewinding)))
        reason = f"the table holds nothing of epochs after {rewinding.to.epoch}"
        return RewindPlan(Repair(verdict, 0, 0, 0, (), reason))
    return _restoring(where, table, rewinding, key, undo)


def repair(
    where: str,
    connection: RewindConnection,
    rewinding: Rewinding,
    key: tuple[str, ...] | None,
    fault: Fault = no_fault,
) -> Repair:
    """Carry out the plan, in one commit on the version that was planned for. Raises as Repairs.repair."""
    fault("before_begin")
    for _ in range(ATTEMPTS_MAX):
        table = connection.latest()
        rewind_plan = plan(where, table, rewinding, key)
        if rewind_plan.repair.verdict == "impossible":
            raise refused(where, rewind_plan.repair.reason)
        if rewind_plan.done:
            return rewind_plan.repair
        fault("after_tag")  # Rows and tags are one commit, so there is one point for both.
        fault("before_commit")
        if table.commit(_change(where, table, rewinding, key is not None, rewind_plan.restore)):
            fault("after_commit")
            return rewind_plan.repair
    raise Unavailable(
        f"{where}: other commits were first {ATTEMPTS_MAX} times while the rewind was made",
        not_done="nothing in the table was changed",
        next_step="no action needed: the rewind is repeated; if this persists, let other writers of the table pause",
    )


def undone(history: Iterable[Entry], current: int, rewinding: Rewinding) -> Undo | None:
    """Find the commits that a rewind takes back; None: the numbers of versions in the history are wrong."""
    since: int | None = None
    base, next_version = UNKNOWN, current
    others: list[str] = []
    pending: list[str] = []
    for entry in history:
        if entry.version != next_version or (entry.info is not None and entry.info.get("version") != entry.version):
            return None
        next_version = entry.version - 1 if entry.after is None else entry.after
        tag = tag_of(entry, rewinding.job_uuid, rewinding.sink)
        if tag is not None and not is_undone(tag, rewinding):
            break
        if tag is not None:
            since, base, others, pending = entry.version, next_version, [*others, *pending], []
        elif entry.operation not in HARMLESS:
            pending.append(said(entry))
    return Undo(since, tuple(others), base)


def _restoring(
    where: str, table: RewindVersion, rewinding: Rewinding, key: tuple[str, ...] | None, undo: Undo
) -> RewindPlan:
    """Plan to restore the version before the oldest commit that is taken back."""
    if undo.others:
        more = f" and {len(undo.others) - 1} more" if len(undo.others) > 1 else ""
        reason = f"other commits came after version {undo.base}, which a restore would take back too: "
        return RewindPlan(impossible(f"{reason}{undo.others[0]}{more}"))
    older = table.at(undo.base) if undo.base != UNKNOWN else None
    if older is None:
        return RewindPlan(impossible(_gone(rewinding)))
    newest = Book(where, older.number).newest(rewinding.job_uuid, rewinding.sink)
    if newest is not None and is_undone(newest, rewinding):
        return RewindPlan(impossible(_gone(rewinding)))
    then, now = older.files(), table.files()
    back, dropped_files = sorted(then.keys() - now.keys()), sorted(now.keys() - then.keys())
    if missing := table.missing(back):
        gone_by = "maintenance of the table deletes files older than its retention"
        return RewindPlan(impossible(f"{missing} files of version {older.version} are missing; {gone_by}"))
    rows_back, rows_gone = sum(then[name] for name in back), sum(now[name] for name in dropped_files)
    reason = f"the table gets the rows of version {older.version} back"
    if key is None:
        return RewindPlan(Repair("truncate", 0, rows_gone - rows_back, 0, (), reason), older.version)
    if rows_back + rows_gone > ROWS_COMPARED_MAX:
        reason += "; counted are all rows of the files that change"
        return RewindPlan(Repair("overwrite", rows_back, max(0, rows_gone - rows_back), 0, (), reason), older.version)
    restored, deleted = _compared(older.digests(back, key), table.digests(dropped_files, key), key)
    sample = tuple(islice((*restored.iter_rows(named=True), *deleted.iter_rows(named=True)), SAMPLE_MAX))
    return RewindPlan(Repair("overwrite", len(restored), len(deleted), 0, sample, reason), older.version)


def _compared(then: pl.DataFrame, now: pl.DataFrame, key: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the keys whose rows are restored, and those whose rows are deleted."""
    names = list(key)
    restored = then.join(now, on=[*names, DIGEST], how="anti").select(names).sort(names)
    return restored, now.join(then, on=names, how="anti").select(names).sort(names)


def _change(where: str, table: RewindVersion, rewinding: Rewinding, keyed: bool, restore: int | None) -> TableCommit:
    job, sink, to = rewinding.job_uuid, rewinding.sink, rewinding.to
    numbers = rewind_numbers(job, sink, to, rewinding.writers)
    numbers.update(Book(where, table.number).claim_numbers(job, sink, keyed, rewinding.claim))
    return TableCommit(numbers, commit_info(job, sink, to, table.version + 1), restore=restore)


def _gone(rewinding: Rewinding) -> str:
    return (
        f"no version with the rows of epoch {rewinding.to.epoch} alone is left: it lies beyond the retention of the "
        "table's history, or an older epoch was delivered after a newer one"
    )


def digest(batch: pa.RecordBatch, key: Sequence[str]) -> pl.DataFrame:
    """Return the key and a hash of each row; nested values, which cannot be hashed, count by their text."""
    values = {
        name: pa.array(map(repr, column.to_pylist()), pa.string()) if pa.types.is_nested(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    rows = pl.from_arrow(pa.table({name: values[name] for name in sorted(values)}))
    assert isinstance(rows, pl.DataFrame)
    return rows.select(*key).with_columns(rows.hash_rows(seed=1).alias(DIGEST))
