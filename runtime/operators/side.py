"""The rows that a step emits on a side, as a stream: the late records of a window.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.runtime.operators.contract import MAIN, Needed, Operator, OperatorContext, Step

LATE = "late"
"""The side of the records that are too late for an operator in event time."""


@dataclass(frozen=True)
class SideOutput(Step):
    """Return the rows that the step before emits on this side."""

    side: str

    @property
    def kind(self) -> str:
        return self.side

    @property
    def reads_side(self) -> str:
        return self.side

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return tuple(needed.get(MAIN, ()))

    def text(self) -> str:
        return f"{self.side} records"

    def open(self, ctx: OperatorContext) -> Operator:
        return _SideOperator(ctx)


class _SideOperator(Operator):
    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.emit(batch)
