"""What the tasks of one generation have taken and emitted, summed over epochs, and their memory, for display.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.model import Subtask
from holdfast.runtime.wire.messages import OperatorProgress, Progress


class Memory(NamedTuple):
    """The memory of the tasks of one subtask: of the largest process, and of all tables."""

    rss_bytes: int = 0
    state_bytes: int = 0


class Counted:
    """The counts of all operators; an epoch that is given up later stays in them."""

    def __init__(self) -> None:
        self.records = 0
        self.operators: dict[str, OperatorProgress] = {}
        self.memory: dict[Subtask, Memory] = {}
        """Of the tasks of the last epoch, by subtask."""

    def add(self, epoch: Iterable[tuple[Subtask, Progress]]) -> None:
        """Add what the tasks of an epoch report. The sizes of state and processes are those of the last epoch."""
        sums: dict[str, OperatorProgress] = {}
        self.memory = {}
        for subtask, part in epoch:
            self.records += part.records_in
            known_bytes = self.memory.get(subtask, Memory())
            self.memory[subtask] = Memory(
                max(known_bytes.rss_bytes, part.rss_bytes), known_bytes.state_bytes + part.state_bytes
            )
            for each in part.operators:
                known = sums.get(each.name)
                sums[each.name] = each if known is None else _sum(known, each, known.state_bytes + each.state_bytes)
        for name, each in sums.items():
            known = self.operators.get(name)
            self.operators[name] = each if known is None else _sum(known, each, each.state_bytes)


def _sum(one: OperatorProgress, other: OperatorProgress, state_bytes: int) -> OperatorProgress:
    return OperatorProgress(
        one.name,
        one.rows_in + other.rows_in,
        one.rows_out + other.rows_out,
        state_bytes,
        _added(one.dropped, other.dropped),
        _added(one.late, other.late),
        _added(one.dlq, other.dlq),
    )


def _added(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
