"""What tables of a lakehouse have in common: other programs, zombies, tags that are missed, columns of every type.

The contracts of all targets run in tests/contract; test_delta_order.py plays races in memory. What only one format has
is in test_delta_sink.py and test_iceberg_sink.py.

Source: PROTOCOL P1, P17, P21; docs/decisions/0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_tables import FolderTable
from iceberg_tables import FolderCatalog
from lake_rows import (
    ANN,
    BEA,
    CAT,
    EVERY_TYPE,
    FIRST,
    JOB,
    KEY,
    LEFT,
    OTHER,
    RIGHT,
    SCHEMA,
    back,
    batch,
    changes,
    deliver,
    meanwhile,
    planned,
    rows_of_every_type,
    tag,
)

from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.model import Generation, Subtask, Writer
from holdfast.sinks.contract.owners import Held
from holdfast.sinks.contract.target import DELETE, OP, PUT, AlreadyDelivered, Delivered

Table = Any
"""A FolderTable or a FolderCatalog."""
MADE: dict[str, Any] = {"delta": FolderTable, "iceberg": FolderCatalog}
ACTS = [(kind, act) for kind, made in MADE.items() for act in made.rival_acts]


@pytest.fixture(params=sorted(MADE))
def made(request: pytest.FixtureRequest) -> Any:
    return MADE[request.param]


@pytest.fixture
def added(made: Any, tmp_path: Path) -> Table:
    table = made(tmp_path)
    table.sink.prepare(SCHEMA, None)
    return table


@pytest.fixture
def keyed(made: Any, tmp_path: Path) -> Table:
    table = made(tmp_path, KEY)
    table.sink.prepare(SCHEMA, KEY)
    return table


class TestLostFiles:
    def test_missing_files_that_a_merge_must_read_are_named_and_awaited(self, keyed: Table) -> None:
        deliver(keyed, 1, ANN, BEA)
        (path,) = keyed.data_files()
        away = path.rename(path.with_suffix(".away"))
        with pytest.raises(Unavailable, match=f"a data file that the table lists is missing: .*{path.name}") as caught:
            deliver(keyed, 2, (1, "anna"))
        assert "restore the file from a backup: delivery retries" in caught.value.next_step
        away.rename(path)
        deliver(keyed, 2, (1, "anna"))
        assert sorted(keyed.rows()) == [(1, "anna"), BEA]


class TestCommit:
    def test_a_commit_of_another_program_is_not_lost_and_loses_nothing(self, added: Table) -> None:
        other = meanwhile(lambda: added.append(OTHER))
        assert added.sink.opened(JOB, LEFT, fault=other).deliver(tag(1), [batch(ANN)]) == Delivered(1)
        assert sorted(added.rows()) == [ANN, (9, "x")] and added.versions() == 2

    def test_a_zombies_commit_between_comparison_and_commit_is_not_repeated(self, added: Table) -> None:
        zombie = meanwhile(lambda: deliver(added, 1, ANN))
        late = added.sink.opened(JOB, LEFT, fault=zombie)
        assert late.deliver(tag(1), [batch(ANN)]) == AlreadyDelivered(tag(1)) and added.rows() == [ANN]

    def test_without_rows_is_repeated_after_another_commit(self, added: Table) -> None:
        other = meanwhile(lambda: added.append(OTHER))
        assert added.sink.opened(JOB, LEFT, fault=other).deliver(tag(1), []) == Delivered(0)
        zombie = meanwhile(lambda: deliver(added, 2, ANN))
        assert added.sink.opened(JOB, LEFT, fault=zombie).deliver(tag(2), []) == AlreadyDelivered(tag(2))
        assert sorted(added.rows()) == [ANN, (9, "x")]

    def test_the_librarys_own_commit_would_let_the_zombie_through(self, added: Table) -> None:
        """For it two appends do not conflict: it commits the late one on top of the other."""
        late = added.load()
        deliver(added, 1, ANN)
        added.append(pa.Table.from_batches([batch(ANN)]), late)
        assert added.rows() == [ANN, ANN]

    def test_by_merge_is_repeated_after_another_commit(self, keyed: Table) -> None:
        deliver(keyed, 1, ANN)
        merging = keyed.sink.opened(JOB, LEFT, fault=meanwhile(lambda: keyed.append(OTHER)))
        assert merging.deliver(tag(2), [changes((1, "anna"), BEA)]) == Delivered(2)
        assert sorted(keyed.rows()) == [(1, "anna"), BEA, (9, "x")]

    def test_a_commit_of_a_merge_without_changes_advances_the_tag(self, keyed: Table) -> None:
        deliver(keyed, 1, ANN)
        deliver(keyed, 2, (7, None))
        target = keyed.sink.open(JOB, LEFT)
        assert target.delivered() == tag(2) and keyed.rows() == [ANN]
        assert target.deliver(tag(2), [changes(CAT)]) == AlreadyDelivered(tag(2))

    def test_is_one_and_says_what_it_is(self, keyed: Table) -> None:
        deliver(keyed, 1, ANN, BEA)
        deliver(keyed, 7, (1, "anna"), (2, None), CAT)
        said = keyed.said()[-1]
        assert len(keyed.said()) == keyed.versions() == said["version"] == 2
        assert {"job": JOB, "sink": "out", "timeline": 1, "epoch": 7}.items() <= said.items() and said["commit"]


class TestTags:
    def test_survive_maintenance_that_forgets_the_history(self, added: Table) -> None:
        added.sink.open(JOB, RIGHT, FIRST).deliver(tag(3), [batch(ANN)])
        deliver(added, 4, BEA)
        added.maintain()
        added.forget_history()
        assert [added.sink.open(JOB, writer).delivered() for writer in (LEFT, RIGHT)] == [tag(4), tag(3)]
        holding = added.sink.holding(JOB, "out")
        assert (holding.held, holding.newest) == (Held(FIRST.owner, Generation(1)), tag(4))
        assert sorted(added.rows()) == [ANN, BEA]

    def test_survive_an_older_version_made_current_which_the_next_delivery_notices(self, added: Table) -> None:
        """A process that was there and one that starts later; to go back to the newest rows is the way out."""
        target, versions = added.sink.open(JOB, LEFT), []
        for epoch, row in ((1, ANN), (2, BEA)):
            target.deliver(tag(epoch), [batch(row)], None)
            versions.append(added.version())
        added.go_back(versions[0])
        for each in (target, added.sink.open(JOB, LEFT)):
            assert each.delivered() == tag(2) and added.rows() == [ANN]
            with pytest.raises(Damaged, match=r"timeline 1, epoch 2 was delivered .*: (RESTORE in|an older snapshot)"):
                each.deliver(tag(3), [batch(CAT)], tag(2))
        added.go_back(versions[1])
        assert target.deliver(tag(3), [batch(CAT)], tag(2)) == Delivered(1)
        assert sorted(added.rows()) == [ANN, BEA, CAT]

    @pytest.mark.parametrize(("kind", "act"), ACTS)
    def test_are_continued_after_what_other_programs_may_do(self, tmp_path: Path, kind: str, act: str) -> None:
        added: Table = MADE[kind](tmp_path)
        added.sink.prepare(SCHEMA, None)
        deliver(added, 1, ANN)
        added.act(act, pa.Table.from_batches([batch(BEA)]))
        deliver(added, 2, CAT)
        assert CAT in added.rows()

    @pytest.mark.parametrize("again", [False, True], ids=["dropped", "created again"])
    def test_tags_missing_from_a_replaced_table_are_damage(self, added: Table, again: bool) -> None:
        target = added.sink.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        added.drop()
        if again:
            added.sink.prepare(SCHEMA, None)
        with pytest.raises(Damaged, match="has no tag" if again else "there is no table any more"):
            target.deliver(tag(2), [batch(BEA)], tag(1))
        assert added.sink.probe(SCHEMA, None).startswith("the table, " if again else "there is no table")

    def test_tags_of_another_job_are_detected_at_a_start(self, added: Table) -> None:
        deliver(added, 1, ANN)
        added.sink.check_owner(JOB, "out")
        added.sink.check_owner("another", "else")
        for job in ("another", None):
            with pytest.raises(ConfigError, match="holds output of a sink 'out' of another job"):
                added.sink.check_owner(job, "out")

    def test_tags_that_no_sink_wrote_are_damage(self, added: Table) -> None:
        added.note(f"holdfast/1/newest/{JOB}/out")
        with pytest.raises(Damaged, match="which Holdfast never wrote"):
            added.sink.holding(JOB, "out")


class TestColumns:
    @pytest.mark.parametrize("key", [None, KEY])
    def test_columns_of_every_type_keep_their_values(
        self, tmp_path: Path, made: Any, key: tuple[str, ...] | None
    ) -> None:
        table, rows = made(tmp_path, key), rows_of_every_type(1, 2)
        table.sink.prepare(rows.schema, key)
        table.sink.prepare(rows.schema, key)
        for epoch in (1, 2):
            given = rows if key is None else rows.append_column(OP, pa.array([PUT, PUT], pa.int8()))
            table.sink.accept(given)
            table.sink.open(JOB, LEFT).deliver(tag(epoch), [given])
        expected = rows.to_pylist() * (2 if key is None else 1)
        by_user = lambda row: row["user"]
        assert sorted(table.records(), key=by_user) == sorted(expected, key=by_user)
        counted = table.sink.plan_repair(back(1), rows.schema, key)
        assert (counted.restore, counted.delete) == ((0, 2) if key is None else (0, 0))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("text", "it's; `--"),
            ("flag", True),
            ("day", date(2026, 1, 2)),
            ("at", datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
            ("local", datetime(2026, 1, 2, 3)),
            ("price", Decimal("1.500000000")),
            ("select", "reserved"),
            ("Upper.Case", "dot"),
        ],
    )
    def test_columns_of_every_type_can_be_keys(self, tmp_path: Path, made: Any, name: str, value: Any) -> None:
        kind = EVERY_TYPE[name][0] if name in EVERY_TYPE else pa.string()
        schema = pa.schema([pa.field(name, kind), pa.field("n", pa.int64())])
        table = made(tmp_path, (name,))
        table.sink.prepare(schema, (name,))
        for epoch, op in ((1, PUT), (2, PUT), (3, DELETE)):
            rows = pa.RecordBatch.from_pylist([{name: value, "n": epoch}], schema=schema)
            table.sink.open(JOB, LEFT).deliver(tag(epoch), [rows.append_column(OP, pa.array([op], pa.int8()))])
            assert [n for _, n in table.rows()] == ([epoch] if op == PUT else [])

    @pytest.mark.parametrize(
        "kind",
        [pa.uint64(), pa.timestamp("ns"), pa.time64("ns"), pa.duration("s"), pa.float16(), pa.null()],
        ids=str,
    )
    def test_columns_unsupported_by_the_table_format_are_refused_at_planning(
        self, tmp_path: Path, made: Any, kind: pa.DataType
    ) -> None:
        with pytest.raises(ConfigError, match=f"the column 'x' is .*, which {made.kind} cannot hold"):
            made(tmp_path).sink.check(pa.schema([pa.field("x", kind)]), None)


class TestRewind:
    def test_to_before_the_first_commit_empties_the_table(self, added: Table) -> None:
        deliver(added, 1, ANN)
        assert added.sink.repair(back(0), SCHEMA, None).delete == 1
        assert added.rows() == [] and added.sink.open(JOB, LEFT).delivered() == tag(0, 2)
        deliver(added, 2, BEA, timeline=2)
        assert added.rows() == [BEA]

    def test_after_an_earlier_one_undoes_both_timelines(self, added: Table) -> None:
        for epoch in (1, 2, 3):
            deliver(added, epoch, (epoch, "x"))
        added.sink.repair(back(2), SCHEMA, None)
        deliver(added, 7, (7, "x"), timeline=2)
        added.sink.repair(back(1, 3), SCHEMA, None)
        assert added.rows() == [(1, "x")]

    def test_is_impossible_after_another_program_wrote(self, added: Table) -> None:
        deliver(added, 1, ANN)
        deliver(added, 2, BEA)
        added.load().delete("user = 2")
        found = planned(added, 1)
        assert found.verdict == "impossible" and "delete in version 3" in found.reason.lower()

    def test_is_impossible_once_the_history_is_forgotten(self, added: Table) -> None:
        for epoch in (1, 2, 3):
            deliver(added, epoch, (epoch, "x"))
        assert planned(added, 1).verdict == "truncate"
        added.maintain()
        added.forget_history()
        assert planned(added, 1).verdict == "impossible"

    def test_a_rewind_overtaken_by_another_commit_is_planned_again(self, added: Table) -> None:
        deliver(added, 1, ANN)
        deliver(added, 2, BEA)
        late = meanwhile(lambda: deliver(added, 3, CAT))
        assert added.sink.repaired(back(1), late).delete == 2 and added.rows() == [ANN]

    def test_over_epochs_without_rows_moves_the_tags(self, added: Table) -> None:
        deliver(added, 1, ANN)
        deliver(added, 2)
        deliver(added, 3)
        assert added.sink.repair(back(1), SCHEMA, None).delete == 0
        assert added.rows() == [ANN] and added.sink.open(JOB, RIGHT).delivered() == tag(1, 2)

    def test_fences_in_the_commit_that_restores(self, added: Table) -> None:
        deliver(added, 1, ANN)
        zombie = added.sink.opened(JOB, LEFT, fault=meanwhile(lambda: added.sink.repair(back(1), SCHEMA, None)))
        with pytest.raises(Fenced, match="timeline 2"):
            zombie.deliver(tag(2), [batch(BEA)])
        assert added.rows() == [ANN] and added.sink.open(JOB, RIGHT).delivered() == tag(1, 2)

    def test_fences_a_writer_that_it_does_not_know(self, added: Table) -> None:
        """Such as one of a run with more workers: it has no tag that the rewind could move."""
        deliver(added, 1, ANN)
        deliver(added, 2, BEA)
        added.sink.repair(back(1), SCHEMA, None)
        with pytest.raises(Fenced, match="timeline 2"):
            added.sink.open(JOB, Writer("out", Subtask(7))).deliver(tag(3), [batch(CAT)])
        assert added.rows() == [ANN]
