"""The automaton of patterns alone, row by row, against backtracking over all rows."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pattern_jobs import PATTERNS, Event, Oracle, Want, at, shown

from holdfast.runtime.operators.patterns.automaton import (
    PAST_LAST,
    Automaton,
    Partial,
    PatternRow,
    PatternStage,
    TooManyPartials,
)

ROWS = st.lists(st.tuples(st.sampled_from("aabbcd"), st.integers(0, 5), st.integers(0, 3)), max_size=24)


LOOK_BACK = ("many", "rising")
"""Patterns with a condition that looks at rows of earlier steps."""


UNLIMITED = 10**9


def automaton_of(
    wants: tuple[Want, ...], skip: str, within_us: int, alike: bool = False, limit: int = UNLIMITED
) -> Automaton:
    stages, guards = list[PatternStage](), list[int]()
    for number, want in enumerate(wants):
        if want.how == "not_followed_by":
            guards.append(number)
        else:
            shape = want.how == "then", want.least, want.most, want.consecutive
            stages.append(PatternStage(want.name, number, *shape, tuple(guards)))
            guards = []
    return Automaton(tuple(stages), tuple(guards), within_us, skip, limit, alike)


class Run(NamedTuple):
    """What an automaton made of rows."""

    matches: list[str]
    left_out: list[Event]
    """Rows that would have led to too many partial matches."""
    counts: list[int]
    """Partial matches after each row."""


def matches_of(automaton: Automaton, wants: tuple[Want, ...], events: list[Event], end_us: int) -> list[str]:
    return run_of(automaton, wants, events, end_us).matches


def run_of(automaton: Automaton, wants: tuple[Want, ...], events: list[Event], end_us: int) -> Run:
    names = [stage.name for stage in automaton.stages]

    def named(partial: Partial | None) -> dict[str, list[Event]]:
        taken: dict[str, list[Event]] = {name: [] for name in names}
        for row, stage in zip(partial.rows if partial else (), partial.stages if partial else (), strict=True):
            taken[names[stage]].append(events[row.slot])
        return taken

    alive, found, left_out, counts = list[Partial](), list[Partial](), list[Event](), list[int]()
    for number, event in enumerate(events):
        row = PatternRow(round((event.at - at(0)).total_seconds() * 1e6), number, number)
        alive, over = automaton.expire(alive, row.at_us)
        found += over
        try:
            alive, complete = automaton.advance(
                alive, row, -1, lambda c, r, partial: wants[c].holds(events[r.slot], named(partial))
            )
        except TooManyPartials:
            left_out.append(event)
        else:
            found += complete
            counts.append(len(alive))
        assert all(automaton.ends(each) > row.at_us for each in alive)
    alive, over = automaton.expire(alive, end_us)
    return Run(sorted(shown(named(each)) for each in [*found, *over]), left_out, counts)


def events_of(given_rows: list[Any]) -> list[Event]:
    second, events = 0, list[Event]()
    for number, (kind, amount, later) in enumerate(given_rows):
        second += later
        events.append(Event(number, "u", kind, amount, at(second)))
    return events


class TestAutomaton:
    @settings(max_examples=400, deadline=None)
    @given(ROWS, st.sampled_from(sorted(PATTERNS)), st.sampled_from(["past_last", "to_next", "none"]), st.booleans())
    def test_it_finds_what_backtracking_finds(self, given_rows: list[Any], name: str, skip: str, alike: bool) -> None:
        wants, events = PATTERNS[name], events_of(given_rows)
        oracle = Oracle(wants, skip, 10)
        for event in events:
            oracle.take(event)
        oracle.advance(1_000)
        automaton = automaton_of(wants, skip, 10_000_000, alike and name not in LOOK_BACK)
        found = matches_of(automaton, wants, events, 1_000_000_000)
        assert found == [text for _, text in oracle.matches()]

    @pytest.mark.parametrize(("skip", "most"), [(PAST_LAST, 2), ("to_next", 2), ("none", 98)])
    def test_partial_matches_per_first_row_are_few_unless_all_can_be_matches(self, skip: str, most: int) -> None:
        wants = PATTERNS["relaxed"][0]._replace(least=3, most=100), PATTERNS["relaxed"][1]
        automaton, alive = automaton_of(wants, skip, 10_000_000_000, alike=True), list[Partial]()
        for number in range(150):
            alive, _ = automaton.advance(alive, PatternRow(number, number, number), 1, lambda *_: True)
        per_row = Counter(partial.rows[0] for partial in alive)
        assert len(per_row) == 150 and max(per_row.values()) == most

    def test_the_longer_of_two_matches_that_end_together_counts(self) -> None:
        wants = PATTERNS["some"]
        events = [Event(n, "u", kind, 0, at(n)) for n, kind in enumerate("abbc")]
        assert matches_of(automaton_of(wants, PAST_LAST, 10_000_000), wants, events, 99_000_000) == ["a:0 b:1,2 c:3"]

    @pytest.mark.parametrize(("second", "found"), [(9, 1), (10, 0)])
    def test_a_row_at_the_end_of_within_is_too_late(self, second: int, found: int) -> None:
        wants = PATTERNS["relaxed"]
        events = [Event(n, "u", kind, 0, at(s)) for n, (kind, s) in enumerate([("a", 0), ("b", 1), ("c", second)])]
        assert len(matches_of(automaton_of(wants, PAST_LAST, 10_000_000), wants, events, 99_000_000)) == found


SKIPS = st.sampled_from(["past_last", "to_next", "none"])


class TestLimit:
    @settings(max_examples=300, deadline=None)
    @given(ROWS, st.sampled_from(sorted(PATTERNS)), SKIPS, st.booleans(), st.integers(1, 6))
    def test_a_row_is_refused_if_and_only_if_it_leads_beyond_the_limit(
        self, given_rows: list[Any], name: str, skip: str, alike: bool, limit: int
    ) -> None:
        wants, events, end_us = PATTERNS[name], events_of(given_rows), 1_000_000_000
        alike = alike and name not in LOOK_BACK
        limited = run_of(automaton_of(wants, skip, 10_000_000, alike, limit), wants, events, end_us)
        unlimited = automaton_of(wants, skip, 10_000_000, alike)
        others = [each for each in events if each not in limited.left_out]
        assert run_of(unlimited, wants, others, end_us) == (limited.matches, [], limited.counts)
        assert max(limited.counts, default=0) <= limit
        for refused in limited.left_out:
            before = [each for each in others if each.id < refused.id]
            assert run_of(unlimited, wants, [*before, refused], end_us).counts[-1] > limit

    def test_a_row_is_refused_before_it_has_met_all_partial_matches(self) -> None:
        step = PATTERNS["relaxed"][0]._replace(most=1000)
        wants = tuple(step._replace(name=name, how="followed_by") for name in "abcdef")
        automaton, alive = automaton_of(wants, "none", 10_000_000_000, limit=1_000), list[Partial]()
        met, largest = 0, 0

        def holds(*_: Any) -> bool:
            nonlocal met
            met += 1
            return True

        with pytest.raises(TooManyPartials):
            for number in range(100):
                met, largest = 0, max(largest, len(alive))
                alive, _ = automaton.advance(alive, PatternRow(number, number, number), -1, holds)
        assert 500 < largest <= 1_000
        assert met < largest

    def test_more_partial_matches_of_an_earlier_run_are_kept_but_none_is_added(self) -> None:
        wants = PATTERNS["relaxed"]
        alive = [Partial(1, 0, (PatternRow(n, n, n),), (0,)) for n in range(5)]
        automaton = automaton_of(wants, "none", 10_000_000, limit=2)
        only: Any = lambda condition, row, partial: condition == 1
        every: Any = lambda *_: True
        after, complete = automaton.advance(alive, PatternRow(9, 9, 9), -1, only)
        assert [each.stage for each in after] == [2] * 5 and complete == []
        with pytest.raises(TooManyPartials):
            automaton.advance(alive, PatternRow(9, 9, 9), -1, every)
