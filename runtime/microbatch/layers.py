"""Divides a plan into layers: the fragments that tasks of one stage run together.

A shuffle by key begins a new layer. An edge without a key stays in its subtask, so both of its fragments may be in one
layer. Tasks of a layer begin only when all tasks before them have ended, so a task has all of its input.

Pure.
Source: docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.runtime.plan.model import Plan

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


def idle_standbys(standbys: int) -> ConfigError | None:
    """Return why standbys are refused, which take over from workers that stay."""
    if not standbys:
        return None
    return ConfigError(
        f"standbys is {standbys}, but in microbatch mode no worker stays that a standby could take over from",
        not_done="nothing was started; state and output are untouched",
        next_step="set standbys to 0, or run with --mode continuous",
    )
