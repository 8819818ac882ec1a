"""Wrong versions of joins, for chaos/mutants/mutants.py: each takes the right function and returns the wrong one.

Source: PROTOCOL P10, P11; docs/decisions/0060-joins.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.chaos.sim.jobs.branches.joins import JOIN_OPERATOR
from holdfast.model import NEVER_US
from holdfast.runtime.operators.joins.join import Arrived, JoinOperator
from holdfast.runtime.operators.joins.rows import Due, KeptRows
from holdfast.state.tables.table import StateTable

Right = Callable[..., Any]
EARLY_US = 2_000_000


def emits_before_the_watermark(right: Right) -> Right:
    def unmatched(kept: KeptRows, at_us: int, *limit: int) -> Any:
        return right(kept, at_us + EARLY_US if at_us < EARLY_US << 32 else at_us, *limit)

    return unmatched


def joins_late_rows(right: Right) -> Right:
    def arrived(operator: JoinOperator, port: int, batch: Any) -> Arrived:
        found: Arrived = right(operator, port, batch)
        return replace(found, clock=np.full(found.times.size, NEVER_US))

    return arrived


def forgets_rows_that_wait(_: Right) -> Right:
    def find_due(kept: KeptRows, clock: object) -> None:
        if kept.outer and kept._due is None:
            kept._due = Due()

    return find_due


def loses_rows_when_rolled_back(right: Right) -> Right:
    def roll_back(table: StateTable, *given: Any) -> Any:
        held = right(table, *given)
        if held and table.spec.name == f"{JOIN_OPERATOR}.right":
            table.delete(table.present())
        return held

    return roll_back


VERSIONS = (
    (
        "unmatched-before-the-watermark",
        "P11, decisions/0060",
        "a join emits a row without a partner two seconds before the watermark allows it",
        (KeptRows, "unmatched", emits_before_the_watermark),
    ),
    (
        "late-row-joined",
        "P11, decisions/0060",
        "a join takes rows whose partners may have left its state",
        (JoinOperator, "_arrived", joins_late_rows),
    ),
    (
        "unmatched-lost-after-a-restore",
        "P11, decisions/0060",
        "a join emits no row without a partner that it kept before it was deployed",
        (KeptRows, "find_due", forgets_rows_that_wait),
    ),
    (
        "pair-lost-after-a-rollback",
        "P10, decisions/0060",
        "a survivor's rollback empties the right rows of a join",
        (StateTable, "roll_back", loses_rows_when_rolled_back),
    ),
)
"""Name, rules, effect, swap."""
