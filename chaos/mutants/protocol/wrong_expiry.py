"""Wrong versions of windows that expire by ranges, for chaos/mutants/mutants.py: each takes the right function.

Source: PROTOCOL P8, P10; docs/decisions/0015-window-expiry.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.model import Epoch
from holdfast.runtime.operators.event_clock import EventClock
from holdfast.state import compact
from holdfast.state.blocks import BlockReader, StateRows
from holdfast.state.tables.expiry import NOTHING, Expiries
from holdfast.state.tables.table import StateTable

Right = Callable[..., Any]


def forgets_ranges_of_unfinished(right: Right) -> Right:
    def close(expiries: Expiries, epoch: Epoch) -> None:
        expiries._closed = []
        right(expiries, epoch)

    return close


def merges_without_ranges(_: Right) -> type[BlockReader]:
    class Forgetful(BlockReader):
        def read_part(self, rows_max: int | None = None) -> StateRows | None:
            rows = super().read_part(rows_max)
            self.through[:] = NOTHING
            return rows

    return Forgetful


def keeps_expired_over_rollback(right: Right) -> Right:
    def roll_back(table: StateTable, base: Epoch) -> bool:
        table._expiries = Expiries()
        held: bool = right(table, base)
        return held

    return roll_back


def erases_open_windows_too(right: Right) -> Right:
    def through(clock: EventClock, after_us: int) -> Any:
        never = np.iinfo(np.int64).min
        return np.where(right(clock, after_us) == never, never, clock._at + 10_000_000)

    return through


VERSIONS: tuple[tuple[str, str, str, tuple[Any, str, Callable[[Right], Right]]], ...] = (
    (
        "range-lost-when-merging-forward",
        "P8",
        "a freeze holds only the ranges of its own epoch",
        (Expiries, "close", forgets_ranges_of_unfinished),
    ),
    (
        "compaction-forgets-ranges",
        "P8",
        "segments are merged as if there were no ranges",
        (compact, "BlockReader", merges_without_ranges),
    ),
    (
        "rollback-keeps-windows-expired",
        "P10",
        "a survivor's rollback does not bring expired windows back",
        (StateTable, "roll_back", keeps_expired_over_rollback),
    ),
    (
        "range-reaches-open-windows",
        "P8",
        "a range covers windows that are still open",
        (EventClock, "expired_through", erases_open_windows_too),
    ),
)
"""Name, rules, effect, owner, function and replacement."""
