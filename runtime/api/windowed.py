"""Aggregates per window and key: checks the arguments of `.window(...).agg(...)` and adds them to the graph.

The event time of results is the start of their window, so that a window over them holds whole windows; that of sessions
is their end, that of count windows the event time of their last record. Results that may be corrected have none, so a
window over them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Never

import pyarrow as pa

from holdfast.arguments import position
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.functions.aggregation import (
    Aggregation,
    BoundAggregation,
    bound,
    check_former,
    refuse_unnamed,
)
from holdfast.runtime.operators.side import LATE, SideOutput
from holdfast.runtime.operators.windows.counted import CountedAggregate
from holdfast.runtime.operators.windows.session import SessionAggregate
from holdfast.runtime.operators.windows.sliding import SlidingAggregate
from holdfast.runtime.operators.windows.window import WindowAggregate
from holdfast.runtime.plan.graph import Graph, Node, check_name, refused
from holdfast.runtime.rows.expressions import unknown_column
from holdfast.runtime.time.triggers import AllTime, Every
from holdfast.runtime.time.windows import LENGTH_MAX_US, TIME, WINDOW_END, WINDOW_START, Windows

EMITS = ("close", "final")


@dataclass(frozen=True)
class Grouping:
    """How rows are grouped: by key, and by windows."""

    keys: tuple[str, ...]
    time: str | None
    """None only for windows that need no event time."""
    window: Windows | AllTime
    lateness_us: int


def aggregated(
    graph: Graph,
    node: Node,
    grouping: Grouping,
    name: str,
    unnamed: tuple[Never, ...],
    emit: str | Every,
    aggregates: Mapping[str, Aggregation],
) -> Node:
    """Add aggregates per window and key to the graph; see Windowed.agg.

    Raises:
        ConfigError: a name is taken, a column is unknown, or the aggregate does not take its type.
    """
    check_name(name, "operator")
    where = f"agg {name!r} on windows of stream {node.stream!r} at {position()}"
    refuse_unnamed(unnamed, where)
    _check_emit(grouping, emit, where)
    if not aggregates:
        raise refused(f"{where} has no aggregate", "give at least one, for example rows=hf.count()")
    schema = node.schema
    check_former(aggregates, where)
    bounds = tuple(bound(column, given, schema, where, grouping.time) for column, given in aggregates.items())
    if isinstance(grouping.window, AllTime):
        return _counted(graph, node, grouping, name, bounds, where)
    assert grouping.time is not None
    taken = {*grouping.keys, WINDOW_START, WINDOW_END}
    for aggregation in bounds:
        if aggregation.result.name in taken:
            raise refused(f"{where}: {aggregation.result.name!r} is already a column", "rename the aggregate")
    if grouping.window.per_record:
        for aggregation in bounds:
            if aggregation.kind.calls:
                refuse_own(aggregation, where, grouping.window.shown())
    operator = graph.claim(name, "operator")
    step = SessionAggregate if grouping.window.merging else WindowAggregate
    if grouping.window.per_record:
        step = SlidingAggregate
    early_us = emit.us if isinstance(emit, Every) else 0
    at_end = emit if isinstance(emit, str) else "close"
    kind = step(operator, grouping.keys, bounds, grouping.time, grouping.window, grouping.lateness_us, at_end, early_us)
    fields = [
        *(schema.field(key) for key in grouping.keys),
        pa.field(WINDOW_START, TIME, nullable=False),
        pa.field(WINDOW_END, TIME, nullable=False),
        *(aggregation.result for aggregation in bounds),
    ]
    corrected = early_us > 0 or (at_end == "close" and grouping.lateness_us > 0)
    upsert_key = (*grouping.keys, WINDOW_END) if corrected else None
    event_time = None if corrected else grouping.window.time_of_results
    return graph.add(kind, node, operator, pa.schema(fields), upsert_key, event_time=event_time)


def _check_emit(grouping: Grouping, emit: str | Every, where: str) -> None:
    """Refuse emissions that are unknown or do not fit the windows.

    Raises:
        ConfigError: always in these cases.
    """
    window = grouping.window
    if isinstance(emit, Every):
        if isinstance(window, AllTime):
            raise refused(
                f"{where}: {window.shown()} with emit=hf.every(...): a window of this kind has a result with its last "
                "record only",
                'leave emit out; for the aggregates so far, once per epoch, .key_by(...).agg(..., emit="changes")',
            )
        if window.merging:
            raise refused(
                f"{where}: {window.shown()} with emit=hf.every(...): a session that was emitted early gets another end "
                "with its next record, and no row takes the former one back",
                'leave emit out, which emits each session once, or use emit="final"',
            )
        if window.per_record:
            raise refused(
                f"{where}: {window.shown()} with emit=hf.every(...): a record of these windows is emitted once",
                'leave emit out; for aggregates without a wait, .key_by(...).agg(..., emit="each")',
            )
        return
    if emit not in EMITS:
        raise refused(f"{where}: emit={emit!r} is unknown", 'use emit="close", emit="final" or emit=hf.every("10s")')
    if not isinstance(window, AllTime) and window.merging and grouping.lateness_us and emit == "close":
        raise refused(
            f"{where}: {window.shown()} with lateness and emit='close': a session that was emitted may "
            "become part of another one, and no row takes it back",
            'use emit="final", which emits each session once, after the lateness',
        )


def _counted(
    graph: Graph, node: Node, grouping: Grouping, name: str, bounds: tuple[BoundAggregation, ...], where: str
) -> Node:
    """Add aggregates per key and number of records to the graph."""
    window, schema = grouping.window, node.schema
    assert isinstance(window, AllTime)
    time_columns = () if grouping.time is None or grouping.time in grouping.keys else (grouping.time,)
    for aggregation in bounds:
        if aggregation.result.name in (*grouping.keys, *time_columns):
            raise refused(f"{where}: {aggregation.result.name!r} is already a column", "rename the aggregate")
        if aggregation.kind.calls:
            refuse_own(aggregation, where, window.shown())
    fields = [
        *(schema.field(column) for column in (*grouping.keys, *time_columns)),
        *(aggregation.result for aggregation in bounds),
    ]
    checked = graph.claim(name, "operator")
    step = CountedAggregate(checked, grouping.keys, bounds, time_columns, window.trigger.records)
    return graph.add(step, node, checked, pa.schema(fields), event_time=grouping.time)


def checked_keep(emit: str | Every, keep: object, schema: pa.Schema, where: str) -> tuple[str, ...]:
    """Check how aggregates without windows are emitted; return the columns to keep.

    Raises:
        ConfigError: the emission is unknown, or the columns cannot be kept.
    """
    columns = (keep,) if isinstance(keep, str) else keep
    if not isinstance(columns, Sequence):
        raise refused(f"{where}: keep={keep!r} names no columns", 'give names, keep=["at"]; rename an aggregate "keep"')
    if isinstance(emit, Every) or emit in EMITS:
        given = "hf.every(...)" if isinstance(emit, Every) else repr(emit)
        raise refused(f"{where}: emit={given} is for windows", 'put .window(...) before it, or use emit="changes"')
    if emit not in ("changes", "each"):
        raise refused(f"{where}: emit={emit!r} is unknown", 'use emit="changes" or emit="each"')
    if columns and emit != "each":
        raise refused(f"{where}: keep= is for one row per record", 'leave it out, or use emit="each"')
    for name in columns:
        if name not in schema.names:
            raise unknown_column(name, schema.names, f"{where}: keep=")
    return tuple(columns)


def refuse_own(aggregation: BoundAggregation, where: str, what: str) -> Never:
    """Refuse an aggregate of the user where states of many ranges of rows are merged.

    Raises:
        ConfigError: always.
    """
    raise refused(
        f"{where}: {what} does not take hf.Aggregate, as {aggregation.name!r} is: merge would be called many times",
        "use the aggregates of hf, or keep the state in a keyed function: .key_by(...).process(...)",
    )


def late(graph: Graph, node: Node) -> Node:
    """Add the records that arrived too late for an operator."""
    assert node.input is not None
    return graph.add(SideOutput(LATE), node, node.stream, node.input.schema)


def grouping_of(node: Node, keys: tuple[str, ...], window: object, allowed_lateness: Duration) -> Grouping:
    """Check the arguments of `.window(...)`.

    Raises:
        ConfigError: the stream has no event time or replaces rows, or the window is of an unknown kind.
    """
    where = f"window on stream {node.stream!r} at {position()}"
    if not isinstance(window, Windows | AllTime):
        raise refused(
            f"{where}: {window!r} is not a window",
            'use for example hf.tumbling("10s") or hf.session("30m")',
        )
    if node.upsert_key is not None:
        raise refused(
            f"{where}: the stream replaces rows by {', '.join(node.upsert_key)}, "
            "and windows over replaced rows are not supported",
            "put the window on the stream before it",
        )
    if isinstance(window, AllTime):
        if duration_ms(allowed_lateness, f"{where}: allowed_lateness"):
            raise refused(
                f"{where}: {window.shown()} with allowed_lateness={allowed_lateness!r}: no record is late for it",
                "leave allowed_lateness out",
            )
        return Grouping(keys, node.event_time, window, 0)
    if node.event_time is None:
        raise refused(
            f"{where}: the stream has no event time",
            'name it at the source, app.source(..., event_time="at"), and keep that column unchanged up to the window',
        )
    for name in (WINDOW_START, WINDOW_END):
        if name in keys:
            raise refused(f"{where}: {name!r} is a key column, but the result has its own {name!r}", "rename the key")
    lateness_ms = duration_ms(allowed_lateness, f"{where}: allowed_lateness")
    if window.per_record and lateness_ms:
        raise refused(
            f"{where}: {window.shown()} with allowed_lateness={allowed_lateness!r}: a late record would change the "
            "windows of records that were emitted, and no row takes these back",
            "leave it out; to wait longer for records, give the source a larger out_of_orderness",
        )
    if window.size_us + 1_000 * lateness_ms > LENGTH_MAX_US:
        raise refused(
            f"{where}: the window and its lateness are longer than 1,000 years",
            "give a shorter window, or count without one: .key_by(...).agg(...)",
        )
    return Grouping(keys, node.event_time, window, 1_000 * lateness_ms)
