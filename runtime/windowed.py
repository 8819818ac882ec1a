"""What a job's code writes behind `.window(...)`: aggregates per window and key, and the stream of late records.

Results of windows have no event time of their own: a window over them is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Never, NoReturn

import pyarrow as pa

from holdfast.arguments import position
from holdfast.runtime.aggregates import Aggregation, bound, refuse_unnamed
from holdfast.runtime.dataflow import Stream
from holdfast.runtime.graph import NOT_GIVEN, Graph, Node, check_name, refused
from holdfast.runtime.settings import duration_ms
from holdfast.runtime.steps import Late, WindowAggregate
from holdfast.runtime.unsupported import no_attribute
from holdfast.runtime.windows import LENGTH_MAX_US, TIME, WINDOW_END, WINDOW_START, Tumbling

EMITS = ("close", "final")


@dataclass(frozen=True, eq=False)
class Windowed:
    """A stream grouped by key and window."""

    graph: Graph
    node: Node
    keys: tuple[str, ...]
    time: str
    window: Tumbling
    lateness_us: int

    if not TYPE_CHECKING:  # a type checker would take every name for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute('Windowed', name, {}, dir(type(self)))

    def agg(
        self, name: str = NOT_GIVEN, *unnamed: Never, emit: str = "close", **aggregates: Aggregation
    ) -> WindowStream:
        """Keep aggregates per window and key; columns: the keys, window_start, window_end, the aggregates.

        Args:
            name: Identity of the state. Renaming the operator starts it empty.
            emit: "close": when the window ends, corrected by later records within the lateness (an upsert stream if
                there is any). "final": once, after the lateness.
            aggregates: Result columns: `bids=hf.count(), top=hf.max("price")`.

        Raises:
            ConfigError: a name is taken, a column unknown, or a type that the aggregate does not take.
        """
        check_name(name, "operator")
        where = f"agg {name!r} on windows of stream {self.node.stream!r} at {position()}"
        refuse_unnamed(unnamed, where)
        if emit not in EMITS:
            raise refused(f"{where}: emit={emit!r} is unknown", 'use emit="close" or emit="final"')
        if not aggregates:
            raise refused(f"{where}: it has no aggregate", "give at least one, for example rows=hf.count()")
        schema = self.node.schema
        bounds = tuple(bound(column, given, schema, where) for column, given in aggregates.items())
        taken = {*self.keys, WINDOW_START, WINDOW_END}
        for aggregation in bounds:
            if aggregation.result.name in taken:
                raise refused(f"{where}: {aggregation.result.name!r} is a column already", "rename the aggregate")
        checked = self.graph.claim(name, "operator")
        kind = WindowAggregate(checked, self.keys, bounds, self.time, self.window, self.lateness_us, emit)
        fields = [
            *(schema.field(key) for key in self.keys),
            pa.field(WINDOW_START, TIME, nullable=False),
            pa.field(WINDOW_END, TIME, nullable=False),
            *(aggregation.result for aggregation in bounds),
        ]
        corrected = emit == "close" and self.lateness_us > 0
        upsert_key = (*self.keys, WINDOW_END) if corrected else None
        return WindowStream(self.graph, self.graph.add(kind, self.node, checked, pa.schema(fields), upsert_key))


class WindowStream(Stream):
    """The results of windows."""

    @property
    def late(self) -> Stream:
        """The records that came when their window and its lateness were over; unconnected they are counted."""
        graph, node = self._graph, self._node
        assert node.input is not None
        return Stream(graph, graph.add(Late(), node, node.stream, node.input.schema))


def windowed(graph: Graph, node: Node, keys: tuple[str, ...], window: object, allowed_lateness: str) -> Windowed:
    """Check what `.window(...)` was given.

    Raises:
        ConfigError: the stream has no event time or replaces rows, or the window is of an unknown kind.
    """
    where = f"window on stream {node.stream!r} at {position()}"
    if not isinstance(window, Tumbling):
        raise refused(f"{where}: {window!r} is not a window", 'use hf.tumbling(size), for example hf.tumbling("10s")')
    if node.upsert_key is not None:
        raise refused(
            f"{where}: the stream replaces rows by {', '.join(node.upsert_key)}, "
            "and windows over rows that are replaced are not supported",
            "put the window on the stream before it",
        )
    if node.event_time is None:
        raise refused(
            f"{where}: the stream has no event time",
            'name it at the source, app.source(..., event_time="at"), and keep that column as it is up to the window',
        )
    for name in (WINDOW_START, WINDOW_END):
        if name in keys:
            raise refused(f"{where}: {name!r} is a key column, and the result has one of that name", "rename the key")
    lateness_ms = duration_ms(allowed_lateness, "allowed_lateness")
    if lateness_ms < 0:
        raise refused(f"{where}: allowed_lateness={allowed_lateness!r} is negative", "give 0s or more")
    if window.size_us + 1_000 * lateness_ms > LENGTH_MAX_US:
        raise refused(
            f"{where}: the window and its lateness are longer than 1,000 years",
            "give a shorter window, or count without one: .key_by(...).agg(...)",
        )
    return Windowed(graph, node, keys, node.event_time, window, 1_000 * lateness_ms)
