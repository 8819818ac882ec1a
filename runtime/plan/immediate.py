"""Which sinks are written immediately, and the identity of the code before them.

A sink that keeps the tag of every row is written immediately if its rows come from one source without a shuffle, and
every key of the target comes from one partition of that source: the sink's key must contain all columns that partition
the source, as they were read. Such a column may be renamed on the way; a column that is computed, or that a Python
function returns, is not known to be the source's. United streams have no order, so a tag cannot order them: they are
written at the commit. So are all other sinks, except those that repeat: they keep no tags, so nothing has to order
their rows, and they are always written immediately.

By the identity of the path, a later run can see whether the code has changed. It covers the steps with their
expressions and columns, and the compiled code of Python functions, but not the code and data that these functions use.

Pure.
Source: PROTOCOL P22; DESIGN section 13 (immediate idempotent mode); docs/decisions/0012, 0093.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.errors import ConfigError, Where
from holdfast.runtime.operators.contract import INPUT, Placed
from holdfast.runtime.plan.model import ANY_FRAGMENT, Fragment, Plan, SinkSpec
from holdfast.runtime.plan.shown.report import describe
from holdfast.runtime.rows.expressions import ProjectedColumn
from holdfast.runtime.rows.forms import form_of
from holdfast.sinks.contract.sink import ImmediateSink

ANY_PATH = "any"
"""The identity of the path of a sink that repeats: no row of former code keeps those of newer code out."""


def with_immediate_sinks(plan: Plan, partitioned_by: Mapping[str, tuple[str, ...]]) -> Plan:
    """Return the plan, with every sink marked that may be written immediately.

    Args:
        partitioned_by: Columns that partition a source, by source; sources without known columns are absent.
    """
    described = describe(plan)
    return replace(plan, sinks=tuple(_decided(plan, spec, partitioned_by, described) for spec in plan.sinks))


def path_of(fragment: Fragment, sink: str) -> tuple[Placed, ...] | None:
    """Return the steps from the fragment's input to the sink, in order; None unless all are stateless, in one line."""
    steps = {placed_step.id: placed_step for placed_step in fragment.steps}
    path = [next(placed_step for placed_step in fragment.steps if placed_step.step.writes_to == sink)]
    while path[0].input != INPUT:
        placed_step = steps[path[0].input]
        if not placed_step.step.row_wise:
            return None
        path.insert(0, placed_step)
    return tuple(path)


def columns_as_read(fragment: Fragment, path: tuple[Placed, ...]) -> dict[str, str]:
    """Return the columns at the end of the path that are unchanged columns of the source: final name to source name."""
    source_names = {name: name for name in fragment.schema.names}
    for placed in path:
        origins = {name: placed.step.handed_on(name) for name in placed.schema.names}
        source_names = {
            name: source_names[origin]
            for name, origin in origins.items()
            if origin is not None and origin in source_names
        }
    return source_names


def _decided(
    plan: Plan, spec: SinkSpec, partitioned_by: Mapping[str, tuple[str, ...]], described: Mapping[str, Any]
) -> SinkSpec:
    sink = spec.sink.immediate
    if sink is not None and repeats(spec):
        if spec.fragment == ANY_FRAGMENT:
            raise _no_letters(plan.app, spec)
        return replace(spec, sink=sink, path=ANY_PATH)
    fragment = plan.fragments[spec.fragment]
    by = partitioned_by.get(fragment.source) if fragment.source is not None else None
    if not by or sink is None or sink.key is None:
        return spec
    path = path_of(fragment, spec.name)
    if path is None:
        return spec
    as_read = columns_as_read(fragment, path)
    if not set(by) <= {as_read[name] for name in sink.key if name in as_read}:
        return spec
    computed = next(each.computed for each in plan.sources if each.fragment == fragment.index)
    return replace(spec, sink=sink, path=_identity(described["fragments"][fragment.index], path, computed))


def is_immediate(spec: SinkSpec) -> bool:
    """Return whether the sink is written immediately."""
    return immediate_sink(spec) is not None


def repeats(spec: SinkSpec) -> bool:
    """Return whether the sink gets rows a second time after a failure."""
    return spec.sink.traits.repeats


def not_to_grow(plan: Plan) -> dict[str, str]:
    """Return the sources that must keep their partitions, each with a sink that is written immediately from it.

    A different number of partitions moves keys to other partitions, but in such a target each key has one partition
    (P22).
    """
    sources = {spec.name: plan.fragments[spec.fragment].source for spec in plan.sinks if is_immediate(spec)}
    for spec in filter(repeats, plan.sinks):
        sources.pop(spec.name, None)
    return {source: sink for sink, source in sources.items() if source is not None}


def immediate_sink(spec: SinkSpec) -> ImmediateSink | None:
    """Return the sink if it is written immediately."""
    return None if spec.path is None else spec.sink.immediate


def _no_letters(job: str, spec: SinkSpec) -> ConfigError:
    return ConfigError(
        f"{spec.sink.where} is written as rows come, at least once, but dead letters are delivered at the commit",
        not_done="the job was not planned",
        next_step='leave delivery="at-least-once" out of the sink that dlq= names',
        where=Where(job=job),
    )


def _identity(fragment: Mapping[str, Any], path: tuple[Placed, ...], computed: ProjectedColumn | None) -> str:
    """Return a hash of the steps' effects, without their numbers, which change with other branches.

    Args:
        computed: The column that the source computes.
    """
    shown = {step["id"]: step for step in fragment["steps"]}
    parts: list[Any] = [fragment["source"], *([] if computed is None else [form_of(computed.expr)])]
    for placed in path:
        parts.append([shown[placed.id]["text"], shown[placed.id]["columns"]])
        if (code := placed.step.code()) is not None:
            parts.append(code)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
