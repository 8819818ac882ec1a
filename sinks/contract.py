"""What a sink is: a plan-time object that users write, and the target it opens on a worker.

A `Sink` is configuration: cheap, picklable, without a connection. The driver checks it when the
job is planned and prepares the target when the job starts; each worker opens one `Target` per
writer. A target makes one writer's output of one epoch visible together with the tag that says
so, in the target's own transaction, so no foreign timer can undo a decided commit.

Batches that reach a target have the columns of the stream and, for an upsert stream, the int8
column `_op` last: 0 puts the row, 1 deletes the row with its key.

Invariants
    - Output of an epoch is visible if and only if the target's tag is at or past the epoch.
    - A tag only moves forward on (timeline, epoch); whoever does not move it changes nothing.
    - Epochs that are delivered together apply one after the other, each with before-images under its own tag, and only
      if the target stands below the first of them.
    - What `accept` lets through, `deliver` can write: a row that the target can never take is
      refused before the epoch is committed, not after, when it could no longer be taken back.

Pure: no clock, thread or I/O. PROTOCOL P17, P21, P24; docs/design/0021-owned-targets.md,
0030-epochs-in-one-transaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.errors import ConfigError, Fenced
from holdfast.model import Tag, Writer
from holdfast.sinks.owners import Claim, Holding

OP = "_op"
"""The column that tells puts from deletes; last, int8, in upsert streams only."""
PUT = 0
DELETE = 1


@dataclass(frozen=True)
class Delivered:
    """The rows and the tag are in the target."""

    rows: int


@dataclass(frozen=True)
class AlreadyDelivered:
    """The target stands at this tag, at or past the first one delivered; nothing was changed."""

    tag: Tag


Outcome = Delivered | AlreadyDelivered

FaultPoint = Literal["before_begin", "after_tag", "between_epochs", "before_commit", "after_commit"]
"""The steps of a delivery where a test may fail it. Before `after_commit` a failure undoes all."""
Fault = Callable[[FaultPoint], None]


def no_fault(point: FaultPoint) -> None:
    """Go on: what every target does outside of tests."""


@dataclass(frozen=True)
class EpochOutput:
    """One writer's output of one epoch. The batches can be read once."""

    tag: Tag
    batches: Iterable[pa.RecordBatch]


class Target(Protocol):
    """One writer's way into the target. One call at a time, from any thread."""

    def delivered(self) -> Tag | None:
        """Return the tag that stands in the target; None if this writer never delivered.

        Raises:
            Fenced: another history of the job has taken the target over.
            Unavailable: the target cannot be reached now.
        """

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        """Make the rows visible together with the tag, or change nothing; no batches move the tag only.

        The batches are read before the transaction begins, so a slow download locks nobody out,
        and not at all if the target stands at the tag already.

        Args:
            known: The tag at which the writer knows the target to stand, `owners.NEVER` if it has none. The
                transaction looks at it again: a target below it was restored from a backup, and one above it, but below
                `tag`, was written to by a copy of the job. None looks at nothing: for tests, and for a fence.

        Raises:
            Unavailable: the outcome is unknown, or the target is busy: read the tag, then try again.
            Fenced: the target stands on a newer timeline, or another history of the job has taken it over; this
                process may not write again.
            Damaged: the target's own bytes are broken, or it no longer holds what `known` says.
            ConfigError: the target can never take these rows as it is.
        """

    def forget(self, through: Tag) -> None:
        """Drop the before-images of deliveries up to this tag; no rewind can reach them any more.

        Those of older timelines too, but none of a later epoch: what an earlier rewind left may be rewound again.
        """

    def close(self) -> None:
        """Release the connection; an unfinished delivery is undone."""


@runtime_checkable
class MergingTarget(Protocol):
    """A target that also takes several epochs of its writer in one transaction, when the writer has fallen behind."""

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        """Make the rows of all epochs visible together with the last tag, or change nothing; else as `Target.deliver`.

        Args:
            epochs: At least one, of one timeline, in order. The transaction changes nothing unless the target stands
                below the first of them: what it holds of them already is for the caller to leave out.
            known: As for `Target.deliver`.

        Returns:
            Delivered with the rows of all epochs, or where the target stands, which may be between the epochs.
        """


class Sink(Protocol):
    """A target as users configure it."""

    @property
    def key(self) -> tuple[str, ...] | None:
        """Columns that identify a row of the target; None if rows are only ever added."""

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Refuse at plan time, without touching the target, what can never work.

        Args:
            schema: The stream's columns, without `_op`.
            upsert_key: The key of an upsert stream, None for an append stream.

        Raises:
            ConfigError: key, types or names do not fit.
        """

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """On the driver at the start: create the target if it is missing, else check that it fits.

        Raises:
            ConfigError: the existing target differs, or it cannot be written.
            Unavailable: the target cannot be reached now.
        """

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the target can never take, before they are staged.

        Raises:
            ConfigError: names the column and what is wrong with it.
        """

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        """Return the writer's target; no connection is made yet.

        Args:
            claim: The driver on whose behalf the target is written to; every transaction checks it, and takes the
                target over where it has to. None looks at no owner and takes nothing over: for tests.
        """


@runtime_checkable
class OwnedSink(Protocol):
    """A sink that also refuses, before the job starts, a target with another job's output under its name (P1)."""

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """After `prepare`: look at the tags in the target.

        Args:
            job_uuid: The job; None if it is about to be created, then no tag can be its own.
            name: The sink's name in the app.

        Raises:
            ConfigError: a writer of this sink name, but of another job, delivered here.
            Unavailable: the target cannot be reached now.
        """


