"""The epochs of a job that can be replayed: each with the checkpoint that it begins with, and what it took."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.joblog import Completed
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.model import NO_EPOCH, Epoch
from holdfast.runtime.inspect.stored import Stored, checkpoint_of
from holdfast.runtime.replay.player import Start
from holdfast.runtime.replay.reads import Reads, reads_of
from holdfast.runtime.replay.script import Script, script_of
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.spans import Span, offsets_in, span_of


@dataclass(frozen=True)
class Replayable:
    """One epoch.

    Args:
        done: Its checkpoint.
        manifest: That of the checkpoint.
        start: The checkpoint that it follows.
        span: The records that it took.
        ending: The job that has its checkpoint; None: that of the start.
        key_groups: The key groups [first, end) whose state is there; None: all.
    """

    done: Completed
    manifest: Manifest
    start: Start
    span: Span
    ending: Stored | None = None
    key_groups: tuple[int, int] | None = None

    @property
    def stored(self) -> Stored:
        """Return the job that has its checkpoint."""
        return self.start.stored if self.ending is None else self.ending

    @property
    def records(self) -> int:
        """Return how many records it took; without digests, how many offsets, which may be bytes."""
        audit = self.manifest.audited
        return self.offsets if audit is None else sum(each.taken.rows for each in audit.sources)

    @property
    def offsets(self) -> int:
        """Return how many offsets it read."""
        return offsets_in(self.span)

    def script(self) -> Script | None:
        """Return the recorded steps; None if there are none here, as in a file. Raises Damaged, Unavailable."""
        return None if self.ending is not None else script_of(self.stored.store, self.manifest)

    def reads(self) -> Reads | None:
        """Return the batches that it read; None if that was not recorded. Raises Damaged, Unavailable."""
        script = self.script()
        return None if script is None else reads_of(script)


def replayable(stored: Stored, wanted: str) -> Replayable:
    """Return an epoch by its number or the name of a savepoint.

    Raises:
        ConfigError: there is no such checkpoint, or the one that it follows has expired.
        Damaged, Unavailable: a manifest cannot be read.
    """
    checkpoint = checkpoint_of(stored.job, wanted)
    manifest = stored.repository.load_manifest(checkpoint.body.manifest)
    if manifest.follows == NO_EPOCH:
        if manifest.epoch == _copied(stored):
            raise ConfigError(
                f"job {stored.name!r} is a fork and begins with the checkpoint of epoch {manifest.epoch}: it took no "
                "record for it",
                not_done=NOT_REPLAYED,
                next_step="choose a later epoch, or replay the job that it was forked from",
                where=Where(job=stored.name, epoch=manifest.epoch),
            )
        return Replayable(checkpoint, manifest, Start(stored, None), span_of(None, manifest))
    start = next((each for each in stored.job.retained if each.body.epoch == manifest.follows), None)
    if start is None:
        raise ConfigError(
            f"epoch {manifest.epoch} of job {stored.name!r} begins with the checkpoint of epoch {manifest.follows}, "
            "which has expired",
            not_done=NOT_REPLAYED,
            next_step="choose a later epoch, or keep more: retained_checkpoints, retained_for; "
            f"holdfast checkpoints list {stored.name} shows those that exist",
            where=Where(job=stored.name, epoch=manifest.epoch),
        )
    before = stored.repository.load_manifest(start.body.manifest)
    return Replayable(checkpoint, manifest, Start(stored, start), span_of(before, manifest))


def newest(stored: Stored, count: int) -> list[Replayable]:
    """Return the newest epochs whose beginning is retained, oldest first, at most `count`."""
    epochs: list[Replayable] = []
    for checkpoint in reversed(stored.job.completed):
        if len(epochs) == count:
            break
        manifest = stored.repository.load_manifest(checkpoint.body.manifest)
        if can_begin(stored, manifest):
            epochs.append(replayable(stored, str(checkpoint.body.epoch)))
    return epochs[::-1]


def can_begin(stored: Stored, manifest: Manifest) -> bool:
    """Return whether an epoch can be replayed: the checkpoint that it follows is retained, or there is none."""
    if manifest.follows == NO_EPOCH:
        return manifest.epoch != _copied(stored)
    return stored.job.checkpoint(manifest.follows) is not None


def _copied(stored: Stored) -> Epoch | None:
    """Return the epoch with which a fork begins, whose state is a copy; None if the job is not a fork."""
    origins = stored.repository.origins()
    return origins[-1].epoch if origins else None
