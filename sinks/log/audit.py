"""The output of a job that a log holds: the rows of each tagged append, read back from its segments.

Commits are read from the newest back to the first of interest. Rows that a rewind made void do not count. Appends
without a tag between those of the job belong to no writer, and are counted.

Invariants
    - Nothing is written, and no row is taken from anywhere but the segment that its commit names.
    - A segment that a compaction removed meanwhile is not damage: the audit starts over (P7).

Source: storage/log/log.py, storage/log/voids.py; docs/decisions/0018-audit.md; PROTOCOL P7, P17.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.errors import Damaged, NotFound, Unavailable
from holdfast.model import RowDigest, Subtask, Tag
from holdfast.ports import ObjectStore
from holdfast.sinks.contract.audited import AuditQuery, Delivery, Gone, TargetContents
from holdfast.sinks.contract.target import OP
from holdfast.sinks.protocol.staging import audited
from holdfast.storage.digests import NOTHING, added
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.format import Commit, LogMeta, LogSegment
from holdfast.storage.log.log import read_meta
from holdfast.storage.log.segment import OpenSegment
from holdfast.storage.log.voids import void_ranges

READ_BYTES_MAX = 8 << 20
ROUNDS_MAX = 3
"""Attempts at an audit that compactions interrupt."""


def contents(where: str, store: ObjectStore, query: AuditQuery) -> TargetContents:
    """See Audits.contents."""
    meta = read_meta(store)
    if meta is None:
        raise Gone(f"{where}: there is no log; there was, when the job ran")
    for _ in range(ROUNDS_MAX):
        try:
            return _contents(store, meta, query)
        except _Compacted:
            continue
    raise Unavailable(
        f"{where}: the log was compacted {ROUNDS_MAX} times while it was read",
        not_done="its rows were not audited",
        next_step="audit again when no compaction runs",
    )


class _Compacted(Exception):
    """The log is no longer the one whose commits were read."""


def _contents(store: ObjectStore, meta: LogMeta, query: AuditQuery) -> TargetContents:
    commits = Commits(store, meta)
    void = {(v.partition, v.first, v.end) for v in void_ranges(commits)}
    prefix = f"{query.job_uuid}/{query.sink}/"
    rows: dict[Delivery, RowDigest] = {}
    wrong: dict[Delivery, str] = {}
    untagged_rows, commit = 0, commits.tail
    # Which rows of an append a compaction has left is no longer known.
    through = 0 if commits.left is None else commits.left.through
    while commit.sequence > through and any(tag.epoch > query.after for tag in _ours(commit, prefix).values()):
        subtask = _writer(commit.tag.writer, prefix) if commit.tag is not None else None
        if commit.kind == "append" and commit.tag is None:
            untagged_rows += sum(segment.rows for segment in commit.segments)
        elif commit.kind == "append" and commit.tag is not None and subtask is not None:
            segments = [s for s in commit.segments if not _is_void(s, void)]
            at = subtask, commit.tag.tag
            try:
                rows[at] = added(rows.get(at, NOTHING), _digest(store, meta, segments))
            except Damaged as error:
                gone = isinstance(error.__cause__, NotFound)
                if gone and Commits(store, meta).tail.compact != commits.tail.compact:
                    raise _Compacted from error
                wrong[at] = error.what
            if commit.segments and not segments:
                del rows[at]  # taken back as a whole
        commit = commits.at(commit.sequence - 1)
    lost = _ours(commits.at(through), prefix) if through else {}
    return TargetContents(_ours(commits.tail, prefix), rows, lost, wrong, untagged=untagged_rows)


def _digest(store: ObjectStore, meta: LogMeta, segments: list[LogSegment]) -> RowDigest:
    digest = NOTHING
    for segment in segments:
        opened, offset = OpenSegment(store, meta.schema, segment), segment.base
        while offset < opened.end:
            piece = opened.read(offset, READ_BYTES_MAX)
            assert piece.rows is not None, "offsets that a segment holds have rows"
            digest, offset = added(digest, audited(*_as_staged(meta, piece.rows))), piece.following
    return digest


def _as_staged(meta: LogMeta, rows: pa.RecordBatch) -> tuple[pa.Table, tuple[str, ...] | None]:
    """Return rows as the delivery's staged part has them, and the key of an upsert stream; see contract.OP."""
    if not meta.changelog:
        return pa.Table.from_batches([rows]), None
    ops = rows.column(0).cast(pa.int8())
    changes = pa.RecordBatch.from_arrays([*rows.columns[1:], ops], names=[*rows.schema.names[1:], OP])
    return pa.Table.from_batches([changes]), meta.key


def _ours(commit: Commit, prefix: str) -> dict[Subtask, Tag]:
    found = {_writer(known.writer, prefix): known.tag for known in commit.tags}
    return {subtask: tag for subtask, tag in found.items() if subtask is not None}


def _writer(name: str, prefix: str) -> Subtask | None:
    rest = name.removeprefix(prefix)
    return Subtask(int(rest)) if name.startswith(prefix) and rest.isdecimal() else None


def _is_void(segment: LogSegment, void: set[tuple[int, int, int]]) -> bool:
    end = segment.base + segment.rows
    return any(p == segment.partition and first <= segment.base and end <= last for p, first, last in void)
