"""The epochs behind a checkpoint, in a chain: a job in memory replays one after the other, also while more come.

Checkpoints between two retained ones may have expired. The records between these are one longer epoch then.

Invariants
    - Each epoch begins where the one before it ended, so every record is replayed once.

Source: docs/decisions/0132-shadow.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.model import NO_EPOCH, Epoch
from holdfast.runtime.inspect.stored import Stored, checkpoint_of
from holdfast.runtime.replay.epochs import Replayable, can_begin
from holdfast.runtime.replay.player import Start
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.spans import span_of


@dataclass(frozen=True)
class ChainedEpoch:
    """An epoch of a chain.

    Args:
        is_whole: Whether it is one epoch of the job; else checkpoints in it have expired.
    """

    epoch: Replayable
    is_whole: bool


class EpochChain:
    """The epochs that follow a checkpoint, each given once.

    Args:
        start: The checkpoint; without one, the job begins.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        done = start.done
        self.first: Manifest | None = (
            None if done is None else start.stored.repository.load_manifest(done.body.manifest)
        )
        """The manifest of the checkpoint; None: there is none."""
        self._before = self.first

    @property
    def epoch(self) -> Epoch:
        """Return the epoch up to which all was given; 0 if nothing was."""
        return NO_EPOCH if self._before is None else self._before.epoch

    def more(self, stored: Stored, count: int | None = None) -> list[ChainedEpoch]:
        """Return the next epochs, oldest first.

        Args:
            stored: The job as its log is now.
            count: How many at most.

        Raises:
            ConfigError: a rewind abandoned the epoch that was given last.
            Damaged, Unavailable: a manifest cannot be read.
        """
        if self.epoch in stored.job.abandoned_epochs or self.epoch > stored.job.base_epoch:
            raise ConfigError(
                f"job {stored.name!r} was rewound to epoch {stored.job.base_epoch}, before epoch {self.epoch}",
                not_done="the epochs behind it were not replayed",
                next_step="begin again, with a checkpoint that the job still has",
                where=Where(job=stored.name, epoch=self.epoch),
            )
        links, start, before = list[ChainedEpoch](), Start(stored, self.start.done), self._before
        for checkpoint in stored.job.completed:
            if checkpoint.body.epoch <= self.epoch or len(links) == count:
                continue
            manifest = stored.repository.load_manifest(checkpoint.body.manifest)
            follows = NO_EPOCH if before is None else before.epoch
            links.append(
                ChainedEpoch(
                    Replayable(checkpoint, manifest, start, span_of(before, manifest)), manifest.follows == follows
                )
            )
            before = manifest
        self._before = before  # only now: a manifest that cannot be read loses none that could
        return links


def chain_from(stored: Stored, wanted: str | None, count: int) -> EpochChain:
    """Return the chain from a checkpoint.

    Args:
        wanted: The checkpoint: its epoch, a savepoint's name, or latest; None: the one before the newest epochs.
        count: How many epochs these are.

    Raises:
        ConfigError: there is no such checkpoint, or a rewind abandoned it, or no epoch can be replayed.
    """
    job = stored.job
    if wanted is not None:
        checkpoint = checkpoint_of(job, wanted)
        if checkpoint.body.epoch in job.abandoned_epochs:
            raise ConfigError(
                f"a rewind of job {stored.name!r} abandoned the checkpoint of epoch {checkpoint.body.epoch}",
                not_done=NOT_REPLAYED,
                next_step=f"give one that is left: holdfast checkpoints list {stored.name}",
                where=Where(job=stored.name, epoch=checkpoint.body.epoch),
            )
        return EpochChain(Start(stored, checkpoint))
    if len(job.completed) <= count and job.completed:
        first = stored.repository.load_manifest(job.completed[0].body.manifest)
        if first.follows == NO_EPOCH and can_begin(stored, first):
            return EpochChain(Start(stored, None))
    if len(job.completed) < 2:
        raise nothing_behind(stored, None)
    return EpochChain(Start(stored, job.completed[max(0, len(job.completed) - 1 - count)]))


def nothing_behind(stored: Stored, wanted: str | None) -> ConfigError:
    """Return the error if no epoch follows a checkpoint; None: whichever it is."""
    behind = "has no epoch whose beginning is retained" if wanted is None else f"has no epoch behind {wanted}"
    return ConfigError(
        f"job {stored.name!r} {behind}",
        not_done=NOT_REPLAYED,
        next_step="wait for the next checkpoint, follow the running job with --live, or give an older one: "
        f"holdfast checkpoints list {stored.name}",
        where=Where(job=stored.name),
    )
