"""`hf.testing.TestDriver`: run a job in a test, with the production loop and no waiting.

Sources become lists that the test pushes to, sinks become tables that it reads, and time passes and
workers crash only on request. State and output are really encoded and stored.

    with TestDriver(app) as t:
        t.push("bids", [{"auction": 1, "price": 2.0}])
        t.checkpoint()
        assert t.rows("out") == [{"auction": 1, "bids": 1}]

Source: API.md (tests).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from holdfast.errors import ConfigError, JobFailed
from holdfast.model import Epoch, WorkerId
from holdfast.runtime.api.app import App
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.config.settings import MICROBATCH
from holdfast.runtime.driver.state import Restart
from holdfast.runtime.microbatch.layers import idle_standbys
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.ahead import Ahead
from holdfast.runtime.plan.model import OperatorSpec, Plan, SinkSpec, SourceSpec
from holdfast.runtime.plan.source import OpenSource, PartitionReader, Source, direct_reader
from holdfast.runtime.plan.topic import changelog_of
from holdfast.runtime.rows.rows import WrongRow, batch_of_rows
from holdfast.runtime.rows.schema import aliases_of
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.testing.unused import followed_us
from holdfast.sinks.contract.changelogs import Changelog
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.memory.repeating import RepeatingTable
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.objects import MemoryObjects
from holdfast.traits import SourceTraits

PARTITIONS = 4
EMPTY: Mapping[str, str] = MappingProxyType({})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = Mapping[str, Any]


class PushedSource(Source, OpenSource):
    """A source that holds the records that a test pushed; all its openings see the same records."""

    schema: pa.Schema
    row_type: type | None
    where: str
    traits = SourceTraits(kind="PushedSource", local_paths=())

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        rng: random.Random,
        before: PushedSource | None = None,
        row_type: type | None = None,
    ) -> None:
        self.name, self.schema, self.row_type, self._random = name, schema, row_type, rng
        self.where = f"source {name!r}"
        self.tables: list[pa.Table] = []
        self.over = False
        self.read_again = 0
        """Records that were read again after a recovery to an earlier epoch."""
        self._read_to: list[int] = []
        self._marks: dict[int, list[tuple[int, int]]] = {}
        self._followed: dict[int, int] = {}
        """The time of partitions that follow the others."""
        if before is None:
            self.add_partitions(PARTITIONS)
        else:
            self.tables = [_with_columns(table, schema) for table in before.tables]
            self._read_to, self._marks, self._followed = before._read_to, before._marks, before._followed

    def check(self) -> None:
        """Nothing outside needs a check."""

    def open(self) -> PushedSource:
        """Return this source itself."""
        return self

    def identity(self, partition: int, offset: int) -> str:
        """Return a name."""
        return self.name

    def changed(self, identity: str) -> str | None:
        """The source never changes."""

    def add_partitions(self, count: int) -> None:
        """Add empty partitions."""
        for _ in range(count):
            self._marks[len(self.tables)] = []
            self.tables.append(self.schema.empty_table())
            self._read_to.append(0)

    def hold(self, tables: Sequence[pa.Table]) -> None:
        """Hold these records, a table per partition, before the job reads any."""
        self.add_partitions(max(0, len(tables) - len(self.tables)))
        self.tables[: len(tables)] = tables

    def partitions(self) -> list[int]:
        """Return all partitions."""
        return list(range(len(self.tables)))

    def end_offsets(self) -> dict[int, int]:
        """Return how many records were pushed."""
        return {partition: table.num_rows for partition, table in enumerate(self.tables)}

    def retention_start(self, partition: int) -> int:
        """Return 0: every record is kept."""
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Return some of the next records; the seed decides how many."""
        table = self.tables[partition]
        left = table.num_rows - offset
        if left <= 0:
            return None, offset
        count = self._random.randint(1, min(left, 64))
        # A watermark set by the test lies between two records; a batch must not span it.
        ahead = [at - offset for at, _ in self._marks[partition] if at > offset]
        count = min([count, *ahead])
        batch = table.slice(offset, count).combine_chunks().to_batches()[0]
        self.read_again += max(0, min(self._read_to[partition] - offset, count))
        self._read_to[partition] = max(self._read_to[partition], offset + count)
        return batch, offset + batch.num_rows

    def watermark(self, partition: int, offset: int) -> int | None:
        """Return the newest watermark that the test set before this offset."""
        told = [at_us for mark, at_us in self._marks[partition] if mark <= offset]
        return max([*told, *([self._followed[partition]] if partition in self._followed else [])], default=None)

    def let_unused_follow(self, plan: Plan, spec: SourceSpec) -> None:
        """Let partitions without records, of which the test told no time, hold event time back no more than idle ones.

        Those that the test added are meant to be used.
        """
        used_partitions = [at for at, table in enumerate(self.tables) if table.num_rows or self._marks[at]]
        told = [max((at_us for _, at_us in self._marks[at]), default=None) for at in used_partitions]
        at_us = followed_us(plan, spec, [self.tables[at] for at in used_partitions], told)
        if at_us is not None:
            self._followed |= dict.fromkeys(set(range(PARTITIONS)) - set(used_partitions), at_us)

    def mark(self, at_us: int) -> None:
        """Promise, for every partition, that no later record is older than this."""
        for partition, table in enumerate(self.tables):
            self._marks[partition].append((table.num_rows, at_us))

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        """Everything is in memory."""
        return direct_reader(self, partition, offset)

    def ended(self, partition: int, offset: int) -> bool:
        """Return whether the partition is read to its end, which the test decides."""
        return self.over and offset >= self.tables[partition].num_rows

    def close(self) -> None:
        """Nothing to release."""


