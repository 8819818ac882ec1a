"""The end of a stream: rows go to a sink.

Pure: the caller stages or writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.runtime.operators.contract import OP_FIELD, Operator, OperatorContext, Step


@dataclass(frozen=True)
class SinkStep(Step):
    """Pass the rows to the sink."""

    sink: str

    kind: ClassVar[str] = "sink"

    @property
    def writes_to(self) -> str:
        return self.sink

    def handed_on(self, name: str) -> str:
        return name

    def text(self) -> str:
        return f"sink {self.sink}"

    def open(self, ctx: OperatorContext) -> Operator:
        return _SinkOperator(self, ctx)


class _SinkOperator(Operator):
    """Passes exactly the stream's columns to the sink; a pushed-down projection may have changed their order."""

    def __init__(self, step: SinkStep, ctx: OperatorContext) -> None:
        self._sink, self._ctx = step.sink, ctx
        placed = ctx.placed[0]
        self._names = [*placed.schema.names, *([OP_FIELD.name] if placed.upsert_key is not None else [])]

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        self._ctx.write(self._sink, batch if batch.schema.names == self._names else batch.select(self._names))
