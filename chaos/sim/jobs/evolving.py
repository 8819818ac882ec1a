"""Versions of the simulated job's code: every new driver of an evolving job brings the next one.

The aggregates behind an upsert sink change their order and a name; one more is added, removed with its state, and comes
back together with a twin. The sink's columns stay, so the oracle needs to know nothing of it. The twins count the same
values from the same record on. So they are always equal, unless one of them reads state that is not its own.

Source: docs/decisions/0038-schema-evolution.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import holdfast as hf
from holdfast.chaos.sim.jobs import dropping
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.model import NO_EPOCH
from holdfast.runtime.driver.state import Checked
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.model import Plan

EVOLVES_SHARE = 0.25
LAST_VERSION = 3
ONE, TWIN = "one", "twin"
TWINS = {ONE: f"{ONE}.sum", TWIN: f"{TWIN}.sum"}
"""The twins, and their columns of state."""
RENAMED = {"low": "lowest.min"}
"""The aggregate that has another name in the oracle, and its column of state, from version 1 on."""
OVERTAKEN = "another run with other code completed epoch"
"""An older driver completed its first checkpoint while the next one started."""


def aggregates(version: int) -> dict[str, Any]:
    """Return the aggregates of a version of the code."""
    n, total, high = hf.count(), hf.sum("value"), hf.max("value")
    if version == 0:
        return {"n": n, "total": total, "low": hf.min("value"), "high": high}
    lowest = hf.min("value").was("low")
    match version:
        case 1:
            return {"lowest": lowest, "n": n, ONE: total, "total": total, "high": high}
        case 2:
            return {"high": high, "lowest": lowest, "total": total, "n": n}
        case _:
            return {TWIN: total, "n": n, "total": total, "lowest": lowest, "high": high, ONE: total}


def as_at_first(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of results of any version under the names of version 0, without the twins."""
    return {{"lowest": "low"}.get(name, name): value for name, value in row.items() if name not in TWINS}


def started(plan: Plan, version: int, base: Manifest | None) -> tuple[Plan, tuple[OperatorState, ...], Checked]:
    """Return plan and operators of a driver that starts with this version, and the checkpoint of their checks."""
    known = () if base is None else base.operators
    arguments = [*_given_up(version, known), *dropping.arguments_of(version, known)]
    plan, operators = with_identities(plan, known, arguments)
    return plan, operators, Checked(NO_EPOCH if base is None else base.epoch, known)


def version_of(operators: Sequence[OperatorState]) -> int:
    """Return the version of the code that wrote a checkpoint."""
    kept = next(names for _, names in _kept(operators))
    return next(v for v in range(LAST_VERSION + 1) if set(aggregates(v)) == set(kept))


def _given_up(version: int, known: Sequence[OperatorState]) -> list[str]:
    """Return the state to drop: `one` before it is removed, and before it gets its twin."""
    return [
        f"{operator}.{ONE}" for operator, names in _kept(known) if ONE in names and TWIN not in names and version >= 2
    ]


def _kept(operators: Sequence[OperatorState]) -> list[tuple[str, list[str]]]:
    """Return the upsert sinks' operators, and the names of their aggregates."""
    identities = {o.name: o.schema.get("identity", {}) for o in operators if not o.dropped and o.name.startswith("by_")}
    return [(name, [each["name"] for each in identity["aggregates"]]) for name, identity in identities.items()]