_NUMBERS = itertools.count()
"""Numbers the drivers of this process: each has its own changelog."""


class TestDriver:
    """Runs an app on in-memory workers.

    Args:
        app: The app; its sources and sinks are replaced, everything else is as in production.
        parallelism: Number of workers.
        seed: Decides how input is split into batches, and the order of events.
        mode: "continuous" or "microbatch"; None: that of the app.
    """

    __test__ = False  # despite its name, not a test class

    def __init__(self, app: App, parallelism: int = 2, seed: int = 0, mode: str | None = None) -> None:
        plan = _plan_of(app, parallelism)
        if (mode or app.mode) == MICROBATCH and (refusal := idle_standbys(app.standbys or 0)) is not None:
            raise refusal
        self._random = random.Random(seed)
        self.sources: dict[str, PushedSource] = {}
        self.sinks: dict[str, MemorySink] = {}
        self._timed: set[str] = set()
        self._operators: dict[str, OperatorSpec] = {}
        self._changelog: Changelog = plan.changelog.in_memory(f"holdfast-test-{next(_NUMBERS)}")
        plan = self._doubled(plan)
        partitions = self._partitions()
        every = duration_ms(app.checkpoint_every, "checkpoint_every") / 1000
        self.cluster = Cluster(plan, parallelism, seed, MemoryObjects(), every, partitions, mode or app.mode)
        if app.standbys:
            self.cluster.change_rules(standbys=app.standbys)
        if app.record_order:
            self.cluster.change_rules(record_order=True)
        self._app = plan.app
        self._entered = False
        self._crashed: set[int] = set()
        """Subtasks whose replacement waits for `recover`."""

    def __enter__(self) -> Self:
        self.cluster.begin()
        self._entered = True
        self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        for member in self.cluster.members.values():
            member.loop.close()

    def push(self, source: str, rows: Iterable[Any], partition: int = 0) -> None:
        """Append records (dicts or dataclass instances) to a partition and process them.

        A null in a column that is not nullable makes an undecodable record, as in a log. From the next checkpoint on,
        partitions that were never pushed to hold event time back no more than idle ones do, unless `watermark` set it.

        Raises:
            ConfigError: no such source or partition, or a row does not fit the schema: a value of another type, a
                datetime without a time zone. Or the job has finished.
        """
        self._refuse_after_end()
        pushed_source = self._source(source)
        if not 0 <= partition < len(pushed_source.tables):
            raise ConfigError(
                f"source {source!r} has no partition {partition}",
                next_step=f"push to one of 0 to {len(pushed_source.tables) - 1}, or add_partitions({source!r}) first",
            )
        pushed_source.tables[partition] = pa.concat_tables(
            [
                pushed_source.tables[partition],
                _table_of(source, pushed_source.schema, rows, aliases_of(pushed_source.row_type)),
            ]
        )
        self._settle()

    def add_partitions(self, source: str, count: int = 1) -> None:
        """Add empty partitions to a source; return when the job has discovered them and reads them.

        A source has four partitions, 0 to 3; new ones follow. The job closes an epoch for them.

        Raises:
            ConfigError: no such source.
            JobFailed: the job must not read more partitions of it.
        """
        pushed = self._source(source)
        pushed.add_partitions(count)
        wanted = {(source, partition) for partition in pushed.partitions()}
        while not wanted <= self._read():
            self.cluster.pass_time(0.25)
            self._check()

    def watermark(self, source: str, at: datetime) -> None:
        """Set the watermark of every partition of a source to `at`, after all records pushed so far.

        Raises:
            ConfigError: no such source, it has no event time, or `at` has no time zone. Or the job has finished.
        """
        self._refuse_after_end()
        pushed_source = self._source(source)
        has_zone = isinstance(at, datetime) and at.utcoffset() is not None
        if source not in self._timed or not has_zone:
            lacks = "has no time zone" if isinstance(at, datetime) else "is not a datetime"
            fault = "no event time" if source not in self._timed else f"no use for {at!r}, which {lacks}"
            raise ConfigError(
                f"source {source!r} has {fault}",
                next_step="give app.source(..., event_time=...) and a datetime such as datetime(..., tzinfo=UTC)",
            )
        pushed_source.mark((at - _EPOCH) // timedelta(microseconds=1))
        self._settle()

    def advance(self, duration: Duration) -> None:
        """Let virtual time pass, such as "5m" or timedelta(minutes=5); everything that is due happens."""
        self._refuse_outside()
        self.cluster.pass_time(duration_ms(duration, "the time to advance by", "no time passed") / 1000)
        self._check()

    def checkpoint(self) -> Epoch:
        """Complete an epoch that holds everything pushed, deliver it, and return its number.

        Raises:
            ConfigError: a worker has crashed and `recover` was not called, or the job has finished.
        """
        self._refuse_after_end()
        self._refuse_while_crashed()
        self._settle()
        self._let_unused_follow()
        before = self.cluster.driver.state.job.base_epoch
        self.cluster.driver.close_epoch()
        while self.cluster.driver.state.job.base_epoch == before or not self._delivered():
            self.cluster.pass_time(0.25)
            self._check()
        return self.cluster.driver.state.job.base_epoch

    def _let_unused_follow(self) -> None:
        for spec in self.cluster.sources:
            if spec.event_time is not None:
                self.sources[spec.name].let_unused_follow(self._plan, spec)
        self._settle()

    def finish(self) -> None:
        """End every source, and run until the job is finished and delivered.

        Raises:
            ConfigError: a worker has crashed and `recover` was not called.
        """
        self._refuse_outside()
        self._refuse_while_crashed()
        for source in self.sources.values():
            source.over = True
        while self.cluster.driver.outcome is None:
            self.cluster.pass_time(0.25)
            self._check()
        self.cluster.hear_out()

    def crash(self, worker: int | None = None) -> None:
        """Kill one worker (by subtask, default 0); its memory is lost and no replacement starts until `recover`."""
        self._refuse_after_end()
        subtask = worker or 0
        victim = self._worker(subtask)
        self.cluster.held_launches = self.cluster.held_launches or []
        self.cluster.crash(victim)
        self._crashed.add(subtask)
        self._settle()

    def recover(self) -> None:
        """Let a replacement start; return when every subtask is ready again."""
        self._refuse_after_end()
        self._crashed.clear()
        self.cluster.release_launches()
        self._settle()
        while self.cluster.driver.state.recovering_since is not None:
            self.cluster.pass_time(0.25)
            self._check()

    def rewind(self, epoch: int) -> None:
        """Rewind to a checkpoint: state, offsets and delivered rows; return when every subtask reads again from there.

        Raises:
            ConfigError: the job cannot be rewound to it, or has finished.
        """
        self._refuse_after_end()
        job = self.cluster.driver.state.job
        if (lost := self.cluster.lost_since(epoch)) is not None:
            raise ConfigError(
                f"the job was not rewound: {lost} the state that it had then",
                not_done="state and output are untouched",
                next_step="rewind to a later checkpoint",
            )
        args = {"epoch": epoch, "timeline": job.timeline}
        answer = self.cluster.driver.asked("rewind", args, job.generation, job.generation)
        assert answer is not None
        if not answer["accepted"]:
            raise ConfigError(
                f"the job was not rewound: {answer['reason']}",
                not_done="state and output are untouched",
                next_step=f"give one of the epochs {[each.body.epoch for each in job.completed]}"
                if job.completed
                else "complete one first: epoch = t.checkpoint()",
            )
        while self.cluster.driver.state.job.timeline == job.timeline:
            self.cluster.pass_time(0.25)
            self._check()
        self.recover()

    def upgrade(self, app: App, drop_state: Sequence[str] = ()) -> None:
        """Complete a checkpoint, and go on with a changed app from there; return when every subtask is ready.

        Sources and sinks of the same name keep their records and rows. Targets get new columns as needed.

        Args:
            app: The changed app, of the same name and number of key groups.
            drop_state: The state to give up, as for `holdfast run --drop-state`.

        Raises:
            ConfigError: `holdfast run` would refuse the changed app; the present one continues.
        """
        plan = _plan_of(app, len(self.cluster.rules.key_ranges))
        self._refuse_after_end()
        self.checkpoint()
        before = self.sources, self.sinks, self._timed, self._operators
        try:
            self.cluster.replace_driver(self._doubled(plan), drop_state, self._partitions())
        except ConfigError:
            self.sources, self.sinks, self._timed, self._operators = before
            raise
        self.recover()

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return the rows delivered to a sink so far."""
        if sink not in self.sinks:
            raise ConfigError(f"no sink is named {sink!r}", next_step=f"use one of {sorted(self.sinks)}")
        return self.sinks[sink].rows()

    def state(self, operator: str, key: Any) -> dict[str, Any] | None:
        """Return the committed state of a key, None if it has none.

        Args:
            key: The value of the key's column, a tuple for several. The key of a window operator begins with the end
                of the window: `(datetime(..., tzinfo=UTC), auction)`. So does that of `dedup`, whose state is in
                windows as long as `within`.

        Raises:
            ConfigError: no such operator, or its keys have other columns.
        """
        if operator not in self._operators:
            raise ConfigError(f"no operator is named {operator!r}", next_step=f"use one of {sorted(self._operators)}")
        parts = key if isinstance(key, tuple) else (key,)
        spec = self._operators[operator]
        _check_key(spec, parts)
        if self.cluster.batches is not None:
            return self.cluster.batches.get_committed(spec.id, parts)
        for member in self.cluster.members.values():
            state = member.loop.state()
            found = None if state is None else state.get_committed(spec.id, parts)
            if found is not None:
                return found
        return None

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """Return the recoveries so far."""
        return self.cluster.driver.state.restarts

    def how(self) -> dict[int, str | None]:
        """Return, by subtask, how its worker obtained its state in this generation."""
        workers = self.cluster.driver.state.workers.values()
        return {hosted.subtask: hosted.how for hosted in workers if hosted.subtask is not None}

    def _partitions(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(pushed.partitions()) for name, pushed in self.sources.items()}

    def _doubled(self, plan: Plan) -> Plan:
        """Return the plan with sources and sinks of the test, which keep their contents."""
        self.sources = {s.name: self._pushed(s) for s in plan.sources}
        self.sinks = self.sinks | {s.name: _double(s) for s in plan.sinks if s.name not in self.sinks}
        self._timed = {spec.name for spec in plan.sources if spec.event_time is not None}
        self._operators = {operator.name: operator for operator in plan.operators if not is_part(operator.name)}
        self._plan = plan = replace(_with_doubles(plan, self.sources, self.sinks), changelog=self._changelog)
        if (topic := changelog_of(plan)) is not None:
            topic.sink.prepare(topic.schema, topic.upsert_key)
        return plan

    def _pushed(self, spec: SourceSpec) -> PushedSource:
        before = self.sources.get(spec.name)
        return PushedSource(spec.name, spec.source.schema, self._random, before, spec.source.row_type)

    def _refuse_outside(self) -> None:
        if not self._entered:
            raise ConfigError(
                "TestDriver runs its job only inside a with statement",
                next_step="write: with TestDriver(app) as t:",
            )

    def _refuse_after_end(self) -> None:
        """Refuse a call that needs a running job; the cause of a failure is raised again."""
        self._refuse_outside()
        self._check()
        if self.cluster.driver.outcome is not None:
            raise ConfigError(
                f"job {self._app!r} has {self.cluster.driver.outcome[0]}",
                next_step="make this call before t.finish(), or begin another TestDriver",
            )

    def _refuse_while_crashed(self) -> None:
        if self._crashed:
            lost = ", ".join(str(subtask) for subtask in sorted(self._crashed))
            raise ConfigError(
                f"the worker of subtask {lost} has crashed, so no epoch can complete",
                next_step="start its replacement first: t.recover()",
            )

    def _source(self, name: str) -> PushedSource:
        if name not in self.sources:
            raise ConfigError(f"no source is named {name!r}", next_step=f"use one of {sorted(self.sources)}")
        return self.sources[name]

    def _worker(self, subtask: int) -> WorkerId:
        for worker, hosted in self.cluster.driver.state.workers.items():
            if hosted.subtask == subtask:
                return worker
        raise ConfigError(f"no worker runs subtask {subtask}", next_step="recover() first, or name another subtask")

    def _read(self) -> set[tuple[str, int]]:
        """Return the partitions that some worker reads."""
        workers = self.cluster.driver.state.workers.values()
        return {(at.source, at.partition) for hosted in workers for at in hosted.heartbeat.progress.positions}

    def _delivered(self) -> bool:
        phase = self.cluster.driver.state.deployed
        if phase is None or phase.last is None:
            return False
        confirmed = self.cluster.driver.state.confirmed
        return all(item.writer in confirmed and confirmed[item.writer] >= item.tag for item in phase.last.pending)

    def _settle(self) -> None:
        self.cluster.settle()
        self._check()

    def _check(self) -> None:
        outcome = self.cluster.driver.outcome
        if outcome is not None and outcome[0] in ("failed", "fenced"):
            if (error := outcome[1]) is None:
                raise JobFailed(outcome[0], not_done="the job ended", next_step="see the cause above")
            raise JobFailed(error.what, not_done=error.not_done, next_step=error.next)


def _plan_of(app: object, parallelism: int) -> Plan:
    if not isinstance(app, App):
        file = isinstance(app, str | os.PathLike)
        raise ConfigError(
            f"TestDriver takes an hf.App, not {app!r}",
            not_done="no test was started",
            next_step=f"import the app from its file: from {Path(app).stem or 'job'} import app"  # type: ignore[arg-type]
            if file
            else "give the app that the job's file builds",
        )
    plan = app.plan()
    if not isinstance(parallelism, int) or not 1 <= parallelism <= plan.key_groups:
        raise ConfigError(
            f"TestDriver has parallelism={parallelism!r}, but app {plan.app!r} has {plan.key_groups} key groups",
            not_done="no test was started",
            next_step=f"give a whole number from 1 to {plan.key_groups}",
        )
    return plan


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return records with the columns of a changed schema; those that they lack are null."""
    size = table.num_rows
    columns = [table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(size, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _table_of(source: str, schema: pa.Schema, rows: Iterable[Any], names: Mapping[str, str] = EMPTY) -> pa.Table:
    """Return rows as a table; nulls are allowed even where the schema forbids them, as are values outside of an Enum.

    Args:
        names: The names in the data of columns that have another one in the dataclass.
    """
    loose = pa.schema([column.with_nullable(True) for column in schema])
    try:
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise WrongRow(f"{rows!r:.80} is not a list of rows")
        named = [{names.get(n, n): v for n, v in r.items()} if names and isinstance(r, Mapping) else r for r in rows]
        batch = batch_of_rows(loose, named)
    except WrongRow as error:
        at = "" if error.row is None else f"row {error.row} "
        raise ConfigError(
            f"{at}pushed to {source!r} does not fit its schema: {error.what}"
            if at
            else f"the value pushed to {source!r} does not fit its schema: {error.what}",
            not_done="none of these rows was pushed",
            next_step=f"give a list of rows with the columns {schema.names}; datetimes need a time zone, such as UTC",
        ) from error
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(batch.columns, schema=schema)])


def _check_key(operator: OperatorSpec, parts: tuple[object, ...]) -> None:
    """Refuse a key whose columns are not the operator's."""
    key = operator.table.key
    fields = zip(key.names, key.types, key.nullable, strict=True)
    schema = pa.schema([pa.field(name, kind, nullable) for name, kind, nullable in fields])
    try:
        if len(parts) != len(key.names):
            raise WrongRow(f"the key has {len(key.names)} columns, not {len(parts)}")
        batch_of_rows(schema, [parts])
    except WrongRow as error:
        columns = ", ".join(key.names)
        raise ConfigError(
            f"operator {operator.name!r} keeps its state by {columns}, but {parts if len(parts) > 1 else parts[0]!r} "
            f"is not such a key: {error.what}",
            not_done="nothing was read",
            next_step=f"give ({columns}) as a tuple" if len(key.names) > 1 else f"give the value of {columns}",
        ) from error


def _double(spec: SinkSpec) -> MemorySink:
    if spec.sink.traits.repeats:
        return RepeatingTable(key=spec.upsert_key)
    return MemorySink(key=spec.upsert_key) if spec.path is None else ImmediateTable(key=spec.sink.key or ())


def _with_doubles(plan: Plan, sources: Mapping[str, PushedSource], sinks: Mapping[str, MemorySink]) -> Plan:
    for spec in plan.sinks:
        sinks[spec.name].alter()
        sinks[spec.name].prepare(spec.schema, spec.upsert_key)
    return replace(
        plan,
        sources=tuple(replace(spec, source=sources[spec.name]) for spec in plan.sources),
        sinks=tuple(replace(spec, sink=sinks[spec.name]) for spec in plan.sinks),
    )
