"""The object that a sink opens on a worker: one writer's access to the target.

A target makes one writer's output of one epoch visible together with the tag that records it, in the target's own
transaction. So no foreign timer can undo a decided commit.

Batches that reach a target have the columns of the stream and, for an upsert stream, the int8 column `_op` last: 0 puts
the row, 1 deletes the row with its key.

Invariants
    - Output of an epoch is visible if and only if the target's tag is at or past the epoch.
    - A tag only moves forward on (timeline, epoch); a delivery that does not move it changes nothing.
    - Epochs that are delivered together apply one after the other, each with before-images under its own tag. They
      apply only if the target's tag is below the first of them.

Pure: no clock, thread or I/O. PROTOCOL P17, P21, P24; docs/decisions/0021-owned-targets.md,
0030-epochs-in-one-transaction.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.errors import Fenced
from holdfast.model import Tag

OP = "_op"
"""The column that distinguishes puts from deletes; last, int8, in upsert streams only."""
PUT = 0
DELETE = 1


@dataclass(frozen=True)
class Delivered:
    """The rows and the tag are in the target."""

    rows: int


@dataclass(frozen=True)
class AlreadyDelivered:
    """The target is at this tag, at or past the first one delivered; nothing was changed."""

    tag: Tag


Outcome = Delivered | AlreadyDelivered

FaultPoint = Literal["before_begin", "after_tag", "between_epochs", "before_commit", "after_commit"]
"""The steps of a delivery where a test may fail it. Before `after_commit` a failure undoes everything."""
Fault = Callable[[FaultPoint], None]


def no_fault(point: FaultPoint) -> None:
    """Continue, as every target does outside of tests."""


@dataclass(frozen=True)
class EpochOutput:
    """One writer's output of one epoch. The batches can be read once."""

    tag: Tag
    batches: Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Upload:
    """One writer's staged output of one epoch, under names that no other attempt has (P16)."""

    job_uuid: str
    sink: str
    timeline: int
    epoch: int
    generation: int
    worker: str
    """The process, or the attempt of a task."""
    subtask: int


@dataclass(frozen=True)
class UploadedOutput:
    """All writers' output of one epoch, some of which the target may have already."""

    tag: Tag
    uploads: tuple[str | None, ...]
    """Per staged part the result of its upload; None if there was none."""
    read: Callable[[Sequence[int]], Iterable[pa.RecordBatch]]
    """Reads the staged parts with these places."""


class Target(ABC):
    """One writer's access to the target. One call at a time, from any thread."""

    @abstractmethod
    def delivered(self) -> Tag | None:
        """Return the writer's tag in the target; None if this writer never delivered.

        Raises:
            Fenced: another history of the job has taken the target over.
            Unavailable: the target is unreachable now.
        """

    @abstractmethod
    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        """Make the rows visible together with the tag, or change nothing; no batches move the tag only.

        The batches are read before the transaction begins. So a slow download locks out no other
        writer, and not at all if the target is at the tag already.

        Args:
            known: The target's tag as this writer knows it, `owners.NEVER` if it has none. The transaction compares:
                a target below it was restored from a backup, and one above it, but below `tag`, was written to by a
                copy of the job. None compares nothing: for tests, and for a fence.

        Raises:
            Unavailable: the outcome is unknown, or the target is busy: read the tag, then try again.
            Fenced: the target is on a newer timeline, or another history of the job has taken it over; this
                process may not write again.
            Damaged: the target's own bytes are broken, or it no longer holds the delivery of `known`.
            ConfigError: the target, as it is now, can never take these rows.
        """

    def deliver_uploaded(self, output: UploadedOutput, known: Tag | None = None) -> Outcome:
        """As `deliver`, with the uploads in place of their parts. It reads a part whose upload it does not find."""
        return self.deliver(output.tag, output.read(range(len(output.uploads))), known)

    @property
    def merges(self) -> Merges | None:
        """Delivers several epochs in one transaction, when the writer has fallen behind; None: each has its own."""
        return None

    def forget(self, through: Tag) -> None:
        """Drop the before-images of deliveries up to this tag, which no rewind can reach any longer.

        This includes older timelines, but no later epoch: rows that an earlier rewind left may be rewound again.
        """

    def close(self) -> None:
        """Release the connection; an unfinished delivery is undone."""


class Merges(ABC):
    """Several epochs in one transaction."""

    @property
    def merges(self) -> Merges:
        """The object itself."""
        return self

    @abstractmethod
    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        """Make the rows of all epochs visible together with the last tag, or change nothing; else as `Target.deliver`.

        Args:
            epochs: At least one, of one timeline, in order. The transaction changes nothing unless the target is
                below the first of them: the caller leaves out epochs that the target holds already.
            known: As for `Target.deliver`.

        Returns:
            Delivered with the rows of all epochs, or the target's tag, which may lie between the epochs.
        """


def already(where: str, tag: Tag, standing: Tag) -> AlreadyDelivered:
    """Judge a delivery whose tag did not move: harmless repetition, or a writer of an abandoned timeline."""
    assert standing >= tag, "only a tag at or past the delivered one refuses a delivery"
    if standing.timeline > tag.timeline:
        raise Fenced(
            f"{where}: the target is on timeline {standing.timeline}, but epoch {tag.epoch} of timeline "
            f"{tag.timeline} was to be delivered",
            not_done="nothing was written to the target",
            next_step="let this process exit, do not retry it: the job was rewound and another process runs it",
        )
    return AlreadyDelivered(standing)
