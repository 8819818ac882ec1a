"""The sinks of a replay: they keep what they are given, by epoch, and deliver nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa

from holdfast.model import Epoch, Tag, Writer
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import Delivered, Outcome, Target
from holdfast.traits import SinkTraits


class CapturedSink(Sink):
    """Keeps rows in memory.

    Args:
        of: The job's sink, which is not opened.
    """

    def __init__(self, of: Sink) -> None:
        self._of = of
        self.rows: defaultdict[Epoch, list[pa.RecordBatch]] = defaultdict(list)
        """By epoch, as they were delivered; upserts have the column `_op` last."""

    @property
    def key(self) -> tuple[str, ...] | None:
        return self._of.key

    @property
    def where(self) -> str:
        return self._of.where

    @property
    def traits(self) -> SinkTraits:
        return SinkTraits(kind="CapturedSink", local_paths=(), keyed=self._of.traits.keyed)

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Takes every stream."""

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Has nothing outside."""

    def accept(self, batch: pa.RecordBatch) -> None:
        self._of.accept(batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> Target:
        return _CapturedTarget(self.rows)


class _CapturedTarget(Target):
    def __init__(self, rows: defaultdict[Epoch, list[pa.RecordBatch]]) -> None:
        self._rows = rows
        self._tag: Tag | None = None

    def delivered(self) -> Tag | None:
        return self._tag

    def deliver(self, tag: Tag, batches: Iterable[pa.RecordBatch], known: Tag | None = None) -> Outcome:
        given = list(batches)
        self._rows[tag.epoch] += given
        self._tag = tag
        return Delivered(sum(batch.num_rows for batch in given))
