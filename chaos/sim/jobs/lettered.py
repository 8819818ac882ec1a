"""A branch of the job whose function fails on some records: each passes or becomes one dead letter, never both.

Source: DESIGN section 6; docs/decisions/0009-dead-letters.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.chaos.sim.jobs import oracle
from holdfast.chaos.sim.jobs.oracle import Cut, Input, Partitions
from holdfast.runtime.api.stream import Stream
from holdfast.runtime.rows.dead_letters import DLQ, decode_row
from holdfast.sinks.memory.sink import MemorySink

CHECKED = "checked"
"""The sink of the rows that pass."""
LETTERED = (CHECKED, DLQ)
Fail = Callable[[str, str], None]
Row = Mapping[str, Any]


def passes_most(row: Any) -> bool:
    """Fail on some rows, always the same."""
    if row.value % 5 == 0:
        raise ValueError(f"{row.value} is a multiple of 5")
    return True


def check_each(records: Stream) -> None:
    """Add the branch to a job, which has a DLQ."""
    records.filter(passes_most, on_error="dlq").sink(CHECKED, MemorySink())


class Lettered:
    """The sink of the rows that pass, and the DLQ."""

    def __init__(self, partitions: Partitions, fail: Fail) -> None:
        self._partitions, self._fail = partitions, fail

    def look(self, sink: str, when: str, rows: Sequence[Row]) -> None:
        """Rows were delivered: none is present twice or in the wrong sink."""
        self._compare(sink, when, rows, oracle.whole(self._partitions), whole=False)

    def compare(self, sink: str, when: str, cut: Cut, rows: Sequence[Row]) -> None:
        """The sink holds exactly the rows of these offsets."""
        self._compare(sink, when, rows, cut, whole=True)

    def _compare(self, sink: str, when: str, rows: Sequence[Row], cut: Cut, *, whole: bool) -> None:
        visible_ids = [_id_of(row) for row in rows] if sink == DLQ else [int(row["id"]) for row in rows]
        read = (r for p, records in enumerate(self._partitions) for r in records[: cut.get(p, 0)])
        expected_ids = {record.id for record in read if _is_of(sink, record)}
        if twice := sorted({each for each in visible_ids if visible_ids.count(each) > 1}):
            self._fail("I2 duplicate", f"{sink}, {when}: records {twice} are present more than once")
        if wrong := sorted(set(visible_ids) - expected_ids):
            self._fail("I5 visible", f"{sink}, {when}: records {wrong} do not belong there")
        if whole and (lost := sorted(expected_ids - set(visible_ids))):
            self._fail("I1 loss", f"{sink}, {when}: records {lost} are missing")


def _is_of(sink: str, record: Input) -> bool:
    return (record.value % 5 == 0) is (sink == DLQ)


def _id_of(letter: Row) -> int:
    return int(decode_row(letter["raw"]).column("id")[0].as_py())
