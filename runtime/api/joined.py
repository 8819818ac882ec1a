"""Joins of two streams: checks the arguments of `.join(...)` and adds the join to the graph."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.arguments import position
from holdfast.errors import ConfigError
from holdfast.runtime.operators.joins.join import OUTER, Join, late_schema
from holdfast.runtime.operators.side import LATE, SideOutput
from holdfast.runtime.plan.graph import Graph, Node, check_name, refused
from holdfast.runtime.rows.expressions import unknown_column
from holdfast.runtime.rows.kept_columns import kept_column
from holdfast.runtime.time.join_bounds import LEFT, RIGHT, Between, JoinBound, SameWindow
from holdfast.runtime.time.windows import TIME, WINDOW_END, WINDOW_START, Windows
from holdfast.state.keys.batch import KeyType

_NAMED = ("left", "right")
OVERLAP_MAX = 100
"""Limit on the windows that hold a row of a join, which keeps as many copies."""
_BOUND = 'give within=hf.between("0s", "1h"): the right row is at most an hour younger; or window=hf.tumbling("1h")'


def joined(
    graph: Graph,
    nodes: tuple[Node, Node],
    name: str,
    on: str | Sequence[str],
    within: object,
    window: object,
    how: str,
    suffix: str,
) -> Node:
    """Add a join to the graph; see Stream.join.

    Raises:
        ConfigError: a name is taken, a column is unknown, nothing bounds the state, or an input cannot be joined.
    """
    check_name(name, "operator")
    where = f"join {name!r} on stream {nodes[LEFT].stream!r} at {position()}"
    if how not in OUTER:
        raise refused(f"{where}: how={how!r} is unknown", f"use one of {', '.join(map(repr, OUTER))}")
    time_bound = _bound(within, window, where)
    times = (_time_of(nodes[LEFT], LEFT, where), _time_of(nodes[RIGHT], RIGHT, where))
    keys = _keys(nodes, on, where)
    names, fields = _columns(nodes, keys, how, suffix, where)
    if isinstance(window, Windows):
        fields = [*fields, *(pa.field(column, TIME, nullable=False) for column in (WINDOW_START, WINDOW_END))]
    twice = [field.name for field in fields if [each.name for each in fields].count(field.name) > 1]
    if twice:
        raise refused(f"{where}: the result would have two columns {twice[0]!r}", "rename one, or give another suffix")
    step = Join(graph.claim(name, "operator"), keys, times, time_bound, how, names)
    time = {"right": dict(names[RIGHT])[times[RIGHT]], "full": None}.get(how, times[LEFT])
    return graph.add(step, nodes[LEFT], step.operator, pa.schema(fields), others=(nodes[RIGHT],), event_time=time)


def late_of(graph: Graph, node: Node) -> Node:
    """Add the rows of both inputs that arrived too late for a join."""
    return graph.add(SideOutput(LATE), node, node.stream, late_schema(node.schema))


def _bound(within: object, window: object, where: str) -> JoinBound:
    if (within is None) == (window is None):
        given = "both within= and window= are given" if within is not None else "nothing bounds the state"
        raise refused(f"{where}: {given}; a join keeps rows for as long as a partner may come", _BOUND)
    if window is None:
        if not isinstance(within, Between):
            raise refused(f"{where}: within={within!r} is not a bound", _BOUND)
        return within
    if not isinstance(window, Windows):
        raise refused(f"{where}: window={window!r} is not a window", _BOUND)
    if window.merging:
        raise refused(
            f"{where}: {window.shown()} may merge, and rows that are joined cannot be joined again",
            'use windows of a fixed size, such as hf.tumbling("1h")',
        )
    if window.per_record:
        raise refused(
            f"{where}: {window.shown()} is a window of each record, and two rows are never in the same",
            'bound the join by time: within=hf.between("0s", "10m")',
        )
    if window.overlap > OVERLAP_MAX:
        raise refused(
            f"{where}: {window.shown()} puts a row into {window.overlap:,} windows, and a join keeps it in each; "
            f"at most {OVERLAP_MAX} may overlap",
            'let windows start less often, or bound the join by time: within=hf.between("0s", "1h")',
        )
    return SameWindow(window)


def _time_of(node: Node, port: int, where: str) -> str:
    """Return the event time column of an input, which is an append stream."""
    if node.upsert_key is not None:
        raise refused(
            f"{where}: the {_NAMED[port]} stream {node.stream!r} replaces rows by {', '.join(node.upsert_key)}, "
            "and rows that have joined cannot be replaced",
            "join the stream before its aggregate; or use a window with emit='final', whose rows are never replaced",
        )
    if node.event_time is None:
        raise refused(
            f"{where}: the {_NAMED[port]} stream {node.stream!r} has no event time",
            'name it at the source, app.source(..., event_time="at"), and keep that column unchanged up to the join',
        )
    return node.event_time


def _keys(nodes: tuple[Node, Node], on: str | Sequence[str], where: str) -> tuple[str, ...]:
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not keys or not all(isinstance(key, str) for key in keys):
        raise refused(f"{where}: on={on!r} names no columns", 'name the columns that both streams have: on="user"')
    for key in keys:
        for port, node in enumerate(nodes):
            if key not in node.schema.names:
                raise unknown_column(key, node.schema.names, f"{where}, {_NAMED[port]} stream {node.stream!r}")
        left, right = (node.schema.field(key).type for node in nodes)
        if _large(left) != _large(right):
            raise refused(
                f"{where}: {key!r} is {left} on the left and {right} on the right",
                f'cast one: .with_columns({key}=pl.col("{key}").cast(...))',
            )
        if keys.count(key) > 1:
            raise refused(f"{where}: the column {key!r} is named twice in on=", "name it once")
    try:
        KeyType.of(nodes[LEFT].schema.field(key) for key in keys)
    except ConfigError as error:
        raise refused(f"{where}: {error.what}", error.next_step) from error
    return keys


def _columns(
    nodes: tuple[Node, Node], keys: tuple[str, ...], how: str, suffix: str, where: str
) -> tuple[tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]], list[pa.Field]]:
    """Return, per input, the name in the result of every column; and the result's columns."""
    left, right = (node.schema for node in nodes)
    if not isinstance(suffix, str) or not suffix:
        raise refused(f"{where}: suffix={suffix!r} is not a suffix", 'leave it out, or give for example "_right"')
    names_left = tuple((name, name) for name in left.names)
    names_right = tuple(
        (name, name if name in keys or name not in left.names else f"{name}{suffix}") for name in right.names
    )
    for schema, port in ((left, LEFT), (right, RIGHT)):
        for field in schema:
            if field.name not in keys and kept_column(field, f"row.{field.name}") is None:
                raise refused(
                    f"{where}: the join cannot keep {field.name!r} of the {_NAMED[port]} stream, {field.type}",
                    "leave it out with .select(...), or make it text or columns of their own before the join",
                )
    if reserved := [key for key in keys if key in (WINDOW_END, "row_number")]:
        raise refused(f"{where}: {reserved[0]!r} is a key column, and the state has one of that name", "rename it")
    outer = OUTER[how]
    fields = [field.with_nullable(_null_key(field, right, outer)) for field in left if field.name in keys]
    by_name = {field.name: field for field in fields}
    fields = [by_name.get(field.name, field.with_nullable(field.nullable or outer[RIGHT])) for field in left]
    for name, shown in names_right:
        if name not in keys:
            field = right.field(name)
            fields.append(pa.field(shown, field.type, field.nullable or outer[LEFT]))
    return (names_left, names_right), fields


def _null_key(field: pa.Field, right: pa.Schema, outer: tuple[bool, bool]) -> bool:
    """Return whether a key column of the result may be null: only in unmatched rows."""
    return bool((outer[LEFT] and field.nullable) or (outer[RIGHT] and right.field(field.name).nullable))


def _large(kind: pa.DataType) -> pa.DataType:
    return {pa.utf8(): pa.large_utf8(), pa.binary(): pa.large_binary()}.get(kind, kind)
