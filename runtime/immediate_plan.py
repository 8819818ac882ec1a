"""Which sinks are written at once, and the identity of the code in front of them.

A sink that keeps the tag of every row is written at once if its rows come from one source without a shuffle, and every
key of the target comes from one partition of that source: the sink's key must hold all the columns by which the source
says it is partitioned, as they were read. Such a column may be renamed on the way; one that was computed, or that a
Python function gives, is not known to be the source's. Streams that were united have no order, so a tag cannot order
them: they are written at the commit. So is everything else.

The identity of the path tells a later run whether the code has changed in between. It covers the steps with their
expressions and columns, and the compiled code of Python functions, but not what these call or read.

Pure.
Source: PROTOCOL P22; DESIGN section 13 (immediate idempotent mode); docs/design/0012.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.runtime.forms import code_of
from holdfast.runtime.report import describe
from holdfast.runtime.steps import INPUT, Call, Check, Filter, Fragment, Plan, Project, SinkSpec, SinkStep, Step
from holdfast.sinks.immediate import IdempotentSink, ImmediateSink


def with_immediate_sinks(plan: Plan, partitioned_by: Mapping[str, tuple[str, ...]]) -> Plan:
    """Return the plan, with every sink that may be written at once so marked.

    Args:
        partitioned_by: Columns by which a source is partitioned; sources of which that is not known are absent.
    """
    described = describe(plan)
    return replace(plan, sinks=tuple(_decided(plan, spec, partitioned_by, described) for spec in plan.sinks))


def path_of(fragment: Fragment, sink: str) -> tuple[Step, ...] | None:
    """Return the steps from the fragment's input to the sink, in order; None if they are no line of stateless ones."""
    steps = {step.id: step for step in fragment.steps}
    ends = [step for step in fragment.steps if isinstance(step.kind, SinkStep) and step.kind.sink == sink]
    path = ends[:1]
    while path[0].input != INPUT:
        step = steps[path[0].input]
        if not isinstance(step.kind, Filter | Project | Check | Call):
            return None
        path.insert(0, step)
    return tuple(path)


def columns_as_read(fragment: Fragment, path: tuple[Step, ...]) -> dict[str, str]:
    """Return which columns at the end of the path are columns of the source, unchanged: name there to name here."""
    known = {name: name for name in fragment.schema.names}
    for step in path:
        match step.kind:
            case Project(columns=columns):
                known = {c.name: known[c.passes] for c in columns if c.passes is not None and c.passes in known}
            case Call(how="filter") | Filter() | Check() | SinkStep():
                pass
            case _:
                known = {}
    return known


def _decided(
    plan: Plan, spec: SinkSpec, partitioned_by: Mapping[str, tuple[str, ...]], described: Mapping[str, Any]
) -> SinkSpec:
    fragment = plan.fragments[spec.fragment]
    by = partitioned_by.get(fragment.source) if fragment.source is not None else None
    if not by or not isinstance(spec.sink, IdempotentSink) or spec.sink.key is None:
        return spec
    path, sink = path_of(fragment, spec.name), spec.sink.at_once()
    if path is None or sink is None:
        return spec
    as_read = columns_as_read(fragment, path)
    if not set(by) <= {as_read[name] for name in spec.sink.key if name in as_read}:
        return spec
    return replace(spec, sink=sink, path=_identity(described["fragments"][fragment.index], path))


def is_immediate(spec: SinkSpec) -> bool:
    """Return whether the sink is written at once."""
    return spec.path is not None and isinstance(spec.sink, ImmediateSink)


def _identity(fragment: Mapping[str, Any], path: tuple[Step, ...]) -> str:
    """Return a hash of what the steps do. Their numbers are left out: other branches may come and go."""
    shown = {step["id"]: step for step in fragment["steps"]}
    parts: list[Any] = [fragment["source"]]
    for step in path:
        parts.append([shown[step.id]["text"], shown[step.id]["columns"]])
        if isinstance(step.kind, Call):
            parts.append([step.kind.on_error, code_of(step.kind.function)])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
