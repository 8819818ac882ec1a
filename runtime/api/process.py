"""Keyed functions in streams: the checks before the job runs.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from holdfast.arguments import position
from holdfast.runtime.api.functions import checked_policy, refused, row_schema
from holdfast.runtime.functions.users.keyed_process import EVENT, Declaration, declared_by, refusal_of
from holdfast.runtime.operators.contract import MAIN
from holdfast.runtime.operators.process.batches import ProcessBatches
from holdfast.runtime.operators.process.operator import ProcessRecords
from holdfast.runtime.operators.side import SideOutput
from holdfast.runtime.plan.graph import Graph, Node
from holdfast.runtime.plan.graph import refused as refused_at
from holdfast.runtime.rows.dead_letters import OnError
from holdfast.runtime.rows.expressions import Use
from holdfast.runtime.rows.row_types import misfit, unreadable

CALLED = 'give an instance: .process("fraud", Fraud(), to=Alert)'


def process_of(
    graph: Graph,
    node: Node,
    keys: tuple[str, ...],
    name: str,
    process: Any,
    to: Any,
    sides: Mapping[str, Any] | None,
    on_error: object,
) -> tuple[ProcessRecords, tuple[pa.Schema, type | None]]:
    """Check the arguments of `.process(...)`; return the step, and the columns and class of its rows.

    Raises:
        ConfigError: they cannot be planned.
    """
    use = Use("process", position(), node.stream)
    policy = _checked(graph, node, keys, process, on_error, use)
    declaration = declared_by(process)
    if node.row_type is not None and (why := misfit(node.row_type, node.schema.names)) is not None:
        raise refused(use, why, "put .select(...) before key_by; the function then receives hf.Row")
    if (why := unreadable(node.schema)) is not None:
        raise refused(use, why, "cast it to microseconds first")
    _check_clocks(node, declaration, use)
    side_rows = {side: row_schema(each, use) for side, each in (sides or {}).items()}
    side_schemas = {side: schema for side, (schema, _) in side_rows.items()}
    for side in side_schemas:
        if not side.isidentifier() or side == MAIN:
            raise refused(use, f"a side cannot be called {side!r}", "give it another name")
    gives = row_schema(to, use)
    columns, claimed = tuple(node.schema.names), graph.claim(name, "operator")
    types = {MAIN: gives[1], **{side: row_type for side, (_, row_type) in side_rows.items()}}
    step = ProcessRecords(
        claimed, keys, columns, process, policy, use, node.row_type, node.event_time, side_schemas, types
    )
    return step, gives


def batches_of(
    graph: Graph, node: Node, keys: tuple[str, ...], name: str, process: Any, to: Any, on_error: object
) -> tuple[ProcessBatches, tuple[pa.Schema, type | None]]:
    """Check the arguments of `.process_batches(...)`; return the step, and the columns and class of its rows.

    Raises:
        ConfigError: they cannot be planned.
    """
    use = Use("process_batches", position(), node.stream)
    policy = _checked(graph, node, keys, process, on_error, use, "on_batch")
    for attribute, each in declared_by(process).all().items():
        if each.what != "Value" or each.ttl or each.types()[0] not in (bool, int, float):
            raise refused(
                use,
                f"{type(process).__name__}.{attribute} is not a Value of bool, int or float without ttl",
                "functions of batches keep numbers only; use .process(...) for other state and for timers",
            )
    gives = row_schema(to, use)
    columns, claimed = tuple(node.schema.names), graph.claim(name, "operator")
    return ProcessBatches(claimed, keys, columns, process, policy, use), gives


def processed(
    graph: Graph, node: Node, step: ProcessRecords | ProcessBatches, gives: tuple[pa.Schema, type | None]
) -> Node:
    """Add a keyed function to the graph."""
    schema, row_type = gives
    time = node.event_time
    kept = time is not None and time in schema.names and schema.field(time) == node.schema.field(time)
    return graph.add(step, node, step.operator, schema, row_type=row_type, event_time=time if kept else None)


def side_of(graph: Graph, node: Node, name: object) -> Node:
    """Add the rows of a side of a keyed function.

    Raises:
        ConfigError: the function has no such side.
    """
    step = node.kind
    assert isinstance(step, ProcessRecords)
    if name not in step.sides:
        raise refused_at(
            f"side {name!r} of {step.operator!r} at {position()}: the function has "
            f"{', '.join(map(repr, step.sides)) or 'no sides'}",
            "name it in .process(..., sides={name: Out})",
        )
    return graph.add(SideOutput(str(name)), node, node.stream, step.sides[str(name)])


def _checked(
    graph: Graph,
    node: Node,
    keys: tuple[str, ...],
    process: Any,
    on_error: object,
    use: Use,
    method: str = "on_record",
) -> OnError:
    """Refuse an invalid keyed function; return the policy for records that fail."""
    if node.upsert_key is not None:
        raise refused(
            use,
            f"the stream replaces rows by {', '.join(node.upsert_key)}, and keyed functions take only rows that are "
            "never replaced",
            "call the function before the aggregate",
        )
    if (why := refusal_of(process, keys, method)) is not None:
        raise refused(use, why, CALLED if "instance" in why else "correct the class")
    return checked_policy(on_error, str(use), graph.dlq is not None)


def _check_clocks(node: Node, declared: Declaration, use: Use) -> None:
    for name, each in declared.all().items():
        timed = each.what == "Timer" or each.ttl is not None
        if timed and each.clock == EVENT and node.event_time is None:
            raise refused(
                use,
                f"{each.what} {name!r} counts event time, and the stream has none",
                'name it at the source, app.source(..., event_time="at"), and keep that column up to here',
            )
