"""The same records give the same results, late rows, dead letters and state, however appends and batches cut them.

First against a worker that joins nothing: the same appends, with any disorder of event time. Then with other
appends of the same records: where a row is late whatever is appended with it, appends do not matter either.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cluster_steps
import pyarrow as pa
import pytest
from played_jobs import PlayedJob

import holdfast as hf
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.recovery import handles_for
from holdfast.checkpoint.repository import read_verified
from holdfast.model import Generation, WorkerId
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.plan import ahead
from holdfast.runtime.testing import cluster
from holdfast.runtime.time.windows import TIME
from holdfast.runtime.worker import joining
from holdfast.runtime.worker.loop import WorkerLoop
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

START_US = 1_772_000_000_000_000
SECOND = 1_000_000
LATE_BY_S = 2
FIELDS = {"n": pa.int64(), "k": pa.int64(), "v": pa.int64(), "at": TIME}
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in FIELDS.items()])
STORED = pa.schema([field.with_nullable(True) for field in SCHEMA])
SOURCES = "left", "right"
PARTITIONS = 2
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 6))]

Row = tuple[int, int, int | None, float]
"""Number, key, value (None: the record is undecodable), second."""
Append = tuple[str, int, Sequence[Row]]
"""Source, partition, rows."""


class Remembers(hf.KeyedProcess[Any, Any]):
    """Emits how many rows a key had before each row and each timer, and event time as it is then."""

    seen = hf.Value(int)
    quiet = hf.Timer("event")

    def on_record(self, ctx: Any, row: Any) -> None:
        self.seen.set((self.seen.get() or 0) + 1)
        self.quiet.set(row.at)
        ctx.emit({"k": ctx.key, "v": self.seen.get(), "at": ctx.watermark})

    @quiet.fires
    def on_quiet(self, ctx: Any) -> None:
        ctx.emit({"k": ctx.key, "v": -(self.seen.get() or 0), "at": ctx.watermark})
        self.seen.clear()


EMITTED = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field("at", TIME)])


def copied(row: Any) -> dict[str, Any]:
    return {"n": row.n, "k": row.k, "v": row.v, "at": row.at}


class WideJob(PlayedJob):
    """Windows, sessions, joins, repetitions and more over two logs.

    Args:
        sees: With a function that sees watermarks, whose results depend on where appends end.
        calls: With a function through which event times pass.
    """

    def __init__(self, folder: Path, parallelism: int, mode: str, *, sees: bool = False, calls: bool = False) -> None:
        self.logs, self.appended = dict[str, LogWriter](), 0
        self.sinks = dict[str, MemorySink]()
        for name in SOURCES:
            create_log(LocalObjects(folder / name), STORED, PARTITIONS)
            self.logs[name] = LogWriter(LocalObjects(folder / name))
        self.letters = MemorySink()
        app = hf.App("joined", checkpoint_every="1h", key_groups=8, dlq=self.letters)
        times: dict[str, Any] = {"event_time": "at", "out_of_orderness": f"{LATE_BY_S}s", "idle_after": "1h"}
        left, right = (app.source(name, hf.Log(folder / name, SCHEMA), on_error="dlq", **times) for name in SOURCES)
        totals: dict[str, Any] = {"rows": hf.count(), "numbers": hf.sum("n")}
        keyed = left.key_by("k")
        self.to("totals", keyed.agg("totals", **totals))
        timed: dict[str, Any] = {
            "minutes": keyed.window(hf.tumbling("10s"), allowed_lateness="3s").agg("minutes", emit="close", **totals),
            "last": keyed.window(hf.hopping("10s", every="5s")).agg("last", emit="final", **totals),
            "visits": right.key_by("k").window(hf.session("2s")).agg("visits", **totals),
            "once": right.key_by("k").dedup("once", within="3s"),
            "pairs": left.join("pairs", right, on="k", within=hf.between("-2s", "2s"), how="left"),
        }
        both = left.select("n", "k", "at").union(right.select("n", "k", "at")).key_by("k")
        timed["both"] = both.window(hf.tumbling("5s")).agg("both", emit="final", **totals)
        if calls:
            called = right.map(copied, to=SCHEMA).key_by("k").window(hf.tumbling("4s"))
            timed["called"] = called.agg("called", emit="final", **totals)
        for name, stream in timed.items():
            self.to(name, stream)
            self.to(f"late-{name}", stream.late)
        later = timed["both"].key_by("k").window(hf.tumbling("20s"))
        self.to("later", later.agg("later", emit="final", rows=hf.count()))
        if sees:
            self.to("seen", keyed.process("seen", Remembers(), to=EMITTED))
        self.play(app.plan(), parallelism, {name: range(PARTITIONS) for name in SOURCES}, mode)

    def to(self, name: str, stream: Any) -> None:
        sink = self.sinks[name] = MemorySink(stream.upsert_key)
        stream.sink(f"{name}-out", sink)

    def append(self, source: str, partition: int, rows: Sequence[Row]) -> None:
        columns = zip(*[(n, k, v, START_US + round(at * SECOND)) for n, k, v, at in rows], strict=True)
        made = [pa.array(each, pa.int64()).cast(kind) for each, kind in zip(columns, FIELDS.values(), strict=True)]
        self.appended += len(rows)
        self.logs[source].append({partition: pa.table(made, schema=STORED)})

    def read_all(self) -> dict[str, Any]:
        """Complete an epoch with everything that was appended; return the state that it has."""
        self.until(self.has_read_all, "a checkpoint of all records")
        return self.state()

    def has_read_all(self) -> bool:
        completed = self.cluster.driver.state.job.completed
        return bool(completed) and sum(at.offset for at in self.newest().positions) == self.appended

    def newest(self) -> Manifest:
        """Return the newest checkpoint."""
        completed = self.cluster.driver.state.job.completed
        return self.cluster.repository.load_manifest(completed[-1].body.manifest)

    def state(self) -> dict[str, Any]:
        manifest = self.newest()
        (handle,) = handles_for(manifest, [(0, manifest.key_groups)])
        identity = Identity(manifest.job_uuid, Generation(manifest.generation), manifest.timeline, WorkerId("test"))
        tables = [operator.table for operator in self.plan.operators]
        held = StateStore(identity, tables, manifest.key_groups, (0, manifest.key_groups))
        held.restore(manifest.epoch, (read_verified(self.cluster._store, s.object) for s in handle.segments))
        return {operator.name: content(held.table(operator.id)) for operator in self.plan.operators}

    def results(self) -> dict[str, Any]:
        """Seal the logs and let the job finish; return what every sink has, and the dead letters."""
        for log in self.logs.values():
            log.seal()
        cluster_steps.finish(self.cluster)
        found = {name: sorted(map(repr, sink.rows())) for name, sink in self.sinks.items()}
        return found | {"dead letters": sorted(repr(row) for row in self.letters.rows())}


def content(table: Any) -> list[str]:
    slots = table.present()
    columns = [column.to_pylist() for column in table.key_columns(slots)]
    columns += [each.tolist() for each in table.read_columns([c.name for c in table.spec.columns], slots).values()]
    return sorted(map(repr, zip(*columns, strict=True)))


@dataclass
class World:
    """How a run cuts its input into batches."""

    rows: int = ahead.JOINED_ROWS
    """0: nothing is joined."""
    reads_ahead: bool = False
    holds: int | None = None
    """The seed by which frames wait in their channels, so that they pile up."""


@contextmanager
def cut_as(world: World, patch: pytest.MonkeyPatch) -> Iterator[None]:
    rng, take = random.Random(world.holds), joining.Inlets.take

    def sometimes(inlets: Any, channel: Any) -> Any:
        return None if rng.random() < 0.6 else take(inlets, channel)

    with patch.context() as changed:
        changed.setattr(ahead, "JOINED_ROWS", world.rows)
        changed.setattr(joining, "JOINED_ROWS", world.rows)
        if not world.rows:
            changed.setattr(joining.Inlets, "take", lambda inlets, channel: inlets._take(channel))
        elif world.holds is not None:
            changed.setattr(joining.Inlets, "take", sometimes)
        changed.setattr(cluster, "WorkerLoop", partial(WorkerLoop, reads_ahead=world.reads_ahead))
        yield


def disordered(rng: random.Random, *, apart: bool = False) -> list[Append]:
    """Return appends of rows in any disorder, up to three times of what the sources allow.

    Args:
        apart: Whether each partition has keys of its own.
    """
    found, numbers = list[Append](), iter(range(10_000))
    for source in SOURCES:
        for partition in range(PARTITIONS):
            at = rng.uniform(0, 5)
            for _ in range(rng.randint(5, 25)):
                rows = []
                for _ in range(rng.randint(1, 4)):
                    at += rng.choice([0, 0.1, 0.5, 2])
                    late = rng.choice([0, 0, 0, 1, 3 * LATE_BY_S])
                    k = rng.randrange(3) + (3 * partition if apart else 0)
                    rows.append((next(numbers), k, rng.choice([1, 2, 3, None]), max(at - late, 0)))
                found.append((source, partition, rows))
    rng.shuffle(found)
    return found


def different(found: tuple[Any, Any], other: tuple[Any, Any], but: Sequence[str] = ()) -> set[str]:
    """Return which tables and sinks differ."""
    pairs = [(name, rows, other[part][name]) for part in (0, 1) for name, rows in found[part].items()]
    return {name for name, rows, others in pairs if rows != others and not any(each in name for each in but)}


class TestJoinedPieces:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("mode", [CONTINUOUS, MICROBATCH])
    def test_give_the_results_of_the_same_pieces_one_by_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
    ) -> None:
        rng = random.Random(seed)
        appends = disordered(rng)
        worlds = [World(0), World(), World(rng.randint(2, 40)), World(reads_ahead=mode == CONTINUOUS)]
        found = []
        for number, world in enumerate(worlds):
            with cut_as(world, monkeypatch):
                job = WideJob(tmp_path / str(number), 1, mode, sees=seed % 2 == 0, calls=seed % 3 == 0)
                half = len(appends) // 2 if mode == MICROBATCH else 0  # an epoch is processed at the time of the last
                for part in (appends[:half], appends[half:]):
                    for append in part:
                        job.append(*append)
                    state = job.read_all()
                found.append((state, job.results()))
        assert [different(found[0], other) for other in found[1:]] == [set()] * 3
        results = found[0][1]
        assert results["dead letters"] and any(rows for name, rows in results.items() if name.startswith("late-"))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_are_joined_in_channels_in_the_same_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        rng = random.Random(seed)
        # When a partition is read depends on the room in channels, and the first row of a key passes `dedup`.
        appends, found = disordered(rng, apart=True), []
        for number, world in enumerate([World(0), World(holds=seed), World(rng.randint(2, 40), holds=seed + 1)]):
            with cut_as(world, monkeypatch):
                if world.rows:  # the sources join nothing, so that many frames are sent
                    monkeypatch.setattr(ahead, "JOINED_ROWS", 0)
                job = WideJob(tmp_path / str(number), 1, CONTINUOUS, sees=True, calls=True)
                for append in appends:
                    job.append(*append)
                found.append((job.read_all(), job.results()))
        # Between the channels of two streams there is no order, so which of their late rows are late is up to chance.
        assert [different(found[0], other, ("both", "pairs", "later")) for other in found[1:]] == [set()] * 2


def phases(rng: random.Random) -> Iterator[dict[tuple[str, int], list[Row]]]:
    """Yield rows by source and partition: late for every operator, or on time whatever comes before them."""
    numbers = iter(range(10_000))
    for phase in range(3):
        begin, found = 30 * phase, dict[tuple[str, int], list[Row]]()
        for source in SOURCES:
            for partition in range(PARTITIONS):
                late = [begin - 30 + rng.uniform(0, 3) for _ in range(rng.randint(1, 4))] if phase else []
                times = [begin + 20 * n / 30 - rng.uniform(0, LATE_BY_S - 0.1) + LATE_BY_S for n in range(30)]
                found[source, partition] = [
                    (next(numbers), 3 * partition + rng.randrange(3), rng.choice([1, 2, 3, None]), at)
                    for at in (*late, *times, begin + 22)
                ]
        yield found


class TestAppends:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("mode", [CONTINUOUS, MICROBATCH])
    @pytest.mark.parametrize("parallelism", [1, 2])
    def test_appends_of_any_size_give_the_same_results(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, parallelism: int, seed: int
    ) -> None:
        records, found = list(phases(random.Random(seed))), []
        worlds = [World(0), World(), World(7)]
        if mode == CONTINUOUS:
            worlds += [World(reads_ahead=True), World(holds=seed)]
        for number, world in enumerate(worlds):
            with cut_as(world, monkeypatch):
                job, rng = WideJob(tmp_path / str(number), parallelism, mode, calls=seed == 0), random.Random(number)
                for phase in records:
                    for (source, partition), rows in phase.items():
                        for first, end in pieces_of(len(rows), rng):
                            job.append(source, partition, rows[first:end])
                    state = job.read_all()
                found.append((state, job.results()))
        assert [different(found[0], other) for other in found[1:]] == [set()] * (len(worlds) - 1)
        results = found[0][1]
        assert all(results[name] for name in results if mode == CONTINUOUS or not name.startswith("late-"))


def pieces_of(count: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yield the bounds of appends of random sizes."""
    first = 0
    while first < count:
        end = min(count, first + rng.choice([1, 2, 5, 40]))
        yield first, end
        first = end
