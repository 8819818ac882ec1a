"""The automaton of a pattern: how one row, or the passing of time, changes the partial matches of a key.

A partial match has taken the first rows of a match and waits for a row of one stage. Where a stage may take more rows
and need not, there are two partial matches: one that waits for another row of the stage, and one that continues.

A row, or a deadline, may complete several matches. They are considered in the order of their first rows; of those
with the same first row, the one with the most rows is first, and then the one with more rows in earlier stages.

Invariants
    - A partial match takes the first row that it can; it never ignores one (skip till next match).
    - The result of `advance` depends on its arguments alone, and it changes none of them. So a row whose conditions
      fail can be left out.
    - The first row and the stages of all rows identify a partial match among those of its key.
    - A row never raises the number of partial matches above the limit: `advance` refuses it. While it takes one,
      there are at most twice as many as before, and two.

Pure.
Source: Agrawal et al., Efficient Pattern Matching over Event Streams, 2008; docs/decisions/0069-patterns.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE, TO_NEXT, PAST_LAST = "none", "to_next", "past_last"
SKIPS = (PAST_LAST, TO_NEXT, NONE)
"""After a match: forget partial matches that share a row with it or began before its end; those with the same first
row; or nothing."""


class TooManyPartials(Exception):
    """A row would raise the number of partial matches of its key above the limit."""


class PatternRow(NamedTuple):
    """A row of one key; rows are ordered by time, and those of the same time by their number."""

    at_us: int
    number: int
    slot: int
    """Where its columns are; not the order."""


class Partial(NamedTuple):
    """A partial match, or a complete one."""

    stage: int
    """The stage that it waits for; one more than the last: for the end of `within`."""
    had: int
    """Rows that it has taken for this stage."""
    rows: tuple[PatternRow, ...]
    stages: tuple[int, ...]
    """The stage of each row."""
    slot: int = -1
    """Where it is stored; -1: it is not."""


Holds = Callable[[int, PatternRow, Partial | None], bool]
"""holds(condition, row, partial): whether the functions of a condition are true; the bits of the row are."""


@dataclass(frozen=True)
class PatternStage:
    """A step of the pattern that takes rows."""

    name: str
    condition: int
    """The number of its condition, which is also that of its bit."""
    strict: bool
    """Its first row is the next of the key."""
    least: int = 1
    most: int = 1
    consecutive: bool = False
    """So are the others."""
    guards: tuple[int, ...] = ()
    """The conditions of rows that must not come before its first one."""


@dataclass(frozen=True)
class Automaton:
    """A pattern, ready to run."""

    stages: tuple[PatternStage, ...]
    guards: tuple[int, ...]
    """The conditions of rows that must not come after the last stage; if any, the match is complete by time."""
    within_us: int
    skip: str
    partials_max: int
    """Partial matches of one key. It may change while more are kept: then no row may add to them."""
    alike: bool = False
    """Whether no condition looks at rows of earlier stages, so partial matches that wait for the same are alike."""

    @property
    def breakable(self) -> bool:
        """Whether a row that meets no condition can end a partial match."""
        return any(stage.strict or (stage.consecutive and stage.most > 1) for stage in self.stages)

    def ends(self, partial: Partial) -> int:
        """Return when a partial match is over: the first time that its rows cannot have."""
        return partial.rows[0].at_us + self.within_us

    def advance(
        self, alive: Sequence[Partial], row: PatternRow, fits: int, holds: Holds
    ) -> tuple[list[Partial], list[Partial]]:
        """Take the next row; return the partial matches, and the matches that it completes.

        Args:
            alive: None of them is over.
            fits: By condition, a bit that is set if its expressions hold.

        Raises:
            TooManyPartials: more than `partials_max` would be left, and more than there are.
        """
        room = max(self.partials_max, len(alive))
        after: list[Partial] = []
        complete: list[Partial] = []
        for partial in alive:
            stage = self.stages[partial.stage] if partial.stage < len(self.stages) else None
            guards = self.guards if stage is None else stage.guards if not partial.had else ()
            if guards and any(fits >> guard & 1 and holds(guard, row, partial) for guard in guards):
                continue
            if stage is None:
                after.append(partial)
            elif fits >> stage.condition & 1 and holds(stage.condition, row, partial):
                self._take(partial, row, after, complete)
            elif not (stage.consecutive if partial.had else stage.strict):
                after.append(partial)
            if len(after) > room and self.skip == NONE:
                raise TooManyPartials  # nothing is forgotten below; with another skip, it can be
        if fits & 1 and holds(0, row, None):
            self._take(Partial(0, 0, (), ()), row, after, complete)
        if self.alike and self.skip != NONE:
            after = _leading(after)
        if complete:
            after, complete = self._skipped(after, complete)
        if len(after) > room:
            raise TooManyPartials
        return after, complete

    def expire(self, alive: Sequence[Partial], at_us: int) -> tuple[list[Partial], list[Partial]]:
        """Let time reach a point: return the partial matches that are not over, and the matches that are complete."""
        after = [each for each in alive if self.ends(each) > at_us]
        complete = [each for each in alive if each.stage == len(self.stages) and self.ends(each) <= at_us]
        return self._skipped(after, complete) if complete else (after, complete)

    def identity(self) -> dict[str, Any]:
        """Return the properties that must not change while partial matches are kept, as JSON-able values."""
        stages = [[s.name, s.strict, s.least, s.most, s.consecutive, list(s.guards)] for s in self.stages]
        return {"stages": stages, "guards": list(self.guards)}

    def _take(self, partial: Partial, row: PatternRow, after: list[Partial], complete: list[Partial]) -> None:
        stage, count = self.stages[partial.stage], partial.had + 1
        rows, stages = (*partial.rows, row), (*partial.stages, partial.stage)
        if count < stage.most:
            after.append(Partial(partial.stage, count, rows, stages))
        if count >= stage.least:
            following = Partial(partial.stage + 1, 0, rows, stages)
            ended = following.stage == len(self.stages) and not self.guards
            (complete if ended else after).append(following)

    def _skipped(self, alive: list[Partial], complete: list[Partial]) -> tuple[list[Partial], list[Partial]]:
        """Return the partial and complete matches that remain after each complete one."""
        matches, firsts = list[Partial](), set[PatternRow]()
        for match in sorted(complete, key=_rank):
            if self.skip == TO_NEXT and match.rows[0] in firsts:
                continue
            if self.skip == PAST_LAST and matches and match.rows[0] <= matches[-1].rows[-1]:
                continue
            matches.append(match)
            firsts.add(match.rows[0])
        if self.skip == TO_NEXT:
            alive = [each for each in alive if each.rows[0] not in firsts]
        elif self.skip == PAST_LAST:  # matches that do not overlap end one after another
            alive = [each for each in alive if each.rows[0] > matches[-1].rows[-1]]
        return alive, matches


def _leading(alive: list[Partial]) -> list[Partial]:
    """Leave out partial matches that another one with the same first row leads, if they wait for the same.

    A row does the same to both, so both are completed by it, or neither. Then that with more rows is the match,
    and the other is forgotten. Without this, `times(1, n)` makes n partial matches per first row.
    """
    best: dict[tuple[PatternRow, int], Partial] = {}
    for each in alive:
        place = each.rows[0], each.stage
        if not each.had and (place not in best or _rank(each) < _rank(best[place])):
            best[place] = each
    return [each for each in alive if each.had or best[each.rows[0], each.stage] is each]


def _rank(partial: Partial) -> tuple[PatternRow, int, tuple[int, ...]]:
    return partial.rows[0], -len(partial.rows), partial.stages
