"""With the recorded order, a replay gives what the job gave bit for bit: each row, in its order, and each state.

Here everything depends on the order in which records of different partitions met: all partitions have all keys, records
come late, floating point numbers are added, functions look at the clock. The job is killed, rescaled and rewound in
between. Expected rows are those that the job staged, in their order; expected state is that of its checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from job_player import rescale
from msgspec.structs import replace as replace_fields

import holdfast as hf
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.manifest import Manifest, objects
from holdfast.checkpoint.repository import read_each
from holdfast.errors import Damaged, HoldfastError, Unavailable
from holdfast.model import Epoch, Generation, JobUuid, Subtask, Timeline, WorkerId, Writer
from holdfast.ports import ObjectStore
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.checking import replayed
from holdfast.runtime.replay.epochs import Replayable, newest
from holdfast.runtime.replay.player import Code, Player
from holdfast.runtime.replay.proof import Proof
from holdfast.runtime.replay.script import Script, script_of
from holdfast.runtime.replay.why import WatchedRows, explained
from holdfast.runtime.worker.order import TIME, FragmentSteps, FromPartition, SubtaskOrder
from holdfast.runtime.worker.protocol import Sealed
from holdfast.runtime.worker.seal import SealJob
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.changelog import SegmentHeader
from holdfast.storage.objects import MemoryObjects
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARTITIONS, EPOCHS = 4, 6


@dataclass
class Row:
    k: str
    n: int
    x: float
    at: datetime


@dataclass
class Noted:
    k: str
    n: int
    x: float
    seen: datetime


def rows_of(app: hf.App, name: str = "rows") -> hf.Stream[Row]:
    return app.source(name, hf.Log(f"unused/{name}", Row), event_time="at", out_of_orderness="3s")


def an_app() -> hf.App:
    return hf.App("replayed", checkpoint_every="20s", record_order=True)


def sums() -> hf.App:
    """Sums of floating point numbers, and what they were at each record; then sums of these, by another key."""
    app = an_app()
    keyed = rows_of(app).filter(pl.col("n") % 7 != 0).key_by("k")
    keyed.agg("totals", x=hf.sum("x"), rows=hf.count()).sink("out", MemorySink(["k"]))
    running = keyed.agg("running", emit="each", x=hf.sum("x"), rows=hf.count())
    running.sink("each", MemorySink())
    running.key_by("rows").agg("again", x=hf.sum("x")).sink("behind", MemorySink(["rows"]))
    return app


def windows() -> hf.App:
    app = an_app()
    keyed = rows_of(app).key_by("k")
    closed = keyed.window(hf.tumbling("10s"), allowed_lateness="4s").agg("closed", x=hf.sum("x"), rows=hf.count())
    closed.sink("out", MemorySink(["k", "window_end"]))
    final = keyed.window(hf.tumbling("10s")).agg("final", x=hf.sum("x"), rows=hf.count())
    final.sink("final-out", MemorySink())
    final.late.sink("late", MemorySink())
    keyed.window(hf.hopping("20s", every="5s")).agg("hops", x=hf.sum("x")).sink("hopping", MemorySink())
    final.key_by("rows").agg("by-rows", x=hf.sum("x")).sink("behind", MemorySink(["rows"]))
    return app


def sessions() -> hf.App:
    app = an_app()
    windowed = rows_of(app).key_by("k").window(hf.session("6s"))
    found = windowed.agg("sessions", emit="final", x=hf.sum("x"), rows=hf.count())
    found.sink("out", MemorySink())
    found.late.sink("late", MemorySink())
    return app


def joined() -> hf.App:
    app = an_app()
    others = rows_of(app, "others")
    pairs = rows_of(app).join("pairs", others, on="k", within=hf.between("0s", "6s"), how="left")
    pairs.sink("out", MemorySink())
    rows = rows_of(app, "third").union(others)
    rows.key_by("n").dedup("once", within="20s").sink("first", MemorySink())
    return app


class Account(hf.KeyedProcess[Row, Noted]):
    """State, timers of both clocks, the clock itself and random numbers."""

    total = hf.Value(float)
    seen = hf.Map(int, int)
    lapses = hf.Value(int, ttl="5s")
    quiet = hf.Timer("event")
    due = hf.Timer("processing")

    def on_record(self, ctx: hf.Context, r: Row) -> None:
        self.total.set((self.total.get() or 0.0) + r.x * ctx.random())
        self.seen.set(r.n % 3, (self.seen.get(r.n % 3) or 0) + 1)
        self.lapses.set((self.lapses.get() or 0) + 1)
        self.quiet.set(r.at + timedelta(seconds=9))
        self.due.set(ctx.now() + timedelta(seconds=1 + r.n % 4))
        ctx.emit(Noted(ctx.key, r.n, self.total.get() or 0.0, ctx.now()))

    @quiet.fires
    def over(self, ctx: hf.Context) -> None:
        ctx.emit(Noted(ctx.key, -1, self.total.get() or 0.0, ctx.watermark or NOON))
        self.total.clear()

    @due.fires
    def at_last(self, ctx: hf.Context) -> None:
        ctx.emit(Noted(ctx.key, -2, self.total.get() or 0.0, ctx.now()))
        self.total.set((self.total.get() or 0.0) / 3)


def processed() -> hf.App:
    app = an_app()
    noted = rows_of(app).key_by("k").process("accounts", Account(), to=Noted)
    noted.sink("out", MemorySink())
    noted.key_by("n").agg("by-n", x=hf.sum("x"), last=hf.max("seen")).sink("behind", MemorySink(["n"]))
    return app


def matched() -> hf.App:
    app = an_app()
    pattern = hf.pattern("a", pl.col("n") < 20).followed_by("b", pl.col("n") >= 20).within("10s")
    columns = pa.schema(
        [
            pa.field("k", pa.string(), nullable=False),
            pa.field("a_n", pa.int64(), nullable=False),
            pa.field("b_x", pa.float64(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
    pairs = rows_of(app).match("pairs", pattern, key="k", to=columns)
    pairs.sink("out", MemorySink())
    pairs.late.sink("late", MemorySink())
    return app


def looked_up() -> hf.App:
    """Rows of a table as they are when a record arrives, and a table that is grouped."""
    app = an_app()
    table = app.table("others", hf.Log("unused/others", Row), key="k")
    rows_of(app).lookup("priced", table, on="k", as_of="latest").sink("out", MemorySink())
    table.group_by("n").agg("by-n", x=hf.sum("x"), rows=hf.count()).sink("grouped", MemorySink(["n"]))
    return app


APPS: tuple[Callable[[], hf.App], ...] = (sums, windows, sessions, joined, processed, matched, looked_up)


def played(t: TestDriver, seed: int) -> None:
    """Let a job take some epochs of records of all keys in all partitions, some of them late; break it."""
    rng = random.Random(seed)
    second = 0.0
    for number in range(EPOCHS):
        for _ in range(rng.randint(1, 6)):
            second += rng.choice([0.5, 2, 9])
            source = rng.choice(sorted(t.sources))
            rows = [
                Row(
                    rng.choice("abcdefgh"),
                    rng.randint(0, 40),
                    rng.random(),
                    NOON + timedelta(seconds=second - rng.choice([0, 0, 1, 4, 25])),
                )
                for _ in range(rng.randint(1, 12))
            ]
            t.push(source, rows, rng.randrange(PARTITIONS))
            if rng.random() < 0.4:
                t.advance(f"{rng.randint(1, 3)}s")
            if rng.random() < 0.1:
                t.crash(0)
                t.recover()
        t.checkpoint()
        match rng.randint(0, 4):
            case 0:
                t.crash(0)
                t.recover()
            case 1:
                rescale(t, rng.randint(1, 3))
            case 2 if number > 1:
                t.rewind(int(t.cluster.driver.state.job.completed[-2].body.epoch))
            case _:
                pass


def stored(t: TestDriver) -> Stored:
    job = t.cluster.repository.read_log()
    assert job is not None
    return Stored("replayed", "memory", t.cluster._store, t.cluster.repository, job)


def staged(at: Stored, manifest: Manifest, plan: Plan) -> dict[Writer, list[dict[str, Any]]]:
    """Return the rows that each writer staged for an epoch, in their order."""
    specs = {spec.name: spec for spec in plan.sinks}
    rows: dict[Writer, list[dict[str, Any]]] = {}
    for item in manifest.pending:
        if item.tag.epoch == manifest.epoch and (spec := specs.get(item.writer.sink)) is not None:
            batches = [batch for data in read_each(at.store, item.staged.parts) for batch in spec.decode(data)]
            rows[item.writer] = pa.Table.from_batches(batches).to_pylist()
    return rows


def compared(t: TestDriver) -> Iterator[tuple[Proof, dict[Writer, Any], dict[Writer, Any]]]:
    """Yield, for each epoch, the comparison, and the rows that were staged then and now."""
    code, job = Code(t._plan, t.sources), stored(t)
    for epoch in newest(job, 100):
        now: dict[Writer, Any] = {}
        script = script_of(job.store, epoch.manifest)
        assert script is not None, "the order was recorded"

        def seen(player: Player, now: dict[Writer, Any] = now, sections: int = len(script.sections)) -> None:
            again = player.stored()
            for done in again.job.completed[-sections:]:
                manifest = again.repository.load_manifest(done.body.manifest)
                for writer, rows in staged(again, manifest, code.plan).items():
                    now.setdefault(writer, []).extend(rows)

        proof = replayed(code, epoch, seen)
        yield proof, staged(job, epoch.manifest, code.plan), now


class TestExactReplay:
    @pytest.mark.parametrize("app", APPS, ids=lambda app: app.__name__)
    @pytest.mark.parametrize("seed", range(2))
    def test_a_replay_of_every_epoch_gives_the_same_rows_in_the_same_order(
        self, app: Callable[[], hf.App], seed: int
    ) -> None:
        with TestDriver(app(), seed=seed) as t:
            played(t, seed)
            epochs = list(compared(t))
        assert len(epochs) >= 3
        assert sum(len(rows) for _, then, _ in epochs for rows in then.values()) > 5
        for proof, then, now in epochs:
            assert proof.in_order, "the order was recorded"
            assert (proof.differences, proof.rounded) == ((), ())
            assert now == then


class TestEpochsThatAreGivenUp:
    @pytest.mark.continuous
    def test_are_sections_of_the_epoch_that_completes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run, second, until = SealJob.run, 0, 0.0

        def refusing(job: SealJob, store: ObjectStore) -> Sealed:
            if job.header.epoch == second and t.cluster.clock.now < until:
                raise Unavailable("the store is away", not_done="", next_step="")
            return run(job, store)

        monkeypatch.setattr(SealJob, "run", refusing)
        with TestDriver(sums()) as t:
            t.push("rows", some(1))
            second = int(t.checkpoint()) + 1
            until = t.cluster.clock.now + 260
            t.push("rows", some(2), 0)
            t.push("rows", some(3), 1)
            t.advance("25s")  # the second epoch closes
            t.push("rows", some(4), 0)
            t.push("rows", some(5), 2)
            t.advance("300s")
            job = stored(t)
            epochs = [each.manifest for each in newest(job, 100)]
            both = [script_of(job.store, each) for each in epochs]
            proofs = list(compared(t))
        assert second not in [each.epoch for each in epochs]
        assert any(script is not None and second in script.sections for script in both)
        for proof, then, now in proofs:
            assert (proof.in_order, proof.differences, proof.rounded) == (True, (), ())
            assert now == then


def some(seed: int) -> list[Row]:
    rng = random.Random(seed)
    return [Row(rng.choice("abc"), rng.randint(0, 40), rng.random(), NOON) for _ in range(12)]


def changed(manifest: Manifest, job: Stored, change: Callable[[FragmentSteps], FragmentSteps]) -> Script:
    """Return the script of an epoch with a fault in it."""
    script = script_of(job.store, manifest)
    assert script is not None
    return replace(script, steps={at: change(steps) for at, steps in script.steps.items()})


class TestFaults:
    """A record that is not that of the epoch gives something else, and that is seen."""

    def outcome(
        self, monkeypatch: pytest.MonkeyPatch, app: hf.App, change: Callable[[FragmentSteps], FragmentSteps]
    ) -> list[Proof]:
        """Return how epochs compare if their scripts have a fault."""
        with TestDriver(app, seed=1) as t:
            played(t, 1)
            job, code = stored(t), Code(t._plan, t.sources)
            monkeypatch.setattr(Replayable, "script", lambda epoch: changed(epoch.manifest, job, change))
            return [replayed(code, epoch) for epoch in newest(job, 100)]

    def seen(self, proofs: list[Proof]) -> bool:
        return any(each.unlike is not None or each.differences or each.rounded for each in proofs)

    def test_one_batch_short_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def short(steps: FragmentSteps) -> FragmentSteps:
            if not any(isinstance(place, FromPartition) for place in steps.places):
                return steps
            left = (*steps.steps[:-1], steps.steps[-1] - 1) if steps.steps[-1] > 1 else steps.steps[:-3]
            return replace_fields(steps, steps=left)

        assert self.seen(self.outcome(monkeypatch, sums(), short))

    def test_a_watermark_at_another_place_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def later(steps: FragmentSteps) -> FragmentSteps:
            triples = [steps.steps[at : at + 3] for at in range(0, len(steps.steps), 3)]
            places = [at for at, (place, _, _) in enumerate(triples[:-1]) if place == TIME]
            for at in places:
                triples[at], triples[at + 1] = triples[at + 1], triples[at]
            return replace_fields(steps, steps=tuple(number for triple in triples for number in triple))

        assert self.seen(self.outcome(monkeypatch, windows(), later))

    def test_a_time_of_another_record_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def earlier(steps: FragmentSteps) -> FragmentSteps:
            runs = {name: (pairs[0], pairs[1] - 1, *pairs[2:]) for name, pairs in steps.portions.items() if pairs}
            return replace_fields(steps, portions=runs)

        assert self.seen(self.outcome(monkeypatch, processed(), earlier))

    def test_without_a_fault_nothing_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        proofs = self.outcome(monkeypatch, processed(), lambda steps: steps)
        assert not self.seen(proofs) and all(each.in_order for each in proofs)


class TestPieces:
    """Each record is late or not as in the whole, so that `why` names those that were on time, or late."""

    @pytest.mark.parametrize("app", [windows, sessions], ids=lambda app: app.__name__)
    @pytest.mark.parametrize("seed", range(2))
    def test_give_what_the_whole_gave(self, app: Callable[[], hf.App], seed: int) -> None:
        rng, sinks = random.Random(seed), {"windows": "final-out", "sessions": "out"}
        with TestDriver(app(), parallelism=1, seed=seed) as t:
            for partition in range(PARTITIONS):
                t.push("rows", [Row("q", 1, 1.0, NOON)], partition)
            t.checkpoint()
            for _ in range(8):
                times = [NOON + timedelta(seconds=rng.randint(-40, 60)) for _ in range(6)]
                t.push("rows", [Row(rng.choice("abc"), 1, 1.0, at) for at in times], rng.randrange(PARTITIONS))
            t.checkpoint()
            epoch, code = newest(stored(t), 1)[0], Code(t._plan, t.sources)
            watched = [WatchedRows(sink, (("k", "a"),)) for sink in (sinks[app.__name__], "late")]
            found = [explained(code, epoch, each, 100) for each in watched]
            late = [row for row in t.rows("late") if row["k"] == "a"]
        assert late, "else this shows nothing"
        assert [(each.proof.in_order, each.proof.differences) for each in found] == [(True, ()), (True, ())]
        named = [cause.record for cause in found[1].causes]
        assert sorted(each["at"] for each in named if each is not None) == sorted(row["at"] for row in late)

    def test_without_the_record_give_something_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Replayable, "reads", lambda epoch: None)
        with pytest.raises(AssertionError, match="replayed in pieces"):
            self.test_give_what_the_whole_gave(windows, 0)


class TestObjects:
    """One for each worker and epoch, named by the manifest of its epoch alone."""

    def test_expire_with_their_epoch(self) -> None:
        with TestDriver(sums(), parallelism=2) as t:
            t.cluster.change_rules(retention=Retention(2, 0))
            t.cluster.replace_driver()
            for n in range(14):
                t.push("rows", some(n), n % PARTITIONS)
                t.checkpoint()
            t.advance("60s")
            job = stored(t)
            retained = [job.repository.load_manifest(done.body.manifest) for done in job.job.completed]
            named = {ref.path for manifest in retained for ref in manifest.recorded or ()}
            listed = set(job.store.list("orders"))
        assert len(retained) < 14 and named and named <= listed
        assert len(listed) < 2 * 14, "those of expired epochs are gone"

    def test_damaged_records_end_a_replay(self) -> None:
        with TestDriver(sums()) as t:
            t.push("rows", some(1))
            t.checkpoint()
            job, code = stored(t), Code(t._plan, t.sources)
            [epoch] = newest(job, 1)
            ref = (epoch.manifest.recorded or ())[0]
            assert ref in objects(epoch.manifest), "checkpoints verify reads it"
            data = job.store.get(ref.path)
            assert data is not None
            job.store.delete(ref.path)
            with pytest.raises(Damaged, match=ref.path):
                replayed(code, epoch)
            job.store.create(ref.path, data[:-1])
            with pytest.raises(Damaged, match=ref.path):
                replayed(code, epoch)

    def test_are_created_again_with_the_same_bytes_alone(self) -> None:
        order = SubtaskOrder(Epoch(1), Subtask(0), {0: FragmentSteps((FromPartition("rows", 0, 0),), (0, 5, 1))})
        header = SegmentHeader(JobUuid("j"), Generation(1), Timeline(1), Epoch(1), Epoch(0), WorkerId("w"))
        store = MemoryObjects()
        sealed = [SealJob(header, [], {}, records_order=True, order=order).run(store) for _ in range(2)]
        assert sealed[0] == sealed[1] and store.list("orders") == ["orders/00000001/000000000001/w.order"]
        other = replace_fields(order, fragments={})
        with pytest.raises(HoldfastError):
            SealJob(header, [], {}, records_order=True, order=other).run(store)

    @pytest.mark.continuous
    def test_are_not_there_without_the_setting(self) -> None:
        app = sums()
        app.record_order = None
        with TestDriver(app) as t:
            t.push("rows", some(1))
            t.checkpoint()
            [epoch] = newest(stored(t), 1)
            proof = replayed(Code(t._plan, t.sources), epoch)
            assert epoch.manifest.recorded is None and not t.cluster._store.list("orders")
        assert not proof.in_order and proof.unlike is None


class TestOtherCode:
    def test_code_that_sends_other_rows_is_replayed_without_the_order(self) -> None:
        with TestDriver(sums()) as t:
            t.push("rows", some(1), 0)
            t.push("rows", some(2), 1)
            t.checkpoint()
            [epoch] = newest(stored(t), 1)
            app = an_app()
            keyed = rows_of(app).filter(pl.col("n") % 3 != 0).key_by("k")
            keyed.agg("totals", x=hf.sum("x"), rows=hf.count()).sink("out", MemorySink(["k"]))
            running = keyed.agg("running", emit="each", x=hf.sum("x"), rows=hf.count())
            running.sink("each", MemorySink())
            running.key_by("rows").agg("again", x=hf.sum("x")).sink("behind", MemorySink(["rows"]))
            proof = replayed(Code(app.plan(), t.sources), epoch)
        assert not proof.in_order and proof.unlike is not None and "rows" in proof.unlike
        assert {each.name for each in proof.differences} >= {"out", "each", "totals"}
