"""The contract of lakehouse tables on the sinks that write them: one sink with a key, or sinks that only add rows.

Source: PROTOCOL P1, P17, P21; docs/decisions/0110-lakehouse-tables-with-one-owner.md.
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

from holdfast.errors import ConfigError, Damaged, Fenced
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import Claim, Held, Rival
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import Delivered, FaultPoint
from holdfast.sinks.lakehouse.book import PREFIX

JOB, THEIRS = "6f9b0f6e-0000-4000-8000-000000000001", "7a9b0f6e-0000-4000-8000-000000000002"
LEFT, RIGHT, ELSE = Writer("out", Subtask(0)), Writer("out", Subtask(1)), Writer("else", Subtask(0))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
FIRST = Claim("first", Generation(1))
SECOND = Claim("second", Generation(2), {"first": Tag(Timeline(1), Epoch(2))})
OTHER = Claim("other", Generation(1))
MOVES = replace(OTHER, adopted=("first",))
NEXT = "if that sink has delivered for the last time, holdfast run JOB.py --adopt-targets SINK"


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)]


def back(epoch: int, job: str = JOB, claim: Claim = FIRST, timeline: int = 2) -> Rewinding:
    return Rewinding(job, "out", tag(epoch, timeline), (LEFT,), claim)


class Table:
    """One table, and sinks of it with and without a key."""

    def __init__(self, made: Callable[..., Any], folder: Path) -> None:
        self._made, self.folder = made, folder
        self.keyed, self.added = made(folder, ("n",)), made(folder)
        self.sink, self.first = self.keyed.sink, 0
        self.sink.prepare(SCHEMA, None)

    def deliver(
        self, epoch: int, *numbers: int, job: str = JOB, writer: Writer = LEFT, claim: Claim | None = FIRST
    ) -> Any:
        return self.sink.open(job, writer, claim).deliver(tag(epoch), rows(*numbers))

    def add(self, epoch: int, *numbers: int, job: str = JOB, writer: Writer = LEFT, claim: Claim = FIRST) -> Any:
        return self.added.sink.open(job, writer, claim).deliver(tag(epoch), rows(*numbers))

    def numbers(self) -> list[int]:
        return sorted(n for (n,) in self.keyed.rows())

    def rival(self, job: str = THEIRS, name: str = "out") -> Rival | None:
        rival: Rival | None = self.sink.holding(job, name).rival
        return rival

    def maintain(self) -> None:
        """Compact the table and drop what its history has, as other programs do."""
        self.keyed.maintain()

    def go_back(self) -> None:
        """Give the table the rows of its first delivery by hand."""
        self.keyed.go_back(self.first)


@pytest.fixture(params=[FolderTable, FolderCatalog], ids=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


@pytest.fixture
def owned(table: Table) -> Table:
    table.deliver(1, 1)
    table.first = table.keyed.version()
    return table


class TestTableWithAKey:
    """It belongs to one sink of one job: a rewind of another one would take its rows back."""

    def test_only_one_of_two_first_deliveries_to_a_keyed_table_succeeds(self, table: Table) -> None:
        """Both jobs find a table without a sink, and compare it before either commits."""
        done: list[object] = []

        def meanwhile(point: FaultPoint) -> None:
            if point == "before_commit" and not done:
                done.append(table.deliver(1, 1))

        with pytest.raises(Fenced, match=f"belongs to sink 'out' of another job, {JOB}"):
            table.sink.opened(THEIRS, LEFT, OTHER, meanwhile).deliver(tag(9), rows(9))
        assert done == [Delivered(1)] and table.numbers() == [1]
        assert table.sink.open(THEIRS, LEFT).delivered() is None

    def test_a_first_delivery_that_loses_to_another_program_is_repeated(self, table: Table) -> None:
        def meanwhile(point: FaultPoint) -> None:
            if point == "before_commit" and not table.numbers():
                table.added.sink.open("", ELSE).deliver(tag(1), rows(7))  # without a claim, so nothing is noted

        assert table.sink.opened(JOB, LEFT, FIRST, meanwhile).deliver(tag(1), rows(1)) == Delivered(1)
        assert table.numbers() == [1, 7] and table.rival() == Rival(JOB, "out", Held("first", Generation(1)))

    def test_a_rewind_takes_it_and_keeps_it(self, owned: Table) -> None:
        owned.deliver(2, 2)
        owned.sink.repair(back(0), SCHEMA, None)
        assert owned.numbers() == [] and owned.rival() == Rival(JOB, "out", Held("first", Generation(1)))
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            owned.deliver(9, 9, job=THEIRS, claim=OTHER)

    def test_a_rewind_by_the_job_that_it_was_moved_to_leaves_the_rows_of_the_former_one(self, owned: Table) -> None:
        for epoch in (4, 5):
            owned.deliver(epoch, 10 + epoch, job=THEIRS, claim=MOVES)
        owned.sink.repair(back(4, THEIRS, OTHER), SCHEMA, None)
        assert owned.numbers() == [1, 14]
        owned.sink.repair(back(3, THEIRS, OTHER, 3), SCHEMA, None)
        assert owned.numbers() == [1]

    def test_a_rewind_of_the_former_job_that_takes_it_back_refuses_to_undo_what_came_between(
        self, owned: Table
    ) -> None:
        owned.deliver(2, 2)
        owned.deliver(9, 9, job=THEIRS, claim=MOVES)
        plan = owned.sink.plan_repair(back(1, claim=replace(FIRST, adopted=("other",))), SCHEMA, None)
        assert plan.verdict == "impossible" and f"by sink 'out' of job {THEIRS}" in plan.reason
        assert owned.numbers() == [1, 2, 9]

    def test_maintenance_and_a_restore_by_hand_keep_it(self, owned: Table) -> None:
        owned.deliver(2, 2)
        owned.go_back()
        assert owned.numbers() == [1]
        owned.maintain()
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            owned.deliver(9, 9, job=THEIRS, claim=OTHER)
        assert owned.rival() == Rival(JOB, "out", Held("first", Generation(1)))

    def test_a_note_that_no_sink_wrote_is_damage(self, owned: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        version = owned.sink._connection().latest()
        numbers = {f"{PREFIX}/table": 5, f"{PREFIX}/table/sinks": 1, f"{PREFIX}/table/sinks/0": 7}
        monkeypatch.setattr(type(version), "number", lambda _version, name: numbers.get(name))
        with pytest.raises(Damaged, match="which Holdfast never wrote"):
            owned.deliver(2, 2)


class TestCopyOfATable:
    def test_is_moved_without_the_original(self, tmp_path: Path) -> None:
        """It has the note of the original, since its rows are that sink's."""
        owned = Table(FolderTable, tmp_path / "one")
        owned.deliver(1, 1)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        copy = Table(FolderTable, tmp_path / "two")
        assert copy.rival() == Rival(JOB, "out", Held("first", Generation(1)))
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            copy.deliver(9, 9, job=THEIRS, claim=OTHER)
        assert copy.deliver(9, 9, job=THEIRS, claim=MOVES) == owned.deliver(2, 2) == Delivered(1)
        assert (owned.numbers(), copy.numbers()) == ([1, 2], [1, 9])


