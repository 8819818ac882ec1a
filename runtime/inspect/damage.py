"""Finds the remedy for a damaged object of the root: a checkpoint that does not need it.

An object is needed by the checkpoints from the epoch that wrote it to the one after which nothing names it any longer.
So the newest retained checkpoint before that epoch computes it again: a rewind to it reads the records since then once
more. Only manifests are read; `checkpoints verify` checks whether the objects of that checkpoint are intact.

Source: PROTOCOL P16; DESIGN section 5.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from holdfast.checkpoint.joblog import Completed
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, ErrorReport, Unavailable


def with_way_out(repository: Repository, name: str, error: ErrorReport) -> ErrorReport:
    """Return the error of a job that needs a damaged object, with the checkpoint from which it can be computed again.

    Args:
        name: The job.
    """
    if error.object is None:
        return error
    try:
        job = repository.read_log()
        checkpoints = () if job is None else tuple(job.completed)
        before = newest_without(repository, checkpoints, error.object)
    except (Damaged, Unavailable):
        return error  # more is damaged, or the store is unreachable: its own advice holds
    if checkpoints and before == checkpoints[-1].body.epoch:
        return error  # the last checkpoint does not need it
    if before is None:
        way = (
            f"without a copy it cannot be replaced: every retained checkpoint needs it (holdfast checkpoints verify "
            f"{name}). Give the job another name and targets of its own; it then reads its sources from the start"
        )
    else:
        way = (
            f"without a copy, compute it again from epoch {before}, the newest checkpoint that does not need it: "
            f"holdfast rewind JOB.py --to-epoch {before}, which takes the outputs back too; then run the job"
        )
    return replace(error, next=f"restore {error.object} from a copy of the root and run the job again; {way}")


def newest_without(repository: Repository, completed: tuple[Completed, ...], path: str) -> int | None:
    """Return the epoch of the newest checkpoint that does not need an object; None if all need it.

    Args:
        completed: The retained checkpoints, oldest first.

    Raises:
        Unavailable: the store does not answer.
    """

    def needs(each: Completed) -> bool:
        ref = each.body.manifest
        if ref.path == path:
            return True
        try:
            (named,) = repository.named_in([ref])
        except Damaged:
            return True  # it cannot be used either
        return path in named.paths

    first = bisect_left(completed, True, hi=len(completed), key=needs)
    return completed[first - 1].body.epoch if first else None
