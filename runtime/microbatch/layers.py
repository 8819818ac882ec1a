"""Divides a plan into layers: the fragments that tasks of one stage run together.

A shuffle by key begins a new layer. An edge without a key stays in its subtask, so both of its fragments may be in one
layer. Tasks of a layer begin only when all tasks before them have ended, so a task has all of its input.

Pure.
Source: docs/design/0047-microbatch.md.
"""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.immediate import is_immediate, repeats
from holdfast.runtime.plan.model import Plan, is_boundless

Layers = tuple[frozenset[int], ...]
"""The fragments of each layer, in the order in which layers run."""


def layers_of(plan: Plan) -> Layers:
    """Return the layers of a plan; the first reads the sources."""
    depth: dict[int, int] = {}
    for fragment in plan.fragments:  # an edge leads to a fragment with a higher number
        edges = [plan.edges[index] for index in fragment.input_edges]
        depth[fragment.index] = max((depth[edge.from_fragment] + bool(edge.key) for edge in edges), default=0)
    last = max(depth.values(), default=0)
    return tuple(frozenset(index for index, at in depth.items() if at == layer) for layer in range(last + 1))


def refuse_standbys(standbys: int) -> None:
    """Refuse standbys, which take over from workers that stay. Raises ConfigError."""
    if standbys:
        raise ConfigError(
            f"standbys is {standbys}, but in microbatch mode no worker stays that a standby could take over from",
            not_done="nothing was started; state and output are untouched",
            next_step="set standbys to 0, or run with --mode continuous",
        )


def refuse_what_needs_workers(plan: Plan) -> None:
    """Refuse a plan that cannot run as microbatches.

    Raises:
        ConfigError: a sink is written immediately, or a source always has more records.
    """
    for source in plan.sources:
        if is_boundless(source):
            endless = source.source.traits.endless
            assert endless is not None
            raise ConfigError(
                f"source {source.name!r} is {endless.what}: it has no end that an epoch could read to",
                not_done="the job was not started; state and output are untouched",
                next_step=f"{endless.for_microbatch or endless.instead}, or run it with --mode continuous",
                where=Where(job=plan.app),
            )
    for spec in plan.sinks:
        if is_immediate(spec):
            raise ConfigError(
                f"sink {spec.name!r} is written immediately, before its epoch commits, and in microbatch mode nothing "
                "is written before the commit",
                not_done="the job was not started; state and output are untouched",
                next_step="run it with --mode continuous, or "
                + ("leave delivery= out" if repeats(spec) else "give the sink no key that partitions its source"),
                where=Where(job=plan.app),
            )
