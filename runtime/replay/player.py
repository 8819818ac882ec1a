"""The job in memory that replays: it begins with a checkpoint, and reads what it is told to, an epoch for each piece.

The loops, operators, state and staging are those of production; time is virtual, and output is captured.

Invariants
    - The job that is replayed is only read.
    - A piece is read to its end before its epoch closes, and nothing behind it is read.

Source: docs/decisions/0130-replay.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import pyarrow as pa

from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.forks import NewJob, first_record, forked_manifest
from holdfast.checkpoint.joblog import Completed, ForkOrigin
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import JobFailed, Unavailable, Where
from holdfast.model import Epoch, JobUuid, SourcePosition
from holdfast.runtime.fork.copying import Copied, copy_state
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.inspect.topic import with_topic
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.replay.holding import HeldRun
from holdfast.runtime.replay.reads import Reads
from holdfast.runtime.replay.script import Script
from holdfast.runtime.replay.scripted import FollowedRun
from holdfast.runtime.replay.sinks import CapturedSink
from holdfast.runtime.replay.sources import ReplayedSource, check_known, check_readable, record_at
from holdfast.runtime.replay.spans import Range, Span, offsets_in
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract.changelogs import ROOT
from holdfast.storage.objects import MemoryObjects

SILENT_S, PAUSE_S = 30.0, 0.01
"""How long a source may give nothing, although its records are said to be there; and between two looks."""
TICK_S = 0.25
"""Time that passes behind each piece, in which workers look at the wall clock and timers fire."""
KEPT = Retention(checkpoints=1_000_000)
"""Every checkpoint of the job in memory is one that a replay may look at, however old its clock says it is."""
NEVER_S = 1e9
"""The time until an epoch is due: only the end of a piece closes one."""


@dataclass(frozen=True)
class Code:
    """The code that is replayed: a plan with its sources open.

    Args:
        plan: That of the job's file; its sinks are never opened.
    """

    plan: Plan
    opened: Mapping[str, OpenSource]

    def check(self, span: Span, end: Manifest) -> None:
        """Refuse a span that a source no longer has. Raises ConfigError, Damaged, Unavailable."""
        check_known(self.plan.app, [spec.name for spec in self.plan.sources], span)
        for spec in self.plan.sources:
            check_readable(self.plan.app, spec, self.opened[spec.name], span, end.positions)

    def record(self, at: Range) -> dict[str, Any] | None:
        """Return the first record of a range; None if there is none."""
        schema = next(spec.source.schema for spec in self.plan.sources if spec.name == at.source)
        return record_at(self.opened[at.source], schema, at.partition, at.first)


@dataclass(frozen=True)
class Start:
    """Where a replay begins: a checkpoint of a job; None: before the first."""

    stored: Stored
    done: Completed | None


class Player:
    """Replays one piece after another; a context manager.

    Args:
        end: The manifest behind the span: its operators have the numbers of their state.
        ends_at: When its checkpoint was completed; microseconds since 1970, UTC.
        span: All that may be read.
        script: The steps of the subtasks, which they take again; None: the order is left to chance.
        reads: The recorded batches, which one subtask reads in their order, piece by piece.
    """

    def __init__(
        self,
        code: Code,
        start: Start,
        end: Manifest,
        ends_at: int,
        span: Span,
        script: Script | None = None,
        reads: Reads | None = None,
    ) -> None:
        self._start, name = start, code.plan.app
        self._ends_at, self._offsets, self._all = ends_at, 0, offsets_in(span)
        self._sources = {s.name: ReplayedSource(s, code.opened[s.name], span) for s in code.plan.sources}
        self.sinks = {s.name: CapturedSink(s.sink) for s in code.plan.sinks}
        plan = replace(
            code.plan,
            sources=tuple(replace(spec, source=self._sources[spec.name]) for spec in code.plan.sources),
            sinks=tuple(self._captured(spec) for spec in code.plan.sinks),
            changelog=ROOT,
        )
        plan, operators = with_identities(plan, end.operators, ())
        self._store = MemoryObjects()
        partitions = {name: tuple(source.partitions()) for name, source in self._sources.items()}
        self._script, self._runs = script, list[FollowedRun]()
        parallelism = 1 if script is None else script.parallelism
        self._cluster = Cluster(plan, parallelism, 0, self._store, NEVER_S, partitions)
        if script is not None:
            self._cluster.runs = self._followed
        elif reads is not None:
            self._cluster.runs = partial(HeldRun, reads)
        self._cluster.change_rules(operators=operators, retention=KEPT)
        self._name = name
        self._silent_s = 1 + max((spec.idle_after_s for spec in code.plan.sources), default=0.0)
        """After this time a partition without records is idle, and no more time needs to pass."""

    def __enter__(self) -> Self:
        if self._start.done is not None:
            _copy(self._start, self._start.done, self._store, self._name)
        self._pass_time(())
        self._cluster.begin()
        self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._cluster.members.values():
            member.loop.close()

    @property
    def begins_empty(self) -> bool:
        """Return whether it began without a checkpoint: no key had state."""
        return self._start.done is None

    @property
    def base(self) -> Epoch:
        """Return the newest epoch, that of the checkpoint with which it began at first; 0 if there is none."""
        return self._cluster.driver.state.job.base_epoch

    def play(self, piece: Span, at_us: int | None = None) -> Epoch:
        """Read a piece, close its epoch, deliver it, and return its number.

        Args:
            at_us: The wall clock's time behind the piece; None: in proportion to the records read so far.

        Raises:
            JobFailed: the job's code fails.
        """
        if at_us is not None:
            self._cluster.pass_time(min(self._silent_s, max(0.0, (at_us - self._cluster.clock.wall_us()) / 1e6)))
        for each in piece:
            self._sources[each.source].allow(each)
        self._read(piece)
        self._pass_time(piece, at_us)
        self._cluster.pass_time(TICK_S)
        self._settle()
        return self._close()

    def follow(self, span: Span) -> list[Epoch]:
        """Take all steps of the script; return the numbers of the epochs, one for each section.

        Raises:
            JobFailed: the job's code fails.
            ConfigError: it does something else than the script has; see Script.unlike.
        """
        assert self._script is not None
        for each in span:
            self._sources[each.source].allow(each)
        self._pass_time(span)
        epochs = []
        for number in range(len(self._script.sections)):
            self._wait_for(lambda: None if all(run.waits(number) for run in self._runs) else span[0])  # noqa: B023
            epochs.append(self._close())
        return epochs

    def _followed(self, *args: Any, **more: Any) -> FollowedRun:
        assert self._script is not None
        run = FollowedRun(self._script, *args, **more)
        self._runs.append(run)
        return run

    def _close(self) -> Epoch:
        """Close the epoch, deliver it, and return its number."""
        before, driver = self.base, self._cluster.driver
        generation = driver.state.job.generation
        asked = driver.asked("savepoint", {"name": f"after-{before}"}, generation, generation)  # due immediately
        assert asked is not None and asked["accepted"], asked
        self._settle()
        while self.base == before or not self._is_delivered():
            self._cluster.pass_time(0.25)
            self._refuse_failure()
        return self.base

    def rest(self) -> None:
        """Let partitions become idle, as they were when the job took its checkpoint."""
        self._cluster.pass_time(self._silent_s)
        self._pass_time(())

    def stored(self) -> Stored:
        """Return the job in memory as inspection reads it."""
        repository = Repository(self._store)
        job = repository.read_log()
        assert job is not None
        return Stored(self._name, "memory", self._store, repository, job)

    def rows(self, sink: str, epoch: Epoch) -> list[pa.RecordBatch]:
        """Return what an epoch gave a sink."""
        return self.sinks[sink].rows[epoch]

    def _read(self, piece: Span) -> None:
        """Run until every record before the limits is processed."""

        def left() -> Range | None:
            offsets = self._offsets_read()
            behind = (each for each in piece if offsets.get((each.source, each.partition), each.first) < each.end)
            return next(behind, None)

        self._wait_for(left)

    def _wait_for(self, left: Callable[[], Range | None]) -> None:
        """Run until nothing is left. A source may need time to fetch records.

        Args:
            left: Returns a range that is not read to its end, None if there is none.
        """
        until, read_total = time.monotonic() + SILENT_S, -1
        while True:
            self._settle()
            if (waiting := left()) is None:
                return
            offsets = self._offsets_read()
            if (now_read := sum(offsets.values())) != read_total:
                until, read_total = time.monotonic() + SILENT_S, now_read
            if time.monotonic() > until:
                raise _silent(self._name, waiting, offsets.get((waiting.source, waiting.partition), waiting.first))
            time.sleep(PAUSE_S)

    def _offsets_read(self) -> dict[tuple[str, int], int]:
        return {(at.source, at.partition): at.offset for at in self._positions()}

    def _positions(self) -> list[SourcePosition]:
        members = self._cluster.members.values()
        for member in members:
            member.loop.take_stock()
        return [at for member in members for at in member.loop.heartbeat().progress.positions]

    def _pass_time(self, piece: Span, at_us: int | None = None) -> None:
        """Let the wall clock show what it may have shown when production had read so far."""
        self._offsets += offsets_in(piece)
        share = self._offsets / max(1, self._all)
        begins_us = self._ends_at if self._start.done is None else self._start.done.at
        clock, share_us = self._cluster.clock, round((self._ends_at - begins_us) * share)
        clock.wall_behind_s += (clock.wall_us() - (begins_us + share_us if at_us is None else at_us)) / 1e6

    def _captured(self, spec: SinkSpec) -> SinkSpec:
        return replace(spec, sink=self.sinks[spec.name], path=None)

    def _is_delivered(self) -> bool:
        state = self._cluster.driver.state
        phase = state.deployed
        if phase is None or phase.last is None:
            return False
        done = state.confirmed
        return all(item.writer in done and done[item.writer] >= item.tag for item in phase.last.pending)

    def _settle(self) -> None:
        self._cluster.settle()
        self._refuse_failure()

    def _refuse_failure(self) -> None:
        if (outcome := self._cluster.driver.outcome) is None:
            return
        how, error = outcome
        if error is not None:
            raise error.as_error()
        raise JobFailed(f"the replay ended: {how}", not_done="the rest was not replayed", next_step="report it")


def opened(plan: Plan, within: ExitStack) -> Code:
    """Open the sources of a plan until the stack is closed. Raises ConfigError, Damaged, Unavailable."""
    sources = {spec.name: within.enter_context(closing(spec.source.unpaced().open())) for spec in plan.sources}
    return Code(plan, sources)


def _silent(job: str, left: Range, at: int) -> Unavailable:
    return Unavailable(
        f"source {left.source!r} gave no record of partition {left.partition} for {SILENT_S:.0f} s: it is at offset "
        f"{at:,}, and the epoch ends at {left.end:,}",
        not_done="the rest was not replayed",
        next_step="check that the source can be reached, then try again",
        where=Where(job=job, source=left.source, partition=left.partition, offset=at),
    )


def _copy(start: Start, done: Completed, into: MemoryObjects, name: str) -> None:
    """Begin a job in memory with a checkpoint, as a fork does."""
    original_job = start.stored
    new = NewJob(name, JobUuid("replay"), "replay", done.at)
    repository, copy_counts = Repository(into), Copied()
    before = original_job.repository.load_manifest(done.body.manifest)
    holding, whole = with_topic(original_job, before, (0, before.key_groups))
    copies = copy_state(holding.store, into, new, whole, copy_counts)
    manifest = forked_manifest(whole, new, lambda ref: copies[ref.path])
    origins = (ForkOrigin(original_job.name, original_job.job.uuid, done.timeline, done.body.epoch, {}),)
    ref = repository.store_manifest(manifest, new.owner)
    repository.create_record(first_record(new, manifest, origins, ref, 0, copy_counts.bytes))