@runtime_checkable
class HeldSink(Protocol):
    """A sink whose target remembers which driver last took it over. A start compares that with its own job log."""

    def holding(self, job_uuid: str, name: str) -> Holding:
        """After `prepare`: return the owner of the target and the newest tag of this sink's writers.

        Raises:
            Unavailable: the target cannot be reached now; its first delivery compares then.
        """


Verdict = Literal["overwrite", "truncate", "compensate", "impossible"]
"""What a rewind can do about output that is in the target: DESIGN section 9."""


@dataclass(frozen=True)
class Rewinding:
    """Where a rewind takes a sink's target.

    Args:
        to: The new timeline and the base epoch: every writer's tag becomes this one.
        writers: Every writer that any generation of the job may have had for this sink.
    """

    job_uuid: str
    sink: str
    to: Tag
    writers: tuple[Writer, ...]
    claim: Claim | None = None
    """On whose behalf; a repair takes the target over in its transaction, a plan only looks."""


@dataclass(frozen=True)
class Repair:
    """What a repair does to the rows of a target, or what it did.

    Args:
        restore: Rows that get the values back that they had as of the base epoch.
        delete: Rows that were not there as of the base epoch.
        changed_by_others: How many rows among these are seen to be no longer as the job left them, at least; None
            where that cannot be seen, and never 0 unless it is known.
        sample: Keys or places of a few of them, for people.
        reason: One sentence.
        takes_more: Of a verdict that leaves rows: whether the target could take deliveries of a new timeline on top of
            them. If so, a user may accept the verdict.
    """

    verdict: Verdict
    restore: int
    delete: int
    changed_by_others: int | None
    sample: tuple[Mapping[str, Any], ...]
    reason: str
    takes_more: bool = True


@runtime_checkable
class RepairableSink(Protocol):
    """A sink whose output a rewind can take back. Others are refused when a rewind is planned.

    What is pending up to the base epoch is delivered before the repair: after it, its tags are of an older timeline.
    """

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Say what `repair` would do now. Reads only, and may be overtaken by a delivery.

        Raises:
            Fenced: the target stands on a newer timeline, or another history of the job has taken it over.
            ConfigError: the target is not the one that the job wrote to.
            Unavailable: the target cannot be reached now.
        """

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Move every writer's tag to `rewinding.to` and take back what is newer than its epoch, or change nothing.

        The tags move first, also those of writers that have none yet, so nobody of an older timeline can deliver
        any more (P21). Done again, it changes nothing.

        Raises:
            Fenced: the target stands on a newer timeline.
            Unavailable: the outcome is unknown, or the target is busy: do it again.
            ConfigError: the verdict is "impossible", or the target is not the one that the job wrote to; nothing
                changed, no tag moved.
        """


def check_key(where: str, schema: pa.Schema, upsert_key: tuple[str, ...] | None, key: tuple[str, ...] | None) -> None:
    """Refuse a sink key that does not fit the stream.

    An upsert stream needs the same columns, in any order. An append stream may have a key: the
    last row of a key then wins, which is only meaningful if its rows come from one writer.
    """
    if OP in schema.names:
        raise ConfigError(
            f"{where}: the stream has a column named {OP!r}, which marks puts and deletes",
            next_step=f"rename it, for example .select(pl.exclude({OP!r}), kind={OP!r})",
        )
    if key is None and upsert_key is None:
        return
    if key is None or (upsert_key is not None and set(key) != set(upsert_key)):
        has = "no key" if key is None else f"key={list(key)}"
        raise ConfigError(
            f"{where}: the stream replaces rows by {list(upsert_key or ())}, the sink has {has}",
            next_step=f"give the sink key={list(upsert_key or ())}",
        )
    unknown = [name for name in key if name not in schema.names]
    if unknown or not key or len(set(key)) != len(key):
        fault = f"names unknown columns {unknown}" if unknown else "is empty or names a column twice"
        raise ConfigError(
            f"{where}: key={list(key)} {fault}", next_step=f"choose the key from the columns {schema.names}"
        )


def check_null_keys(where: str, key: tuple[str, ...] | None, batch: pa.RecordBatch) -> None:
    """Refuse rows with a null in a key column: no SQL primary key can hold one. NaN is one, as SQLite stores it so."""
    for name in key or ():
        column = batch.column(name)
        may_be_nan = pa.types.is_floating(column.type)
        missing = column.is_null(nan_is_null=True).true_count if may_be_nan else column.null_count
        if missing:
            present = f"pl.col({name!r}).{'is_not_nan' if missing > column.null_count else 'is_not_null'}()"
            raise ConfigError(
                f"{where}: {missing} rows have no value in the key column {name!r}",
                not_done="the rows were not written",
                next_step=f"before the sink, leave them out with .filter({present}) "
                f"or give them a value with {'fill_nan' if missing > column.null_count else 'fill_null'}",
            )


def already(where: str, tag: Tag, standing: Tag) -> AlreadyDelivered:
    """Judge a delivery whose tag did not move: harmless repetition, or a writer of a timeline that is over."""
    assert standing >= tag, "only a tag at or past the delivered one refuses a delivery"
    if standing.timeline > tag.timeline:
        raise Fenced(
            f"{where}: stands on timeline {standing.timeline}, but epoch {tag.epoch} of timeline "
            f"{tag.timeline} was to be delivered",
            not_done="nothing was written to the target",
            next_step="let this process exit, do not retry it: the job was rewound and another process runs it",
        )
    return AlreadyDelivered(standing)
