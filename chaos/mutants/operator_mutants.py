"""Wrong versions of windows, look-ups, groups and patterns, which tests of whole jobs must catch.

They cover windows that share slices or are shown early, sessions, patterns, look-ups in the versions of a table, groups
of its rows, and queries in it. They are applied as those of mutants.py are; tests/unit/runtime/test_operator_mutants.py
names the test that catches each. The simulator catches those that need a branch of its jobs too.

Source: docs/decisions/0062, 0063, 0067 to 0070, 0072, 0073, 0082, 0096, 0097.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.chaos.mutants.mutation import Mutant, Right, Swap
from holdfast.model import LAST_US
from holdfast.runtime.functions.ranges import Runs
from holdfast.runtime.operators.aggregates.aggregate import Folding
from holdfast.runtime.operators.joins.rows import Due, KeptRows
from holdfast.runtime.operators.patterns.automaton import Automaton
from holdfast.runtime.operators.patterns.kept import StoredRows as RowsOfPatterns
from holdfast.runtime.operators.patterns.match import MatchOperator
from holdfast.runtime.operators.tables import versioned
from holdfast.runtime.operators.tables.below import Below
from holdfast.runtime.operators.tables.foreign import MatchesOperator
from holdfast.runtime.operators.tables.retractions import RetractionsOperator
from holdfast.runtime.operators.tables.search import SearchOperator, Term
from holdfast.runtime.operators.tables.versioned import LEAVES, Versions
from holdfast.runtime.operators.windows import counted, session, sliding, window
from holdfast.runtime.operators.windows.counted import CountedOperator
from holdfast.runtime.operators.windows.early import EarlyResults, EarlySchedule
from holdfast.runtime.operators.windows.held import HeldSlices
from holdfast.runtime.operators.windows.session import SessionOperator
from holdfast.runtime.operators.windows.sliding import SlidingOperator
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.runtime.worker.fragment import FragmentRuntime


def _adds_only(right: Right) -> Right:
    def fold(below: Below, groups: Any, values: Any, weights: Any) -> None:
        added = np.flatnonzero(weights > 0)
        rows = pa.array(added)
        right(below, [column.take(rows) for column in groups], values.take(rows), weights[added])

    return fold


def _answers_what_it_finds(right: Right) -> Right:
    def answer(operator: MatchesOperator, slots: Any) -> None:
        count = len(operator._step.references)
        right(operator, slots[operator._asked(operator._left.table.key_columns(slots)[:count]) >= 0])

    return answer


def _counts_twice(right: Right) -> Right:
    def known_slices(operator: WindowOperator, *given: Any) -> Any:
        return tuple(np.repeat(each, 2) for each in right(operator, *given))

    return known_slices


def _forgets_the_last(right: Right) -> Right:
    def windows_between(ends: Any, after: Any, through: Any, windows: Any) -> Any:
        rows, found = right(ends, after, through, windows)
        kept = found < ends[rows] + max(windows.overlap - 1, 1) * windows.every_us
        return rows[kept], found[kept]

    return windows_between


def _over_with_the_first(right: Right) -> Right:
    def begin(operator: WindowOperator, step: Any, ctx: Any) -> None:
        right(operator, step, ctx)
        operator._reach_us = step.lateness_us

    return begin


def _touching_stay_apart(right: Right) -> Right:
    def merged(owners: Any, starts: Any, ends: Any) -> Any:
        found = right(owners, starts, ends - 1)
        return found._replace(ends=found.ends + 1)

    return merged


def _of_an_hour_later(right: Right) -> Right:
    return lambda versions, rows, times: right(versions, rows, times + 3_600_000_000)


def _leaves_with_the_clock(_: Right) -> Right:
    def expire(versions: Versions) -> None:
        slots = versions.table.ordered(LEAVES.name).through(LAST_US)
        if slots.size:
            clock = versions._clock.of(lambda: versions.table.keys_at(slots))
            versions.table.delete(slots[versions._valid_from(slots) <= clock])

    return expire


def _deletes_nothing(_: Right) -> Right:
    return lambda batch: np.zeros(batch.num_rows, bool)


def _without_upper_bounds(right: Right) -> Right:
    def passed(term: Term, values: Any, bounds: Any) -> Any:
        if "<" not in term.compares:
            return right(term, values, bounds)
        return right(replace(term, compares="<="), values, values)

    return passed


def _waits_for_new_rows(right: Right) -> Right:
    def find_due(kept: KeptRows, clock: Any) -> None:
        kept._due = Due() if kept._due is None else kept._due

    return find_due


def _one_more_second(right: Right) -> Right:
    return lambda operator, at_us: right(operator, at_us - 1_000_000)


def _one_second_less(right: Right) -> Right:
    return lambda automaton, partial: right(automaton, partial) - 1_000_000


def _lenient(right: Right) -> Right:
    def advance(automaton: Automaton, *given: Any) -> Any:
        stages = tuple(replace(stage, strict=False, consecutive=False) for stage in automaton.stages)
        return right(replace(automaton, stages=stages), *given)

    return advance


def _unguarded(right: Right) -> Right:
    def advance(automaton: Automaton, *given: Any) -> Any:
        stages = tuple(replace(stage, guards=()) for stage in automaton.stages)
        return right(replace(automaton, stages=stages), *given)

    return advance


def _by_arrival(right: Right) -> Right:
    def due(rows: RowsOfPatterns, before_us: int) -> Any:
        return np.sort(right(rows, before_us))

    return due


def _with_its_start(right: Right) -> Right:
    return lambda counts, times, owners, ends, size_us: right(counts, times, owners, ends, size_us + 1)


def _before_its_time(right: Right) -> Right:
    return lambda operator, first, last, old: right(operator, first, last + 1, old)


def _without_the_held(right: Right) -> Right:
    def behind(numbers: Any, count: int) -> Any:
        found = right(numbers, count)
        return found._replace(first=found.first + 1)

    return behind


def _one_too_few(right: Right) -> Right:
    return lambda numbers, held, size: right(numbers, held, max(size - 1, 1))


def _only_rows(right: Right) -> Right:
    def emit(operator: CountedOperator, batch: Any, own: Any, windows: Any) -> None:
        right(operator, batch, own, windows._replace(held=windows.held[:0], of_held=windows.of_held[:0]))

    return emit


OPERATOR_MUTANTS = (
    Mutant("slice-counted-twice", "decisions/0062", "a corrected window counts its slices twice",
           (Swap(WindowOperator, "_known_slices", _counts_twice),)),
    Mutant("last-window-of-a-slice-missing", "decisions/0062", "the last window that holds a slice is not emitted",
           (Swap(window, "windows_between", _forgets_the_last),)),
    Mutant("late-with-the-first-window", "decisions/0062",
           "a record is late, and a slice over, once its first window is",
           (Swap(WindowOperator, "__init__", _over_with_the_first),)),
    Mutant("changed-slice-still-held", "decisions/0062", "a record for a closed slice is missing in its later windows",
           (Swap(HeldSlices, "changed", lambda _: lambda slices, ends: None),)),
    Mutant("session-merged-once-too-few", "decisions/0063", "sessions that are exactly the gap apart stay two",
           (Swap(session, "merged", _touching_stay_apart),), needs="sessions"),
    Mutant("session-forgets-what-it-held", "decisions/0063", "a session with another start begins from nothing",
           (Swap(SessionOperator, "_move", lambda _: lambda *given: None),), needs="sessions"),
    Mutant("merged-sum-not-checked", "decisions/0063", "the sum of sessions that became one may wrap later",
           (Swap(Folding, "forget", lambda _: lambda folding: None),)),
    Mutant("pattern-kept-beyond-within", "decisions/0069", "a partial match is kept a second longer than within",
           (Swap(MatchOperator, "end", _one_more_second),), needs="patterns"),
    Mutant("pattern-dropped-within", "decisions/0069", "a partial match ends a second before within is over",
           (Swap(Automaton, "ends", _one_second_less),), needs="patterns"),
    Mutant("neighbours-need-not-be", "decisions/0069", "a row between two that must be neighbours is ignored",
           (Swap(Automaton, "advance", _lenient),)),
    Mutant("forbidden-row-ignored", "decisions/0069", "a row of not_followed_by ends no partial match",
           (Swap(Automaton, "advance", _unguarded),), needs="patterns"),
    Mutant("row-taken-again", "decisions/0069", "a row of a partial match still waits, and comes again with time",
           (Swap(RowsOfPatterns, "taken", lambda _: lambda rows, slots: None),), needs="patterns"),
    Mutant("pattern-in-order-of-arrival", "decisions/0069", "rows are taken in the order in which they came",
           (Swap(RowsOfPatterns, "due", _by_arrival),), needs="patterns"),
    Mutant("results-overtaken-by-time", "P11, decisions/0060", "the watermark passes results that are still to come",
           (Swap(FragmentRuntime, "leaving", lambda _: lambda fragment, at: at),)),
    Mutant("lookup-reads-the-future", "decisions/0067", "a row gets a version that begins after its time",
           (Swap(Versions, "at", _of_an_hour_later),), needs="lookups"),
    Mutant("version-pruned-too-early", "decisions/0067", "a version leaves when the clock reaches it, not the next one",
           (Swap(Versions, "expire", _leaves_with_the_clock),), needs="lookups"),
    Mutant("tombstone-ignored", "decisions/0067", "a version that deletes is one without values",
           (Swap(versioned, "deletes", _deletes_nothing),)),
    Mutant("waiting-rows-lost", "decisions/0067", "rows that wait at a restore are never due",
           (Swap(KeptRows, "find_due", _waits_for_new_rows),), needs="lookups"),
    Mutant("sliding-window-with-its-start", "decisions/0072",
           "a window has the records that are exactly its size older",
           (Swap(sliding, "windows_of", _with_its_start),)),
    Mutant("sliding-before-its-time", "decisions/0072", "a record is emitted while others of its event time may come",
           (Swap(SlidingOperator, "_between", _before_its_time),)),
    Mutant("running-from-nothing", "decisions/0072", "running aggregates begin again with every batch",
           (Swap(Runs, "behind", _without_the_held),)),
    Mutant("count-window-too-short", "decisions/0073", "a count window is complete one record too early",
           (Swap(counted, "windows_of", _one_too_few),)),
    Mutant("count-window-without-the-held", "decisions/0073", "a count window has only the records of its last batch",
           (Swap(CountedOperator, "_emit", _only_rows),)),
    Mutant("unshown-change-forgotten", "decisions/0082",
           "a restored operator does not know that changes were not shown",
           (Swap(EarlyResults, "note", lambda _: lambda results: None),)),
    Mutant("interval-cut-short", "decisions/0082", "windows are shown again before the interval is over",
           (Swap(EarlySchedule, "show", lambda _: lambda schedule, now_us: None),)),
    Mutant("retraction-dropped", "decisions/0068", "a row that is replaced stays in its group",
           (Swap(RetractionsOperator, "_taken_back", lambda _: lambda operator, slots: []),)),
    Mutant("value-not-taken-back", "decisions/0096", "a value that is taken back stays below its group",
           (Swap(Below, "fold", _adds_only),)),
    Mutant("match-not-followed", "decisions/0097", "a row that others refer to changes, and they do not",
           (Swap(MatchesOperator, "_referring", lambda _: lambda operator, slots: slots[:0]),)),
    Mutant("former-match-kept", "decisions/0097", "a row that refers to nothing any more keeps its match",
           (Swap(MatchesOperator, "_answer", _answers_what_it_finds),)),
    Mutant("removed-query-matches", "decisions/0070", "a query that was deleted or has moved is still found",
           (Swap(SearchOperator, "_remove", lambda _: lambda operator, slots: None),)),
    Mutant("upper-bound-ignored", "decisions/0070", "a row above the upper bound of a query finds it",
           (Swap(Term, "passed", _without_upper_bounds),)),
)  # fmt: skip
"""The wrong versions that the tests must catch; each names the rule that it negates."""
