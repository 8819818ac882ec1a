"""Forks a job: copies a checkpoint below the new job's folder, then creates the new job's log.

The last step is one conditional create (P4). Before it the new job does not exist; after it, the job is complete.
Copies of a killed attempt disturb nothing, and the first sweep of the new job deletes them.

Nothing keeps the checkpoint while it is copied. If it expires meanwhile, an object is missing, and the log, in which
the expiry precedes every deletion (P16), shows why: the fork is refused.

Source: docs/decisions/0086-fork.md; checkpoint/forks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.forks import NewJob, first_record, forked_manifest
from holdfast.checkpoint.joblog import Completed, Forked, ForkOrigin, Record
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, HoldfastError, Unavailable, Where
from holdfast.ports import Clock, ObjectStore
from holdfast.runtime.fork.copying import Copied, copy_sources, copy_state
from holdfast.runtime.inspect.log_end import read_whole_log
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.inspect.topic import with_topic
from holdfast.runtime.plan import shape_changes

ATTEMPTS_MAX = 5
"""Attempts to create the log while the outcome is unknown."""


@dataclass(frozen=True)
class Fork:
    """A fork that exists.

    Args:
        origin: The checkpoint that was copied.
        at: When it was completed; microseconds since 1970, UTC.
        manifest: The first checkpoint of the new job.
    """

    origin: ForkOrigin
    at: int
    manifest: Manifest
    copied: Copied
    duration_ms: int


def check_new(name: str, store: ObjectStore) -> None:
    """Refuse a name that a job has.

    Args:
        store: The folder of that name.

    Raises:
        ConfigError: the job exists.
        Damaged: it had a log.
    """
    repository = Repository(store)
    if (job := read_whole_log(name, store, repository)) is not None:
        raise _exists(name, repository.origins() if job.generation == 0 else ())


def fork(
    stored: Stored, done: Completed, into: ObjectStore, new: NewJob, clock: Clock, wait: Callable[[], object]
) -> Fork:
    """Create a job that begins with a checkpoint of another one.

    Args:
        done: The checkpoint.
        into: The new job's folder.
        wait: Called before the creation of the log is tried again.

    Raises:
        ConfigError: the new job exists, the checkpoint expired meanwhile, or another version of Holdfast wrote it; or
            its topic is missing or compacted beyond it.
        Damaged: an object of the checkpoint is missing, or differs from what was written.
        Unavailable: a store cannot be reached, or the outcome is unknown.
    """
    began, copy_counts = clock.monotonic(), Copied()
    repository = Repository(into)
    try:
        before = stored.repository.load_manifest(done.body.manifest)
        origin = ForkOrigin(stored.name, stored.job.uuid, done.timeline, done.body.epoch, _targets(before))
        origins = (*stored.repository.origins(), origin)
        holding, whole = with_topic(stored, before, (0, before.key_groups))
        copies = copy_state(holding.store, into, new, whole, copy_counts)
        copy_sources(stored.store, into, new, copy_counts)
        manifest = forked_manifest(whole, new, lambda ref: copies[ref.path])
        ref = repository.store_manifest(manifest, new.owner)
    except Damaged as error:
        raise _lost(stored, done, new, error) from error
    except HoldfastError as error:
        error.not_done = _not_created(stored, new)
        raise
    duration_ms = round((clock.monotonic() - began) * 1000)
    total = sum(copy.size for copy in copies.values())
    _create(stored, repository, first_record(new, manifest, origins, ref, duration_ms, total), wait)
    return Fork(origin, done.at, manifest, copy_counts, duration_ms)


def _create(stored: Stored, repository: Repository, record: Record, wait: Callable[[], object]) -> None:
    """Create the log of the new job. Sent again unchanged until its number is read (P4)."""
    assert isinstance(record.body, Forked)
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            wait()
        try:
            stored_record = repository.create_record(record)
        except Unavailable:
            continue
        if stored_record.owner == record.owner:
            return
        raise _exists(record.body.name, stored_record.body.origins if isinstance(stored_record.body, Forked) else ())
    name = record.body.name
    raise Unavailable(
        f"the log of job {name!r} could not be created in {ATTEMPTS_MAX} attempts, and the outcome of the last is "
        "unknown",
        not_done=f"whether {name!r} exists is unknown; job {stored.name!r} was only read",
        next_step="see holdfast jobs: if it is listed, it is complete; if not, fork again",
        where=Where(job=name),
    )


def _targets(manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return where the job of a checkpoint delivers, by sink, as far as the checkpoint records it."""
    shape = manifest.shape
    if not isinstance(shape, dict) or not shape_changes.readable(shape):
        return {}
    return {name: {"kind": sink["kind"], **sink["place"]} for name, sink in shape["sinks"].items()}


def _exists(name: str, origins: tuple[ForkOrigin, ...]) -> ConfigError:
    what, next_step = f"job {name!r} exists already", "choose another name"
    if origins:
        what += f": it was forked from epoch {origins[-1].epoch} of job {origins[-1].job!r}"
        next_step += "; or, if that is the fork that you want, run it"
    not_done = "no job was created, and those that exist are as they were"
    return ConfigError(what, not_done=not_done, next_step=next_step, where=Where(job=name))


def _not_created(stored: Stored, new: NewJob) -> str:
    return f"job {new.name!r} was not created; job {stored.name!r} was only read"


def _lost(stored: Stored, done: Completed, new: NewJob, error: Damaged) -> HoldfastError:
    """Return why an object of the checkpoint cannot be copied: it was swept meanwhile, or it is damaged."""
    job, epoch, name = stored.repository.read_log() or stored.job, done.body.epoch, stored.name
    not_done, where = _not_created(stored, new), Where(job=name, epoch=epoch)
    if all(each.body != done.body for each in job.retained):
        return ConfigError(
            f"the checkpoint of epoch {epoch} of job {name!r} expired while it was copied",
            not_done=not_done,
            next_step=f"keep one first: holdfast savepoint {name} KEPT; then holdfast fork {name} {new.name} "
            "--from-epoch KEPT",
            where=where,
        )
    others = [str(each.body.epoch) for each in job.retained if each.body.epoch != epoch]
    other = f"; to fork from another: --from-epoch {others[-1]}" if others else ""
    return Damaged(
        f"the checkpoint of epoch {epoch} of job {name!r} is damaged: {error.what}",
        not_done=not_done,
        next_step=f"to see which checkpoints are intact: holdfast checkpoints verify {name}{other}",
        where=where,
    )
