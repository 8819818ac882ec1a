"""Route each row of a shuffle to the subtask that owns its key group.

Pure.
Source: DESIGN section 5 (key groups).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.model import Subtask
from holdfast.runtime.plan.model import Edge
from holdfast.state.keys.batch import KeyType
from holdfast.state.keys.keygroups import owners


class Router:
    """Splits the rows of one edge by the subtask that owns their key."""

    def __init__(self, edge: Edge, parallelism: int, key_groups: int) -> None:
        self._columns = [edge.schema.get_field_index(name) for name in edge.key]
        self._key = KeyType.of(edge.schema.field(i) for i in self._columns)
        self._parallelism, self._key_groups = parallelism, key_groups
        self._owners = owners(parallelism, key_groups)

    def split(self, batch: pa.RecordBatch) -> list[tuple[Subtask, pa.RecordBatch]]:
        """Return the rows for each subtask that receives any, in their original order."""
        if self._parallelism == 1:
            return [(Subtask(0), batch)]
        keys = self._key.encode([batch.column(i) for i in self._columns])
        owner = self._owners[keys.key_groups(self._key_groups)]
        parts = []
        for subtask in range(self._parallelism):
            rows = np.flatnonzero(owner == subtask)
            if len(rows) == batch.num_rows:
                return [(Subtask(subtask), batch)]
            if len(rows):
                parts.append((Subtask(subtask), batch.take(pa.array(rows))))
        return parts
