"""A plan as text and as JSON, as `holdfast plan` prints it.

Pure.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.quantities import plural
from holdfast.runtime.operators.contract import INPUT, Placed
from holdfast.runtime.plan.drawing import columns_text as schema_text
from holdfast.runtime.plan.model import ANY_FRAGMENT, Fragment, Plan, SinkSpec
from holdfast.runtime.plan.topic import topic_place
from holdfast.sinks.contract.changelogs import shown_place


def describe(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    return {
        "app": plan.app,
        "key_groups": plan.key_groups,
        "sources": [
            {
                "name": source.name,
                "kind": type(source.source).__name__,
                "fragment": source.fragment,
                "on_error": source.on_error,
            }
            for source in plan.sources
        ],
        "sinks": [
            {
                "name": sink.name,
                "kind": type(sink.sink).__name__,
                "fragment": None if sink.fragment == ANY_FRAGMENT else sink.fragment,
                "columns": _columns(sink.schema),
                "upsert_key": _key(sink.upsert_key),
                "written": _written(sink),
            }
            for sink in plan.sinks
        ],
        "changelog": dict(plan.changelog.place),
        "operators": [
            {
                "name": operator.name,
                "id": operator.id,
                "fragment": operator.fragment,
                "key": list(operator.table.key.names),
                "state": [{"name": column.name, "type": column.type_name} for column in operator.table.columns],
            }
            for operator in plan.operators
        ],
        "fragments": [
            {
                "index": fragment.index,
                "source": fragment.source,
                "input_edges": list(fragment.input_edges),
                "steps": [_step(placed) for placed in fragment.steps],
            }
            for fragment in plan.fragments
        ],
        "edges": [
            {
                "index": edge.index,
                "from_fragment": edge.from_fragment,
                "to_fragment": edge.to_fragment,
                "key": list(edge.key),
                "columns": _columns(edge.schema),
            }
            for edge in plan.edges
        ],
    }


def render(plan: Plan) -> str:
    """Return the plan as indented text: every fragment, with every step below its input."""
    lines = [f"{plan.app}: {plural(len(plan.fragments), 'fragment')}, {plural(plan.key_groups, 'key group')}"]
    for fragment in plan.fragments:
        lines.append("")
        lines.append(f"fragment {fragment.index}: {_entry(plan, fragment)}")
        lines.extend(_below(fragment, INPUT, 1))
    dead = [sink for sink in plan.sinks if sink.fragment == ANY_FRAGMENT]
    lines += [f"\ndead letters of every fragment: sink {sink.name} ({schema_text(sink.schema)})" for sink in dead]
    immediate = [_immediate(sink) for sink in plan.sinks if sink.path is not None]
    lines += ["", f"written immediately: {', '.join(immediate)}; other sinks at the commit"] if immediate else []
    if (place := topic_place(plan)) is not None:
        lines += ["", f"changelog of all state: {shown_place(place)}"]
    return "\n".join(lines)


def _entry(plan: Plan, fragment: Fragment) -> str:
    if fragment.source is not None:
        policy = next(source.on_error for source in plan.sources if source.name == fragment.source)
        return f"source {fragment.source} ({schema_text(fragment.schema)})" + (
            "" if policy == "fail" else f", on error: {policy}"
        )
    edges = [plan.edges[index] for index in fragment.input_edges]
    if not edges[0].key:
        froms = ", ".join(f"edge {edge.index} from fragment {edge.from_fragment}" for edge in edges)
        return f"union of {froms} ({schema_text(fragment.schema)})"
    return "; ".join(
        f"edge {edge.index} from fragment {edge.from_fragment}, by {', '.join(edge.key)} ({schema_text(edge.schema)})"
        for edge in edges
    )


def _below(fragment: Fragment, input: int, depth: int) -> list[str]:
    lines: list[str] = []
    for placed_step in fragment.steps:
        if placed_step.input == input:
            upsert = f" upsert by {', '.join(placed_step.upsert_key)}" if placed_step.upsert_key else ""
            lines.append("  " * depth + placed_step.step.text() + (f" -> ({schema_text(placed_step.schema)}){upsert}"))
            lines.extend(_below(fragment, placed_step.id, depth + 1))
        elif input in placed_step.also:
            lines.append("  " * depth + f"to step {placed_step.id}, {placed_step.step.text()}")
    return lines


def _step(placed: Placed) -> dict[str, Any]:
    return {
        "id": placed.id,
        "input": None if placed.input == INPUT else placed.input,
        "kind": placed.step.kind,
        "text": placed.step.text(),
        "columns": _columns(placed.schema),
        "upsert_key": _key(placed.upsert_key),
        **({"also": list(placed.also)} if placed.also else {}),
    }


def _written(sink: SinkSpec) -> str:
    return "at commit" if sink.path is None else "at once"


def _immediate(sink: SinkSpec) -> str:
    return f"{sink.name} (at least once)" if sink.sink.traits.repeats else sink.name


def _columns(schema: pa.Schema) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def _key(key: tuple[str, ...] | None) -> list[str] | None:
    return None if key is None else list(key)
