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
    names: tuple[tuple[str, str], ...] = ()
    """Columns that have another name in the target: that name, and the one in the stream."""

    kind: ClassVar[str] = "sink"

    @property
    def writes_to(self) -> str:
        return self.sink

    def handed_on(self, name: str) -> str:
        return dict(self.names).get(name, name)

    def text(self) -> str:
        return f"sink {self.sink}"

    def open(self, ctx: OperatorContext) -> Operator:
        return _SinkOperator(self, ctx)


class _SinkOperator(Operator):
    """Passes exactly the stream's columns to the sink; a pushed-down projection may have changed their order."""

    _renamed: list[str] | None

    def __init__(self, step: SinkStep, ctx: OperatorContext) -> None:
        self._sink, self._ctx = step.sink, ctx
        placed = ctx.placed[0]
        shown = [*placed.schema.names, *([OP_FIELD.name] if placed.upsert_key is not None else [])]
        self._names = [step.handed_on(name) for name in shown]
        self._renamed = shown if step.names else None

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        batch = batch if batch.schema.names == self._names else batch.select(self._names)
        self._ctx.write(self._sink, batch if self._renamed is None else batch.rename_columns(self._renamed))
