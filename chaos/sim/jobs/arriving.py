"""The source of the simulated jobs: records that become readable as time passes, in batches that the seed cuts.

In some seeds partitions are added as time passes too. Then the source is sealed when the last one appears: only from
that moment on does a partition end.

Invariants
    - A record has the same offset and bytes however often it is read.
    - A partition that does not exist yet is not listed, and cannot be read.
"""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa

from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.jobs.oracle import Input
from holdfast.ports import Clock
from holdfast.runtime.plan.source import OpenSource, Source
from holdfast.traits import SourceTraits


class ArrivingSource(Source, OpenSource):
    """A source whose records become readable as time passes.

    Args:
        batches: All records, one batch per partition.
        arrivals: When each record becomes readable, in seconds of `clock`, ascending.
        rng: Decides where the batches that are read end.
        mine: Its partitions; None: all of them.
        appears: When each partition is added, in seconds of `clock`; empty: all are there from the start.
    """

    schema: pa.Schema
    row_type: type | None = None
    where = "the arriving records"
    traits = SourceTraits(kind="ArrivingSource", local_paths=())

    def __init__(
        self,
        batches: tuple[pa.RecordBatch, ...],
        arrivals: tuple[tuple[float, ...], ...],
        clock: Clock | None,
        rng: Chance,
        rows_max: int,
        schema: pa.Schema,
        mine: tuple[int, ...] | None = None,
        appears: tuple[float, ...] = (),
    ) -> None:
        self.schema = schema
        self._mine, self._appears = range(len(batches)) if mine is None else mine, appears
        self._batches, self._arrivals, self._clock = batches, arrivals, clock
        self._random, self._rows_max = rng, rows_max

    def open(self) -> ArrivingSource:
        """Return this source itself: it keeps no position."""
        return self

    def identity(self, partition: int, offset: int) -> str:
        """Return a name."""
        return "arriving"

    def changed(self, identity: str) -> str | None:
        """The source never changes its identity."""

    def partitions(self) -> list[int]:
        """Return the partitions that exist now."""
        return [partition for partition in self._mine if self._exists(partition)]

    def end_offsets(self) -> dict[int, int]:
        """Return how many records each partition has now."""
        assert self._clock is not None
        now = self._clock.monotonic()
        return {partition: bisect_right(self._arrivals[partition], now) for partition in self.partitions()}

    def retention_start(self, partition: int) -> int:
        """Every record is retained."""
        assert self._exists(partition)
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Return some of the arrived records; the seed decides how many."""
        assert self._clock is not None and self._exists(partition)
        left = bisect_right(self._arrivals[partition], self._clock.monotonic()) - offset
        if left <= 0:
            return None, offset
        rows = self._random.randint(1, min(left, self._rows_max))
        return self._batches[partition].slice(offset, rows), offset + rows

    def ended(self, partition: int, offset: int) -> bool:
        """The source ends after its last record, once no partition is added any longer."""
        sealed = all(self._exists(each) for each in range(len(self._appears)))
        return sealed and offset >= int(self._batches[partition].num_rows)

    def _exists(self, partition: int) -> bool:
        if not self._appears or self._clock is None:
            return True
        return self._appears[partition] <= self._clock.monotonic()


def batches_of(partitions: tuple[tuple[Input, ...], ...], schema: pa.Schema) -> tuple[pa.RecordBatch, ...]:
    """Return each partition's records as one batch."""
    return tuple(
        pa.RecordBatch.from_arrays(
            [pa.array([getattr(r, field.name) for r in records], field.type) for field in schema], schema=schema
        )
        for records in partitions
    )
