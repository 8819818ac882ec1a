"""Sinks as one worker sees them: a shared table in memory whose replies may be lost and whose transactions may be late.

The tables of sinks/memory/sink.py have the tag semantics that the conformance suite demands of every target. A
transaction that its sender gave up may still commit: its guard is checked when it lands.

Invariants
    - A delivery changes rows and tag in one transaction, or nothing.

Source: PROTOCOL P17, P24; research F18.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa

from holdfast.chaos.sim.faults.faults import Fault, Faults
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.chaos.sim.ports.stores import LATE_S
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.errors import Fenced, Unavailable
from holdfast.model import Generation, JobUuid, Tag, Writer
from holdfast.runtime.plan.model import SinkSpec
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink, Uploader
from holdfast.sinks.contract.target import (
    AlreadyDelivered,
    Delivered,
    EpochOutput,
    FaultPoint,
    Merges,
    Outcome,
    Target,
    Upload,
    UploadedOutput,
    already,
)
from holdfast.sinks.memory.sink import MemorySink, MemoryTarget
from holdfast.traits import SinkTraits

Epochs = list[tuple[Tag, list[pa.RecordBatch]]]
"""The epochs that one transaction delivers."""
Table = TypeVar("Table", bound=MemorySink)


class PlannedTable(Sink, Generic[Table]):
    """A planned sink that queries the shared table directly: its calls are never lost or late."""

    def __init__(self, world: Surroundings, process: Process, table: Table) -> None:
        self._world, self._process, self._table = world, process, table

    @property
    def key(self) -> tuple[str, ...] | None:
        return self._table.key

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self._table.where

    @property
    def traits(self) -> SinkTraits:
        """Traits of every kind of planned table."""
        return SinkTraits(kind=type(self).__name__, local_paths=(), keyed=self.key is not None)

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self._table.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self._table.prepare(schema, upsert_key)

    def accept(self, batch: pa.RecordBatch) -> None:
        self._table.accept(batch)


class ProcessSink(Repairs, PlannedTable[SharedTable]):
    """A sink in the plan of one worker."""

    def __init__(self, world: Surroundings, process: Process, spec: SinkSpec) -> None:
        """Args: spec: With the stand-in of the driver's plan, whose traits state whether it has one committer."""
        super().__init__(world, process, world.tables[spec.name])
        self.name, self._commits_once = spec.name, spec.sink.traits.commits_once

    @property
    def traits(self) -> SinkTraits:
        return replace(super().traits, commits_once=self._commits_once)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> ProcessTarget:
        return ProcessTarget(self._world, self._process, self._table, JobUuid(job_uuid), writer, claim)

    @property
    def uploads(self) -> ProcessUploader | None:
        return ProcessUploader(self._world, self._process, self._table) if self._commits_once else None

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return self._table.plan_repair(rewinding, schema, upsert_key)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return self._process.call(lambda: self._repair(rewinding, schema, upsert_key), _rewinding)

    def _repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        faults, to = self._world.faults, _shown(rewinding.to)
        if is_refused(faults, _rewinding):
            raise self._unavailable(f"repair to {to}: refused")

        def land() -> Repair:
            self._world.checks.repairing(rewinding)
            found = self._table.repair(rewinding, schema, upsert_key)
            self._say(f"is repaired to {to}: {found.restore} rows restored, {found.delete} deleted")
            self._world.checks.repaired(rewinding)
            return found

        if faults.strikes(Fault.SINK_LATE, _rewinding):
            delay = self._world.random.choice(LATE_S)
            what = f"{self.name}: {self._process.name}'s repair to {to} lands late"
            self._world.schedule.land(delay, what, lambda: _unheard(land))
            raise self._unavailable(f"repair to {to}: no reply, it lands in {delay} s")
        if faults.strikes(Fault.SINK_ROLLED_BACK, _rewinding):
            raise self._unavailable(f"repair to {to}: rolled back")
        repair = land()
        if faults.strikes(Fault.SINK_REPLY_LOST, _rewinding):
            raise self._unavailable(f"repair to {to}: done, but the reply is lost")
        return repair

    def _say(self, what: str) -> None:
        self._world.schedule.journal.say(self._process.name, f"{self.name}: {what}")

    def _unavailable(self, what: str) -> Unavailable:
        self._say(what)
        return Unavailable(what, next_step="try again")


class ProcessUploader(Uploader):
    """A worker's way to put rows beside a table; refused uploads are not repeated."""

    def __init__(self, world: Surroundings, process: Process, table: SharedTable) -> None:
        self._world, self._process, self._table = world, process, table

    def upload(self, upload: Upload, batches: Iterable[pa.RecordBatch]) -> str:
        record_batches = list(batches)

        def land() -> str:
            if is_refused(self._world.faults, _staging):
                raise Unavailable("upload: refused", next_step="none: the committer reads the part")
            return self._table.upload(upload, record_batches)

        return self._process.call(land, _staging)

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:

        def land() -> None:
            self._world.checks.uploads_swept(self._table.swept(job_uuid, sink, timeline, after, before))
            self._table.sweep(job_uuid, sink, timeline, after, before)

        self._process.call(land, _recovering)


