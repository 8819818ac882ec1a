"""What a sink is: a plan-time object that users write, and the target it opens on a worker.

A `Sink` is configuration: cheap, picklable, without a connection. The driver checks it when the
job is planned and prepares the target when the job starts; each worker opens one `Target` per
writer. A target makes one writer's output of one epoch visible together with the tag that records
it, in the target's own transaction, so no foreign timer can undo a decided commit.

Batches that reach a target have the columns of the stream and, for an upsert stream, the int8
column `_op` last: 0 puts the row, 1 deletes the row with its key.

Invariants
    - Output of an epoch is visible if and only if the target's tag is at or past the epoch.
    - A tag only moves forward on (timeline, epoch); a delivery that does not move it changes nothing.
    - Epochs that are delivered together apply one after the other, each with before-images under its own tag, and only
      if the target's tag is below the first of them.
    - What `accept` lets through, `deliver` can write: a row that the target can never take is
      refused before the epoch is committed, not after, when it could no longer be taken back.

Pure: no clock, thread or I/O. PROTOCOL P17, P21, P24; docs/design/0021-owned-targets.md,
0030-epochs-in-one-transaction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import pyarrow as pa

from holdfast.errors import ConfigError, Fenced
from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim, Holding
from holdfast.traits import SinkTraits

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


class Target(Protocol):
    """One writer's access to the target. One call at a time, from any thread."""

    def delivered(self) -> Tag | None:
        """Return the writer's tag in the target; None if this writer never delivered.

        Raises:
            Fenced: another history of the job has taken the target over.
            Unavailable: the target is unreachable now.
        """

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        """Make the rows visible together with the tag, or change nothing; no batches move the tag only.

        The batches are read before the transaction begins, so a slow download locks out no other
        writer, and not at all if the target is at the tag already.

        Args:
            known: The target's tag as this writer knows it, `owners.NEVER` if it has none. The transaction compares:
                a target below it was restored from a backup, and one above it, but below `tag`, was written to by a
                copy of the job. None compares nothing: for tests, and for a fence.

        Raises:
            Unavailable: the outcome is unknown, or the target is busy: read the tag, then try again.
            Fenced: the target is on a newer timeline, or another history of the job has taken it over; this
                process may not write again.
            Damaged: the target's own bytes are broken, or it no longer holds what `known` says.
            ConfigError: the target, as it is now, can never take these rows.
        """

    def forget(self, through: Tag) -> None:
        """Drop the before-images of deliveries up to this tag, which no rewind can reach any more.

        This includes older timelines, but no later epoch: what an earlier rewind left may be rewound again.
        """

    def close(self) -> None:
        """Release the connection; an unfinished delivery is undone."""


class MergingTarget(Target, Protocol):
    """A target with the trait `merges`.

    When its writer has fallen behind, it takes several epochs in one transaction.
    """

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        """Make the rows of all epochs visible together with the last tag, or change nothing; else as `Target.deliver`.

        Args:
            epochs: At least one, of one timeline, in order. The transaction changes nothing unless the target is
                below the first of them: the caller leaves out epochs that the target holds already.
            known: As for `Target.deliver`.

        Returns:
            Delivered with the rows of all epochs, or the target's tag, which may lie between the epochs.
        """


@dataclass(frozen=True)
class Upload:
    """What one writer staged in one epoch, by names that no other attempt has (P16)."""

    job_uuid: str
    sink: str
    timeline: int
    epoch: int
    generation: int
    worker: str
    """The process, or the attempt of a task."""
    subtask: int


class Uploader(Protocol):
    """Puts rows into a target, invisible to readers; for use by one thread."""

    def upload(self, upload: Upload, batches: Iterable[pa.RecordBatch]) -> str:
        """Make the rows durable and return what names them. Repeated, it stores the same.

        Raises:
            HoldfastError: the target does not take them now; nothing depends on them, as the staged part has them too.
        """

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:
        """Delete uploads of epochs between these two, which were never completed and never will be.

        Raises:
            HoldfastError: some may be left.
        """


@dataclass(frozen=True)
class UploadedOutput:
    """All writers' output of one epoch, some of which the target may have already."""

    tag: Tag
    uploads: tuple[str | None, ...]
    """Per staged part what its upload returned; None if there was none."""
    read: Callable[[Sequence[int]], Iterable[pa.RecordBatch]]
    """Reads the staged parts with these places."""


class UploadedTarget(Target, Protocol):
    """A target of a sink with the trait `uploads`."""

    def deliver_uploaded(self, output: UploadedOutput, known: Tag | None = None) -> Outcome:
        """As `deliver`, with the uploads in place of their parts. It reads a part whose upload it does not find."""


class Sink(Protocol):
    """A target as users configure it."""

    @property
    def key(self) -> tuple[str, ...] | None:
        """Columns that identify a row of the target; None if rows are only ever added."""

    @property
    def where(self) -> str:
        """How messages name the target."""

    @property
    def traits(self) -> SinkTraits:
        """What it can do."""

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Refuse what can never work, at plan time and without touching the target.

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
            NotAdmitted: the target does not let the user in; a job that has used it before waits all the same.
            Unavailable: the target is unreachable now.
        """

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the target can never take, before they are staged.

        Raises:
            ConfigError: names the column and what is wrong with it.
        """

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        """Return the writer's target; no connection is made yet.

        Args:
            claim: The driver on whose behalf the target is written to. Every transaction checks it, and takes the
                target over if necessary. None checks no owner and takes nothing over: for tests.
        """


