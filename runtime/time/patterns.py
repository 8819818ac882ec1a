"""Patterns that users write: an order of rows of one key, with conditions, counts and a bound of time.

    hf.pattern("small", pl.col("amount") < 1).then("large", lambda r, m: r.amount > 500).within("1m")

A pattern is a value: every method returns a new one. Its conditions are checked against columns when a stream uses it.

Pure.
Source: API.md; docs/decisions/0069-patterns.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.time.windows import LENGTH_MAX_US

STEPS_MAX = 60
"""Each step has a bit of one integer."""
TIMES_MAX = 1_000
PARTIALS = 10_000
"""Partial matches that a key may have, unless the user gives another limit. A row is compared with each of them; for so
many, that takes milliseconds."""
PARTIALS_MAX = 1_000_000
FIRST, THEN, FOLLOWED_BY, NOT_FOLLOWED_BY = "pattern", "then", "followed_by", "not_followed_by"
_EXAMPLE = '("a", pl.col("kind") == "a")'


@dataclass(frozen=True, eq=False)
class PatternStep:
    """One step of a pattern, as the user gave it."""

    name: str
    how: str
    where: tuple[Any, ...]
    """Expressions and functions; all must hold."""
    least: int = 1
    most: int = 1
    consecutive: bool = False


@dataclass(frozen=True, eq=False)
class Pattern:
    """An order of rows; begin one with `hf.pattern`."""

    steps: tuple[PatternStep, ...]
    within_us: int | None = None

    @checked(".then", _EXAMPLE)
    def then(self, name: str, *where: pl.Expr | Callable[..., Any]) -> Pattern:
        """Expect this row as the very next one of the key."""
        if self.steps[-1].how == NOT_FOLLOWED_BY:
            raise _refused(
                f".then({name!r}) at {position()} comes after .not_followed_by, but no row is between neighbours",
                "use .followed_by, or leave .not_followed_by out",
            )
        return self._with(THEN, name, where)

    @checked(".followed_by", _EXAMPLE)
    def followed_by(self, name: str, *where: pl.Expr | Callable[..., Any]) -> Pattern:
        """Expect this row later; rows of the key between them that do not fit are ignored."""
        return self._with(FOLLOWED_BY, name, where)

    @checked(".not_followed_by", _EXAMPLE)
    def not_followed_by(self, name: str, *where: pl.Expr | Callable[..., Any]) -> Pattern:
        """Give up if such a row comes before the next step; at the end of the pattern, before `within` is over."""
        return self._with(NOT_FOLLOWED_BY, name, where)

    @checked(".times", "(2, 5)")
    def times(self, least: int, most: int | None = None, *, consecutive: bool = False) -> Pattern:
        """Let the last step take several rows.

        Args:
            least: How many at least, 1 or more.
            most: How many at most; by default exactly `least`.
            consecutive: No row of the key may be between them.
        """
        last, most = self.steps[-1], least if most is None else most
        where = f".times({least!r}, {most!r}) of {last.name!r} at {position()}"
        if last.how == NOT_FOLLOWED_BY:
            raise _refused(f"{where}: a step that must not come has no number", "put .times behind another step")
        if any(type(each) is not int for each in (least, most)) or not 1 <= least <= most <= TIMES_MAX:
            raise _refused(f"{where}: not 1 <= least <= most <= {TIMES_MAX:,}", "give for example .times(2, 5)")
        return replace(self, steps=(*self.steps[:-1], replace(last, least=least, most=most, consecutive=consecutive)))

    @checked(".within", '("1h")')
    def within(self, duration: Duration) -> Pattern:
        """Bound the match in event time: its last row comes less than `duration` after its first one.

        The bound is required, because it also bounds the kept rows.
        """
        where = f".within({duration!r}) of a pattern at {position()}"
        within_us = 1_000 * duration_ms(duration, f"the duration of .within at {position()}")
        if not 0 < within_us <= LENGTH_MAX_US:
            raise _refused(f"{where}: it is not above 0 and at most 1,000 years", 'give for example "1h"')
        return replace(self, within_us=within_us)

    def _with(self, how: str, name: str, where: tuple[Any, ...]) -> Pattern:
        step = _step(how, name, where)
        if name in (each.name for each in self.steps):
            raise _refused(f".{how}({name!r}) at {position()}: the pattern has a step {name!r}", "rename one of them")
        if len(self.steps) == STEPS_MAX:
            raise _refused(f".{how}({name!r}) at {position()}: more than {STEPS_MAX} steps", "split the pattern")
        return replace(self, steps=(*self.steps, step))


@checked("hf.pattern", _EXAMPLE)
def pattern(name: str, *where: pl.Expr | Callable[..., Any]) -> Pattern:
    """Begin a pattern with its first row.

    Args:
        name: The step's name, under which conditions and results see its row.
        where: Conditions, of which all must hold: row-wise Polars expressions, and functions `(row)` or
            `(row, matches)`, where `matches` has the rows of the earlier steps: `matches.small.amount`. Expressions
            are computed for whole batches; a function is called only for rows for which the expressions hold.
    """
    return Pattern((_step(FIRST, name, where),))


def takes_matches(function: Callable[..., Any]) -> bool | None:
    """Return whether a condition takes `(row, matches)` and not `(row)`; None if it takes neither."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # some functions written in C have no signature
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required_count = sum(each.default is each.empty for each in by_place)
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters) or required_count > 2:
        return None
    if not by_place and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None
    return required_count == 2


def _step(how: str, name: str, where: tuple[Any, ...]) -> PatternStep:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise _refused(
            f"step {name!r} of a pattern at {position()}: conditions and results use it as an attribute",
            "give it a name of letters, digits and underscores that begins with a letter",
        )
    for each in where:
        if not isinstance(each, pl.Expr) and not callable(each):
            raise _refused(
                f"step {name!r} of a pattern at {position()}: {each!r} is not a condition",
                'give Polars expressions or functions: pl.col("amount") > 5, lambda r, m: r.amount > m.a.amount',
            )
        if not isinstance(each, pl.Expr) and (
            inspect.iscoroutinefunction(each) or isinstance(each, type) or takes_matches(each) is None
        ):
            raise _refused(
                f"step {name!r} of a pattern at {position()}: a condition takes (row) or (row, matches)",
                "let it take one or two arguments: lambda r, m: r.amount > m.a.amount",
            )
    return PatternStep(name, how, where)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="the job was not planned", next_step=next_step)
