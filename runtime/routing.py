"""Which subtask takes a row behind a shuffle: the one that owns its key group.

Pure.
Source: DESIGN section 5 (key groups).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.model import Subtask
from holdfast.runtime.steps import Edge
from holdfast.state.keygroups import owners
from holdfast.state.keys import KeyType


class Router:
    """Splits the rows of one edge by who owns their key."""

    def __init__(self, edge: Edge, parallelism: int, key_groups: int) -> None:
        self._columns = [edge.schema.get_field_index(name) for name in edge.key]
        self._key = KeyType.of(edge.schema.field(i) for i in self._columns)
        self._parallelism, self._key_groups = parallelism, key_groups
        self._owners = owners(parallelism, key_groups)

    def split(self, batch: pa.RecordBatch) -> list[tuple[Subtask, pa.RecordBatch]]:
        """Return the rows of each subtask that gets any, in their order."""
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
