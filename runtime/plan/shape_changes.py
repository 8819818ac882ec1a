"""How the shape of a plan differs from the one kept with a checkpoint: every change, with its effect.

All these changes are allowed; identity.py and admission.py refuse the others. They are reported because they change the
output after the checkpoint, never before it.

Pure.
Source: docs/decisions/0024-identity-of-state.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from holdfast.runtime.plan.shape import FORMAT_VERSION, Chain, chain_of
from holdfast.runtime.time.windows import span

FROM_HERE = "applies to the records after the checkpoint; state and rows of earlier records stay"


@dataclass(frozen=True)
class ShapeChange:
    """One difference that a run accepts."""

    kind: str
    """source, operator or sink."""
    name: str
    what: str
    effect: str


def readable(shape: object) -> bool:
    """Return whether a checkpoint kept a shape that this version can compare."""
    return isinstance(shape, dict) and shape.get("v") == FORMAT_VERSION


def changes_of(before: dict[str, Any], now: dict[str, Any], operators: Sequence[str]) -> list[ShapeChange]:
    """Return how the sources, sinks and chains in both shapes changed; added and removed names are not included.

    Args:
        operators: Names of the plan's operators; the other chains are those of sinks.
    """
    changes: list[ShapeChange] = []
    for name, source in now["sources"].items():
        if name in before["sources"]:
            changes += _source_changes(name, before["sources"][name], source)
    for name in now["chains"]:
        kind = "operator" if name in operators else "sink"
        old, new = chain_of(before, name), chain_of(now, name)
        if old is not None and new is not None:
            changes += _chain_changes(kind, name, old, new, _versions(before) == _versions(now))
    for name, sink in now["sinks"].items():
        if name in before["sinks"]:
            changes += _sink_changes(name, before["sinks"][name], sink)
    return changes


def _versions(shape: Mapping[str, Any]) -> tuple[str, str]:
    """Return the versions that the forms of expressions and the code of functions depend on."""
    return shape["polars"], ".".join(shape["python"].split(".")[:2])


def _source_changes(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[ShapeChange]:
    def change(what: str, effect: str) -> ShapeChange:
        return ShapeChange("source", name, what, effect)

    changes = []
    if place_of(before) != place_of(now):
        what = f"read {place_of(before)} and now reads {place_of(now)}"
        changes.append(change(what, "reading continues from its present offsets"))
    changes += [change(what, FROM_HERE) for what in _column_changes(before["columns"], now["columns"])]
    if before["event_time"] != now["event_time"]:
        changes.append(change(f"had event_time={before['event_time']!r} and now has {now['event_time']!r}", FROM_HERE))
    for part, called in (("event_time_from", "event_time"), ("watermark", "watermark")):
        was, given = (each.get(part, {"form": None, "text": "none"}) for each in (before, now))
        if was["form"] != given["form"]:
            changes.append(change(f"had {called} = {was['text']} and now has {given['text']}", FROM_HERE))
    for part in ("out_of_orderness", "idle_after"):
        old, new = before[f"{part}_us"], now[f"{part}_us"]
        if old != new:
            effect = "applies from the checkpoint on; the watermark never goes back"
            changes.append(change(f"had {part}={span(old)!r} and now has {span(new)!r}", effect))
    if before["on_error"] != now["on_error"]:
        changes.append(change(f"had on_error={before['on_error']!r} and now has {now['on_error']!r}", FROM_HERE))
    return changes


def _sink_changes(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[ShapeChange]:
    changes = []
    unknown = before["kind"] == now["kind"] and not before["place"]  # as of an immediate sink in earlier versions
    if place_of(before) != place_of(now) and not unknown:
        what = f"wrote to {place_of(before)} and now writes to {place_of(now)}"
        effect = (
            "rows delivered so far stay in the old target; the new one gets only later rows, and for a stream that "
            "replaces rows only the keys that change"
        )
        changes.append(ShapeChange("sink", name, what, effect))
    for what in _column_changes(before["columns"], now["columns"]):
        changes.append(
            ShapeChange("sink", name, what, "an existing target has to have these columns; it is checked at the start")
        )
    if before["upsert_key"] != now["upsert_key"]:
        shown = [", ".join(key) if key else "no key" for key in (before["upsert_key"], now["upsert_key"])]
        what = f"received rows that are replaced by {shown[0]}, and now by {shown[1]}"
        changes.append(ShapeChange("sink", name, what, "rows delivered so far stay as they are"))
    if before["written"] != now["written"]:
        what = f"was written {before['written']} and is now written {now['written']}"
        changes.append(ShapeChange("sink", name, what, "rows delivered so far stay as they are"))
    return changes


def place_of(connector: Mapping[str, Any]) -> str:
    """Return kind and place of a source or sink."""
    return " ".join([connector["kind"], *(f"{part} {value!r}" for part, value in connector["place"].items())])


def _column_changes(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> list[str]:
    had, have = ({name: (kind, nullable) for name, kind, nullable in columns} for columns in (before, now))
    changes = [f"has the new column {_shown(name, have[name])}" for name in have if name not in had]
    changes += [f"no longer has the column {_shown(name, had[name])}" for name in had if name not in have]
    changes += [
        f"had the column {_shown(name, had[name])} and now has it as {_shown(name, have[name])}"
        for name in have
        if name in had and had[name] != have[name]
    ]
    if not changes and list(had) != list(have):
        changes.append(f"had the columns in the order {', '.join(had)} and now has {', '.join(have)}")
    return changes


def _shown(name: str, column: tuple[str, bool]) -> str:
    return f"{name}: {column[0]}{' or null' if column[1] else ''}"


def _chain_changes(kind: str, name: str, before: Chain, now: Chain, comparable: bool) -> list[ShapeChange]:
    old, new = [_compared(step) for step in before], [_compared(step) for step in now]
    changes = []
    for tag, first, last, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        old_text, come = _texts(before[first:last]), _texts(now[start:end])
        if tag == "insert":
            what = f"now has before it: {come}"
        elif tag == "delete":
            what = f"no longer has before it: {old_text}"
        elif tag == "replace":
            what = f"had before it: {old_text}; and now has: {come}"
        else:
            continue
        if tag == "replace" and not comparable and old_text == come:
            what = f"may have different code in: {come}; the version of Polars or Python has changed since then"
        elif tag == "replace" and old_text == come:
            what = f"has different code in: {come}"
        changes.append(ShapeChange(kind, name, what, FROM_HERE))
    return changes


def _compared(step: dict[str, Any]) -> str:
    """Return the parts of a step that are compared, as text: everything but the display text."""
    rest = {part: value for part, value in step.items() if part not in ("text", "of")}
    if "of" in step:
        inputs = [json.dumps([_compared(each) for each in chain]) for chain in step["of"]]
        rest["of"] = sorted(inputs) if step["step"] == "union" else inputs
    return json.dumps(rest, sort_keys=True)


def _texts(chain: Chain) -> str:
    return ", ".join(_step_text(step) for step in chain)


def _step_text(step: Mapping[str, Any]) -> str:
    match step["step"]:
        case "source" | "operator":
            return f"{step['step']} {step['name']!r}"
        case "late":
            return f"late rows of {step['name']!r}"
    if "of" in step:
        return f"{step['step']} of (" + "; ".join(_texts(chain) for chain in step["of"]) + ")"
    return f"`{step['text']}`"
