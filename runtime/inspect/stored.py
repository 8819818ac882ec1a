"""A job as its root holds it, and the checkpoints that a user can name.

Source: PROTOCOL P2 (epoch numbers have gaps), P16 (checkpoints expire, savepoints do not).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint import joblog
from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.repository import Repository, record_path
from holdfast.errors import ConfigError, TooLarge, Where
from holdfast.ports import ObjectStore
from holdfast.runtime.job import live
from holdfast.storage.bulk import get_at_most
from holdfast.storage.objects import LocalObjects, open_objects
from holdfast.storage.paths import join

NAMES_SHOWN_MAX = 20
SAVEPOINTS_SHOWN_MAX = 5
LATEST = "latest"


@dataclass(frozen=True)
class Stored:
    """A job as its root holds it."""

    name: str
    folder: str
    """The job's own folder or URL below the root."""
    store: ObjectStore
    repository: Repository
    job: joblog.Job


def open_job(root: str, name: str) -> Stored:
    """Read a job's log.

    Raises:
        ConfigError: there is no such job; the message lists those that exist.
        Damaged: the log cannot be read.
    """
    if name and "/" not in name and name not in (".", ".."):
        folder = join(root, name)
        store = open_objects(folder, writable=False)
        repository = Repository(store)
        job = repository.read_log()
        if job is not None:
            return Stored(name, folder, store, repository, job)
    raise _unknown(root, name)


def read_live(store: ObjectStore) -> live.Status | None:
    """Return the driver's last report; None if this version understands none. Raises NotFound, Unavailable."""
    try:
        return live.understood(get_at_most(store, live.PATH, live.BYTES_MAX))
    except TooLarge:
        return None


def job_names(root: str) -> list[str]:
    """Return the jobs under a root; none if the root does not exist."""
    store, first = open_objects(root, writable=False), record_path(1)
    if isinstance(store, LocalObjects):
        return sorted(path.parent.parent.name for path in store.root.glob(f"*/{first}"))
    found = (path.removesuffix(f"/{first}") for path in store.list("") if path.endswith(f"/{first}"))
    return sorted(name for name in found if "/" not in name)


def checkpoint_of(job: Job, wanted: str) -> Completed:
    """Return the completed checkpoint with this epoch or savepoint name; for "latest", the last one.

    Raises:
        ConfigError: there is none; the message names the nearest ones, because epoch numbers have gaps.
    """
    where = Where(job=job.name)
    if (named := job.savepoint(wanted)) is not None:
        wanted = str(named.epoch)
    if wanted == LATEST and job.completed:
        return job.completed[-1]
    if wanted != LATEST and not (wanted.isascii() and wanted.isdecimal()):
        what = f"{wanted!r} is neither an epoch nor a savepoint"
        next_step = f"give an epoch number, a savepoint name, or {LATEST}{_savepoints(job)}"
    elif job.oldest is None:
        what = f"job {job.name!r} has not completed a checkpoint yet"
        next_step = f"wait for the first; see holdfast status {job.name}"
    else:
        number = int(wanted)
        where = Where(job=job.name, epoch=number)
        if (found := job.checkpoint(number)) is not None:
            return found
        if number in job.abandoned_epochs:
            return next(each for each in job.abandoned if each.body.epoch == number)
        what = f"job {job.name!r} has no checkpoint of epoch {number}; epoch numbers have gaps"
        if number <= job.expired_through:
            what = f"job {job.name!r} has no checkpoint of epoch {number} any more: they have expired up to epoch "
            what += f"{job.expired_through}, except for savepoints"
        next_step = f"the nearest: {_nearest(job, number)}{_savepoints(job)}; all: holdfast checkpoints list {job.name}"
    raise ConfigError(what, not_done="nothing was read", next_step=next_step, where=where)


def _nearest(job: Job, number: int) -> str:
    epochs = [each.body.epoch for each in job.retained]
    below, above = [each for each in epochs if each < number][-1:], [each for each in epochs if each > number][:1]
    return " and ".join(str(each) for each in (*below, *above))


def _savepoints(job: Job) -> str:
    shown = [f"{each.name} ({each.epoch})" for each in job.savepoints[-SAVEPOINTS_SHOWN_MAX:]]
    return f"; savepoints: {', '.join(shown)}" if shown else ""


def _unknown(root: str, name: str) -> ConfigError:
    names = job_names(root)
    job_list = ", ".join(names[:NAMES_SHOWN_MAX])
    if len(names) > NAMES_SHOWN_MAX:
        job_list += f" and {len(names) - NAMES_SHOWN_MAX} more"
    if name.endswith(".py"):
        next_step = "give the job's name, the first argument of hf.App, not its file"
    else:
        next_step = "correct the name" if names else "check where the job keeps its history"
    return ConfigError(
        f"there is no job {name!r} under {root}",
        not_done="nothing was read or changed",
        next_step=f"{next_step}, or give another --root; "
        + (f"jobs here: {job_list}" if names else "there are no jobs here"),
        where=Where(job=name),
    )
