"""Records taken and emitted by the tasks of one generation, summed over epochs, and the size of their state.

It also holds the time at which the next timer or window is due, which decides whether there is an epoch to close.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.model import Subtask
from holdfast.runtime.wire.messages import OperatorProgress, WorkerProgress


class Counted:
    """The counts of all operators; an epoch that is given up later stays in them."""

    def __init__(self) -> None:
        self.records = 0
        self.operators: dict[str, OperatorProgress] = {}
        self.state_bytes = Counter[Subtask]()
        """Size of all tables of a subtask, as of the last epoch."""
        self.due_us: int | None = None
        """The earliest processing time at which the last epoch has left something to do; None if never."""

    def add(self, epoch: Iterable[tuple[Subtask, WorkerProgress]]) -> None:
        """Add the reports of an epoch's tasks. Sizes of state and the next due time are those of the last epoch."""
        sums: dict[str, OperatorProgress] = {}
        self.state_bytes, self.due_us = Counter(), None
        for subtask, part in epoch:
            self.records += part.records_in
            self.state_bytes[subtask] += part.state_bytes
            self.due_us = min((at for at in (self.due_us, part.due_us) if at is not None), default=None)
            for each in part.operators:
                subtotal = sums.get(each.name)
                sums[each.name] = (
                    each if subtotal is None else _sum(subtotal, each, subtotal.state_bytes + each.state_bytes)
                )
        for name, each in sums.items():
            subtotal = self.operators.get(name)
            self.operators[name] = each if subtotal is None else _sum(subtotal, each, each.state_bytes)


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
