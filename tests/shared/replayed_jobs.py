"""Jobs with several operators, and a player that breaks them: for tests that compare replays with checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl
from job_player import rescale

import holdfast as hf
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.replay.player import Code
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARTITIONS, EPOCHS = 4, 6
KEYS = ("ab", "cd", "ef", "gh")
"""By partition: the order of records of different partitions is not recorded, so no key may depend on it."""


@dataclass
class Row:
    k: str
    n: int
    at: datetime


@dataclass
class Measured:
    k: str
    x: float


@dataclass
class Noted:
    k: str
    n: int


class Account(hf.KeyedProcess[Row, Noted]):
    """State and a timer per key."""

    total = hf.Value(int)
    seen = hf.Map(int, int)
    quiet = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Row) -> None:
        self.total.set((self.total.get() or 0) + r.n)
        self.seen.set(r.n % 3, (self.seen.get(r.n % 3) or 0) + 1)
        self.quiet.set(r.at + timedelta(seconds=40))

    @quiet.fires
    def over(self, ctx: hf.Context) -> None:
        ctx.emit(Noted(ctx.key, self.total.get() or 0))
        self.total.clear()


def doubled(row: Row) -> Noted:
    return Noted(row.k, 2 * row.n)


def rows_of(app: hf.App, name: str = "rows") -> hf.Stream[Row]:
    return app.source(name, hf.Log(f"unused/{name}", Row), event_time="at")


def totals() -> hf.App:
    app = hf.App("replayed")
    kept = rows_of(app).filter(pl.col("n") % 5 != 0)
    kept.key_by("k").agg("totals", rows=hf.count(), total=hf.sum("n"), most=hf.max("n")).sink("out", MemorySink(["k"]))
    kept.map(doubled, to=Noted).sink("doubled", MemorySink())
    kept.sink("newest", hf.SQLite("unused.db", "newest", ["k"], delivery="idempotent"))
    return app


def windows() -> hf.App:
    app = hf.App("replayed")
    keyed = rows_of(app).key_by("k")
    keyed.window(hf.tumbling("30s")).agg("minutes", rows=hf.count(), total=hf.sum("n")).sink("out", MemorySink())
    keyed.window(hf.hopping("40s", every="20s")).agg("hops", rows=hf.count()).sink("hopping", MemorySink())
    return app


def sessions() -> hf.App:
    app = hf.App("replayed")
    windowed = rows_of(app).key_by("k").window(hf.session("15s"))
    windowed.agg("sessions", emit="final", rows=hf.count(), total=hf.sum("n")).sink("out", MemorySink())
    return app


def joined() -> hf.App:
    app = hf.App("replayed")
    pairs = rows_of(app).join("pairs", rows_of(app, "others"), on="k", within=hf.between("0s", "20s"), how="left")
    pairs.sink("out", MemorySink())
    return app


def processed() -> hf.App:
    app = hf.App("replayed")
    rows_of(app).key_by("k").process("accounts", Account(), to=Noted).sink("out", MemorySink())
    return app


def deduplicated() -> hf.App:
    app = hf.App("replayed")
    rows_of(app).key_by("k").dedup("once", within="1m").sink("out", MemorySink())
    return app


APPS: tuple[Callable[[], hf.App], ...] = (totals, windows, sessions, joined, processed, deduplicated)


def played(t: TestDriver, seed: int, words: Sequence[Sequence[str]] = KEYS) -> None:
    """Let a job take some epochs of records whose times grow in every partition, so that none is late; break it."""
    rng = random.Random(seed)
    second = 0.0
    for number in range(EPOCHS):
        second += rng.choice([1, 10, 30])
        for source in t.sources:
            for partition in range(PARTITIONS):
                count = rng.randint(1, 12)
                times = sorted(second + rng.random() for _ in range(count))
                keys = words[partition]
                rows = [Row(rng.choice(keys), rng.randint(0, 40), NOON + timedelta(seconds=at)) for at in times]
                t.push(source, rows, partition)
        second += 1
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


def code_of(t: TestDriver) -> Code:
    return Code(t._plan, t.sources)
