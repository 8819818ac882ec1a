"""A plan for people and programs: `holdfast plan` prints these.

Pure.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.runtime.functions import name_of
from holdfast.runtime.steps import (
    ANY_FRAGMENT,
    INPUT,
    Aggregate,
    Call,
    Check,
    Exchange,
    Filter,
    Fragment,
    Late,
    Plan,
    Project,
    SinkSpec,
    SinkStep,
    Step,
    Union,
    WindowAggregate,
)
from holdfast.runtime.windows import span


def describe(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    return {
        "app": plan.app,
        "key_groups": plan.key_groups,
        "sources": [
            {"name": source.name, "kind": type(source.source).__name__, "fragment": source.fragment,
             "on_error": source.on_error}
            for source in plan.sources
        ],
        "sinks": [
            {"name": sink.name, "kind": type(sink.sink).__name__,
             "fragment": None if sink.fragment == ANY_FRAGMENT else sink.fragment,
             "columns": _columns(sink.schema), "upsert_key": _key(sink.upsert_key),
             "written": _written(sink)}
            for sink in plan.sinks
        ],
        "operators": [
            {"name": operator.name, "id": operator.id, "fragment": operator.fragment,
             "key": list(operator.table.key.names),
             "state": [{"name": column.name, "type": column.dtype.name} for column in operator.table.columns]}
            for operator in plan.operators
        ],
        "fragments": [
            {"index": fragment.index, "source": fragment.source, "input_edges": list(fragment.input_edges),
             "steps": [_step(step) for step in fragment.steps]}
            for fragment in plan.fragments
        ],
        "edges": [
            {"index": edge.index, "from_fragment": edge.from_fragment, "to_fragment": edge.to_fragment,
             "key": list(edge.key), "columns": _columns(edge.schema)}
            for edge in plan.edges
        ],
    }  # fmt: skip


def render(plan: Plan) -> str:
    """Return the plan as an indented text: every fragment, and in it every step below what it reads."""
    lines = [f"{plan.app}: {_plural(len(plan.fragments), 'fragment')}, {_plural(plan.key_groups, 'key group')}"]
    for fragment in plan.fragments:
        lines.append("")
        lines.append(f"fragment {fragment.index}: {_entry(plan, fragment)}")
        lines.extend(_below(fragment, INPUT, 1))
    dead = [sink for sink in plan.sinks if sink.fragment == ANY_FRAGMENT]
    lines += [f"\ndead letters of every fragment: sink {sink.name} ({_shown(sink.schema)})" for sink in dead]
    at_once = [sink.name for sink in plan.sinks if sink.path is not None]
    lines += ["", f"written at once: {', '.join(at_once)}; other sinks at the commit"] if at_once else []
    return "\n".join(lines)


def _entry(plan: Plan, fragment: Fragment) -> str:
    if fragment.source is not None:
        policy = next(source.on_error for source in plan.sources if source.name == fragment.source)
        return f"source {fragment.source} ({_shown(fragment.schema)})" + (
            "" if policy == "fail" else f", on error: {policy}"
        )
    edges = [plan.edges[index] for index in fragment.input_edges]
    if not edges[0].key:
        froms = ", ".join(f"edge {edge.index} from fragment {edge.from_fragment}" for edge in edges)
        return f"union of {froms} ({_shown(fragment.schema)})"
    edge = edges[0]
    return f"edge {edge.index} from fragment {edge.from_fragment}, by {', '.join(edge.key)} ({_shown(fragment.schema)})"


def _below(fragment: Fragment, input: int, depth: int) -> list[str]:
    lines: list[str] = []
    for step in fragment.steps:
        if step.input == input:
            upsert = f" upsert by {', '.join(step.upsert_key)}" if step.upsert_key else ""
            lines.append("  " * depth + _text(step) + (f" -> ({_shown(step.schema)}){upsert}"))
            lines.extend(_below(fragment, step.id, depth + 1))
        elif input in step.also:
            lines.append("  " * depth + f"to step {step.id}, {_text(step)}")
    return lines


def _step(step: Step) -> dict[str, Any]:
    return {
        "id": step.id, "input": None if step.input == INPUT else step.input,
        "kind": type(step.kind).__name__.removesuffix("Step").lower(), "text": _text(step),
        "columns": _columns(step.schema), "upsert_key": _key(step.upsert_key),
        **({"also": list(step.also)} if step.also else {}),
    }  # fmt: skip


def _text(step: Step) -> str:
    match step.kind:
        case Filter(predicate=predicate):
            return f"filter {predicate}"
        case Project(columns=columns):
            changed = [
                column.name if column.passes == column.name else f"{column.name} = {column.expr.meta.undo_aliases()}"
                for column in columns
            ]
            return "select " + ", ".join(changed)
        case Call(how=how, function=function, on_error=on_error):
            return f"{how} {name_of(function)}" + ("" if on_error == "fail" else f", on error: {on_error}")
        case Check(not_null=not_null):
            return "check" + (f" {', '.join(not_null)} for nulls" if not_null else " columns")
        case Union():
            return "union"
        case Aggregate(operator=operator, keys=keys, aggregations=aggregations):
            parts = [f"{bound.result.name} = {bound.kind}({bound.column or ''})" for bound in aggregations]
            return f"aggregate {operator} by {', '.join(keys)}: {', '.join(parts)}"
        case WindowAggregate() as windowed:
            parts = [f"{bound.result.name} = {bound.kind}({bound.column or ''})" for bound in windowed.aggregations]
            size, offset = span(windowed.window.size_us), windowed.window.offset_us
            window = f"tumbling({size}{f', offset={span(offset)}' if offset else ''})"
            over = f"{window} of {windowed.time}, lateness {span(windowed.lateness_us)}, emit {windowed.emit}"
            return f"aggregate {windowed.operator} by {', '.join(windowed.keys)} over {over}: {', '.join(parts)}"
        case Late():
            return "late records"
        case SinkStep(sink=sink):
            return f"sink {sink}"
        case Exchange(edge=edge):
            return f"exchange to edge {edge}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _written(sink: SinkSpec) -> str:
    return "at commit" if sink.path is None else "at once"


def _columns(schema: pa.Schema) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'?' if field.nullable else ''}" for field in schema)


def _key(key: tuple[str, ...] | None) -> list[str] | None:
    return None if key is None else list(key)
