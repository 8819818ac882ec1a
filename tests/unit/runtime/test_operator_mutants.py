"""Each wrong version of windows, look-ups and patterns is caught by a test of whole jobs; the right ones pass it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import count_window_jobs
import early_jobs
import foreign_jobs
import grouped_jobs
import hopping_jobs
import lookup_jobs
import pattern_jobs
import pytest
import running_jobs
import search_jobs
import session_jobs
import sliding_jobs
from session_jobs import at, row

from holdfast.chaos.mutants.mutation import Mutant, applied
from holdfast.chaos.mutants.operator_mutants import OPERATOR_MUTANTS
from holdfast.errors import JobFailed
from holdfast.testing import TestDriver

SEEDS_MAX = 12


def steps_of(seed: int) -> list[Any]:
    """Return pushes and watermarks."""
    rng = random.Random(seed)
    steps: list[Any] = []
    for number in range(8):
        given = [(rng.choice("abc"), rng.randrange(-10, 40), rng.choice([None, "x", "y"])) for _ in range(6)]
        steps += [("push", number % 3, given), ("watermark", 6 * number)]
    return steps


def hopping(seed: int) -> None:
    oracle = hopping_jobs.Oracle(10, 2, "close", 9)
    with TestDriver(hopping_jobs.app_of(10, 2, "close", 9), 2, seed) as t:
        hopping_jobs.play(t, steps_of(seed), oracle)


def held_slices(seed: int) -> None:
    oracle = hopping_jobs.Oracle(10, 2, "close", 0, compiled=True)
    with TestDriver(hopping_jobs.app_of(compiled=True), 2, seed) as t:
        hopping_jobs.play(t, steps_of(seed), oracle)


def sessions(seed: int) -> None:
    oracle = session_jobs.Oracle(5, 20)
    with TestDriver(session_jobs.app_of(5, 20), 2, seed) as t:
        session_jobs.play(t, steps_of(seed), oracle)


def large_sums(seed: int) -> None:
    """Bridges, one after another, make four sessions one, whose sum is near the limit; one more value is beyond it."""
    large = 2 * 10**18
    with TestDriver(session_jobs.app_of(lateness=1_000), 1, seed) as t:
        t.push("rows", [row("a", 8 * number, large) for number in range(5)])
        t.checkpoint()
        for number in range(3):
            t.push("rows", [row("a", 8 * number + 4, 1)])
            t.checkpoint()
        try:
            t.push("rows", [row("a", 5, large)])
            t.checkpoint()
        except JobFailed:
            return
        raise AssertionError("a sum wrapped")


def windows_of_windows(seed: int) -> None:
    with TestDriver(session_jobs.again(), 2, seed) as t:
        for number in range(8):
            t.push("rows", [row("abc"[i % 3], 7 * number + i, i) for i in range(7)], partition=number % 3)
            t.watermark("rows", at(7 * number))
            t.checkpoint()
        t.finish()
        assert t.rows("late") == []


def lookups(seed: int) -> None:
    rng, steps = random.Random(seed), list[Any]()
    for number in range(5):
        changes = [(rng.randrange(9), rng.choice([None, 10, 20, 30])) for _ in range(3)]
        orders = [(rng.choice(lookup_jobs.CODES), rng.randrange(9)) for _ in range(5)]
        steps += [("rates", number % 3, changes), ("orders", number % 3, orders), ("watermark", rng.randrange(1, 6))]
        steps += [("parallelism", rng.randrange(1, 4))] if number % 2 else []
    with TestDriver(lookup_jobs.app_of("event_time", "inner"), 2, seed) as t:
        lookup_jobs.play(t, steps, lookup_jobs.Oracle("inner"))


def patterns(name: str) -> Callable[[int], None]:
    """Return a play of one pattern, whose matches and whose state are checked after every step."""

    def play(seed: int) -> None:
        rng = random.Random(seed)
        steps: list[Any] = []
        for number in range(6):
            rows = [(rng.choice("xy"), rng.choice("abbcd"), rng.randrange(6), 4 * number + rng.randrange(8))
                    for _ in range(8)]  # fmt: skip
            steps += [("push", number % 3, rows), ("watermark", 4 * number + rng.randrange(5))]
            steps += [("crash", 0)] if number % 2 else []
        oracle = pattern_jobs.Oracle(pattern_jobs.PATTERNS[name], "none", 10)
        with TestDriver(pattern_jobs.app_of(name, "none"), 2, seed) as t:
            pattern_jobs.play(t, steps, oracle)
            t.watermark("rows", at(60))  # the last watermark would end everything
            t.checkpoint()
            oracle.advance(60)
            assert pattern_jobs.given_rows(t) == oracle.matches()

    return play


def kept_patterns(seed: int) -> None:
    """A partial match is in the state until event time reaches its end, and not from then on."""
    with TestDriver(pattern_jobs.app_of("relaxed"), 2, seed) as t:
        t.push("rows", [pattern_jobs.Event(0, "x", "a", 0, at(0)), pattern_jobs.Event(1, "x", "b", 0, at(9.5))])
        t.watermark("rows", at(9.9))
        t.checkpoint()
        assert any(t.state("found", ("x", number)) for number in range(3))
        t.watermark("rows", at(10))
        t.checkpoint()
        assert not any(t.state("found", ("x", number)) for number in range(3))


def slides(seed: int) -> None:
    oracle = sliding_jobs.Oracle(10)
    with TestDriver(sliding_jobs.app_of(10), 2, seed) as t:
        sliding_jobs.play(t, steps_of(seed), oracle)


def running(seed: int) -> None:
    rng, records = random.Random(seed), defaultdict[str, list[dict[str, Any]]](list)
    pushes = [("push", 0, [(rng.choice("ab"), rng.randrange(9), rng.randrange(5))] * 3) for _ in range(3)]
    with TestDriver(running_jobs.app_of(keep="id"), 2, seed) as t:
        running_jobs.play(t, pushes, records)
        t.checkpoint()
        running_jobs.check(t, records)


def count_windows(seed: int) -> None:
    rng, oracle = random.Random(seed), count_window_jobs.Oracle(4)
    steps: list[Any] = []
    for _ in range(3):
        steps += [("push", 0, [(rng.choice("ab"), rng.randrange(9), rng.randrange(5)) for _ in range(7)]), ("crash", 0)]
    with TestDriver(count_window_jobs.app_of(4), 2, seed) as t:
        count_window_jobs.play(t, steps, oracle)


def early(seed: int) -> None:
    """Windows are shown for a while; then changes that were not shown move to other workers."""
    rng, steps, interval = random.Random(seed), list[Any](), 7
    for _ in range(4):
        given = [(rng.choice("abc"), rng.randrange(30), rng.choice([None, "x", "y"])) for _ in range(4)]
        steps += [("push", given), ("wait", rng.randrange(1_000, 9_000))]
    steps += [("wait", 15_000), ("push", [("a", 1, None), ("b", 2, None), ("c", 3, None)]), ("parallelism", 3)]
    oracle = hopping_jobs.Oracle(10, 2, "close", 0)
    with (
        TestDriver(early_jobs.app_of(10, 2, interval), 2, seed) as t,
        early_jobs.watched(t, oracle, interval) as watch,
    ):
        early_jobs.play(t, steps, watch)
        early_jobs.finish(t, watch, interval)


def groups(seed: int) -> None:
    rng, steps = random.Random(seed), list[Any]()
    for _ in range(4):
        rows = [(rng.randrange(5), rng.choice([None, ("a", 1), ("b", 2), ("a", 60)])) for _ in range(5)]
        steps += [("changes", rows), ("parallelism", rng.randrange(1, 4))]
    with TestDriver(grouped_jobs.app_of(), 2, seed) as t:
        grouped_jobs.play(t, steps, grouped_jobs.Oracle())


def references(seed: int) -> None:
    rng, steps = random.Random(seed), list[Any]()
    for _ in range(4):
        orders = [(rng.randrange(4), rng.choice([None, ("ann", 1), ("bob", 2), ("cy", 1)])) for _ in range(3)]
        customers = [(rng.choice(["ann", "bob", "cy"]), rng.choice([None, 1, 2, 3])) for _ in range(3)]
        steps += [("change", [*orders, *customers]), ("parallelism", rng.randrange(1, 4))]
    with TestDriver(foreign_jobs.app_of("left"), 2, seed) as t:
        foreign_jobs.play(t, steps, foreign_jobs.Oracle("left"))


def searches(seed: int) -> None:
    rng, steps = random.Random(seed), list[Any]()
    for number in range(4):
        given = [("ab"[rng.randrange(2)], None, rng.choice([None, 1.0]), rng.choice([None, 2.0]), rng.choice([None, 2]))
                 for _ in range(4)]  # fmt: skip
        changes = [(rng.randrange(4), rng.choice([None, each, each])) for each in given]
        events = [(rng.choice("ab"), "x", float(rng.randrange(4)), rng.randrange(4)) for _ in range(6)]
        steps += [("queries", changes), ("events", number % 3, events), ("parallelism", rng.randrange(1, 4))]
    with TestDriver(search_jobs.app_of(), 2, seed) as t:
        search_jobs.play(t, steps, search_jobs.Oracle())


PLAYS: dict[str, Callable[[int], None]] = {
    "slice-counted-twice": hopping,
    "last-window-of-a-slice-missing": hopping,
    "late-with-the-first-window": hopping,
    "changed-slice-still-held": held_slices,
    "session-merged-once-too-few": sessions,
    "session-forgets-what-it-held": sessions,
    "merged-sum-not-checked": large_sums,
    "results-overtaken-by-time": windows_of_windows,
    "lookup-reads-the-future": lookups,
    "version-pruned-too-early": lookups,
    "tombstone-ignored": lookups,
    "waiting-rows-lost": lookups,
    "pattern-kept-beyond-within": kept_patterns,
    "pattern-dropped-within": patterns("relaxed"),
    "neighbours-need-not-be": patterns("row"),
    "forbidden-row-ignored": patterns("guarded"),
    "row-taken-again": patterns("relaxed"),
    "pattern-in-order-of-arrival": patterns("relaxed"),
    "sliding-window-with-its-start": slides,
    "sliding-before-its-time": slides,
    "running-from-nothing": running,
    "count-window-too-short": count_windows,
    "count-window-without-the-held": count_windows,
    "unshown-change-forgotten": early,
    "interval-cut-short": early,
    "retraction-dropped": groups,
    "value-not-taken-back": groups,
    "match-not-followed": references,
    "former-match-kept": references,
    "removed-query-matches": searches,
    "upper-bound-ignored": searches,
}


def caught(play: Callable[[int], None]) -> int | None:
    """Play seeds until one fails; return how many, None if none did."""
    for seed in range(SEEDS_MAX):
        try:
            play(seed)
        except AssertionError:  # an error of another kind is one of the mutant itself: it has outlived what it changes
            return seed + 1
    return None


class TestOperatorMutants:
    @pytest.mark.parametrize(
        "play",
        [
            *(hopping, sessions, slides, running, count_windows, early, lookups, groups, searches, kept_patterns),
            *(patterns(name) for name in ("relaxed", "row", "guarded")),
        ],
    )
    def test_what_is_not_mutated_passes(self, play: Callable[[int], None]) -> None:
        for seed in range(3):
            play(seed)

    @pytest.mark.parametrize("mutant", OPERATOR_MUTANTS, ids=lambda mutant: mutant.name)
    def test_a_wrong_version_is_caught(self, mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
        with applied(mutant):
            seeds = caught(PLAYS[mutant.name])
        assert seeds is not None, f"{mutant.name} ({mutant.rules}) survived"
        record_property("wrong version", f"{mutant.name} {seeds}")
