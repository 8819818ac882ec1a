"""A sink that is pointed at another table: before-images of one table are never applied to the other one.

Source: PROTOCOL P21; docs/decisions/0106-sinks-that-move.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sql_places import SqlPlace, delivery_of, place_of

from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.audited import AuditQuery
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.contract.target import OP, PUT

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
LEFT, RIGHT = Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KINDS = ["sqlite", "sqlite idempotent", "other", "other idempotent", "postgres", "postgres idempotent"]
Rows = list[tuple[int, str]]


class Tables:
    """Tables of one place, to which one sink is pointed in turn."""

    def __init__(self, place: SqlPlace, key: tuple[str, ...] | None, delivery: str) -> None:
        self.place, self.key, self._delivery = place, key, delivery
        self.claim = Claim("driver", Generation(1))
        for table in ("first", "second"):
            self.sink(table).prepare(SCHEMA, key)

    def sink(self, table: str) -> Any:
        return self.place.sink(table, self.key, self._delivery)

    def named(self, table: str) -> str:
        """Return a table as tables of Holdfast name it."""
        folded: str = self.sink(table).dialect.folded(table)
        return folded

    def deliver(self, table: str, epoch: int, *rows: tuple[int, str], writer: Writer = LEFT, timeline: int = 1) -> None:
        schema = SCHEMA if self.key is None else SCHEMA.append(pa.field(OP, pa.int8()))
        given = [{"user": user, "name": name, OP: PUT} for user, name in rows]
        with closing(self.sink(table).open(JOB, writer, self.claim)) as target:
            target.deliver(Tag(Timeline(timeline), Epoch(epoch)), [pa.RecordBatch.from_pylist(given, schema=schema)])

    def rewinding(self, epoch: int, timeline: int = 2) -> Rewinding:
        return Rewinding(JOB, "out", Tag(Timeline(timeline), Epoch(epoch)), (LEFT, RIGHT), self.claim)

    def plan(self, table: str, epoch: int, timeline: int = 2) -> Repair:
        planned: Repair = self.sink(table).plan_repair(self.rewinding(epoch, timeline), SCHEMA, self.key)
        return planned

    def repair(self, table: str, epoch: int, timeline: int = 2) -> Repair:
        repaired: Repair = self.sink(table).repair(self.rewinding(epoch, timeline), SCHEMA, self.key)
        return repaired

    def rows(self, table: str) -> Rows:
        return sorted(self.place.ask(f'SELECT t."user", t.name FROM {table} t'))

    def as_an_earlier_version(self) -> None:
        """Leave before-images as a version did that noted no tables."""
        self.place.ask('ALTER TABLE holdfast_undo DROP COLUMN "table"')


@pytest.fixture(params=[*((kind, True) for kind in KINDS), ("sqlite", False), ("other", False), ("postgres", False)])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    kind, keyed = request.param
    return Tables(place_of(kind, tmp_path, request), ("user",) if keyed else None, delivery_of(kind))


def everything(tables: Tables) -> Sequence[object]:
    tags = "SELECT writer, timeline, epoch FROM holdfast_progress ORDER BY writer"
    images = 'SELECT epoch, n, "key", "before", "table" FROM holdfast_undo ORDER BY epoch, n'
    return tables.rows("first"), tables.rows("second"), tables.place.ask(tags), tables.place.ask(images)


class TestMovedSink:
    def test_a_rewind_across_the_switch_is_impossible_and_changes_nothing(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.deliver("first", 2, (2, "bea"))
        tables.deliver("second", 3, (3, "cat"))
        before = everything(tables)
        planned = tables.plan("second", 1)
        assert (planned.verdict, planned.takes_more) == ("impossible", True)
        where = f"this sink wrote to the table {tables.named('first')!r} up to epoch 2"
        assert where in planned.reason
        with pytest.raises(ConfigError, match=where):
            tables.repair("second", 1)
        assert everything(tables) == before

    def test_a_rewind_by_the_former_version_is_impossible_too(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.deliver("second", 2, (2, "bea"))
        assert f"wrote to the table {tables.named('second')!r} up to epoch 2" in tables.plan("first", 0).reason

    def test_each_version_undoes_what_it_wrote(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.deliver("first", 2, (2, "bea"))
        tables.deliver("second", 3, (1, "cat"))
        tables.repair("second", 2)
        assert (tables.rows("first"), tables.rows("second")) == ([(1, "ann"), (2, "bea")], [])
        tables.repair("first", 1, timeline=3)
        assert (tables.rows("first"), tables.rows("second")) == ([(1, "ann")], [])

    def test_a_late_epoch_of_the_former_table_stays_as_it_is(self, tables: Tables) -> None:
        """Two writers of one key: the image that stays belongs to the other table, and says what was there."""
        tables.deliver("second", 6, (1, "new"))
        tables.deliver("first", 5, (1, "late"), writer=RIGHT)
        before = everything(tables)
        tables.repair("second", 5)
        assert (tables.rows("first"), tables.rows("second")) == ([(1, "late")], [])
        assert everything(tables)[3] == [image for image in before[3] if image[0] == 5]  # type: ignore[attr-defined]

    def test_an_audit_reads_no_delivery_to_the_other_table(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.deliver("second", 2, (2, "bea"))
        query = AuditQuery(JOB, "out", SCHEMA, tables.key, Epoch(0))
        found = tables.sink("second").contents(query)
        assert {tag.epoch for _, tag in found.rows} == {2} and found.lost == {0: Tag(Timeline(1), Epoch(1))}


class TestEarlierVersion:
    def test_its_images_belong_to_the_only_table_that_the_sink_claims(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.deliver("first", 2, (2, "bea"))
        tables.as_an_earlier_version()
        assert tables.plan("first", 1).verdict != "impossible"
        tables.repair("first", 1)
        assert tables.rows("first") == [(1, "ann")]

    def test_its_images_are_not_undone_where_they_may_be_those_of_another_table(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.deliver("second", 2, (2, "bea"))
        tables.as_an_earlier_version()
        reason = tables.plan("second", 0).reason
        assert f"wrote to the table {tables.named('first')!r} too" in reason and "did not note to which" in reason
        assert tables.plan("second", 2).verdict != "impossible"

    def test_a_delivery_notes_its_table_though_no_start_prepared_it(self, tables: Tables) -> None:
        tables.deliver("first", 1, (1, "ann"))
        tables.as_an_earlier_version()
        tables.deliver("first", 2, (2, "bea"))
        images = 'SELECT epoch, "table" FROM holdfast_undo ORDER BY epoch'
        assert tables.place.ask(images) == [(1, None), (2, tables.named("first"))]
