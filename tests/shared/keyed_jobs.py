"""A job with a keyed function, steps for it, and what the function does, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
from hypothesis import strategies as st
from planned_source import PlannedSource

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = "abcdefgh"
TTL_S, QUIET_S, PULSE_S, PULSES = 10, 5, 2, 3


@dataclass
class Payment:
    k: str
    v: int
    at: datetime


@dataclass
class Said:
    k: str
    what: str
    total: int
    recent: int
    kinds: int
    fresh: int


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


class Account(hf.KeyedProcess[Payment, Said]):
    """State of every kind; a timer that each record moves, and one that sets itself again."""

    total = hf.Value(int)
    fresh = hf.Value(int, ttl=f"{TTL_S}s")
    left = hf.Value(int)
    recent = hf.List(int)
    kinds = hf.Map(int, int)
    quiet = hf.Timer("event")
    pulse = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Payment) -> None:
        self.total.set(self.total.get(0) + r.v)
        self.recent.append(r.v)
        if len(self.recent) > 3:
            self.recent.pop_first()
        self.kinds.set(r.v % 5, self.kinds.get(r.v % 5, 0) + 1)
        if r.v % 7 == 6:
            self.kinds.remove(r.v % 5)
        said = self.said(ctx, "record")
        if r.v % 3:
            self.fresh.set(r.v)
        self.quiet.set(r.at + timedelta(seconds=QUIET_S))
        if r.v % 4 == 0:
            self.pulse.set(r.at + timedelta(seconds=PULSE_S))
            self.left.set(PULSES)
        if r.v % 2:
            ctx.side("odd", said)
        if r.v % 5:
            ctx.emit(said)
        if r.v % 11 == 10:
            raise ValueError("ten of eleven")

    @quiet.fires
    def is_quiet(self, ctx: hf.Context) -> None:
        ctx.emit(self.said(ctx, "quiet"))
        self.recent.clear()
        self.kinds.clear()

    @pulse.fires
    def pulses(self, ctx: hf.Context) -> None:
        left = self.left.get(0) - 1
        self.left.set(left)
        ctx.side("odd", self.said(ctx, "pulse"))
        if left:
            assert ctx.event_time is not None
            self.pulse.set(ctx.event_time + timedelta(seconds=PULSE_S))
        if self.total.get(0) % 13 == 12:
            raise ValueError("twelve of thirteen")

    def said(self, ctx: hf.Context, what: str) -> Said:
        kinds = sum(key + 10 * count for key, count in self.kinds.items())
        return Said(ctx.key, what, self.total.get(0), sum(self.recent), kinds, self.fresh.get(-1))


def app_of() -> hf.App:
    app = hf.App("accounts", key_groups=8)
    columns = PlannedSource(hf.Generator(Payment, lambda i: Payment("", i, START)).schema, Payment)
    rows = app.source("rows", columns, event_time="at", idle_after="1h")
    out = rows.key_by("k").process("account", Account(), to=Said, sides={"odd": Said}, on_error="drop")
    out.sink("out", MemorySink())
    out.side("odd").sink("odd", MemorySink())
    return app


@dataclass
class Kept:
    """The state of one key; times in seconds."""

    total: int = 0
    fresh: tuple[int, float] | None = None
    """The value, and when it expires."""
    left: int = 0
    recent: tuple[int, ...] = ()
    kinds: dict[int, int] = field(default_factory=dict)
    timers: dict[str, float] = field(default_factory=dict)

    def said(self, k: str, what: str, now: float) -> tuple[Any, ...]:
        fresh = self.fresh[0] if self.fresh is not None and self.fresh[1] > now else -1
        kinds = sum(key + 10 * count for key, count in self.kinds.items())
        return k, what, self.total, sum(self.recent), kinds, fresh


@dataclass
class Oracle:
    """One record and one timer after another."""

    clock: float = -1e9
    taken: int = 0
    kept: dict[str, Kept] = field(default_factory=dict)
    out: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    odd: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def take(self, record: Payment) -> None:
        k, v, second = record.k, record.v, (record.at - START).total_seconds()
        self.taken += 1
        if v % 11 == 10:
            return
        kept = self.kept.setdefault(k, Kept())
        kept.total += v
        kept.recent = (*kept.recent, v)[-3:]
        kept.kinds[v % 5] = kept.kinds.get(v % 5, 0) + 1
        if v % 7 == 6:
            del kept.kinds[v % 5]
        said = kept.said(k, "record", max(second, self.clock))
        if v % 3:
            kept.fresh = v, max(second, self.clock) + TTL_S
        kept.timers["quiet"] = second + QUIET_S
        if v % 4 == 0:
            kept.timers["pulse"], kept.left = second + PULSE_S, PULSES
        self.odd[said] += v % 2
        self.out[said] += bool(v % 5)

    def advance(self, second: float) -> None:
        before, self.clock = self.clock, max(self.clock, second)
        if self.clock == before:
            return  # what is due already waits for time to advance
        for k, kept in self.kept.items():
            while due := sorted((when, name == "pulse", name) for name, when in kept.timers.items() if when <= second):
                when, _, name = due[0]
                del kept.timers[name]
                self.fire(k, kept, name, when, max(when, before))

    def fire(self, k: str, kept: Kept, name: str, when: float, now: float) -> None:
        if name == "quiet":
            self.out[kept.said(k, "quiet", now)] += 1
            kept.recent, kept.kinds = (), {}
        elif kept.total % 13 != 12:
            kept.left -= 1
            self.odd[kept.said(k, "pulse", now)] += 1
            if kept.left:
                kept.timers["pulse"] = when + PULSE_S


FRESH, FAILING, LOOKING = 16, 10, 17
"""Numbers of records: one that sets what expires, one that fails when it sets it, and one that shows it."""
STEPS = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from(KEYS), st.integers(0, 50), st.integers(1, TTL_S - 1), st.integers(0, 9)),
    st.tuples(
        st.just("push"),
        st.integers(0, 2),  # the fourth partition has no records, so only the test advances time
        st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-20, 60)), min_size=1, max_size=8),
    ),
    st.tuples(st.just("watermark"), st.integers(-20, 70)),
    *job_player.FAILURES,
)


def play(
    t: TestDriver, steps: list[Any], oracle: Oracle, interrupt: Callable[[TestDriver], None], mode: str = "continuous"
) -> None:
    """Compare the output with that of the oracle after every epoch.

    Args:
        interrupt: Is called before a crash or another driver: it may begin an epoch that is not completed.
        mode: In "microbatch" time advances at the end of an epoch, after all its records, whatever came first.
    """
    seconds = [oracle.clock]

    def check() -> None:
        oracle.advance(seconds[-1])
        assert job_player.rows_of(t, "out") == +oracle.out
        assert job_player.rows_of(t, "odd") == +oracle.odd

    def advance(second: float) -> None:
        seconds.append(max(second, seconds[-1]))
        if mode == "continuous":
            oracle.advance(second)

    def ends_epoch(name: str) -> bool:
        return name != "watermark" or oracle.taken % 2 == 1  # some epochs hold a watermark and then records

    def fail(k: str, second: int, after: int, again: int) -> None:
        """Push a record that sets what expires, one that fails when it sets it again, and one that looks at it."""
        seconds = (second, second + after, second + TTL_S + again)
        numbered = zip((FRESH, FAILING, LOOKING), seconds, strict=True)
        made = [Payment(k, number, at(each)) for number, each in numbered]
        t.push("rows", made, 0)
        for record in made:
            oracle.take(record)

    push = job_player.pushing(t, lambda number, k, second: Payment(k, number, at(second)), oracle.take)
    own: job_player.Own = {"push": push, "fail": fail, "watermark": job_player.timing(t, at, advance)}
    job_player.play(t, steps, own, check, ends_epoch=ends_epoch, interrupt=lambda: interrupt(t))
