"""A sink that the promises of `sink_kit.py` are tested with: how it is made, delivered to and read.

Source: docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.contract.target import DELETE, OP, PUT, Fault, Target

SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)
JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
ANN, BEA, CAT = (1, "ann"), (2, "bea"), (3, "cat")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class SinkKit:
    """A sink to be tested.

    Args:
        sink: Makes the sink; each call names the same target, which is missing or empty at first. Its key is `user`,
            or it has none; with a key it is tested with an upsert stream.
        rows: Reads the visible rows of the target, each as (user, name); in any order.
        open: Opens a target that calls a fault at every point of a delivery (`contract.FaultPoint`), for the tests of
            crashes inside of one; None: the target has no such points.
        travels: Whether it can be used by another process; not if its target is memory.
    """

    sink: Callable[[], Sink]
    rows: Callable[[], list[Row]]
    open: Callable[[Sink, Writer, Fault], Target] | None = None
    travels: bool = True

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """The key of the stream that the sink is tested with."""
        return KEY if self.sink().key is not None else None

    def prepared(self) -> Sink:
        """Return the sink, its target prepared."""
        sink = self.sink()
        sink.prepare(SCHEMA, self.upsert_key)
        return sink

    def target(self, writer: Writer = LEFT, job: str = JOB, claim: Claim | None = None) -> closing[Target]:
        """Open a writer's target, as a restarted worker would."""
        return closing(self.prepared().open(job, writer, claim))

    def deliver(self, epoch: int, *rows: Row, timeline: int = 1, writer: Writer = LEFT) -> object:
        """Deliver one epoch by a separate target."""
        with self.target(writer) as target:
            return target.deliver(tag(epoch, timeline), [self.batch(*rows)] if rows else [])

    def batch(self, *rows: Row) -> pa.RecordBatch:
        """Return rows as the stream has them; a name of None deletes, where there are keys."""
        columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        if self.upsert_key is None:
            return batch
        ops = pa.array([DELETE if row[1] is None else PUT for row in rows], pa.int8())
        return batch.append_column(OP, ops)

    def shows(self, *rows: Row) -> bool:
        """Return whether exactly these rows are visible."""
        return sorted(self.rows()) == sorted(rows)


Promise = Callable[[SinkKit], None]


def tag(epoch: int, timeline: int = 1) -> Tag:
    """Return a tag."""
    return Tag(Timeline(timeline), Epoch(epoch))
