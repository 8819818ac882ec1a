"""Checks the end of the job log against the rest of storage, before a job is started and in `verify`.

A log that lost its newest records looks like an earlier log. A run from there would deliver again what the missing
records had committed, or leave it out.

Source: docs/decisions/0020-histories.md; checkpoint/beyond.py defines what is proof.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.checkpoint.beyond import Beyond, LastWord, beyond
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, NotFound, TooLarge, Where
from holdfast.model import NO_EPOCH, Epoch, Generation
from holdfast.ports import ObjectStore
from holdfast.runtime.job.live import BYTES_MAX, PATH
from holdfast.storage.bulk import get_at_most

_AT_A_START = ("manifests",)
"""Output becomes visible, and offsets move, only with a manifest; listing all objects would slow down every start."""


def read_whole_log(name: str, store: ObjectStore, repository: Repository) -> Job | None:
    """Return the fold of the log; None if there is no job.

    Raises:
        Damaged: records are missing, at the end or elsewhere.
    """
    job, evidence = beyond_the_log(store, repository, _AT_A_START)
    if evidence:
        raise Damaged(
            f"the job log of {name!r} was cut short or restored from an older copy: "
            + "; ".join(each.what for each in evidence),
            not_done="the job was not started; state and output are untouched",
            next_step=way_out(job, evidence),
            where=Where(job=name),
        )
    return job


def beyond_the_log(
    store: ObjectStore, repository: Repository, folders: Sequence[str], *, every_record: bool = False
) -> tuple[Job | None, list[Beyond]]:
    """Return the fold of the log and what proves that its newest records are missing.

    Args:
        every_record: As in Repository.read_log.
    """
    # Before the log: objects that a driver stores meanwhile are never ahead of the log that is read afterwards.
    live = _last_word(store)
    object_names = [path for folder in folders for path in repository.names(folder)]
    job = repository.read_log(every_record=every_record)
    if live is not None and job is not None and live[0] not in (None, job.uuid):
        live = None
    return job, beyond(job, object_names, None if live is None else live[1])


def way_out(job: Job | None, found: Sequence[Beyond]) -> str:
    """Return what a user can do about a log that was cut short."""
    restore = "restore the missing records below log/ from a copy, or the whole root and its targets from one"
    away = ", ".join(each.path for each in found)
    if job is None:
        return f"{restore}; to start over, use another root, or move this job's folder away, and empty targets"
    go_back = "outputs may be ahead of the log"
    if job.completed:
        go_back += f", so rewind first: holdfast rewind JOB.py --to-epoch {job.base_epoch} --apply"
    return f"{restore}. If they are permanently lost: {go_back}; then move {away} out of the root and run the job"


def _last_word(store: ObjectStore) -> tuple[str | None, LastWord] | None:
    """Return the job's UUID and the last report in `live.json`; None if the file cannot be understood."""
    try:
        live = json.loads(get_at_most(store, PATH, BYTES_MAX))
    except (NotFound, TooLarge, ValueError, RecursionError):
        return None
    if not isinstance(live, dict) or not isinstance(live.get("generation"), int):
        return None
    uuid, last = live.get("job_uuid"), live.get("checkpoint")
    epoch = last.get("epoch") if isinstance(last, dict) else None
    said = LastWord(Generation(live["generation"]), Epoch(epoch) if isinstance(epoch, int) else NO_EPOCH)
    return (uuid if isinstance(uuid, str) else None), said
