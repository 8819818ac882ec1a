"""The end of a fragment: rows go over an edge to the subtasks that own their keys, or to the next fragment.

The compiler puts one before every edge; no method of a stream creates one.

Pure: the edge belongs to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.runtime.operators.contract import Needed, Operator, OperatorContext, Step


@dataclass(frozen=True)
class Exchange(Step):
    """Send the rows, reduced to these columns, over an edge."""

    edge: int
    columns: tuple[str, ...]

    kind: ClassVar[str] = "exchange"

    @property
    def sends_to(self) -> int:
        return self.edge

    def reads(self, port: int, given: pa.Schema, needed: Needed) -> tuple[str, ...]:
        return self.columns

    def text(self) -> str:
        return f"exchange to edge {self.edge}"

    def open(self, ctx: OperatorContext) -> Operator:
        return _ExchangeOperator(self, ctx)


class _ExchangeOperator(Operator):
    def __init__(self, step: Exchange, ctx: OperatorContext) -> None:
        self._edge, self._names, self._ctx = step.edge, list(step.columns), ctx

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.send(self._edge, batch if batch.schema.names == self._names else batch.select(self._names))
