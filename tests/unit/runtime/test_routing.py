"""Rows of a shuffle go to the owner of their key group, in order, at a cost that does not grow with the workers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from counted import instructions
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import Subtask
from holdfast.runtime.plan.model import Edge
from holdfast.runtime.worker.routing import Router
from holdfast.state.keys.batch import KeyType
from holdfast.state.keys.keygroups import owners

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("text", pa.utf8()), pa.field("n", pa.int64())])
GROUPS = 512
EDGE = Edge(0, 0, 1, ("k",), SCHEMA)


def batch(keys: list[int]) -> pa.RecordBatch:
    text = [None if n % 3 == 0 else f"row {n}" for n in range(len(keys))]
    return pa.record_batch([pa.array(keys, pa.int64()), text, list(range(len(keys)))], schema=SCHEMA)


def one_by_one(rows: pa.RecordBatch, parallelism: int) -> dict[Subtask, pa.RecordBatch]:
    """Split as the definition says: for each subtask, look at every row."""
    keys = KeyType.of([SCHEMA.field("k")]).encode([rows.column(0)])
    owner = owners(parallelism, GROUPS)[keys.key_groups(GROUPS)]
    found = {Subtask(s): np.flatnonzero(owner == s) for s in range(parallelism)}
    return {subtask: rows.take(pa.array(at)) for subtask, at in found.items() if len(at)}


class TestRouter:
    @given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60), st.integers(1, 40), st.integers(0, 5))
    def test_every_row_goes_to_the_owner_of_its_key_in_order(
        self, keys: list[int], parallelism: int, skip: int
    ) -> None:
        rows = batch(keys).slice(skip)
        found = Router(EDGE, parallelism, GROUPS).split(rows)
        assert dict(found) == one_by_one(rows, parallelism) or not rows.num_rows
        assert sum(part.num_rows for _, part in found) == rows.num_rows

    def test_rows_of_one_subtask_are_not_copied(self) -> None:
        rows = batch([7] * 10)
        ((_, part),) = Router(EDGE, 8, GROUPS).split(rows)
        assert part is rows

    def test_a_part_keeps_no_rows_of_other_subtasks_in_memory(self) -> None:
        """Queues count the bytes of a part; one part that waits must not hold the whole batch."""
        parts = Router(EDGE, 50, GROUPS).split(batch(list(range(5_000))))
        assert len(parts) == 50
        assert max(part.get_total_buffer_size() / part.nbytes for _, part in parts) < 2

    def test_subtasks_that_receive_nothing_cost_nothing(self) -> None:
        rows = batch([1, 4] * 20)
        few, many = (Router(EDGE, parallelism, GROUPS) for parallelism in (8, 512))
        few.split(rows), many.split(rows)
        assert len(few.split(rows)) == len(many.split(rows)) == 2
        assert instructions(lambda: many.split(rows)) == instructions(lambda: few.split(rows))
