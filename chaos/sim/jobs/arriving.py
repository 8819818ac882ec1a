"""The source of the simulated jobs: records that become readable as time passes, in batches that the seed cuts.

Invariants
    - A record has the same offset and bytes however often it is read.
"""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa

from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.jobs.oracle import Input
from holdfast.ports import Clock
from holdfast.runtime.plan.ahead import Ahead
from holdfast.runtime.plan.source import PartitionReader, direct_reader
from holdfast.traits import SourceTraits


class ArrivingSource:
    """A source whose records become readable as time passes.

    Args:
        batches: All records, one batch per partition.
        arrivals: When each record becomes readable, in seconds of `clock`, ascending.
        rng: Decides where the batches that are read end.
    """

    def __init__(
        self,
        batches: tuple[pa.RecordBatch, ...],
        arrivals: tuple[tuple[float, ...], ...],
        clock: Clock | None,
        rng: Chance,
        rows_max: int,
        schema: pa.Schema,
    ) -> None:
        self.schema = schema
        self._batches, self._arrivals, self._clock = batches, arrivals, clock
        self._random, self._rows_max = rng, rows_max

    row_type: type | None = None
    where = "the arriving records"
    traits = SourceTraits(kind="ArrivingSource", local_paths=())

    def check(self) -> None:
        """There is nothing outside to check."""

    def open(self) -> ArrivingSource:
        """Return this source itself: it keeps no position."""
        return self

    def identity(self, partition: int, offset: int) -> str:
        """Return a name."""
        return "arriving"

    def changed(self, identity: str) -> str | None:
        """The source never changes its identity."""

    def partitions(self) -> list[int]:
        """Return all partitions."""
        return list(range(len(self._batches)))

    def end_offsets(self) -> dict[int, int]:
        """Return how many records each partition will ever have."""
        return {partition: batch.num_rows for partition, batch in enumerate(self._batches)}

    def retention_start(self, partition: int) -> int:
        """Every record is retained."""
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Return some of the arrived records; the seed decides how many."""
        assert self._clock is not None
        left = bisect_right(self._arrivals[partition], self._clock.monotonic()) - offset
        if left <= 0:
            return None, offset
        rows = self._random.randint(1, min(left, self._rows_max))
        return self._batches[partition].slice(offset, rows), offset + rows

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        """See OpenSource.reader: everything is in memory."""
        return direct_reader(self, partition, offset)

    def ended(self, partition: int, offset: int) -> bool:
        """The source ends after its last record."""
        return offset >= int(self._batches[partition].num_rows)

    def close(self) -> None:
        """There is nothing to release."""


def batches_of(partitions: tuple[tuple[Input, ...], ...], schema: pa.Schema) -> tuple[pa.RecordBatch, ...]:
    """Return each partition's records as one batch."""
    return tuple(
        pa.RecordBatch.from_arrays(
            [pa.array([getattr(r, field.name) for r in records], field.type) for field in schema], schema=schema
        )
        for records in partitions
    )
