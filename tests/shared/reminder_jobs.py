"""A job with timers of the wall clock, steps for it, and what its function does, in plain Python.

The function counts time in whole minutes of the clock. Before each step the clock advances to a new minute and a little
further, and no step takes until the next one; so the oracle knows what `now()` returned, and what fired before.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import state_sizes
from hypothesis import strategies as st
from planned_source import PlannedSource

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = "abcdefgh"
REMIND, NAG, NAGS = 3, 2, 2
MINUTE_S, SLACK_S = 60, 4
RECENT = 2
"""Minutes for which a number is recent; half a minute more to the job, whose steps begin early in a minute."""


@dataclass
class Order:
    k: str
    v: int
    at: datetime = EPOCH


@dataclass
class Said:
    k: str
    what: str
    total: int
    recent: int
    minute: int
    """Of `now()`."""


def minute_of(time: datetime) -> int:
    return int((time - EPOCH).total_seconds()) // MINUTE_S


def at(minute: int) -> datetime:
    return EPOCH + timedelta(minutes=minute)


class Reminder(hf.KeyedProcess[Order, Said]):
    """Reminds of what was not paid, then nags; some orders pay, some fail."""

    total = hf.Value(int)
    recent = hf.Value(int, ttl=f"{RECENT * MINUTE_S + MINUTE_S // 2}s", clock="processing")
    left = hf.Value(int)
    remind = hf.Timer("processing")
    nag = hf.Timer("processing")

    def on_record(self, ctx: hf.Context, r: Order) -> None:
        now = minute_of(ctx.now())
        self.total.set(self.total.get(0) + r.v)
        ctx.emit(self.said(ctx, "order"))
        if r.v % 3:
            self.recent.set(r.v)
        if r.v % 4 == 3:
            self.remind.clear()
        else:
            self.remind.set(at(now + r.v % 4 + 1))
        if r.v % 7 == 6:
            raise ValueError("six of seven")

    @remind.fires
    def reminds(self, ctx: hf.Context) -> None:
        assert ctx.event_time is None
        ctx.emit(self.said(ctx, "remind"))
        self.left.set(NAGS)
        self.nag.set(at(minute_of(ctx.now()) + NAG))

    @nag.fires
    def nags(self, ctx: hf.Context) -> None:
        left = self.left.get(0) - 1
        self.left.set(left)
        ctx.side("nagged", self.said(ctx, "nag"))
        if left:
            self.nag.set(at(minute_of(ctx.now()) + NAG))
        if self.total.get(0) % 5 == 4:
            raise ValueError("four of five")

    def said(self, ctx: hf.Context, what: str) -> Said:
        return Said(ctx.key, what, self.total.get(0), self.recent.get(-1), minute_of(ctx.now()))


def app_of() -> hf.App:
    app = hf.App("reminders", key_groups=8)
    columns = PlannedSource(hf.Generator(Order, lambda i: Order("", i)).schema, Order)
    orders = app.source("rows", columns)
    out = orders.key_by("k").process("reminders", Reminder(), to=Said, sides={"nagged": Said}, on_error="drop")
    out.sink("out", MemorySink())
    out.side("nagged").sink("nagged", MemorySink())
    return app


@dataclass
class Kept:
    """The state of one key; times in minutes."""

    total: int = 0
    recent: tuple[int, int] | None = None
    """The value, and when it was set."""
    left: int = 0
    timers: dict[str, int] = field(default_factory=dict)

    def said(self, k: str, what: str, now: int) -> tuple[Any, ...]:
        recent = self.recent[0] if self.recent is not None and now - self.recent[1] <= RECENT else -1
        return k, what, self.total, recent, now


@dataclass
class Oracle:
    """One record and one timer after another."""

    clock: int = 0
    """What fires is decided by the clock of the hosts."""
    now: int = 0
    """What `now()` returned last; it does not follow a clock that goes back."""
    taken: list[Order] = field(default_factory=list)
    kept: dict[str, Kept] = field(default_factory=dict)
    out: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    nagged: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def take(self, order: Order) -> None:
        self.taken.append(order)
        self.now = max(self.now, self.clock)
        if order.v % 7 == 6:
            return
        kept = self.kept.setdefault(order.k, Kept())
        kept.total += order.v
        self.out[kept.said(order.k, "order", self.now)] += 1
        if order.v % 3:
            kept.recent = order.v, self.now
        kept.timers.pop("remind", None)
        if order.v % 4 != 3:
            kept.timers["remind"] = self.now + order.v % 4 + 1

    def advance(self, minute: int) -> None:
        self.clock = minute
        for k, kept in self.kept.items():
            while due := sorted((when, name == "nag", name) for name, when in kept.timers.items() if when <= minute):
                _, _, name = due[0]
                del kept.timers[name]
                self.now = max(self.now, minute)
                self.fire(k, kept, name)

    def fire(self, k: str, kept: Kept, name: str) -> None:
        if name == "remind":
            self.out[kept.said(k, "remind", self.now)] += 1
            kept.left = NAGS
            kept.timers["nag"] = self.now + NAG
        elif kept.total % 5 != 4:
            kept.left -= 1
            self.nagged[kept.said(k, "nag", self.now)] += 1
            if kept.left:
                kept.timers["nag"] = self.now + NAG

    def return_to(self, before: Oracle) -> None:
        """Go back to a checkpoint; the clock stays, and what was taken since is taken again."""
        again = self.taken[len(before.taken) :]
        self.now, self.taken, self.kept = before.now, list(before.taken), copy.deepcopy(before.kept)
        self.out, self.nagged = Counter(before.out), Counter(before.nagged)
        self.advance(self.clock)
        for order in again:
            self.take(order)


STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 40)), min_size=1, max_size=8),
    ),
    st.tuples(st.just("wait"), st.integers(1, 5)),
    st.tuples(st.just("outage"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("clock back"), st.integers(1, 4)),
    st.tuples(st.just("back"), st.integers(0, 2)),
    *job_player.FAILURES,
)
"""Waits; a worker that is lost for some minutes; hosts whose clock is so many minutes behind; a rewind."""


class Player:
    """One job and its oracle.

    Args:
        interrupt: Is called before a crash or another driver: it may begin an epoch that is not completed.
        back_max: So many checkpoints the rewinds go back at most, beyond the last one.
    """

    def __init__(self, t: TestDriver, interrupt: Callable[[TestDriver], None], back_max: int = 2) -> None:
        self._t, self._interrupt, self._back_max = t, interrupt, back_max
        self.oracle, self._before = Oracle(), dict[int, Oracle]()
        self._went_back = False

    def play(self, steps: list[Any]) -> None:
        """Compare the output with that of the oracle after every epoch."""
        own: job_player.Own = {
            "push": self._push,
            "wait": self._pass,
            "outage": self._outage,
            "clock back": self._clock_back,
            "back": self._rewind,
        }
        for step in steps:
            self._pass(0 if step[0] == "wait" else 1)
            job_player.play(self._t, [step], own, self._check, interrupt=lambda: self._interrupt(self._t))

    def finish(self) -> None:
        """Let all timers fire and all values expire, of which a key knows once it sees the clock; then end the input.

        Nothing fires at the end of the input.
        """
        for _ in range(1 + NAGS):  # a timer that fires sets the next one
            self._pass(REMIND + 1)
        self._push([(k, 3) for k in KEYS])  # sets nothing
        self._t.finish()
        self._compare()
        if not self._went_back:  # a value that was set at a later time than is reached again stays until then
            state_sizes.check(self._t, {"reminders": len(KEYS)})

    def _minute(self) -> int:
        return self._t.cluster.clock.wall_us() // (MINUTE_S * 1_000_000)

    def _pass(self, minutes: int) -> None:
        """Let the clock reach a new minute, and what is due by it be done."""
        if minutes:
            self._jump(minutes)
            self._t.advance(f"{SLACK_S}s")
            self.oracle.advance(self._minute())

    def _jump(self, minutes: int) -> None:
        clock = self._t.cluster.clock
        clock.now += (self._minute() + minutes) * MINUTE_S - clock.wall_us() / 1_000_000

    def _push(self, given: list[tuple[str, int]]) -> None:
        for k, v in given:
            self._t.push("rows", [Order(k, v)], KEYS.index(k) % 3)  # what a rewind repeats has the same order per key
            self.oracle.take(Order(k, v))
        self._t.advance("1s")  # an epoch in microbatch mode has what a look at the sources has shown

    def _outage(self, worker: int, minutes: int) -> None:
        self._t.crash(worker % len(self._t.cluster.rules.key_ranges))
        self._jump(minutes)
        self._t.advance("1s")
        self._t.recover()
        self._t.advance(f"{SLACK_S}s")
        self.oracle.advance(self._minute())

    def _clock_back(self, minutes: int) -> None:
        """Have every key see the time, then move all to hosts whose clock is behind."""
        self._push([(k, 8) for k in KEYS])
        self._t.checkpoint()
        self._went_back = True
        self._t.cluster.clock.wall_behind_s += minutes * MINUTE_S
        self._t.cluster.replace_driver()
        self.oracle.clock -= minutes

    def _rewind(self, back: int) -> None:
        completed = [each.body.epoch for each in self._t.cluster.driver.state.job.completed]
        # Where the clock is behind, what subtasks showed before decides: the oracle knows the latest of them only.
        epochs = [each for each in completed if each in self._before and self._before[each].now <= self._minute()]
        if epochs:
            epoch = epochs[-1 - min(back, self._back_max, len(epochs) - 1)]
            self._t.rewind(epoch)
            self._t.advance(f"{SLACK_S}s")
            self.oracle.return_to(self._before[epoch])

    def _check(self) -> None:
        assert self._minute() == self.oracle.clock, "the step took until the next minute"
        assert self._t.cluster.clock.wall_us() // 1_000_000 % MINUTE_S < MINUTE_S // 2, "the step took half a minute"
        self._compare()
        self._before[self._t.cluster.driver.state.job.base_epoch] = copy.deepcopy(self.oracle)

    def _compare(self) -> None:
        assert job_player.rows_of(self._t, "out") == self.oracle.out
        assert job_player.rows_of(self._t, "nagged") == self.oracle.nagged
