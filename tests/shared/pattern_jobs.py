"""Jobs with patterns, and their matches by backtracking over all rows of a key, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import job_player
import polars as pl

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    id: int
    user: str
    kind: str
    amount: int
    at: datetime


@dataclass
class Out:
    user: str
    rows: str


class Want(NamedTuple):
    """A step: for the job, and for the oracle, whose condition takes (row, ids taken by name, all rows by id)."""

    name: str
    how: str
    where: tuple[Any, ...]
    holds: Callable[[Event, dict[str, list[Event]]], bool]
    least: int = 1
    most: int = 1
    consecutive: bool = False


def kind(name: str, how: str = "followed_by", value: str | None = None, **times: Any) -> Want:
    wanted = value or name
    return Want(name, how, (pl.col("kind") == wanted,), lambda r, m: r.kind == wanted, **times)


def rising(name: str, than: str, how: str = "followed_by", **times: Any) -> Want:
    """A row of any kind with a larger amount than the last one of an earlier step."""

    def last(m: Any) -> Event:
        found = getattr(m, than)
        row: Event = found[-1] if isinstance(found, tuple) else found
        return row

    return Want(
        name, how, (lambda r, m: r.amount > last(m).amount,), lambda r, m: r.amount > m[than][-1].amount, **times
    )


def even(name: str, value: str, how: str = "followed_by", **times: Any) -> Want:
    """A row of one kind with an even amount: an expression and a function of the row."""
    where = (pl.col("kind") == value, lambda r: r.amount % 2 == 0)
    return Want(name, how, where, lambda r, m: r.kind == value and r.amount % 2 == 0, **times)


PATTERNS: dict[str, tuple[Want, ...]] = {
    "relaxed": (kind("a", "pattern"), kind("b"), kind("c")),
    "strict": (kind("a", "pattern"), kind("b", "then"), kind("c", "then")),
    "guarded": (kind("a", "pattern"), kind("d", "not_followed_by"), kind("b")),
    "silence": (kind("a", "pattern"), kind("b"), kind("d", "not_followed_by", "c")),
    "alone": (even("a", "a", "pattern"), even("d", "b", "not_followed_by")),
    "some": (kind("a", "pattern"), kind("b", least=1, most=3), kind("c")),
    "row": (kind("a", "pattern"), kind("b", least=2, most=3, consecutive=True), kind("c", "then")),
    "many": (kind("a", "pattern", least=2, most=3), rising("b", "a", least=1, most=2)),
    "rising": (even("a", "a", "pattern"), rising("b", "a"), rising("d", "b", "not_followed_by"), kind("c")),
    "same": (kind("a", "pattern"), kind("b", "followed_by", "a"), kind("c", "then", "a")),
}


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def seconds(when: datetime) -> float:
    return (when - START).total_seconds()


def shown(taken: dict[str, list[Event]]) -> str:
    return " ".join(f"{name}:{','.join(str(each.id) for each in rows)}" for name, rows in taken.items() if rows)


def selected(m: Any) -> Out:
    taken = {name: list(v) if isinstance(v, tuple) else [v] for name, v in m._asdict().items()}
    return Out(next(iter(taken.values()))[0].user, shown(taken))


def pattern_of(wants: tuple[Want, ...], within: int) -> Any:
    pattern: Any = None
    for want in wants:
        begin = hf.pattern if pattern is None else getattr(pattern, want.how)
        pattern = begin(want.name, *want.where)
        if want.most > 1:
            pattern = pattern.times(want.least, want.most, consecutive=want.consecutive)
    return pattern.within(f"{within}s")


def app_of(name: str = "relaxed", skip: str = "past_last", within: int = 10, out_of_orderness: str = "0s") -> hf.App:
    app = hf.App("patterns", key_groups=8)
    generator = hf.Generator(Event, lambda i: Event(i, "a", "a", 0, at(i)), count=0)
    rows = app.source("rows", generator, event_time="at", idle_after="1h", out_of_orderness=out_of_orderness)
    found = rows.match("found", pattern_of(PATTERNS[name], within), key="user", to=Out, select=selected, skip=skip)
    found.sink("out", MemorySink())
    found.late.sink("late", MemorySink())
    return app


class Complete(NamedTuple):
    """A match in the order in which it is decided."""

    moment: tuple[float, int, int]
    """Its time; before rows of that time if time itself completes it; the number of the row."""
    first: int
    fewest: int
    stages: tuple[int, ...]
    last: int
    text: str


@dataclass
class Oracle:
    """Every match in the rows so far."""

    wants: tuple[Want, ...]
    skip: str
    within: int
    clock: float = -1e9
    rows: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    late: list[int] = field(default_factory=list)

    def take(self, row: Event) -> None:
        if seconds(row.at) < self.clock:
            self.late.append(row.id)
        else:
            self.rows[row.user].append(row)

    def advance(self, second: float) -> None:
        self.clock = max(self.clock, second)

    def matches(self) -> list[tuple[str, str]]:
        """Return user and rows of all matches that are decided by the clock."""
        return sorted((user, text) for user in self.rows for text in self._of(user))

    def _of(self, user: str) -> list[str]:
        rows = [row for row in self.rows[user] if seconds(row.at) < self.clock]
        rows.sort(key=lambda row: row.at)  # rows of one time stay in the order in which they came
        decided = sorted(each for first in range(len(rows)) for each in self._from(rows, first))
        given, firsts, through = list[str](), set[int](), -1
        for each in decided:
            if each.moment[0] > self.clock or (self.skip == "past_last" and each.first <= through):
                continue
            if self.skip == "to_next" and each.first in firsts:
                continue
            firsts.add(each.first)
            through = max(through, each.last)
            given.append(each.text)
        return given

    def _from(self, rows: list[Event], first: int) -> Iterator[Complete]:
        """Follow every choice that begins with one row."""
        takes = [number for number, want in enumerate(self.wants) if want.how != "not_followed_by"]
        end = seconds(rows[first].at) + self.within

        def forbidden(stage: int) -> list[Want]:
            before = takes[stage] if stage < len(takes) else len(self.wants)
            return list(self.wants[takes[stage - 1] + 1 : before]) if stage else []

        def go(stage: int, taken: tuple[tuple[int, int], ...], through: int) -> Iterator[Complete]:
            count = sum(mine == stage for mine, _ in taken)
            so_far = self._named(rows, taken, takes)
            for at in range(through + 1, len(rows)):
                row = rows[at]
                if seconds(row.at) >= end:
                    break
                if not count and any(each.holds(row, so_far) for each in forbidden(stage)):
                    return
                if stage == len(takes):
                    continue
                want = self.wants[takes[stage]]
                if want.holds(row, so_far):
                    more = (*taken, (stage, at))
                    if count + 1 < want.most:
                        yield from go(stage, more, at)
                    if count + 1 >= want.least:
                        if takes[stage] == len(self.wants) - 1:
                            yield self._complete(rows, more, takes, (seconds(row.at), 1, at))
                        else:
                            yield from go(stage + 1, more, at)
                    return
                if want.consecutive if count else want.how == "then":
                    return
            if stage == len(takes):
                yield self._complete(rows, taken, takes, (end, 0, 0))

        if self.wants[0].holds(rows[first], {}):
            want, taken = self.wants[0], ((0, first),)
            if want.most > 1:
                yield from go(0, taken, first)
            if want.least == 1:
                yield from go(1, taken, first)

    def _named(self, rows: list[Event], taken: tuple[tuple[int, int], ...], takes: list[int]) -> dict[str, list[Event]]:
        return {self.wants[n].name: [rows[at] for s, at in taken if s == stage] for stage, n in enumerate(takes)}

    def _complete(
        self, rows: list[Event], taken: tuple[tuple[int, int], ...], takes: list[int], moment: tuple[float, int, int]
    ) -> Complete:
        stages = tuple(stage for stage, _ in taken)
        text = shown(self._named(rows, taken, takes))
        return Complete(moment, taken[0][1], -len(taken), stages, taken[-1][1], text)


def given_rows(t: TestDriver) -> list[tuple[str, str]]:
    return sorted((each["user"], each["rows"]) for each in t.rows("out"))


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare the matches with those of the oracle after every step."""

    def check() -> None:
        assert given_rows(t) == oracle.matches()

    def event(number: int, user: str, kind: str, amount: int, second: float) -> Event:
        return Event(number, user, kind, amount, at(second))

    job_player.play(t, steps, job_player.timed(t, event, at, oracle), check)