class TestTableOfAnEarlierVersion:
    """It has tags, and no note."""

    @pytest.fixture
    def old(self, table: Table) -> Table:
        table.deliver(1, 1, claim=None)
        return table

    def test_belongs_to_the_sink_with_tags_from_its_next_delivery_on(self, old: Table) -> None:
        assert old.rival(JOB) is None
        old.sink.check_owner(JOB, "out")
        old.deliver(2, 2)
        assert old.rival() == Rival(JOB, "out", Held("first", Generation(1)))
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            old.deliver(9, 9, job=THEIRS, claim=OTHER)

    def test_is_refused_to_a_sink_without_tags_while_it_has_rows(self, old: Table) -> None:
        for job, name in ((THEIRS, "out"), (THEIRS, "else"), (JOB, "else"), ("", "out")):
            assert old.rival(job, name) == Rival(JOB, "out", None)
        old.maintain()
        assert old.rival() == Rival(JOB, "out", None)

    def test_without_rows_is_free(self, table: Table) -> None:
        table.deliver(1, claim=None)
        assert table.rival() is None

    def test_an_older_table_shared_by_two_jobs_belongs_to_the_first_that_delivers(self, old: Table) -> None:
        old.deliver(1, 9, job=THEIRS, writer=ELSE, claim=None)
        assert old.rival(JOB) is None and old.rival(THEIRS, "else") is None
        old.deliver(2, 2)
        with pytest.raises(Fenced, match="belongs to sink 'out'"):
            old.deliver(2, 10, job=THEIRS, writer=ELSE, claim=OTHER)
        assert old.numbers() == [1, 2, 9]

    def test_is_refused_by_the_name_alone_if_its_history_is_gone(
        self, old: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(old.sink._connection().latest()), "deliverers", lambda _version: set())
        with pytest.raises(ConfigError, match="holds output of a sink 'out' of another job"):
            old.sink.check_owner(THEIRS, "out")


