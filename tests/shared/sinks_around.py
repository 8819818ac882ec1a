"""A sink around another one: tests derive from it and change what they are about."""

from __future__ import annotations

from typing import Generic, TypeVar

import pyarrow as pa

from holdfast.model import Tag, Writer
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import Target
from holdfast.traits import SinkTraits

S = TypeVar("S", bound=Sink)


class SinkAround(Sink, Generic[S]):
    """Passes on what every sink does; what only some can do, it cannot."""

    key: tuple[str, ...] | None
    where: str
    traits: SinkTraits

    def __init__(self, inner: S) -> None:
        self.inner = inner
        self.key, self.where, self.traits = inner.key, inner.where, inner.traits

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.inner.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.inner.prepare(schema, upsert_key)

    def accept(self, batch: pa.RecordBatch) -> None:
        self.inner.accept(batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        return self.inner.open(job_uuid, writer, claim)


class TargetAround(Target):
    """Passes on what every target does, except `deliver`; each delivery is one epoch."""

    def __init__(self, inner: Target) -> None:
        self.inner = inner

    def delivered(self) -> Tag | None:
        return self.inner.delivered()

    def forget(self, through: Tag) -> None:
        self.inner.forget(through)

    def close(self) -> None:
        self.inner.close()