class OwnedSink(Sink, Protocol):
    """With the trait `checks_owner`: before the job starts, it refuses a target with another job's output (P1)."""

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """After `prepare`: check the tags in the target.

        Args:
            job_uuid: The job; None if it is about to be created, so that no tag can be its own.
            name: The sink's name in the app.

        Raises:
            ConfigError: a writer of this sink name, but of another job, delivered here.
            Unavailable: the target is unreachable now.
        """


class HeldSink(Sink, Protocol):
    """With the trait `remembers_owner`: its target remembers which driver last took it over, and a start compares that
    with its own job log."""

    def holding(self, job_uuid: str, name: str) -> Holding:
        """After `prepare`: return the owner of the target and the newest tag of this sink's writers.

        Raises:
            Unavailable: the target is unreachable now; its first delivery then compares.
        """


class ProbingSink(Sink, Protocol):
    """With the trait `probes`: `holdfast doctor JOB.py` looks at its target as a start would."""

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        """Connect, and refuse what `prepare` would refuse; create and change nothing.

        Returns:
            What a start would find or create, as a clause.

        Raises:
            ConfigError, NotAdmitted, Unavailable: as `prepare`.
        """


class UploadingSink(Sink, Protocol):
    """With the trait `uploads`: its writers store large output in the target, and one commit names all of it."""

    def uploader(self) -> Uploader:
        """Return a way to upload; no connection is made yet."""


Verdict = Literal["overwrite", "truncate", "compensate", "impossible"]
"""What a rewind can do about output in the target: DESIGN section 9."""


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
    """The driver on whose behalf; a repair takes the target over in its transaction, a plan only reads."""


@dataclass(frozen=True)
class Repair:
    """What a repair does to the rows of a target, or what it did.

    Args:
        restore: Rows whose values as of the base epoch are restored.
        delete: Rows that did not exist as of the base epoch.
        changed_by_others: The least number of these rows that are no longer as the job left them; None where that
            cannot be seen, and never 0 unless it is known.
        sample: Keys or places of a few of them, for display.
        reason: One sentence.
        takes_more: For a verdict that leaves rows: whether the target could take deliveries of a new timeline on top
            of them. If so, a user may accept the verdict.
    """

    verdict: Verdict
    restore: int
    delete: int
    changed_by_others: int | None
    sample: tuple[Mapping[str, Any], ...]
    reason: str
    takes_more: bool = True


class RepairableSink(Sink, Protocol):
    """With the trait `repairs`: a rewind can take its output back. Others are refused when a rewind is planned.

    Output pending up to the base epoch is delivered before the repair: after it, its tags are of an older timeline.
    """

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Return what `repair` would do now. Only reads, and a delivery may overtake it.

        Raises:
            Fenced: the target is on a newer timeline, or another history of the job has taken it over.
            ConfigError: the target is not the one that the job wrote to.
            Unavailable: the target is unreachable now.
        """

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """Move every writer's tag to `rewinding.to` and take back everything newer than its epoch, or change nothing.

        The tags move first, including those of writers that have none yet, so no writer of an older timeline can
        deliver any more (P21). Repeated, it changes nothing.

        Raises:
            Fenced: the target is on a newer timeline.
            Unavailable: the outcome is unknown, or the target is busy: repeat it.
            ConfigError: the verdict is "impossible", or the target is not the one that the job wrote to; nothing
                changed, no tag moved.
        """


def merging(sink: Sink, target: Target) -> MergingTarget | None:
    """Return a target of the sink if it takes several epochs in one transaction."""
    return cast(MergingTarget, target) if sink.traits.merges else None


def uploading(sink: Sink) -> UploadingSink | None:
    """Return the sink if its writers may upload their output."""
    return cast(UploadingSink, sink) if sink.traits.uploads else None


def naming_uploads(sink: Sink, target: Target) -> UploadedTarget | None:
    """Return a target of the sink if its commits can name what was uploaded."""
    return cast(UploadedTarget, target) if sink.traits.uploads else None


def owned(sink: Sink) -> OwnedSink | None:
    """Return the sink if it refuses another job's target."""
    return cast(OwnedSink, sink) if sink.traits.checks_owner else None


def probing(sink: Sink) -> ProbingSink | None:
    """Return the sink if its target can be looked at."""
    return cast(ProbingSink, sink) if sink.traits.probes else None


def held(sink: Sink) -> HeldSink | None:
    """Return the sink if its target remembers who took it over."""
    return cast(HeldSink, sink) if sink.traits.remembers_owner else None


def repairable(sink: Sink) -> RepairableSink | None:
    """Return the sink if its output can be taken back."""
    return cast(RepairableSink, sink) if sink.traits.repairs else None


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
    """Refuse rows with a null in a key column: no SQL primary key can hold one. NaN counts, as it equals nothing."""
    for name in key or ():
        column = batch.column(name)
        may_be_nan = pa.types.is_floating(column.type)
        missing = column.is_null(nan_is_null=True).true_count if may_be_nan else column.null_count
        if missing:
            present = f"pl.col({name!r}).{'is_not_nan' if missing > column.null_count else 'is_not_null'}()"
            raise ConfigError(
                f"{where}: {missing} rows have no value in the key column {name!r}",
                not_done="the rows were not written",
                next_step=f"before the sink, drop them with .filter({present}) "
                f"or give them a value with {'fill_nan' if missing > column.null_count else 'fill_null'}",
            )


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