class TestTableWithoutAKey:
    """Sinks of any job may add rows to it. A rewind that would take back rows of another sink is refused."""

    @pytest.fixture
    def shared(self, table: Table) -> Table:
        table.add(1, 1)
        table.add(1, 7, job=THEIRS, writer=ELSE, claim=OTHER)
        table.add(2, 2)
        return table

    def test_is_shared_and_no_rewind_takes_rows_of_others_back(self, shared: Table) -> None:
        shared.added.sink.check_owner(THEIRS, "else")
        plan = shared.added.sink.plan_repair(back(0), SCHEMA, None)
        assert plan.verdict == "impossible" and f"by sink 'else' of job {THEIRS}" in plan.reason
        with pytest.raises(ConfigError, match="cannot undo its output"):
            shared.added.sink.repair(back(0), SCHEMA, None)
        shared.added.sink.repair(back(1), SCHEMA, None)
        assert shared.numbers() == [1, 7]

    def test_a_sink_of_the_same_name_of_another_job_is_refused(self, shared: Table) -> None:
        for job in (None, THEIRS):
            with pytest.raises(ConfigError, match="holds output of a sink 'out' of another job"):
                shared.added.sink.check_owner(job, "out")

    def test_only_one_of_two_first_deliveries_under_the_same_sink_name_succeeds(self, table: Table) -> None:
        """Both jobs were started before either delivered, and compare the table before either commits."""
        done: list[object] = []

        def meanwhile(point: FaultPoint) -> None:
            if point == "before_commit" and not done:
                done.append(table.add(1, 1))

        theirs = table.added.sink.opened(THEIRS, LEFT, OTHER, meanwhile)
        to = Rewinding(THEIRS, "out", tag(1, 2), (LEFT,), OTHER)
        acts: list[Callable[[], object]] = [
            lambda: theirs.deliver(tag(9), rows(9)),
            theirs.delivered,
            lambda: table.added.sink.repair(to, SCHEMA, None),
        ]
        for act in acts:
            with pytest.raises(Fenced, match="holds output of a sink 'out' of another job") as refused:
                act()
            assert refused.value.not_done == "nothing was written to the target" and refused.value.exit_status == 6
        assert done == [Delivered(1)] and table.numbers() == [1]
        assert table.add(2, 2) == Delivered(1) and table.numbers() == [1, 2]

    def test_after_an_older_version_admitted_two_jobs_the_last_one_continues(self, table: Table) -> None:
        for job, number in ((JOB, 1), (THEIRS, 7)):
            table.added.sink.open(job, LEFT).deliver(tag(1), rows(number))
        with pytest.raises(Fenced, match="holds output of a sink 'out' of another job"):
            table.add(2, 2)
        assert table.add(2, 8, job=THEIRS, claim=OTHER) == Delivered(1) and table.numbers() == [1, 7, 8]

    def test_a_sink_with_a_key_is_refused(self, shared: Table) -> None:
        for job, name, found in (("third", "out", (JOB, "out")), (JOB, "out", (THEIRS, "else"))):
            rival = shared.rival(job, name)
            assert rival is not None and (rival.job_uuid, rival.sink) == found
            with pytest.raises(Fenced, match=f"belongs to sink {found[1]!r}"):
                shared.deliver(9, 9, job=job, claim=FIRST)
        assert shared.numbers() == [1, 2, 7]

    def test_the_only_sink_that_adds_rows_may_get_a_key_and_lose_it(self, table: Table) -> None:
        table.add(1, 1)
        assert table.deliver(2, 2) == table.add(3, 3) == Delivered(1)
        assert table.numbers() == [1, 2, 3]
        table.add(1, 7, writer=ELSE)
        assert table.rival(JOB, "out") == Rival(JOB, "else", Held("first", Generation(1)))

    def test_a_third_sink_changes_no_note(self, shared: Table) -> None:
        def meanwhile() -> Iterator[pa.RecordBatch]:
            yield from rows(8)

        third = Writer("third", Subtask(0))
        assert shared.added.sink.open(JOB, third, FIRST).deliver(tag(3), meanwhile()) == Delivered(1)
        assert shared.rival(JOB, "third") == Rival(JOB, "out", Held("first", Generation(1)))
