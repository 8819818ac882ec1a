"""A small life of a job's storage: driver, workers, log, sinks and local state as in production, in one process.

The loops are those that production runs; only time and messages are virtual (runtime/testing/cluster.py). Files,
RocksDB and SQLite are real. The life writes every result that it receives to a pipe, line by line, before it acts on
it.

A life creates its input, runs the job for some epochs, stops it, starts it again from the folders that the workers
left, and continues. The last life of a case ends the input and runs until the job has finished.
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from sinks_around import SinkAround

import holdfast as hf
from holdfast.checkpoint.bases import Thresholds
from holdfast.checkpoint.catalogue import Retention
from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import WorkerId, Writer
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.job import explain, requests, status
from holdfast.runtime.job.live import Status
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.wire.presence import myself
from holdfast.runtime.worker.local import images
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.opened import LocalFolders
from holdfast.runtime.worker.loop import Limits
from holdfast.sinks.contract.owners import Claim, Ownership
from holdfast.sinks.contract.sink import Sink, Uploader
from holdfast.sinks.contract.target import Target
from holdfast.sinks.log.sink import LogSink, LogTarget
from holdfast.state.local import rocks
from holdfast.state.paging import mapped
from holdfast.storage.log.log import LogWriter, create_log, read_meta
from holdfast.storage.objects import open_objects

Tell = Callable[[Mapping[str, Any]], None]
PARTITIONS, KEYS, GROUPS, BATCH_STRIDE = 2, 400, 8, 1_000
"""Enough keys that a table of RocksDB has several blocks."""
PATIENCE_S = 60.0
"""Virtual seconds without progress after which a job counts as stalled."""
SMALL_BUFFER = 16 << 10
"""Of RocksDB, and the least bytes of an array in an image that has a file of its own."""
SMALL_FILE = 1 << 10
"""Write buffer of RocksDB, small enough to cause real flushes and compactions."""


@dataclass
class Order:
    id: int
    key: int
    value: int


def batch(number: int) -> dict[int, list[dict[str, int]]]:
    """Return the rows of the append with this number, by partition."""
    rng = random.Random(number)
    made: dict[int, list[dict[str, int]]] = {}
    for partition in range(PARTITIONS):
        first = (number * PARTITIONS + partition) * BATCH_STRIDE
        count = rng.randint(1, 120)
        made[partition] = [
            {"id": first + i, "key": rng.randrange(KEYS), "value": rng.randint(-50, 50)} for i in range(count)
        ]
    return made


class StalledError(Exception):
    """The job made no progress; `findings` holds its reports."""

    def __init__(self, findings: list[dict[str, Any]]) -> None:
        super().__init__(json.dumps(findings))
        self.findings = findings


class _Unhurried(SinkAround[LogSink]):
    """A log sink that retries lost replies without a pause, since time is virtual here."""

    @property
    def ownership(self) -> Ownership:
        return self.inner

    @property
    def uploads(self) -> Uploader:
        return self.inner.uploads

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        path = self.inner.path
        return LogTarget(
            self.inner.where, lambda: open_objects(path, writable=False), job_uuid, writer, lambda _: None, claim
        )


class _Cluster(Cluster):
    """A cluster whose workers keep state in folders; a dismissed worker releases its folder, as its process would."""

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        member = self.members.pop(worker, None)
        if member is not None:
            member.loop.close()


class Life:
    """One life, in the folder of its case."""

    def __init__(self, folder: Path, seed: int, tell: Tell) -> None:
        self.folder, self._seed, self._tell = folder, seed, tell
        self._epoch = 0
        self._delivered: set[tuple[object, ...]] = set()
        self._hows: set[str] = set()
        self._problems: set[str] = set()
        rocks.WRITE_BUFFER_BYTES, mapped.FILE_BYTES_MIN = SMALL_BUFFER, SMALL_FILE
        vars(images)["unfit"] = lambda folder: ""  # the folder of a case may be in memory

    # Input

    def create_input(self) -> None:
        """Create the input log if it does not exist."""
        store = open_objects(str(self.folder / "input"))
        if read_meta(store) is None:
            schema = hf.Log(str(self.folder / "input"), Order).source().schema
            create_log(store, schema, PARTITIONS, pause=lambda _: None)
        self._tell({"created": True})

    def append(self, number: int) -> None:
        """Append a batch as a careful program does: it first settles an append with an unknown outcome."""
        writer = LogWriter(open_objects(str(self.folder / "input")), pause=lambda _: None)
        schema = writer.meta.schema
        rows = {p: pa.Table.from_pylist(part, schema=schema) for p, part in batch(number).items()}
        self._tell({"append": number})
        for attempt in range(3):
            try:
                if attempt == 0 or writer.settle() is None:
                    writer.append(rows)
                break
            except Unavailable:
                if attempt == 2:
                    raise
        self._tell({"appended": number})

    def seal(self) -> None:
        """End the input."""
        LogWriter(open_objects(str(self.folder / "input")), pause=lambda _: None).seal()

    # The job

    def start(self) -> _Cluster:
        """Prepare the job as `holdfast run` does, and take it over."""
        prepared = self._prepared()
        if prepared.folder.job is not None and prepared.folder.job.finished:
            raise AssertionError("the job finished in an earlier life")
        plan = replace(
            prepared.plan,
            sinks=tuple(replace(spec, sink=_unhurried(spec.sink)) for spec in prepared.plan.sinks),
        )
        cluster = _Cluster(plan, 2, self._seed, prepared.folder.store, 1.0, prepared.inputs.partitions)
        cluster.local = lambda: LocalFolders(Home(self.folder / "local"))
        cluster.limits = Limits(merging=Thresholds(1 << 20, 3), image_from=1)
        cluster.change_rules(retention=Retention(2, 0, 10), operators=prepared.state.operators)
        cluster.begin()
        self._inbox = requests.Inbox(prepared.folder.store)
        self._store = prepared.folder.store
        return cluster

    def _prepared(self) -> Prepared:
        app = hf.App("life", root=str(self.folder / "root"), checkpoint_every="1s", key_groups=GROUPS)
        orders = app.source("orders", hf.Log(str(self.folder / "input"), Order))
        totals = orders.key_by("key").agg("totals", n=hf.count(), total=hf.sum("value"))
        totals.sink("out", hf.SQLite(self.folder / "target" / "out.db", "totals", ["key"]))
        orders.filter(pl.col("value") > 0).sink("gains", hf.Log(str(self.folder / "output"), partitions=2))
        return prepare(app.plan(), resolve(app))

    def epoch(self, cluster: _Cluster, number: int) -> None:
        """Append a batch and wait until it is committed and delivered."""
        self.append(number)
        before = cluster.driver.state.job.base_epoch if cluster.driver.state.log.job is not None else 0
        self._wait(cluster, lambda: _base(cluster) > before and _is_delivered(cluster) and _has_read_all(cluster))

    def savepoint(self, cluster: _Cluster, name: str) -> None:
        """Ask for a savepoint as a command does, and publish the status as the driver does."""
        job = cluster.driver.state.job
        asked = requests.ask(self._store, "savepoint", {"name": name}, job.generation)
        self.answer(cluster)
        self._store.put("live.json", json.dumps(self._status(cluster).as_json()).encode())
        self._tell({"asked": asked})

    def answer(self, cluster: _Cluster) -> None:
        """Carry out pending requests, as the driver does every second."""
        generation = cluster.driver.state.job.generation
        for request in self._inbox.poll():
            reply = cluster.driver.asked(request.kind, request.args, request.generation, generation)
            if reply is not None:
                self._inbox.answer(request, reply)

    def stop(self, cluster: _Cluster) -> None:
        """Stop the job as `holdfast stop` does, and let the workers end."""
        cluster.driver.stop()
        self._wait(cluster, lambda: cluster.driver.outcome is not None)
        self.leave(cluster)

    def finish(self, cluster: _Cluster) -> None:
        """Run until the job has finished."""
        self._wait(cluster, lambda: cluster.driver.outcome is not None)
        self.leave(cluster)

    def leave(self, cluster: _Cluster) -> None:
        """End the workers' processes."""
        for member in cluster.members.values():
            member.loop.close()
        self._tell({"ended": msgspec.to_builtins(cluster.driver.outcome)})

    def idle(self, cluster: _Cluster) -> None:
        """Let the lanes catch up, and the sweep."""
        cluster.pass_time(1.5)
        self._note(cluster)

    def _wait(self, cluster: _Cluster, until: Callable[[], bool]) -> None:
        end = cluster.clock.now + PATIENCE_S
        cluster.settle()
        while True:
            self._note(cluster)
            outcome = cluster.driver.outcome
            if outcome is not None and outcome[0] not in ("stopped", "finished"):
                how, error = outcome
                what, next_step = (None, None) if error is None else (error.what, error.next)
                raise StalledError([{"code": how, "what": what, "next": next_step}])
            if until():
                return
            if cluster.clock.now >= end:
                raise StalledError([each.as_json() for each in explain.findings(self._status(cluster))])
            cluster.pass_time(0.25 if end - cluster.clock.now > PATIENCE_S - 5 else 2.0)

    def _note(self, cluster: _Cluster) -> None:
        """Report what this driver knows for certain."""
        if cluster.driver._master is None or (job := cluster.driver.state.log.job) is None:
            return
        last = getattr(cluster.driver.state.phase, "last", None)
        if last is not None and self._epoch < last.epoch == job.base_epoch:
            self._epoch = last.epoch
            at = {position.partition: max(0, position.offset) for position in last.positions}
            self._tell({"completed": last.epoch, "cut": [at.get(p, 0) for p in range(PARTITIONS)]})
        for writer, tag in cluster.driver.state.confirmed.items():
            reported = (writer.sink, writer.subtask, tag.timeline, tag.epoch)
            if reported not in self._delivered:
                self._delivered.add(reported)
                self._tell({"delivered": reported})
        if (problem := cluster.driver.sweep.problem) is not None:
            self._tell({"swept": problem.as_json()})
        for hosted in cluster.driver.state.workers.values():
            if hosted.how is not None and hosted.how not in self._hows:
                self._hows.add(hosted.how)
                self._tell({"how": hosted.how})

        for found in self._status(cluster).problems:
            if found.code not in self._problems:
                self._problems.add(found.code)
                self._tell({"problem": msgspec.to_builtins(found)})

    def _status(self, cluster: _Cluster) -> Status:
        me = myself("life", time.time_ns() // 1_000)
        shown = status.of_run(cluster.driver.state, str(self.folder), "continuous", me)
        if (refused := cluster.driver.refused) is not None:  # as a run does
            shown = msgspec.structs.replace(shown, problems=(*shown.problems, status.root_refused(refused)))
        return shown


def _unhurried(sink: Sink) -> Sink:
    return _Unhurried(sink) if isinstance(sink, LogSink) else sink


def _base(cluster: Cluster) -> int:
    state = cluster.driver.state
    return 0 if state.log.job is None else state.log.job.base_epoch


def _is_delivered(cluster: Cluster) -> bool:
    state = cluster.driver.state
    last = getattr(state.phase, "last", None)
    return last is not None and all(
        item.writer in state.confirmed and state.confirmed[item.writer] >= item.tag for item in last.pending
    )


def _has_read_all(cluster: Cluster) -> bool:
    last = getattr(cluster.driver.state.phase, "last", None)
    if last is None:
        return False
    at = {position.partition: position.offset for position in last.positions}
    hosted = cluster.driver.state.workers.values()
    ends = {end.partition: end.offset for each in hosted for end in each.heartbeat.progress.ends}
    return len(ends) == PARTITIONS and all(at.get(p, 0) >= end for p, end in ends.items())


EPOCHS = (3, 4)
"""Epochs of a life before and after its stop."""


def live(life: Life, first: int) -> None:
    """A life that ends with its workers still at work, or in the fault."""
    life.create_input()
    cluster = life.start()
    numbers = iter(range(first, first + sum(EPOCHS)))
    for _ in range(EPOCHS[0]):
        life.epoch(cluster, next(numbers))
    life.idle(cluster)
    life.stop(cluster)
    cluster = life.start()
    for done in range(EPOCHS[1]):
        life.epoch(cluster, next(numbers))
        if done == 1:
            life.savepoint(cluster, "kept" if first == 0 else f"kept-{first}")
            life.idle(cluster)


def live_to_the_end(life: Life, first: int) -> None:
    """The last life: two more epochs, then the end of the input and of the job."""
    life.create_input()
    cluster = life.start()
    for number in (first, first + 1):
        life.epoch(cluster, number)
        life.answer(cluster)
    life.seal()
    life.finish(cluster)


def played(tell: Tell, what: Callable[[], None]) -> None:
    """Play a life; report how it ended."""
    try:
        what()
        tell({"over": "well"})
    except StalledError as error:
        tell({"over": "stalled", "findings": error.findings})
    except HoldfastError as error:
        tell({"over": "raised", "findings": [error.as_json()]})
    except BaseException:  # noqa: BLE001 - reported; the process that started the life judges it
        tell({"over": "bug", "trace": traceback.format_exc()})


def lines(data: bytes) -> Iterable[dict[str, Any]]:
    """Return the lines that a life reported, without a last one truncated by a kill."""
    for line in data.split(b"\n")[:-1]:
        yield json.loads(line)
