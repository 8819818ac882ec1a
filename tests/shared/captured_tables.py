"""Captured tables in tests: what a log has at each of its commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from holdfast.ports import ObjectStore
from holdfast.runtime.capture.sessions import StopRequest
from holdfast.runtime.sources.postgres.table import WRITER
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.log import LogReader, read_meta
from holdfast.storage.log.reader import existing_meta

Rows = dict[Any, dict[str, Any]]
"""By the value of the first key column."""


class Until(StopRequest):
    """The request to stop, which is made once something is reached.

    Args:
        reached: Asked often.
        checks_max: After so many questions the test has failed.
    """

    def __init__(self, reached: Callable[[], bool], checks_max: int = 400) -> None:
        super().__init__()
        self._reached, self._left = reached, checks_max

    def is_set(self) -> bool:
        self._left -= 1
        assert self._left > 0, "it was not reached"
        return self._reached()


def tag_lsn(store: ObjectStore, writer: str = WRITER) -> int:
    """Return the position up to which the log has all changes; 0 before it has a snapshot."""
    tag = None if read_meta(store) is None else LogReader(store).newest().tag_of(writer)
    return 0 if tag is None else int(tag.epoch)


def tables(
    store: ObjectStore, writer: str = WRITER, key_of: Callable[[dict[str, Any]], Any] | None = None
) -> Iterator[tuple[int, Rows]]:
    """Return position and table as of each commit of the log that has a snapshot, folded from its records."""
    meta = existing_meta(store)
    commits, reader, rows, begins = Commits(store, meta), LogReader(store), Rows(), [0] * meta.partitions
    for sequence in range(1, commits.tail.sequence + 1):
        commit = commits.at(sequence)
        for partition, end in enumerate(commit.ends):
            at = begins[partition]
            while at < end:
                batch, at = reader.read(partition, at, 1 << 20)
                assert batch is not None
                wanted = batch.num_rows - max(0, at - end)
                for record in batch.to_pylist()[:wanted]:
                    fold(rows, record, key_of or itemgetter(meta.key[0]))
            begins[partition] = end
        tag = commit.tag_of(writer)
        assert tag is not None, "each commit has the tag"
        if tag.epoch:
            yield int(tag.epoch), {key: dict(row) for key, row in rows.items()}


def fold(rows: Rows, record: dict[str, Any], key_of: Callable[[dict[str, Any]], Any]) -> None:
    """Take a record of a changelog into a table."""
    if record.pop("holdfast_deleted"):
        rows.pop(key_of(record), None)
    else:
        rows[key_of(record)] = record
