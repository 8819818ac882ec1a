"""The contract of tables with a key: each belongs to one sink of one job, as a rewind of another would undo its rows.

Run against tables of databases and of lakehouses. What only the first have is in test_owner_contract.py, what only the
second have in test_lakehouse_owners.py.

Source: PROTOCOL P1, P17; docs/decisions/0104-tables-with-one-owner.md, 0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_tables import FolderTable
from iceberg_tables import FolderCatalog
from sql_places import delivery_of, place_of

from holdfast.errors import ConfigError, Fenced
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held, Rival
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import Delivered

JOB, THEIRS = "6f9b0f6e-0000-4000-8000-000000000001", "7a9b0f6e-0000-4000-8000-000000000002"
LEFT, RIGHT, ELSE = Writer("out", Subtask(0)), Writer("out", Subtask(1)), Writer("else", Subtask(0))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
FIRST, OTHER = Claim("first", Generation(1)), Claim("other", Generation(1))
SECOND = Claim("second", Generation(2), {"first": Tag(Timeline(1), Epoch(2))})
MOVES = replace(OTHER, adopted=("first",))
NEXT = "if that sink has delivered for the last time, holdfast run JOB.py --adopt-targets SINK"
DATABASES = [f"{kind} {how}" for kind in ("sqlite", "other", "postgres") for how in ("keyed", "idempotent")]
LAKE: dict[str, Any] = {"delta": FolderTable, "iceberg": FolderCatalog}


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)]


class OwnedTable:
    """A table, a sink with a key, and one that only adds rows.

    Args:
        numbers: Returns its rows, sorted.
        back_up: Copies it; returns what restores the copy.
        drop: Deletes it, and nothing beside it.
        images: Whether images of rows before changes are beside it, which sinks delete.
    """

    def __init__(
        self,
        sink: Any,
        added: Any,
        numbers: Callable[[], list[int]],
        back_up: Callable[[], Callable[[], None]],
        drop: Callable[[], object],
        images: bool,
    ) -> None:
        self.sink, self.added, self.numbers, self.back_up, self.drop = sink, added, numbers, back_up, drop
        self.images = images
        sink.prepare(SCHEMA, None)

    def deliver(
        self, epoch: int, *numbers: int, job: str = JOB, writer: Writer = LEFT, claim: Claim | None = FIRST
    ) -> Any:
        return self.sink.open(job, writer, claim).deliver(tag(epoch), rows(*numbers))

    def rival(self, job: str = THEIRS, name: str = "out") -> Rival | None:
        rival: Rival | None = self.sink.holding(job, name).rival
        return rival


@pytest.fixture(params=[*DATABASES, *LAKE])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> OwnedTable:
    if request.param in LAKE:
        made = LAKE[request.param]
        keyed, added = made(tmp_path, ("n",)), made(tmp_path)
        numbers = lambda: sorted(n for (n,) in keyed.rows())
        return OwnedTable(
            keyed.sink, added.sink, numbers, keyed.back_up, lambda: shutil.rmtree(keyed.path), images=False
        )
    place = place_of(request.param, tmp_path, request)
    sink = place.sink("t", ("n",), delivery_of(request.param))
    numbers = lambda: [n for (n,) in place.ask("SELECT n FROM t ORDER BY n")]
    drop = lambda: place.ask("DROP TABLE t")
    return OwnedTable(sink, place.sink("t", None), numbers, place.back_up, drop, images=True)


@pytest.fixture
def owned(table: OwnedTable) -> OwnedTable:
    table.deliver(1, 1)
    return table


class TestTableWithAKey:
    @pytest.mark.parametrize(("job", "writer"), [(THEIRS, LEFT), (THEIRS, ELSE), (JOB, ELSE)])
    def test_any_other_sink_is_refused_and_changes_nothing(self, owned: OwnedTable, job: str, writer: Writer) -> None:
        other = owned.sink.open(job, writer, OTHER)
        whose = "this job" if job == JOB else f"another job, {JOB}"
        fault = f"belongs to sink 'out' of {whose}; rows of one would be replaced or undone by the other"
        to = Rewinding(job, writer.sink, tag(1, 2), (writer,), OTHER)
        acts: list[Callable[[], object]] = [
            other.delivered,
            lambda: other.deliver(tag(9), rows(9)),
            lambda: owned.sink.plan_repair(to, SCHEMA, None),
            lambda: owned.sink.repair(to, SCHEMA, None),
            *([lambda: other.forget(tag(9))] if owned.images else []),
        ]
        for act in acts:
            with pytest.raises(Fenced) as refused:
                act()
            assert refused.value.what.endswith(fault) and refused.value.next_step.endswith(NEXT)
            assert refused.value.not_done == "nothing was written to the target" and refused.value.exit_status == 6
        assert owned.numbers() == [1] and owned.sink.holding(job, writer.sink).newest is None

    def test_its_own_sink_continues(self, owned: OwnedTable) -> None:
        assert owned.deliver(1, 2, writer=RIGHT) == owned.deliver(2, 3, claim=SECOND) == Delivered(1)
        assert owned.rival(JOB) is None and owned.numbers() == [1, 2, 3]

    def test_a_start_sees_whose_it_is(self, owned: OwnedTable) -> None:
        owner = Rival(JOB, "out", Held("first", Generation(1)))
        assert owned.rival() == owned.rival("") == owned.rival(JOB, "else") == owner
        owned.sink.check_owner(THEIRS, "out")  # holding reports it, so that a user can move the table

    def test_a_sink_that_is_overtaken_before_its_commit_changes_nothing(self, table: OwnedTable) -> None:
        """Both jobs find a table without a sink, and compare it before either commits."""

        def meanwhile() -> Iterator[pa.RecordBatch]:
            table.deliver(2, 2, writer=RIGHT)
            yield from rows(9)

        with pytest.raises(Fenced, match=f"belongs to sink 'out' of another job, {JOB}"):
            table.sink.open(THEIRS, LEFT, OTHER).deliver(tag(9), meanwhile())
        assert table.numbers() == [2] and table.sink.open(THEIRS, LEFT).delivered() is None

    def test_a_user_moves_it_from_the_driver_that_had_it_then(self, owned: OwnedTable) -> None:
        first = owned.sink.open(JOB, LEFT, FIRST)
        first.delivered()
        assert owned.deliver(9, 9, job=THEIRS, claim=MOVES) == Delivered(1)
        moved = f"belongs to sink 'out' of another job, {THEIRS}"
        later = Rewinding(JOB, "out", tag(0, 2), (LEFT,), FIRST)
        acts: list[Callable[[], object]] = [
            lambda: first.deliver(tag(2), rows(2)),
            lambda: owned.sink.repair(later, SCHEMA, None),
        ]
        for act in acts:
            with pytest.raises(Fenced, match=moved):
                act()
        assert owned.numbers() == [1, 9] and owned.rival() is None
        assert owned.rival(JOB) == Rival(THEIRS, "out", Held("other", Generation(1)))

    def test_it_is_not_moved_from_a_driver_that_took_it_over_since(self, owned: OwnedTable) -> None:
        owned.deliver(2, 2, claim=SECOND)
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            owned.deliver(9, 9, job=THEIRS, claim=MOVES)
        assert owned.numbers() == [1, 2]

    def test_a_deleted_and_recreated_table_belongs_to_the_first_job_that_delivers(self, owned: OwnedTable) -> None:
        owned.drop()
        owned.sink.prepare(SCHEMA, None)
        assert owned.rival() is None
        owned.deliver(1, 9, job=THEIRS, claim=OTHER)
        with pytest.raises(Fenced, match=f"another job, {THEIRS}"):
            owned.deliver(2, 2)
        assert owned.numbers() == [9]

    def test_a_restored_table_belongs_to_the_sink_of_its_rows(self, owned: OwnedTable) -> None:
        restore = owned.back_up()
        owned.deliver(9, 9, job=THEIRS, claim=MOVES)
        restore()
        assert owned.sink.open(JOB, LEFT, SECOND).deliver(tag(2), rows(2), tag(1)) == Delivered(1)
        assert owned.numbers() == [1, 2]

    def test_a_sink_that_only_adds_rows_is_refused(self, owned: OwnedTable) -> None:
        with pytest.raises(ConfigError, match="belongs to sink 'out' of this job") as refused:
            owned.added.check_owner(JOB, "else")
        assert refused.value.not_done == "the job was not started; state and output are untouched"
        for claim in (FIRST, MOVES):
            with pytest.raises(Fenced, match="belongs to sink 'out' of this job"):
                owned.added.open(JOB, ELSE, claim).deliver(tag(2), rows(2))
        assert owned.numbers() == [1]
