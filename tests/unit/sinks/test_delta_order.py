"""Deliveries and rewinds of a Delta target against a table in memory: zombies, lost replies and commits of others.

The table knows what the Delta protocol knows: versions, transaction identifiers, and that a version is taken once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.owners import NEVER, Claim, Held, Rival
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, Fault, no_fault
from holdfast.sinks.delta.columns import DELTA
from holdfast.sinks.lakehouse.book import (
    Book,
    delivery_numbers,
    owner_numbers,
    rewind_numbers,
    tag_number,
)
from holdfast.sinks.lakehouse.columns import TableColumns
from holdfast.sinks.lakehouse.history import UNKNOWN, Entry, taken_back
from holdfast.sinks.lakehouse.rewind import Undo, plan, repair, undone
from holdfast.sinks.lakehouse.target import ATTEMPTS_MAX, TableCommit, TableTarget

JOB, WHERE = "6f9b0f6e-0000-4000-8000-000000000001", "Delta table /t"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("n", pa.int64())])
FIRST = Claim("first", Generation(1))
SECOND = Claim("second", Generation(2), {"first": Tag(Timeline(1), Epoch(2))})


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)]


@dataclass
class Kept:
    """One version of a table."""

    files: dict[str, list[int]]
    numbers: dict[str, int]
    entry: Entry


@dataclass
class Table:
    """A table of numbers that are only added."""

    versions: list[Kept] = field(default_factory=lambda: [Kept({}, {}, Entry(0, "CREATE TABLE", None))])
    vacuumed: set[str] = field(default_factory=set)
    lose_replies: int = 0
    before_commit: Callable[[], None] | None = None

    def latest(self) -> Loaded:
        return Loaded(self, len(self.versions) - 1)

    def shown(self) -> list[int]:
        return sorted(n for each in self.versions[-1].files.values() for n in each)

    def restore(self, version: int, named: bool = True) -> None:
        """Go back to a version, as another program does that knows no tags."""
        newest, own = self.versions[-1], len(self.versions)
        entry = Entry(own, "RESTORE", None, restored=version if named else UNKNOWN)
        self.versions.append(Kept(self.versions[version].files, newest.numbers, entry))

    def other(self, operation: str = "WRITE", *numbers: int) -> None:
        """Commit as another program."""
        newest, version = self.versions[-1], len(self.versions)
        files = {**newest.files, f"other-{version}": list(numbers)} if numbers else newest.files
        self.versions.append(Kept(files, newest.numbers, Entry(version, operation, None)))


@dataclass(frozen=True)
class Loaded:
    table: Table
    version: int

    @property
    def continues(self) -> bool:
        return False

    def number(self, name: str) -> int | None:
        return self.table.versions[self.version].numbers.get(name)

    def commit(self, change: TableCommit) -> bool:
        meanwhile, self.table.before_commit = self.table.before_commit, None
        if meanwhile is not None:
            meanwhile()
        if self.taken():
            return False
        newest, version = self.table.versions[-1], len(self.table.versions)
        files = dict(newest.files)
        if change.restore is not None:
            files = self.table.versions[change.restore].files
        elif change.rows is not None:
            files[f"part-{version}"] = change.rows.column("n").to_pylist()
        entry = Entry(version, "RESTORE" if change.restore is not None else "WRITE", change.info)
        self.table.versions.append(Kept(files, {**newest.numbers, **change.numbers}, entry))
        if self.table.lose_replies:
            self.table.lose_replies -= 1
            raise Unavailable("the connection broke", next_step="nothing")
        return True

    def taken(self) -> bool:
        return len(self.table.versions) != self.version + 1

    def history(self) -> Iterable[Entry]:
        return [each.entry for each in self.table.versions[self.version :: -1]]

    def at(self, version: int) -> Loaded | None:
        return Loaded(self.table, version)

    def files(self) -> Mapping[str, int]:
        return {name: len(numbers) for name, numbers in self.table.versions[self.version].files.items()}

    def missing(self, files: Iterable[str]) -> int:
        return len(self.table.vacuumed.intersection(files))

    def digests(self, files: Iterable[str], key: Sequence[str]) -> pl.DataFrame:
        raise AssertionError("a table without a key is counted by its files")


class Retrying(Loaded):
    """A wrong version: the library commits again on top of what was first, since appends do not conflict."""

    def taken(self) -> bool:
        return False


def target(
    table: Any, writer: Writer = LEFT, claim: Claim | None = None, fault: Fault = no_fault, job: str = JOB
) -> TableTarget:
    return TableTarget(WHERE, table, TableColumns(DELTA, WHERE, None, ()).table_of, None, job, writer, claim, fault)


@pytest.fixture
def table() -> Table:
    return Table()


class TestDelivery:
    def test_rows_tag_and_owner_are_one_commit(self, table: Table) -> None:
        assert target(table, claim=FIRST).deliver(tag(1), rows(1, 2)) == Delivered(2)
        book = Book(WHERE, table.latest().number)
        assert len(table.versions) == 2 and table.shown() == [1, 2]
        assert (book.tag_of(JOB, LEFT), book.newest(JOB, "out")) == (tag(1), tag(1))
        assert book.held(JOB, "out") == Held("first", Generation(1))

    def test_a_commit_of_another_program_in_between_is_followed_by_another_attempt(self, table: Table) -> None:
        table.before_commit = lambda: table.other("WRITE", 100)
        assert target(table).deliver(tag(1), rows(1)) == Delivered(1)
        assert table.shown() == [1, 100] and len(table.versions) == 3

    def test_a_delivery_by_a_zombie_in_between_is_not_repeated(self, table: Table) -> None:
        table.before_commit = lambda: _deliver(table, 1, 1)
        assert target(table).deliver(tag(1), rows(1)) == AlreadyDelivered(tag(1))
        assert table.shown() == [1]

    def test_a_takeover_in_between_fences_the_older_driver(self, table: Table) -> None:
        target(table, claim=FIRST).deliver(tag(1), rows(1))
        table.before_commit = lambda: _deliver(table, 2, 2, RIGHT, SECOND)
        with pytest.raises(Fenced, match="not in the log of this job"):
            target(table, claim=FIRST).deliver(tag(2), rows(3))
        assert table.shown() == [1, 2]

    def test_a_library_that_retries_would_let_the_zombie_through(self, table: Table) -> None:
        """The wrong version that all of this is about: two blind appends do not conflict."""

        class Careless(Table):
            def latest(self) -> Loaded:
                return Retrying(self, len(self.versions) - 1)

        careless = Careless()
        careless.before_commit = lambda: _deliver(careless, 1, 1)
        target(careless).deliver(tag(1), rows(1))
        assert careless.shown() == [1, 1]

    def test_a_lost_reply_is_settled_by_the_book(self, table: Table) -> None:
        table.lose_replies = 1
        with pytest.raises(Unavailable):
            target(table).deliver(tag(1), rows(1))
        assert target(table).deliver(tag(1), rows(1)) == AlreadyDelivered(tag(1))
        assert table.shown() == [1]

    def test_a_table_that_others_write_all_the_time_is_reported(self, table: Table) -> None:
        def again() -> None:
            table.other("WRITE", 100)
            table.before_commit = again

        table.before_commit = again
        with pytest.raises(Unavailable, match=f"other commits were first {ATTEMPTS_MAX} times"):
            target(table).deliver(tag(1), rows(1))
        assert table.shown() == [100] * ATTEMPTS_MAX

    def test_an_epoch_without_rows_moves_the_tag(self, table: Table) -> None:
        assert target(table).deliver(tag(1), []) == Delivered(0)
        assert target(table).delivered() == tag(1) and table.shown() == []

    def test_a_table_without_the_tag_that_was_delivered_is_damaged(self, table: Table) -> None:
        target(table).deliver(tag(1), rows(1))
        del table.versions[1:]
        with pytest.raises(Damaged, match="has no tag"):
            target(table).deliver(tag(2), rows(2), tag(1))

    def test_a_table_that_is_restored_while_the_rows_are_read_is_damaged(self, table: Table) -> None:
        target(table).deliver(tag(1), rows(1))

        def read() -> Iterable[pa.RecordBatch]:
            del table.versions[1:]
            yield from rows(2)

        with pytest.raises(Damaged, match="has no tag"):
            target(table).deliver(tag(2), read(), tag(1))
        assert table.shown() == []

    def test_a_target_that_another_process_wrote_to_is_read_again(self, table: Table) -> None:
        target(table).deliver(tag(1), rows(1))
        with pytest.raises(Unavailable, match="another process delivered"):
            target(table).deliver(tag(2), rows(2), NEVER)

    def test_a_delivery_of_another_job_under_the_same_name_is_detected_at_a_start(self, table: Table) -> None:
        target(table, job="another").deliver(tag(1), rows(1))
        book = Book(WHERE, table.latest().number)
        assert book.another_job(JOB, "out") and book.another_job(None, "out")
        assert not book.another_job("another", "out") and not book.another_job(JOB, "else")


def _deliver(table: Table, epoch: int, number: int, writer: Writer = LEFT, claim: Claim | None = None) -> None:
    target(table, writer, claim).deliver(tag(epoch), rows(number))


def back(epoch: int, timeline: int = 2, writers: tuple[Writer, ...] = (LEFT, RIGHT)) -> Rewinding:
    return Rewinding(JOB, "out", tag(epoch, timeline), writers)


OTHERS = st.one_of(
    st.just("deliver"),
    st.sampled_from(["WRITE", "OPTIMIZE", "VACUUM END"]),
    st.integers(0, 20),
)
"""A delivery, a commit of another program that keeps all rows, or how many versions back it restores the table."""


class TestTakenBack:
    @given(st.lists(OTHERS, min_size=2, max_size=20))
    def test_a_delivery_is_refused_if_and_only_if_delivered_rows_are_missing(self, steps: list[str | int]) -> None:
        table, delivered = Table(), list[int]()
        for step in [*steps, "deliver"]:
            if isinstance(step, int):
                table.restore(max(0, len(table.versions) - 1 - step))
            elif step != "deliver":
                table.other(step)
            elif set(delivered) <= set(table.shown()):
                delivered.append(len(delivered) + 1)
                _deliver(table, len(delivered), len(delivered))
            else:
                shown = table.shown()
                with pytest.raises(Damaged, match=f"epoch {len(delivered)} was delivered .*: RESTORE in"):
                    _deliver(table, len(delivered) + 1, len(delivered) + 1)
                assert table.shown() == shown

    def test_a_restore_to_a_time_may_be_to_any_version(self, table: Table) -> None:
        _deliver(table, 1, 1)
        table.restore(1, named=False)
        with pytest.raises(Damaged, match="RESTORE in version 2"):
            _deliver(table, 2, 2)
        table.restore(1)
        _deliver(table, 2, 2)
        assert table.shown() == [1, 2]

    def test_a_rewind_that_was_told_to_leave_the_rows_continues(self, table: Table) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
        table.restore(1)
        assert target(table).deliver(tag(2, 2), rows(2)) == Delivered(1)
        assert target(table).deliver(tag(3, 2), rows(3)) == Delivered(1)
        assert table.shown() == [1, 2, 3]

    def test_a_restore_that_another_sink_followed_is_noticed(self, table: Table) -> None:
        _deliver(table, 1, 1)
        table.restore(0)
        target(table, Writer("more", Subtask(0))).deliver(tag(1), rows(7))
        with pytest.raises(Damaged, match="RESTORE in version 2"):
            _deliver(table, 2, 2)

    def test_a_commit_that_the_history_no_longer_has_is_no_reason(self) -> None:
        foreign = [Entry(9, "WRITE", None), Entry(8, "OPTIMIZE", None)]
        assert taken_back(foreign, JOB, "out", tag(1)) is None
        assert taken_back([*foreign, Entry(7, "RESTORE", None, restored=3)], JOB, "out", tag(1)) is None

    def test_a_lineage_without_the_newest_commit_is_an_older_snapshot(self) -> None:
        own = {"job": JOB, "sink": "out", "timeline": 1, "epoch": 1}
        for left in ([Entry(2, "append", own, after=1)], [Entry(2, "append", None, after=0)], []):
            assert taken_back(left, JOB, "out", tag(2)) == "an older snapshot was made the current one"


class TestRewind:
    def test_restores_the_version_before_the_first_epoch_that_is_undone(self, table: Table) -> None:
        for epoch in (1, 2, 3):
            _deliver(table, epoch, epoch)
        found = repair(WHERE, table, back(1), None)
        assert (found.verdict, found.restore, found.delete, found.changed_by_others) == ("truncate", 0, 2, 0)
        assert table.shown() == [1] and target(table, RIGHT).delivered() == tag(1, 2)

    def test_keeps_what_another_program_wrote_before_the_first_epoch_that_is_undone(self, table: Table) -> None:
        _deliver(table, 1, 1)
        table.other("WRITE", 100)
        _deliver(table, 2, 2)
        repair(WHERE, table, back(1), None)
        assert table.shown() == [1, 100]

    @pytest.mark.parametrize("operation", ["OPTIMIZE", "VACUUM START", "VACUUM END"])
    def test_is_not_hindered_by_maintenance(self, table: Table, operation: str) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
            table.other(operation)
        repair(WHERE, table, back(1), None)
        assert table.shown() == [1]

    def test_is_impossible_if_another_program_wrote_since(self, table: Table) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
        table.other("DELETE")
        found = plan(WHERE, table.latest(), back(1), None).repair
        assert (found.verdict, found.changed_by_others) == ("impossible", None)
        assert "DELETE in version 3" in found.reason
        with pytest.raises(ConfigError, match="the rewind cannot undo its output"):
            repair(WHERE, table, back(1), None)
        assert table.shown() == [1, 2] and target(table).delivered() == tag(2)

    def test_is_impossible_if_another_sink_wrote_since(self, table: Table) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
        target(table, Writer("more", Subtask(0))).deliver(tag(1), rows(7))
        assert "by sink 'more'" in plan(WHERE, table.latest(), back(1), None).repair.reason

    def test_is_impossible_if_files_were_vacuumed(self, table: Table) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
        table.versions.append(Kept({"compact": [1, 2]}, table.versions[-1].numbers, Entry(3, "OPTIMIZE", None)))
        table.vacuumed = {"part-1"}
        found = plan(WHERE, table.latest(), back(1), None).repair
        assert found.verdict == "impossible" and "1 files of version 1 are missing" in found.reason

    def test_is_impossible_if_an_older_epoch_came_after_one_that_is_undone(self, table: Table) -> None:
        for epoch, writer in ((1, LEFT), (5, LEFT), (3, RIGHT), (6, LEFT)):
            _deliver(table, epoch, epoch, writer)
        found = plan(WHERE, table.latest(), back(4), None).repair
        assert found.verdict == "impossible" and "an older epoch was delivered after a newer one" in found.reason

    def test_fences_writers_that_it_does_not_name(self, table: Table) -> None:
        for epoch, writer in ((1, LEFT), (2, RIGHT)):
            _deliver(table, epoch, epoch, writer)
        repair(WHERE, table, back(1, writers=()), None)
        with pytest.raises(Fenced, match="timeline 2"):
            _deliver(table, 9, 9, RIGHT)
        assert table.shown() == [1]

    def test_a_rewind_overtaken_by_another_commit_is_planned_again(self, table: Table) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
        table.before_commit = lambda: _deliver(table, 3, 3)
        assert repair(WHERE, table, back(1), None).delete == 2
        assert table.shown() == [1]

    def test_repeated_changes_nothing(self, table: Table) -> None:
        for epoch in (1, 2):
            _deliver(table, epoch, epoch)
        repair(WHERE, table, back(1), None)
        count = len(table.versions)
        assert repair(WHERE, table, back(1), None).delete == 0 and len(table.versions) == count

    def test_across_an_earlier_rewind_undoes_both_timelines(self, table: Table) -> None:
        for epoch in (1, 2, 3):
            _deliver(table, epoch, epoch)
        repair(WHERE, table, back(2), None)
        target(table).deliver(tag(7, 2), rows(7))
        repair(WHERE, table, back(1, 3), None)
        assert table.shown() == [1]


class TestHistory:
    def test_with_a_version_that_is_not_its_own_is_not_trusted(self) -> None:
        """The library numbers commits without commitInfo wrongly."""
        info = {"job": JOB, "sink": "out", "timeline": 1, "epoch": 2, "version": 2}
        assert undone([Entry(3, "WRITE", None), Entry(2, "WRITE", info)], 3, back(1)) == Undo(
            2, ("WRITE in version 3",), 1
        )
        assert undone([Entry(3, "WRITE", info)], 3, back(1)) is None
        assert undone([Entry(2, "WRITE", info)], 3, back(1)) is None

    def test_a_history_that_ends_early_refuses_the_rewind(self, table: Table) -> None:
        for epoch in (1, 2, 3):
            _deliver(table, epoch, epoch)

        class Short(Loaded):
            def history(self) -> Iterable[Entry]:
                return list(super().history())[:1]

        found = plan(WHERE, Short(table, 3), back(1), None).repair
        assert found.verdict == "impossible" and "beyond the retention of the table's history" in found.reason


GOLDEN = {
    "holdfast/1/tag/job/h%C3%B6t%2Fout/3": 2199023255559,
    "holdfast/1/newest/job/h%C3%B6t%2Fout": 2199023255559,
    "holdfast/1/job/h%C3%B6t%2Fout": 234300123558482,
    "holdfast/1/owner/job/h%C3%B6t%2Fout": 5,
    "holdfast/1/generation/job/h%C3%B6t%2Fout": 1,
    "holdfast/1/owner/job/h%C3%B6t%2Fout/0": 112603077768192,
}


class TestBook:
    def test_numbers_and_names_are_as_they_were(self) -> None:
        """Tables keep them for years. A change needs another prefix."""
        writer = Writer("höt/out", Subtask(3))
        book = Book(WHERE, lambda name: None)
        found = {**delivery_numbers(book, "job", writer, tag(7, 2)), **owner_numbers("job", writer.sink, FIRST)}
        assert found == GOLDEN
        assert rewind_numbers("job", "out", tag(1, 2), (LEFT,)) == {
            "holdfast/1/tag/job/out/0": (2 << 40) + 1,
            "holdfast/1/newest/job/out": (2 << 40) + 1,
            "holdfast/1/job/out": 234300123558482,
        }

    def test_the_note_of_a_table_is_as_it_was(self) -> None:
        keyed = Book(WHERE, lambda name: None).claim_numbers("job", "out", True, FIRST)
        assert {name: number for name, number in keyed.items() if name.startswith("holdfast/1/table")} == {
            "holdfast/1/table": 246590577162187,
            "holdfast/1/table/sinks": 15,
            "holdfast/1/table/sinks/0": 100446977552226,
            "holdfast/1/table/sinks/1": 37572951635316,
            "holdfast/1/table/sinks/2": 37784387584000,
        }
        assert Book(WHERE, keyed.get).rival("other", "out", True) == Rival("job", "out", Held("first", Generation(1)))
        added = Book(WHERE, lambda name: None).claim_numbers("job", "out", False, FIRST)
        assert added["holdfast/1/table"] == 0 and keyed.keys() == added.keys()

    @pytest.mark.parametrize("owner", ["", "a", "1234567", "12345678", "0" * 32, "ö\0ü"])
    def test_an_owner_is_read_as_it_was_written(self, owner: str) -> None:
        numbers = owner_numbers(JOB, "out", Claim(owner, Generation(3)))
        assert Book(WHERE, numbers.get).held(JOB, "out") == Held(owner, Generation(3))

    def test_numbers_of_tags_grow_as_tags_do(self) -> None:
        tags = [tag(epoch, timeline) for timeline in (1, 2, 900) for epoch in (0, 1, 1 << 39)]
        assert sorted(tags) == tags == sorted(tags, key=tag_number)

    def test_a_number_that_no_sink_wrote_is_damage(self) -> None:
        with pytest.raises(Damaged, match="with the number -1, which Holdfast never wrote"):
            Book(WHERE, lambda name: -1).newest(JOB, "out")
        with pytest.raises(Damaged, match="owner"):
            Book(WHERE, {**owner_numbers(JOB, "out", FIRST), f"holdfast/1/owner/{JOB}/out/0": 1 << 60}.get).held(
                JOB, "out"
            )