class ProcessTarget(Merges, Target):
    """One writer's access to the table."""

    def __init__(
        self,
        world: Surroundings,
        process: Process,
        table: SharedTable,
        job_uuid: JobUuid,
        writer: Writer,
        claim: Claim | None = None,
    ) -> None:
        self._world, self._process, self._table = world, process, table
        self._job_uuid, self._writer = job_uuid, writer
        self._target = MemoryTarget(table, job_uuid, writer, claim)

    def delivered(self) -> Tag | None:
        return self._process.call(self._read_tag, _recovering)

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        return self.deliver_together([EpochOutput(tag, batches)], known)

    def deliver_uploaded(self, output: UploadedOutput, known: Tag | None = None) -> Outcome:
        return self.deliver(output.tag, self._table.whole(output), known)

    def deliver_together(self, epochs: Sequence[EpochOutput], known: Tag | None = None) -> Outcome:
        standing = self._target.delivered()
        if standing is not None and standing >= epochs[0].tag:
            return already("the table", epochs[0].tag, standing)
        read = [(epoch.tag, list(epoch.batches)) for epoch in epochs]
        return self._process.call(lambda: self._send(read, known), lambda: self._at(epochs[0].tag))

    def forget(self, through: Tag) -> None:
        self._target.forget(through)

    def close(self) -> None:
        """There is nothing to release."""

    def _read_tag(self) -> Tag | None:
        faults = self._world.faults
        if is_refused(faults, _recovering):
            raise self._unavailable("tag: refused")
        tag = self._target.delivered()
        self._say(f"reads tag {_shown(tag)}")
        return tag

    def _send(self, epochs: Epochs, known: Tag | None) -> Outcome:
        faults, at = self._world.faults, partial(self._at, epochs[0][0])
        if is_refused(faults, at):
            raise self._unavailable(f"deliver {_range(epochs)}: refused")
        generation = self._world.generation_of(self._process)
        if faults.strikes(Fault.SINK_LATE, at):
            delay = self._world.random.choice(LATE_S)
            what = f"{self._writer.sink}/{self._writer.subtask}: {self._process.name}'s delivery lands late"
            self._world.schedule.land(delay, what, lambda: self._land_unheard(epochs, known, generation))
            raise self._unavailable(f"deliver {_range(epochs)}: no reply, it lands in {delay} s")
        if faults.strikes(Fault.SINK_ROLLED_BACK, at):
            return self._roll_back(epochs, known, generation)
        outcome = self._land(epochs, known, generation)
        if faults.strikes(Fault.SINK_REPLY_LOST, at):
            raise self._unavailable(f"deliver {_range(epochs)}: done, but the reply is lost")
        return outcome

    def _at(self, tag: Tag) -> tuple[Point, ...]:
        """A recovery redelivers output of an earlier generation."""
        first = self._world.checks.history.first_epochs.get(self._world.generation_of(self._process), 0)
        return (Point.DELIVER, Point.RECOVER) if tag.epoch < first else (Point.DELIVER,)

    def _land(self, epochs: Epochs, known: Tag | None, generation: Generation) -> Outcome:
        self._table.generation = generation
        outcome = self._target.deliver_together([EpochOutput(tag, batches) for tag, batches in epochs], known)
        done = "commits" if isinstance(outcome, Delivered) else "refuses"
        self._say(f"{done} {_range(epochs)}, {sum(batch.num_rows for _, batches in epochs for batch in batches)} rows")
        if not isinstance(outcome, AlreadyDelivered):
            self._world.checks.delivered(self._writer, self._job_uuid, epochs)
        return outcome

    def _land_unheard(self, epochs: Epochs, known: Tag | None, generation: Generation) -> None:
        try:
            self._land(epochs, known, generation)
        except Fenced:
            self._say("refuses a writer of an older timeline, or of an older driver")

    def _roll_back(self, epochs: Epochs, known: Tag | None, generation: Generation) -> Outcome:
        """Fail inside the transaction, at one of the table's steps."""
        point = self._world.random.choice(("before_begin", "after_tag", "before_commit"))
        if point == "after_tag" and len(epochs) > 1:
            point = "between_epochs"

        def fail(here: FaultPoint) -> None:
            if here == point:
                raise self._unavailable(f"deliver {_range(epochs)}: rolled back at {point}")

        self._table.fault = fail
        try:
            return self._land(epochs, known, generation)
        finally:
            self._table.fault = lambda _point: None

    def _say(self, what: str) -> None:
        who = f"{self._writer.sink}/{self._writer.subtask}"
        self._world.schedule.journal.say(self._process.name, f"{who}: {what}")

    def _unavailable(self, what: str) -> Unavailable:
        self._say(what)
        return Unavailable(what, next_step="try again")


def is_refused(faults: Faults, at: Callable[[], Iterable[Point]]) -> bool:
    """Return whether targets are down, or this call is refused."""
    if faults.down(Fault.SINK_DOWN):
        faults.hit(Fault.SINK_DOWN, at())
        return True
    return faults.strikes(Fault.SINK_REFUSED, at)


def _staging() -> tuple[Point, ...]:
    return (Point.STAGE,)


def _rewinding() -> tuple[Point, ...]:
    return (Point.REWIND,)


def _recovering() -> tuple[Point, ...]:
    return (Point.RECOVER,)


def _unheard(land: Callable[[], object]) -> None:
    try:
        land()
    except (Fenced, Unavailable):
        return  # a later rewind was first, or the target refused; the answer goes nowhere


def _shown(tag: Tag | None) -> str:
    return "none" if tag is None else f"{tag.timeline}.{tag.epoch}"


def _range(epochs: Epochs) -> str:
    first, last = epochs[0][0], epochs[-1][0]
    return _shown(first) if first == last else f"{_shown(first)} to {_shown(last)}"
