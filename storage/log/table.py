"""Reads a log with a key as a table: the newest row of every key, without the keys that were deleted.

These are the rows that a compaction of the whole log would leave if it kept no tombstone; the same functions find
them (rewrite.py), and nothing is written.

Invariants
    - The rows are those as of one commit.
    - Void rows do not count, so after a rewind the rows that they had replaced are the newest again.
    - If a compaction deletes objects meanwhile, the read starts over (P7).

Memory: the table, and the memory of a compaction.
Source: PROTOCOL P7; docs/decisions/0052-changelogs-in-logs.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, Damaged, NotFound, Unavailable
from holdfast.ports import ObjectStore
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import NEVER
from holdfast.storage.log.format import OFFSETS_MAX, LogMeta
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.log.rewrite import CompactionPart, Input, Sizes, marked, parts_of, staying

ROUNDS_MAX = 3
"""Attempts at a read that compactions interrupt."""


@dataclass(frozen=True)
class TableRows:
    """Some rows of one partition, by offset."""

    partition: int
    rows: pa.RecordBatch
    """With the columns of `table_schema`."""
    offsets: NDArray[np.int64]


def table_schema(meta: LogMeta) -> pa.Schema:
    """Return the columns of the table.

    Raises:
        ConfigError: the log has no key.
    """
    if not meta.key:
        raise ConfigError(
            "the log has no key, so none of its rows replaces another one, and there is no table to read",
            not_done="nothing was read",
            next_step="read its rows as they are",
        )
    return meta.rows


def read_table(store: ObjectStore, sizes: Sizes | None = None) -> list[TableRows]:
    """Return the rows of the table as of the newest commit, in order of partition and offset.

    Raises:
        ConfigError: there is no log, or it has no key by which rows are told apart.
        Damaged: a stored object differs from what was written.
        Unavailable: compactions kept interrupting, or the store is unreachable.
    """
    for _ in range(ROUNDS_MAX):
        commits = Commits(store, existing_meta(store))
        table_schema(commits.meta)
        try:
            return list(_rows(store, commits, sizes or Sizes()))
        except Damaged as error:
            if not isinstance(error.__cause__, NotFound):
                raise
            compacted = commits.tail.compact
            if not commits.refresh() or commits.tail.compact == compacted:
                raise
    raise Unavailable(
        f"the log in {store!r} was compacted {ROUNDS_MAX} times while it was read",
        not_done="no row was read",
        next_step="read it again when no compaction runs",
    )


def _rows(store: ObjectStore, commits: Commits, sizes: Sizes) -> Iterator[TableRows]:
    meta = commits.meta
    for part in _parts(commits):
        for group, marks in marked(store, meta, part, sizes):
            for piece in staying(store, meta, part, group, marks):
                if not piece.stays.any():
                    continue
                rows = piece.rows.filter(pa.array(piece.stays))
                if meta.changelog:
                    rows = pa.RecordBatch.from_arrays(rows.columns[1:], schema=table_schema(meta))
                yield TableRows(part.partition, rows, piece.offsets[piece.stays])


def _parts(commits: Commits) -> tuple[CompactionPart, ...]:
    """Return the whole log, all tombstones to be left out."""
    compaction = commits.at(commits.tail.compact).compaction or NEVER
    inputs: list[Input] = list(compaction.segments)
    for sequence in range(compaction.through + 1, commits.tail.sequence + 1):
        inputs += commits.at(sequence).segments
    return parts_of(commits, inputs, [OFFSETS_MAX] * commits.meta.partitions)
