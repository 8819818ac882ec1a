"""A table in memory that is written immediately and at least once, for tests: no tags, no fences.

Without a key it holds every row, also those that come again after a failure; with a key, the last row of each key.

Source: docs/decisions/0093; the contract suite holds this and a topic of Kafka to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.sinks.contract.immediate import ImmediateTarget, Origin, Owner, Written
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.sinks.memory.sink import MemorySink, Row
from holdfast.traits import SinkTraits


class RepeatingTable(MemorySink, ImmediateSink):
    """A table that repeats. All targets that it opens share its contents."""

    @property
    def traits(self) -> SinkTraits:
        return replace(super().traits, repeats=True)

    @property
    def repairs(self) -> None:
        """Rows without tags cannot be taken back."""

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return RepeatingMemoryTarget(self)

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        """A table without tags knows of no partition."""
        return ()

    def put(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Add or replace rows, in order."""
        for batch in batches:
            self.accept(batch)
        self.fault("before_begin")
        with self._lock:
            for batch in batches:
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    self._put(row)
        self.fault("after_commit")

    def _put(self, row: Row) -> None:
        values = {name: value for name, value in row.items() if name != OP}
        if self.key is None:
            self._added[self._numbered] = values
            self._numbered += 1
            return
        key = tuple(row[name] for name in self.key)
        if row.get(OP) == DELETE:
            self._kept.pop(key, None)
        else:
            self._kept[key] = values


class RepeatingMemoryTarget(ImmediateTarget):
    """One owner's access to a RepeatingTable. See immediate.ImmediateTarget."""

    def __init__(self, table: RepeatingTable) -> None:
        self._table = table

    def fence(self, starts: Mapping[Origin, int]) -> None:
        """Nothing can be fenced without tags."""

    def write(self, origin: Origin, offset: int, batches: Sequence[pa.RecordBatch]) -> int:
        self._table.put(batches)
        return 0

    def forget(self, committed: Mapping[Origin, int]) -> bool:
        """There are no tombstones."""
        return False

    def close(self) -> None:
        """Nothing is held."""
