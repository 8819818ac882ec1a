"""Takes files back: a commit names them, and then each is replaced by a file without rows.

A file that another process removed or rewrote, such as a compaction, may live on in another one; then nothing is taken
back. Readers may have read the rows before; a job that reads the files stops, as they have changed.

Invariants
    - The tags move in the commit that names the files, so nothing of the older timeline is delivered after it (P21).
    - Files that an earlier rewind has emptied are not counted again.

Source: PROTOCOL P21; docs/decisions/0083-files-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.errors import Unavailable
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.files.commits import FolderCommits, new_id
from holdfast.sinks.files.format import (
    STAGING,
    Claimed,
    DataFile,
    FolderTag,
    is_writer_of,
    taking_back,
    writer_name,
)
from holdfast.sinks.files.target import ATTEMPTS_MAX, admit
from holdfast.sinks.protocol.undo import SAMPLE_MAX, impossible, is_undone, overtaken, refused, untouched

Size = Callable[[str], int | None]
"""Returns the bytes of the file with a final name; None if there is none. Raises Unavailable."""


def plan_repair(where: str, commits: FolderCommits, size_of: Size, rewinding: Rewinding) -> Repair:
    """See Repairs.plan_repair."""
    commits.refresh()
    if _stands(where, commits, rewinding):
        return untouched("truncate", rewinding)
    staged = set(commits.stores.own.list(STAGING))
    files = list(_undone(commits, rewinding))
    lost = _lost([file for file in files if file.staged not in staged], size_of)
    return _repaired(files, rewinding) if lost is None else impossible(lost)


def repair(where: str, commits: FolderCommits, size_of: Size, rewinding: Rewinding) -> Repair:
    """See Repairs.repair. If a crash follows the commit, the next use of the folder completes the rest."""
    by = Claimed(rewinding.job_uuid, rewinding.sink, rewinding.claim)
    for _ in range(ATTEMPTS_MAX):
        commits.refresh()
        stands = _stands(where, commits, rewinding)
        commits.settle()
        if stands:
            return untouched("truncate", rewinding)
        files = list(_undone(commits, rewinding))
        if (lost := _lost(files, size_of)) is not None:
            raise refused(where, lost)
        moved = _moving(commits, rewinding)
        commit = taking_back(commits.tail, new_id(), moved, [file.path for file in files], by)
        if commits.append(commit):
            commits.publish(())
            return _repaired(files, rewinding)
    raise Unavailable(
        f"{where}: other sinks committed to the folder {ATTEMPTS_MAX} times while the rewind was recorded",
        not_done="nothing was taken back, and no tag moved",
        next_step="no action needed: the rewind repeats it",
    )


def _stands(where: str, commits: FolderCommits, rewinding: Rewinding) -> bool:
    """Return whether all tags have moved. Raises Fenced, Damaged."""
    admit(where, commits.tail, Claimed(rewinding.job_uuid, rewinding.sink, rewinding.claim))
    newest = commits.tail.newest_of(rewinding.job_uuid, rewinding.sink)
    if newest is not None and newest.timeline > rewinding.to.timeline:
        raise overtaken(where, newest, rewinding)
    return not _moving(commits, rewinding)


def _moving(commits: FolderCommits, rewinding: Rewinding) -> list[FolderTag]:
    """Return the tags that move, including those of writers that have none yet."""
    job, sink, to = rewinding.job_uuid, rewinding.sink, rewinding.to
    known = {each.writer: each.tag for each in commits.tail.tags if is_writer_of(each.writer, job, sink)}
    names = sorted({*known, *(writer_name(job, writer) for writer in rewinding.writers)})
    return [FolderTag(name, to.timeline, to.epoch) for name in names if name not in known or known[name] < to]


def _undone(commits: FolderCommits, rewinding: Rewinding) -> Iterator[DataFile]:
    """Yield the files to take back, newest commit first.

    The walk ends at a commit after which every tag of the sink is at or below the base. A tag goes back only by a
    rewind, which has emptied the files after its own base; so no older file can be above this one.
    """
    job, sink, base = rewinding.job_uuid, rewinding.sink, rewinding.to.epoch
    emptied_paths, commit = set[str](), commits.tail
    while any(is_writer_of(each.writer, job, sink) and each.epoch > base for each in commit.tags):
        emptied_paths.update(commit.emptied)
        moved = commit.moved
        if moved is not None and is_writer_of(moved.writer, job, sink) and is_undone(moved.tag, rewinding):
            yield from (file for file in commit.files if file.path not in emptied_paths)
        commit = commits.at(commit.sequence - 1)


def _lost(files: list[DataFile], size_of: Size) -> str | None:
    """Return why rows can no longer be taken back; None if they can."""
    paths = [file.path for file in files if size_of(file.path) != file.size]
    if not paths:
        return None
    return (
        f"{len(paths)} of {len(files)} files that hold its rows were removed or rewritten since, such as {paths[0]}; "
        "other files may hold their rows now"
    )


def _repaired(files: list[DataFile], rewinding: Rewinding) -> Repair:
    sample = tuple({"file": file.path, "rows": file.rows} for file in files[:SAMPLE_MAX])
    reason = (
        f"files of epochs after {rewinding.to.epoch} are replaced by files without rows; readers may have read them, "
        "and a job that has listed one stops"
    )
    return Repair("truncate", 0, sum(file.rows for file in files), 0, sample, reason)
