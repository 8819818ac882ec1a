"""Route each row of a shuffle to the subtask that owns its key group.

Invariants
    - Rows for one subtask keep their order.
    - Batches for several subtasks share no memory: one that waits for a slow subtask must not keep the rows of all
      others, which no queue counts.

Pure.
Source: DESIGN section 5 (key groups); docs/decisions/0053-control-plane-at-scale.md.
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
        from holdfast.state.keys.grouping import rows_by_owner  # loads a compiler, which a plan does not need

        self._columns = [edge.schema.get_field_index(name) for name in edge.key]
        self._key = KeyType.of(edge.schema.field(i) for i in self._columns)
        self._parallelism, self._key_groups = parallelism, key_groups
        self._owners = owners(parallelism, key_groups)
        self._rows_by_owner = rows_by_owner

    def split(self, batch: pa.RecordBatch) -> list[tuple[Subtask, pa.RecordBatch]]:
        """Return the rows for each subtask that receives any, in their original order."""
        if self._parallelism == 1:
            return [(Subtask(0), batch)]
        keys = self._key.encode([batch.column(i) for i in self._columns])
        order, bounds = self._rows_by_owner(keys.key_groups(self._key_groups), self._owners, self._parallelism)
        receivers = np.flatnonzero(bounds[1:] > bounds[:-1])
        if len(receivers) == 1:
            return [(Subtask(int(receivers[0])), batch)]
        ranges = zip(receivers.tolist(), bounds[receivers].tolist(), bounds[receivers + 1].tolist(), strict=True)
        return [(Subtask(receiver), batch.take(pa.array(order[first:end]))) for receiver, first, end in ranges]
