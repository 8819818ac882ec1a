"""The checkpoint that a user names to rewind to: by epoch, time, savepoint, or a record to process again.

A rewind to a record returns to the newest checkpoint that has not read it yet, so that as few other records as possible
are processed again. Offsets of a lineage never decrease between checkpoints, so a binary search finds it.

Invariants
    - The result is a retained checkpoint of the lineage, within the rewind horizon.
    - A partition that a checkpoint does not list had not been read by then (P12).
    - A record that the last checkpoint has not read is refused: no output came of it that a rewind could undo.

Source: DESIGN section 9; PROTOCOL P2 (numbers have gaps), P12, P16; docs/decisions/0010-rewind.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, Where
from holdfast.model import NO_EPOCH
from holdfast.runtime.driver.requests import no_way_back, ways_back

NOTHING_DONE = "nothing was changed"
NAMES_SHOWN_MAX = 20
EXPIRED_MEANWHILE_MAX = 5
"""How often planning restarts because a running job expired a checkpoint that the plan was reading."""
T = TypeVar("T")


@dataclass(frozen=True)
class Offset:
    """A record of a source, at this offset of a partition."""

    source: str
    partition: int
    offset: int

    @classmethod
    def parsed(cls, text: str) -> Offset:
        """Read SOURCE:PARTITION:OFFSET; the name of a source may hold colons.

        Raises:
            ConfigError: it has another form.
        """
        source, partition, offset = (["", "", *text.rsplit(":", 2)])[-3:]
        if not source or not all(part.isascii() and part.isdecimal() for part in (partition, offset)):
            raise ConfigError(
                f"--to-offset {text!r} does not name a record",
                not_done=NOTHING_DONE,
                next_step="give the source's name, its partition and an offset, such as bids:0:1500",
            )
        return cls(source, int(partition), int(offset))


@dataclass(frozen=True)
class RewindPoint:
    """The point to rewind to; exactly one field is set."""

    epoch: int | None = None
    at_us: int | None = None
    savepoint: str | None = None
    offset: Offset | None = None


def while_it_goes_on(repository: Repository, job: Job, plan: Callable[[Job], T]) -> T:
    """Plan on the log of a job that may be running; plan again on a newer log if a checkpoint expired in the meantime.

    Raises:
        Damaged: an object is missing and no expiry explains it.
    """
    for _ in range(EXPIRED_MEANWHILE_MAX):
        try:
            return plan(job)
        except Damaged:
            now = repository.read_log()
            if now is None or {each.body.epoch for each in job.retained} <= {each.body.epoch for each in now.retained}:
                raise
            job = now
    return plan(job)


def target_of(repository: Repository, job: Job, wanted: RewindPoint) -> Completed:
    """Return the checkpoint to return to.

    Raises:
        ConfigError: it does not exist, or the job cannot be rewound to it; names the nearest possible ones.
    """
    epoch = wanted.epoch
    possible = ways_back(job)
    if wanted.offset is not None:
        return _before_record(repository, job, wanted.offset, possible)
    if wanted.savepoint is not None:
        named = job.savepoint(wanted.savepoint)
        if named is None:
            raise _no_savepoint(job, wanted.savepoint)
        epoch = named.epoch
    elif wanted.at_us is not None:
        before = [each for each in possible if each.at <= wanted.at_us]
        if not before:
            raise _refused(job, f"job {job.name!r} has no checkpoint from before that time", possible, NO_EPOCH)
        epoch = before[-1].body.epoch
    assert epoch is not None
    if (reason := no_way_back(job, epoch)) is not None:
        raise _refused(job, f"job {job.name!r} cannot be rewound to epoch {epoch}: {reason}", possible, epoch)
    return next(each for each in possible if each.body.epoch == epoch)


def _before_record(repository: Repository, job: Job, wanted: Offset, possible: Sequence[Completed]) -> Completed:
    if not possible:
        reason = no_way_back(job, job.base_epoch) or "it has completed no checkpoint yet"
        raise _refused(job, f"job {job.name!r} cannot be rewound to a record: {reason}", possible, None)
    last = repository.load_manifest(possible[-1].body.manifest)
    _check_known(job, wanted, last)
    if (read := _offset_in(last, wanted)) <= wanted.offset:
        raise _not_read(job, wanted, possible[-1], read)

    def next_offset(done: Completed) -> int:
        return _offset_in(repository.load_manifest(done.body.manifest), wanted)

    found = bisect_right(possible, wanted.offset, key=next_offset)
    if found:
        return possible[found - 1]
    oldest = possible[0]
    older = "older ones lie beyond the rewind horizon" if job.expired_through > NO_EPOCH else "it is the first"
    raise _refused(
        job,
        f"job {job.name!r} cannot be rewound to offset {wanted.offset:,} of partition {wanted.partition} of "
        f"{wanted.source!r}: the oldest checkpoint it can be rewound to, epoch {oldest.body.epoch}, has read up to "
        f"offset {next_offset(oldest):,}; {older}",
        possible,
        oldest.body.epoch - 1,
    )


def _check_known(job: Job, wanted: Offset, last: Manifest) -> None:
    """Refuse a source or partition that the job has never read."""
    sources = sorted({at.source for at in last.positions})
    partitions = sorted(at.partition for at in last.positions if at.source == wanted.source)
    if wanted.partition in partitions:
        return
    if not partitions:
        known = ", ".join(sources[:NAMES_SHOWN_MAX]) or "none"
        what, next_step = f"job {job.name!r} has no source {wanted.source!r}", f"its sources: {known}"
    else:
        what = f"source {wanted.source!r} of job {job.name!r} has no partition {wanted.partition}"
        next_step = f"its partitions are {partitions[0]} to {partitions[-1]}"
    raise ConfigError(
        what,
        not_done=NOTHING_DONE,
        next_step=f"{next_step}; to see its positions: holdfast status {job.name}",
        where=Where(job=job.name),
    )


def _not_read(job: Job, wanted: Offset, last: Completed, read: int) -> ConfigError:
    epoch = last.body.epoch
    return ConfigError(
        f"offset {wanted.offset:,} of partition {wanted.partition} of {wanted.source!r} was not read yet: reading "
        f"continues after the last checkpoint, epoch {epoch}, at offset {max(read, 0):,}",
        not_done=NOTHING_DONE,
        next_step="it has no output to undo; a run of the job will read it. "
        f"To discard only epochs that a run has not completed: --to-epoch {epoch}",
        where=Where(job=job.name),
    )


def _offset_in(manifest: Manifest, wanted: Offset) -> int:
    """Return the next offset to read; below every offset if nothing of the partition was read yet."""
    found = [at.offset for at in manifest.positions if (at.source, at.partition) == (wanted.source, wanted.partition)]
    return found[0] if found else -1


def _no_savepoint(job: Job, wanted: str) -> ConfigError:
    names = [each.name for each in job.savepoints[-NAMES_SHOWN_MAX:]]
    hint = f"its newest are {', '.join(names)}" if names else "it has none"
    return ConfigError(
        f"job {job.name!r} has no savepoint {wanted!r}",
        not_done=NOTHING_DONE,
        next_step=f"{hint}; checkpoints without a name: holdfast checkpoints list {job.name}",
        where=Where(job=job.name),
    )


def _refused(job: Job, what: str, possible: Sequence[Completed], epoch: int | None) -> ConfigError:
    epochs = [each.body.epoch for each in possible]
    near = epochs[-2:]
    if epoch is not None:
        near = [*[e for e in epochs if e < epoch][-1:], *[e for e in epochs if e > epoch][:1]]
    nearest = f"the nearest epochs it can be rewound to: {' and '.join(map(str, near))}; " if near else ""
    return ConfigError(
        what,
        not_done=NOTHING_DONE,
        next_step=f"{nearest}all: holdfast checkpoints list {job.name}",
        where=Where(job=job.name),
    )
