"""Offsets without records are part of the epoch that passes them: markers of transactions, and what was removed."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

import holdfast as hf
from holdfast.checkpoint.audit import PartAudit, SourceTaken, joined
from holdfast.model import RowDigest, SourcePosition, Subtask
from holdfast.runtime.sources.reading import Reading
from holdfast.runtime.worker.digests import COUNTS, OFF, Auditing
from holdfast.sinks.memory.sink import MemorySink

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})


class Partition:
    """Partition 0 as a subtask counts it."""

    def __init__(self, how: str = COUNTS) -> None:
        app = hf.App("gaps")
        app.source("rows", hf.Log("rows", pa.schema([pa.field("n", pa.int64())]))).sink("out", MemorySink(None))
        self.reading = Reading("rows", 0, 0, cast(Any, None), 0)
        self.auditing = Auditing(app.plan(), Subtask(0), how)

    def take(self) -> None:
        self.auditing.took(self.reading, ROWS)
        self.reading.offset += ROWS.num_rows

    def pass_to(self, following: int, *, lost: bool = False) -> None:
        self.auditing.passed(self.reading, following, lost=lost)
        self.reading.offset = following

    def close(self) -> PartAudit | None:
        return self.auditing.close(0, [SourcePosition("rows", 0, self.reading.offset)], ())


def took(first: int, end: int, rows: int, *lost: tuple[int, int]) -> SourceTaken:
    given = (lost,) if lost else ()
    return SourceTaken("rows", 0, first, end, RowDigest(rows), *given)


def sources_of(*parts: PartAudit | None) -> list[SourceTaken]:
    return [each for part in parts if part is not None for each in part.sources]


class TestEpoch:
    def test_an_epoch_that_passes_only_a_gap_begins_before_it(self) -> None:
        rows = Partition()
        rows.take()
        first = rows.close()
        rows.pass_to(4)
        second = rows.close()
        rows.take()
        third = rows.close()
        assert sources_of(first, second, third) == [took(0, 3, 3), took(3, 4, 0), took(4, 7, 3)]

    def test_an_epoch_that_passes_a_gap_before_its_records_begins_before_the_gap(self) -> None:
        rows = Partition()
        rows.take()
        given_up = rows.close()
        rows.pass_to(4)
        rows.take()
        last = rows.close()
        assert given_up is not None and last is not None
        assert sources_of(joined([given_up, last])) == [took(0, 7, 6)]

    def test_names_the_ranges_that_were_lost_in_it(self) -> None:
        rows = Partition()
        rows.take()
        rows.pass_to(8, lost=True)
        rows.pass_to(10, lost=True)
        rows.take()
        rows.pass_to(14)
        rows.pass_to(20, lost=True)
        first = rows.close()
        rows.take()
        assert sources_of(first, rows.close()) == [took(0, 20, 6, (3, 10), (14, 20)), took(20, 23, 3)]

    def test_without_digests_names_nothing(self) -> None:
        rows = Partition(OFF)
        rows.pass_to(8, lost=True)
        assert rows.close() is None
