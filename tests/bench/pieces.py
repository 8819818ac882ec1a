"""A source that gives a batch for each read, up to an end: for benchmarks of loops that no source slows down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.runtime.plan.ahead import Ahead, DirectReader, Read
from holdfast.runtime.plan.source import OpenSource, PartitionReader, Source
from holdfast.traits import SourceTraits


@dataclass
class Pieces(Source, OpenSource):
    """A source, and its connection.

    Args:
        piece: Returns the rows of the read that begins at an offset.
        end: Where every partition ends, in records.
    """

    schema: pa.Schema
    row_type: type | None
    count: int
    """How many partitions there are."""
    piece: Callable[[int], pa.RecordBatch]
    end: int = 0
    where: str = "pieces"
    traits: SourceTraits = field(default_factory=lambda: SourceTraits(kind="pieces", local_paths=()))

    def open(self) -> Pieces:
        return self

    def identity(self, partition: int, offset: int) -> str:
        return "pieces"

    def changed(self, identity: str) -> str | None:
        return None

    def partitions(self) -> list[int]:
        return list(range(self.count))

    def end_offsets(self) -> dict[int, int]:
        return dict.fromkeys(range(self.count), self.end)

    def retention_start(self, partition: int) -> int:
        return 0

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        return DirectReader(self._found, offset)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        found = self._found(offset, max_bytes)
        return found.batch, found.following

    def _found(self, offset: int, _bytes_max: int) -> Read:
        if offset >= self.end:
            return Read(None, offset)
        batch = self.piece(offset)
        return Read(batch, offset + batch.num_rows)
