"""Another writer's first delivery for a new driver comes between any two statements of a look at the target.

Whatever is compared, such as the owner and the newest tag, is of one moment: a look that takes the owner from before
that commit and the tag from after it would find the target beyond the job log, and end the job.

Source: docs/decisions/0021-owned-targets.md; PROTOCOL P17.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sql_places import place_of

from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held, Holding
from holdfast.sinks.contract.target import Delivered
from holdfast.sinks.sql.session import Session

JOB, SCHEMA = "6f9b0f6e-0000-4000-8000-000000000001", pa.schema([pa.field("n", pa.int64(), nullable=False)])
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
BEFORE, NOW = Tag(Timeline(1), Epoch(104)), Tag(Timeline(1), Epoch(205))
OLD, NEW = Claim("old", Generation(1)), Claim("new", Generation(2), {"old": BEFORE})


def rows(number: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([number], pa.int64())], schema=SCHEMA)]


class Between:
    """Lets something happen once, before a statement of the sessions that are not its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: int, what: Callable[[], object]) -> None:
        self.count, self._before, self._what, self._inside = 0, before, what, False
        right = Session.execute

        def execute(session: Session, *given: Any) -> Any:
            if not self._inside:
                if self.count == self._before:
                    self._inside = True
                    self._what()
                    self._inside = False
                self.count += 1
            return right(session, *given)

        monkeypatch.setattr(Session, "execute", execute)


@pytest.fixture(params=[("n",), None], ids=["keyed", "added"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    sink = place_of("postgres", tmp_path, request).sink("t", request.param)
    sink.prepare(SCHEMA, None)
    for number, writer in enumerate((LEFT, RIGHT)):
        target = sink.open(JOB, writer, OLD)
        assert target.deliver(BEFORE, rows(number)) == Delivered(1)
        target.close()
    return sink


def deliver(sink: Any, writer: Writer, number: int) -> object:
    target = sink.open(JOB, writer, NEW)
    try:
        return target.deliver(NOW, rows(number), BEFORE)
    finally:
        target.close()


def delivered(sink: Any) -> Tag | None:
    target = sink.open(JOB, LEFT, NEW)
    try:
        return target.delivered()  # type: ignore[no-any-return]
    finally:
        target.close()


class TestAnotherWritersFirstDelivery:
    @pytest.mark.parametrize("before", range(12))
    def test_changes_nothing_about_the_tag_that_a_writer_reads(
        self, sink: Any, monkeypatch: pytest.MonkeyPatch, before: int
    ) -> None:
        Between(monkeypatch, before, lambda: deliver(sink, RIGHT, 3))
        assert delivered(sink) == BEFORE

    @pytest.mark.parametrize("before", range(4))
    def test_lets_a_delivery_through(self, sink: Any, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
        """Later statements belong to its own transaction, which meets the other one in the database."""
        between = Between(monkeypatch, before, lambda: deliver(sink, RIGHT, 3))
        assert deliver(sink, LEFT, 2) == Delivered(1)
        assert between.count > before

    @pytest.mark.parametrize("before", range(12))
    def test_is_seen_whole_or_not_at_all_by_a_start(
        self, sink: Any, monkeypatch: pytest.MonkeyPatch, before: int
    ) -> None:
        Between(monkeypatch, before, lambda: deliver(sink, RIGHT, 3))
        assert sink.holding(JOB, "out") in (
            Holding(Held("old", Generation(1)), BEFORE),
            Holding(Held("new", Generation(2)), NOW),
        )
