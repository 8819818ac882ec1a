"""Patterns in streams: checks the arguments of `.match(...)` and adds the step to the graph.

The result is a dataclass. Without `select=` the names of its fields select their values: a key column, the event time
column (the time of the match), or `<step>_<column>`. With `select=` a function makes the row.

Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.arguments import position
from holdfast.errors import ConfigError
from holdfast.runtime.api.functions import checked_policy, refused, row_schema
from holdfast.runtime.operators.patterns.automaton import SKIPS, Automaton, PatternStage
from holdfast.runtime.operators.patterns.conditions import PatternCondition
from holdfast.runtime.operators.patterns.kept import KEPT, RESERVED
from holdfast.runtime.operators.patterns.match import Match
from holdfast.runtime.operators.patterns.results import ColumnOrigin, MatchResult
from holdfast.runtime.plan.graph import Graph, Node, check_name
from holdfast.runtime.rows.expressions import Use, predicate_of, unknown_column
from holdfast.runtime.rows.kept_columns import kept_column
from holdfast.runtime.rows.row_types import misfit, unreadable
from holdfast.runtime.time.patterns import FIRST, NOT_FOLLOWED_BY, PARTIALS, PARTIALS_MAX, THEN, Pattern, takes_matches
from holdfast.state.keys.batch import KeyType

_EXAMPLE = 'hf.pattern("a", pl.col("kind") == "a").followed_by("b", pl.col("kind") == "b").within("1h")'


def matched(
    graph: Graph,
    node: Node,
    name: str,
    pattern: object,
    key: str | Sequence[str],
    to: Any,
    select: Callable[[Any], Any] | None,
    skip: str,
    on_error: object,
    partial_matches_max: object,
) -> Node:
    """Add matches of a pattern to the graph; see Stream.match.

    Raises:
        ConfigError: a name is taken, nothing bounds the state, or the stream, a condition or the result does not fit.
    """
    check_name(name, "operator")
    use = Use("match", position(), node.stream)
    policy = checked_policy(on_error, str(use), graph.dlq is not None)
    time, keys = _time_of(node, use), _keys(node, key, use)
    if not isinstance(pattern, Pattern):
        raise refused(use, f"{pattern!r} is not a pattern", f"give {_EXAMPLE}")
    if pattern.within_us is None:
        raise refused(
            use,
            "nothing bounds the pattern in time, so partial matches would never expire",
            'end the pattern with .within("1h")',
        )
    if skip not in SKIPS:
        raise refused(use, f"skip={skip!r} is unknown", f"use one of {', '.join(map(repr, SKIPS))}")
    if type(partial_matches_max) is not int or not 1 <= partial_matches_max <= PARTIALS_MAX:
        raise refused(
            use,
            f"partial_matches_max={partial_matches_max!r} is not an integer from 1 to {PARTIALS_MAX:,}",
            f"give how many partial matches a key may have, or leave it out for {PARTIALS:,}",
        )
    conditions = _conditions(node, pattern, use)
    alike = not any(asks for condition in conditions for _, asks in condition.functions)
    automaton = _automaton(pattern, pattern.within_us, skip, partial_matches_max, alike)
    schema, row_type = row_schema(to, use)
    result = replace(_result(node, automaton, keys, time, schema, select, use), to=row_type)
    columns = _columns(node, keys, time, conditions, result, use)
    has_time = time in schema.names and schema.field(time) == node.schema.field(time)
    delayed = has_time and select is not None
    claimed, kind = graph.claim(name, "operator"), node.row_type
    step = Match(claimed, keys, time, columns, automaton, conditions, kind, result, delayed, policy, use)
    return graph.add(step, node, claimed, schema, row_type=row_type, event_time=time if has_time else None)


def _conditions(node: Node, pattern: Pattern, use: Use) -> tuple[PatternCondition, ...]:
    return tuple(
        PatternCondition(
            step.name,
            tuple(predicate_of(each, node.schema, use) for each in step.where if isinstance(each, pl.Expr)),
            tuple((each, bool(takes_matches(each))) for each in step.where if not isinstance(each, pl.Expr)),
        )
        for step in pattern.steps
    )


def _columns(
    node: Node,
    keys: tuple[str, ...],
    time: str,
    conditions: tuple[PatternCondition, ...],
    result: MatchResult,
    use: Use,
) -> tuple[str, ...]:
    """Return the columns of rows to keep: all if functions see them, else those that results are made of."""
    columns = tuple(node.schema.names)
    if result.select is not None or any(condition.functions for condition in conditions):
        _check_rows(node, use)
    else:
        used = {taken.column for taken in result.columns if taken is not None} | {time}
        columns = tuple(each for each in columns if each in used)
    for column in columns:
        if column not in keys and kept_column(node.schema.field(column), f"{KEPT}{column}") is None:
            raise refused(
                use,
                f"state cannot keep {column!r}, {node.schema.field(column).type}",
                "leave it out with .select(...), or make it text or columns of their own before the pattern",
            )
    return columns


def _time_of(node: Node, use: Use) -> str:
    if node.upsert_key is not None:
        raise refused(
            use,
            f"the stream replaces rows by {', '.join(node.upsert_key)}, and a match of a row that is replaced later "
            "cannot be taken back",
            "use the stream before the aggregate; or a window with emit='final', whose rows are never replaced",
        )
    if node.event_time is None:
        raise refused(
            use,
            "the stream has no event time, which orders the rows",
            'name it at the source, app.source(..., event_time="at"), and keep that column unchanged up to here',
        )
    return node.event_time


def _keys(node: Node, key: str | Sequence[str], use: Use) -> tuple[str, ...]:
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(each, str) for each in keys):
        raise refused(use, f"key={key!r} names no columns", 'name the columns whose rows belong together: key="card"')
    for each in keys:
        if each not in node.schema.names:
            raise unknown_column(each, node.schema.names, str(use))
        if keys.count(each) > 1:
            raise refused(use, f"the column {each!r} is named twice in key=", "name it once")
        if each in RESERVED:
            raise refused(use, f"{each!r} is a key column, and the state has one of that name", "rename it")
    try:
        KeyType.of(node.schema.field(each) for each in keys)
    except ConfigError as error:
        raise refused(use, error.what, error.next_step) from error
    return keys


def _automaton(pattern: Pattern, within_us: int, skip: str, partials_max: int, alike: bool) -> Automaton:
    stages, guards = list[PatternStage](), list[int]()
    for number, step in enumerate(pattern.steps):
        if step.how == NOT_FOLLOWED_BY:
            guards.append(number)
            continue
        strict = step.how == THEN
        stages.append(PatternStage(step.name, number, strict, step.least, step.most, step.consecutive, tuple(guards)))
        guards.clear()
    assert pattern.steps[0].how == FIRST
    return Automaton(tuple(stages), tuple(guards), within_us, skip, partials_max, alike)


def _check_rows(node: Node, use: Use) -> None:
    if node.row_type is not None and (why := misfit(node.row_type, node.schema.names)) is not None:
        raise refused(use, why, "put .select(...) before the pattern; functions then receive hf.Row")
    if (why := unreadable(node.schema)) is not None:
        raise refused(use, why, "cast it to microseconds first")


def _result(
    node: Node,
    automaton: Automaton,
    keys: tuple[str, ...],
    time: str,
    schema: pa.Schema,
    select: Callable[[Any], Any] | None,
    use: Use,
) -> MatchResult:
    if select is not None:
        if not callable(select) or inspect.iscoroutinefunction(select):
            raise refused(use, f"select={select!r} is not a function", "give one of the match: select=lambda m: ...")
        return MatchResult((), select)
    origins: list[ColumnOrigin | None] = []
    for field in schema:
        origin = _taken(field.name, node, automaton, keys, time, use)
        source = node.schema.field(time if origin is None else origin.column)
        if source.type != field.type or (source.nullable and not field.nullable):
            given = f"{source.type}{' or null' if source.nullable else ''}"
            raise refused(
                use,
                f"{field.name!r} of the result is {field.type}, and {source.name!r} is {given}",
                "give the field that type, or make the row with select=lambda m: ...",
            )
        origins.append(origin)
    return MatchResult(tuple(origins), None)


def _taken(
    name: str, node: Node, automaton: Automaton, keys: tuple[str, ...], time: str, use: Use
) -> ColumnOrigin | None:
    """Return the value of a field of the result; None: the time of the match."""
    if name in keys:
        return ColumnOrigin(None, name)
    if name == time:
        return None
    fitting = [
        (number, name.removeprefix(f"{stage.name}_"))
        for number, stage in enumerate(automaton.stages)
        if name.startswith(f"{stage.name}_") and name.removeprefix(f"{stage.name}_") in node.schema.names
    ]
    if len(fitting) != 1:
        stages = ", ".join(stage.name for stage in automaton.stages)
        why = "means a column of several steps" if fitting else "is not a key, the event time or <step>_<column>"
        raise refused(
            use,
            f"{name!r} of the result {why}",
            f"name it after one of the steps {stages} and a column, or make the row with select=lambda m: ...",
        )
    number, column = fitting[0]
    if automaton.stages[number].most > 1:
        raise refused(
            use,
            f"{name!r} of the result is of step {automaton.stages[number].name!r}, which takes several rows",
            "make the row with a function: select=lambda m: ..., where the step is a tuple of rows",
        )
    return ColumnOrigin(number, column)
