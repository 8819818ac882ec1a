"""What only Iceberg tables have: their catalogue, other writers, snapshots, types, and files that a merge rewrites.

The contracts of all targets run in tests/contract; test_delta_order.py plays races of both formats in memory.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from iceberg_tables import NAME, FolderCatalog
from postgres_server import GUARDED, PASSWORD, PostgresServer
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.types import LongType
from sqlalchemy.exc import OperationalError

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, NotAdmitted, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract import DELETE, OP, PUT, AlreadyDelivered, Delivered, FaultPoint, Repair, Rewinding
from holdfast.sinks.iceberg.client import IcebergConnection
from holdfast.sinks.iceberg.errors import meaning_of
from holdfast.sinks.owners import Claim, Held

JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)
ANN, BEA, CAT = (1, "ann"), (2, "bea"), (3, "cat")
FIRST = Claim("0123456789abcdef0123456789abcdef", Generation(1))
OTHER = pa.table({"user": [9], "name": ["x"]}, SCHEMA)


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def batch(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Rows of an append stream."""
    columns = [pa.array([user for user, _ in rows], pa.int64()), pa.array([name for _, name in rows], pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def changes(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    """Rows of an upsert stream; a name of None deletes."""
    ops = pa.array([DELETE if name is None else PUT for _, name in rows], pa.int8())
    return batch(*rows).append_column(OP, ops)


@pytest.fixture
def added(tmp_path: Path) -> FolderCatalog:
    table = FolderCatalog(tmp_path)
    table.sink.prepare(SCHEMA, None)
    return table


@pytest.fixture
def keyed(tmp_path: Path) -> FolderCatalog:
    table = FolderCatalog(tmp_path, KEY)
    table.sink.prepare(SCHEMA, KEY)
    return table


def deliver(table: FolderCatalog, epoch: int, *rows: tuple[int, str | None], timeline: int = 1) -> None:
    one = changes(*rows) if table.sink.key else batch(*rows)
    found = table.sink.open(JOB, LEFT).deliver(tag(epoch, timeline), [one] if rows else [])
    assert found == Delivered(len(rows))


def meanwhile(act: Callable[[], object]) -> Callable[[FaultPoint], None]:
    """Return a fault that acts once, between the last comparison and the commit."""
    left = [act]

    def fault(point: FaultPoint) -> None:
        if point == "before_commit" and left:
            left.pop()()

    return fault


def current(table: FolderCatalog) -> int:
    snapshot = table.load().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


class TestLostFiles:
    def test_that_a_merge_has_to_read_are_named_and_waited_for(self, keyed: FolderCatalog) -> None:
        deliver(keyed, 1, ANN, BEA)
        (file,) = keyed.load().inspect.files()["file_path"].to_pylist()
        path = Path(file.removeprefix("file://"))
        away = path.rename(path.with_suffix(".away"))
        with pytest.raises(Unavailable, match=f"a data file that the table lists is missing: .*{path.name}") as caught:
            deliver(keyed, 2, (1, "anna"))
        assert "restore the file from a backup: delivery retries" in caught.value.next_step
        away.rename(path)
        deliver(keyed, 2, (1, "anna"))
        assert sorted(keyed.rows()) == [(1, "anna"), BEA]


class TestErrors:
    def test_a_bucket_that_does_not_exist_is_a_mistake_at_a_start(self, added: FolderCatalog) -> None:
        error = OSError("When writing key 'x' in bucket 'lake': AWS Error NO_SUCH_BUCKET: NoSuchBucket: no bucket")
        found = meaning_of(added.sink.place, error)
        assert type(found) is NotAdmitted and "the bucket of the warehouse does not exist" in found.what


class TestCommit:
    def test_of_another_program_is_not_lost_and_loses_nothing(self, added: FolderCatalog) -> None:
        other = meanwhile(lambda: added.load().append(OTHER))
        assert added.sink.opened(JOB, LEFT, fault=other).deliver(tag(1), [batch(ANN)]) == Delivered(1)
        assert sorted(added.rows()) == [ANN, (9, "x")]

    @pytest.mark.parametrize("retries", ["0", "10"])
    def test_of_a_zombie_between_comparison_and_commit_is_not_repeated(
        self, added: FolderCatalog, retries: str
    ) -> None:
        """However often the table's own properties let the library try again."""
        with added.load().transaction() as transaction:
            transaction.set_properties({"commit.retry.num-retries": retries})
        zombie = meanwhile(lambda: deliver(added, 1, ANN))
        late = added.sink.opened(JOB, LEFT, fault=zombie)
        assert late.deliver(tag(1), [batch(ANN)]) == AlreadyDelivered(tag(1)) and added.rows() == [ANN]

    def test_of_the_library_alone_would_let_the_zombie_through(self, added: FolderCatalog) -> None:
        """It tries again on top of the other append, with the same rows."""
        late = added.load()
        deliver(added, 1, ANN)
        late.append(pa.table({"user": [1], "name": ["ann"]}, SCHEMA))
        assert added.rows() == [ANN, ANN]

    def test_compares_more_than_the_current_snapshot(self, added: FolderCatalog) -> None:
        """A rollback in between brings the snapshot back that was compared, but not its tags."""
        deliver(added, 1, ANN)
        before = current(added)

        def there_and_back() -> None:
            deliver(added, 2, BEA)
            added.load().manage_snapshots().set_current_snapshot(before).commit()

        late = added.sink.opened(JOB, LEFT, fault=meanwhile(there_and_back))
        assert late.deliver(tag(2), [batch(BEA)]) == AlreadyDelivered(tag(2)) and added.rows() == [ANN]

    @pytest.mark.parametrize("after", [False, True], ids=["lost request", "lost reply"])
    def test_with_an_unknown_outcome_is_settled_by_the_book(
        self, keyed: FolderCatalog, monkeypatch: pytest.MonkeyPatch, after: bool
    ) -> None:
        target, commit = keyed.sink.open(JOB, LEFT), Table._do_commit

        def failing(self: Table, updates: Any, requirements: Any) -> None:
            if after:
                commit(self, updates, requirements)
            raise OperationalError("UPDATE", {}, Exception("server closed the connection"))

        monkeypatch.setattr(Table, "_do_commit", failing)
        with pytest.raises(Unavailable, match="server closed the connection"):
            target.deliver(tag(1), [changes(ANN)])
        monkeypatch.undo()
        again = target.deliver(tag(1), [changes(ANN)])
        assert again == (AlreadyDelivered(tag(1)) if after else Delivered(1)) and keyed.rows() == [ANN]

    def test_of_a_merge_that_changes_nothing_moves_the_tag(self, keyed: FolderCatalog) -> None:
        deliver(keyed, 1, ANN)
        deliver(keyed, 2, (7, None))
        assert keyed.sink.open(JOB, LEFT).delivered() == tag(2) and keyed.rows() == [ANN]

    def test_is_one_snapshot_with_the_tag_in_its_summary(self, keyed: FolderCatalog) -> None:
        deliver(keyed, 1, ANN, BEA)
        deliver(keyed, 2, (1, "anna"), (2, None), CAT)
        table = keyed.load()
        snapshot = table.current_snapshot()
        assert len(table.snapshots()) == 2 and snapshot is not None and snapshot.summary is not None
        said = snapshot.summary.additional_properties["holdfast"]
        assert said is not None and said.startswith(
            f'{{"job": "{JOB}", "sink": "out", "timeline": 1, "epoch": 2, "version": 2, "after": 1, "commit": "'
        )

    @pytest.mark.parametrize("key", [None, KEY])
    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            (lambda schema: schema.add_column("more", LongType()), "more is not in the stream"),
            (lambda schema: schema.delete_column("name"), "name is missing"),
            (lambda schema: schema.rename_column("name", "called"), "name is missing; called is not in the stream"),
        ],
        ids=["added", "dropped", "renamed"],
    )
    def test_to_a_table_whose_columns_were_changed_meanwhile_is_refused(
        self, tmp_path: Path, key: tuple[str, ...] | None, change: Callable[[Any], Any], fault: str
    ) -> None:
        table = FolderCatalog(tmp_path, key)
        table.sink.prepare(SCHEMA, key)
        deliver(table, 1, ANN)

        def changed() -> None:
            with table.load().update_schema() as schema:
                change(schema)

        late = table.sink.opened(JOB, LEFT, fault=meanwhile(changed))
        with pytest.raises(ConfigError, match=f"columns were changed since the job started: {fault}") as caught:
            late.deliver(tag(2), [changes(BEA) if key else batch(BEA)], tag(1))
        assert caught.value.not_done == "nothing was delivered"
        assert table.sink.open(JOB, LEFT).delivered() == tag(1) and len(table.rows()) == 1
        with pytest.raises(ConfigError, match="its columns are not the stream's"):
            table.sink.probe(SCHEMA, key)

    def test_writes_files_that_other_readers_understand(self, keyed: FolderCatalog) -> None:
        deliver(keyed, 1, ANN, BEA)
        deliver(keyed, 2, (1, "anna"), CAT, (2, None))
        paths = [each.file.file_path for each in keyed.load().scan().plan_files()]
        found = duckdb.execute(f"select * from read_parquet({paths}) order by 1").fetchall()
        assert found == [(1, "anna"), CAT]

    def test_gathers_small_files_that_it_changes(self, keyed: FolderCatalog) -> None:
        for epoch in range(1, 6):
            deliver(keyed, epoch, (10 * epoch, "x"))
        assert len(list(keyed.load().scan().plan_files())) == 5
        deliver(keyed, 6, *((10 * epoch, "y") for epoch in range(1, 6)))
        assert len(list(keyed.load().scan().plan_files())) == 1

    def test_merges_manifests_before_they_are_many(self, keyed: FolderCatalog) -> None:
        for epoch in range(1, 26):
            deliver(keyed, epoch, (epoch, "x"), (epoch + 100, "x"), *([(epoch - 1, None)] if epoch % 7 == 0 else []))
        table = keyed.load()
        snapshot = table.current_snapshot()
        assert snapshot is not None and len(snapshot.manifests(table.io)) < 10
        expected = [(n, "x") for n in range(1, 126) if n not in (6, 13, 20) and not 25 < n <= 100]
        assert sorted(keyed.rows()) == expected
        assert keyed.sink.repair(back(3), SCHEMA, KEY).delete == len(expected) - 6
        assert sorted(keyed.rows()) == [*((n, "x") for n in (1, 2, 3)), *((n + 100, "x") for n in (1, 2, 3))]

    def test_leaves_files_without_its_keys_alone(self, keyed: FolderCatalog) -> None:
        for epoch in (1, 2, 3):
            deliver(keyed, epoch, (10 * epoch, "x"), (10 * epoch + 5, "x"))
        before = {each.file.file_path for each in keyed.load().scan().plan_files()}
        deliver(keyed, 4, (20, "y"), (12, "z"))  # 12 lies in the range of the first file, which does not have it
        after = {each.file.file_path for each in keyed.load().scan().plan_files()}
        assert len(before & after) == 2 and sorted(keyed.rows())[1:3] == [(12, "z"), (15, "x")]


class TestTags:
    def test_survive_compaction_expiry_and_a_rollback_by_hand(self, added: FolderCatalog) -> None:
        added.sink.open(JOB, RIGHT, FIRST).deliver(tag(3), [batch(ANN)])
        first = current(added)
        deliver(added, 4, BEA)
        added.load().manage_snapshots().set_current_snapshot(first).commit()
        assert added.sink.open(JOB, LEFT).delivered() == tag(4) and added.rows() == [ANN]
        table = added.load()
        table.overwrite(table.scan().to_arrow())
        _expire(added, keep=1)
        assert len(added.load().snapshots()) == 1
        assert [added.sink.open(JOB, writer).delivered() for writer in (LEFT, RIGHT)] == [tag(4), tag(3)]
        holding = added.sink.holding(JOB, "out")
        assert (holding.held, holding.newest) == (Held(FIRST.owner, Generation(1)), tag(4))

    def test_of_an_older_snapshot_are_missed(self, added: FolderCatalog) -> None:
        """A process that was there and one that starts later; to go back to the newest snapshot is the way out."""
        target = added.sink.open(JOB, LEFT)
        snapshots = []
        for epoch, row in ((1, ANN), (2, BEA)):
            target.deliver(tag(epoch), [batch(row)], None)
            snapshots.append(current(added))
        added.load().manage_snapshots().set_current_snapshot(snapshots[0]).commit()
        for each in (target, added.sink.open(JOB, LEFT)):
            with pytest.raises(Damaged, match=r"timeline 1, epoch 2 was delivered .* an older snapshot was made"):
                each.deliver(tag(3), [batch(CAT)], tag(2))
        added.load().manage_snapshots().set_current_snapshot(snapshots[1]).commit()
        assert target.deliver(tag(3), [batch(CAT)], tag(2)) == Delivered(1)
        assert sorted(added.rows()) == [ANN, BEA, CAT]

    @pytest.mark.parametrize("act", ["append", "overwrite", "delete", "expire"])
    def test_are_continued_after_what_other_programs_may_do(self, added: FolderCatalog, act: str) -> None:
        deliver(added, 1, ANN)
        table, more = added.load(), pa.Table.from_batches([batch(BEA)])
        if act in ("append", "overwrite"):
            getattr(table, act)(more)
        elif act == "delete":
            table.delete()
        else:
            table.append(more)
            _expire(added, keep=1)
        deliver(added, 2, CAT)
        assert CAT in added.rows()

    def test_of_a_table_that_was_dropped_are_missed(self, added: FolderCatalog) -> None:
        target = added.sink.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        added.load().catalog.drop_table(NAME)
        with pytest.raises(Damaged, match="there is no table any more"):
            target.deliver(tag(2), [batch(BEA)], tag(1))

    def test_of_a_table_that_was_created_again_are_missed(self, added: FolderCatalog) -> None:
        target = added.sink.open(JOB, LEFT)
        target.deliver(tag(1), [batch(ANN)])
        added.load().catalog.drop_table(NAME)
        added.sink.prepare(SCHEMA, None)
        with pytest.raises(Damaged, match="has no tag"):
            target.deliver(tag(2), [batch(BEA)], tag(1))

    def test_of_another_job_are_noticed_at_a_start(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        added.sink.check_owner(JOB, "out")
        for job in ("another", None):
            with pytest.raises(ConfigError, match="holds output of a sink 'out' of another job"):
                added.sink.check_owner(job, "out")

    def test_that_no_sink_wrote_are_damage(self, added: FolderCatalog) -> None:
        with added.load().transaction() as transaction:
            transaction.set_properties({f"holdfast/1/newest/{JOB}/out": "many"})
        with pytest.raises(Damaged, match="which Holdfast never wrote"):
            added.sink.holding(JOB, "out")

    def test_without_their_metadata_are_damage(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        for each in (added.path / "shop").rglob("*.metadata.json"):
            each.unlink()
        with pytest.raises(Damaged, match="the file of metadata that the catalogue names is missing"):
            added.sink.open(JOB, LEFT).delivered()


def _expire(table: FolderCatalog, keep: int) -> None:
    """Expire all but the newest snapshots of a table, as its maintenance does."""
    loaded = table.load()
    lineage = sorted(loaded.snapshots(), key=lambda each: each.sequence_number or 0)
    with ExpireSnapshots(Transaction(loaded, autocommit=True)) as expiring:
        expiring.by_ids([each.snapshot_id for each in lineage[:-keep]])


def back(epoch: int, timeline: int = 2) -> Rewinding:
    return Rewinding(JOB, "out", tag(epoch, timeline), (LEFT, RIGHT))


def planned(table: FolderCatalog, epoch: int) -> Repair:
    return table.sink.plan_repair(back(epoch), SCHEMA, table.sink.key)


class TestRewind:
    def test_leaves_what_it_undoes_out_of_the_history(self, keyed: FolderCatalog) -> None:
        """Expiry deletes the files that snapshots of the history deleted; those of epoch 1 are needed again."""
        deliver(keyed, 1, ANN, BEA)
        base = current(keyed)
        deliver(keyed, 2, (1, "anna"), CAT)
        assert keyed.sink.repair(back(1), SCHEMA, KEY).restore == 1
        snapshot = keyed.load().current_snapshot()
        assert snapshot is not None and snapshot.parent_snapshot_id == base and snapshot.sequence_number == 3
        assert sorted(keyed.rows()) == [ANN, BEA]
        deliver(keyed, 7, CAT, timeline=2)
        assert sorted(keyed.rows()) == [ANN, BEA, CAT]

    def test_to_before_the_first_snapshot_empties_the_table(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        assert added.sink.repair(back(0), SCHEMA, None).delete == 1
        assert added.rows() == [] and added.sink.open(JOB, LEFT).delivered() == tag(0, 2)
        deliver(added, 2, BEA, timeline=2)
        assert added.rows() == [BEA]

    def test_after_an_earlier_one_undoes_both_timelines(self, added: FolderCatalog) -> None:
        for epoch in (1, 2, 3):
            deliver(added, epoch, (epoch, "x"))
        added.sink.repair(back(2), SCHEMA, None)
        deliver(added, 7, (7, "x"), timeline=2)
        added.sink.repair(back(1, 3), SCHEMA, None)
        assert added.rows() == [(1, "x")]

    def test_is_impossible_after_another_program_wrote(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        deliver(added, 2, BEA)
        added.load().delete("user = 2")
        found = planned(added, 1)
        assert found.verdict == "impossible" and "delete in version 3" in found.reason

    def test_is_impossible_once_the_snapshot_is_expired(self, added: FolderCatalog) -> None:
        for epoch in (1, 2, 3):
            deliver(added, epoch, (epoch, "x"))
        assert planned(added, 1).verdict == "truncate"
        _expire(added, keep=2)
        assert planned(added, 2).verdict == "truncate"
        found = planned(added, 1)
        assert found.verdict == "impossible" and "beyond the retention of the table's history" in found.reason

    def test_is_impossible_if_the_snapshots_with_the_tags_are_expired(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        added.load().append(OTHER)
        deliver(added, 2, BEA)
        assert planned(added, 1).verdict == "truncate"
        _expire(added, keep=2)
        assert planned(added, 1).verdict == "impossible"

    def test_is_impossible_once_files_are_deleted(self, keyed: FolderCatalog) -> None:
        deliver(keyed, 1, ANN)
        [old] = [Path(each.file.file_path.removeprefix("file://")) for each in keyed.load().scan().plan_files()]
        deliver(keyed, 2, (1, "anna"))
        old.unlink()
        found = planned(keyed, 1)
        assert found.verdict == "impossible" and "1 files of version 1 are missing" in found.reason


EVERY_TYPE: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None]),
    "tiny": (pa.int8(), [-128, None]),
    "small": (pa.uint8(), [255, None]),
    "wide": (pa.uint32(), [2**32 - 1, None]),
    "whole": (pa.int64(), [-(2**63), None]),
    "part": (pa.float64(), [float("inf"), None]),
    "text": (pa.large_string(), ["ö\n", None]),
    "kind": (pa.dictionary(pa.int32(), pa.string()), ["x", None]),
    "bytes": (pa.binary(), [b"\0\xff", None]),
    "day": (pa.date32(), [date(2026, 1, 2), None]),
    "at": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None]),
    "local": (pa.timestamp("ms"), [datetime(2026, 1, 2, 3), None]),
    "price": (pa.decimal128(38, 9), [Decimal("-0.123456789"), None]),
    "many": (pa.list_(pa.int32()), [[1, None, 3], None]),
    "inner": (pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, None]),
}


def rows_of_every_type(*keys: int) -> pa.RecordBatch:
    columns = {"user": pa.array(keys, pa.int64())}
    for name, (kind, values) in EVERY_TYPE.items():
        columns[name] = pa.array((values * len(keys))[: len(keys)], kind)
    return pa.RecordBatch.from_pydict(columns)


class TestColumns:
    @pytest.mark.parametrize("key", [None, KEY])
    def test_of_every_type_are_kept(self, tmp_path: Path, key: tuple[str, ...] | None) -> None:
        table, rows = FolderCatalog(tmp_path, key), rows_of_every_type(1, 2)
        table.sink.prepare(rows.schema, key)
        table.sink.prepare(rows.schema, key)
        for epoch in (1, 2):
            given = rows if key is None else rows.append_column(OP, pa.array([PUT, PUT], pa.int8()))
            table.sink.accept(given)
            table.sink.open(JOB, LEFT).deliver(tag(epoch), [given])
        expected = rows.to_pylist() * (2 if key is None else 1)
        found = table.load().scan().to_arrow().to_pylist()
        assert sorted(found, key=lambda row: row["user"]) == sorted(expected, key=lambda row: row["user"])
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
            ("a.b c", "dot"),
        ],
    )
    def test_of_every_type_can_be_keys(self, tmp_path: Path, name: str, value: Any) -> None:
        kind = EVERY_TYPE[name][0] if name in EVERY_TYPE else pa.string()
        schema = pa.schema([pa.field(name, kind), pa.field("n", pa.int64())])
        table = FolderCatalog(tmp_path, (name,))
        table.sink.prepare(schema, (name,))
        for epoch, op in ((1, PUT), (2, PUT), (3, DELETE)):
            rows = pa.RecordBatch.from_pylist([{name: value, "n": epoch}], schema=schema)
            table.sink.open(JOB, LEFT).deliver(tag(epoch), [rows.append_column(OP, pa.array([op], pa.int8()))])
            assert [n for _, n in table.rows()] == ([epoch] if op == PUT else [])

    @pytest.mark.parametrize(
        "kind", [pa.uint64(), pa.timestamp("ns"), pa.time64("ns"), pa.duration("s"), pa.float16(), pa.null()], ids=str
    )
    def test_that_no_table_can_hold_are_refused_when_planned(self, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match="the column 'x' is .*, which an Iceberg table cannot hold"):
            hf.Iceberg.example().check(pa.schema([pa.field("auction", pa.int64()), pa.field("x", kind)]), ("auction",))

    def test_partition_the_table(self, tmp_path: Path) -> None:
        table = FolderCatalog(tmp_path, KEY, partition_by=["name"])
        table.sink.prepare(SCHEMA, KEY)
        deliver(table, 1, ANN, BEA, (3, ""), (4, "a/b"))
        deliver(table, 2, (2, "ann"))
        assert sorted(table.rows()) == [ANN, (2, "ann"), (3, ""), (4, "a/b")]
        assert {each.file.partition[0] for each in table.load().scan().plan_files()} == {"ann", "", "a/b"}
        with pytest.raises(ConfigError, match=r"it is partitioned by \['name'\], the sink has \[\]"):
            hf.Iceberg(NAME, table.url, table.path, KEY).prepare(SCHEMA, KEY)

    @pytest.mark.parametrize("partition_by", [["a"], ["b"], ["c"], ["c", "a"], ["a", "b", "c"]], ids="".join)
    @pytest.mark.parametrize("key", [None, ("a", "b", "c", "n")], ids=["appends", "merges"])
    def test_of_any_place_partition_the_table(
        self, tmp_path: Path, partition_by: list[str], key: tuple[str, ...] | None
    ) -> None:
        kinds = {"a": pa.string(), "b": pa.int32(), "c": pa.date32(), "s": pa.struct([pa.field("a", pa.int64())])}
        schema = pa.schema([*kinds.items(), ("n", pa.int64())])
        rows = [{"a": f"x{i % 2}", "b": i % 3, "c": date(2026, 1, 1 + i % 2), "s": {"a": i}, "n": i} for i in range(6)]
        table = FolderCatalog(tmp_path, key, partition_by=partition_by)
        table.sink.prepare(schema, key)
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        if key is not None:
            batch = batch.append_column(OP, pa.array([PUT] * 6, pa.int8()))
        table.sink.open(JOB, LEFT).deliver(tag(1), [batch])
        spec, names = table.load().spec(), table.load().schema()
        assert [names.find_column_name(field.source_id) for field in spec.fields] == partition_by
        assert sorted(table.load().scan().to_arrow().to_pylist(), key=lambda row: row["n"]) == rows
        files = [each.file for each in table.load().scan().plan_files()]
        assert len(files) == len({tuple(row[name] for name in partition_by) for row in rows})

    def test_that_are_required_are_refused(self, tmp_path: Path) -> None:
        table = FolderCatalog(tmp_path)
        table.sink.prepare(pa.schema([pa.field("n", pa.int64())]), None)
        with table.load().update_schema(allow_incompatible_changes=True) as schema:
            schema.update_column("n", required=True)
        with pytest.raises(ConfigError, match="n must not be null"):
            table.sink.prepare(pa.schema([pa.field("n", pa.int64())]), None)


class TestPlace:
    def test_that_is_looked_at_is_not_created(self, tmp_path: Path) -> None:
        table = FolderCatalog(tmp_path)
        assert table.sink.probe(SCHEMA, None) == "there is no table; the first start creates it"
        assert not table.path.exists()

    @pytest.mark.parametrize(
        ("catalog", "fault"),
        [
            ("postgresql://app:secret@db/lake", "holds a password"),
            ("sqlite://", "is not a catalogue"),
            ("sqlite:///:memory:", "is not a catalogue"),
            ("https://db/rest", "is not a catalogue"),
            ("lake.db", "is not a catalogue"),
        ],
    )
    def test_with_an_unfit_catalogue_is_refused(self, catalog: str, fault: str) -> None:
        with pytest.raises(ConfigError, match=fault) as caught:
            hf.Iceberg(NAME, catalog, "lake")
        assert "secret" not in str(caught.value)

    def test_needs_a_namespace(self) -> None:
        with pytest.raises(ConfigError, match="give a namespace and a name"):
            hf.Iceberg("rows", "sqlite:///lake.db", "lake")

    def test_refuses_secrets_in_options_and_keeps_none_in_a_pickled_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match=r"the option 's3\.secret-access-key' holds a secret"):
            hf.Iceberg(NAME, "sqlite:///lake.db", "s3://lake", options={"s3.secret-access-key": "hunter2"})
        monkeypatch.setenv("LAKE_KEY", "hunter2")
        given = {"s3.secret-access-key": hf.secret("env:LAKE_KEY")}
        sink = hf.Iceberg(NAME, "sqlite:///lake.db", "s3://lake", options=given)
        assert b"hunter2" not in pickle.dumps(sink) and "hunter2" not in repr(sink)
        assert sink.place.settings()["s3.secret-access-key"] == "hunter2" and len(sink.traits.secrets) == 1

    def test_needs_the_library_when_it_is_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "holdfast.sinks.iceberg.client", None)
        with pytest.raises(ConfigError, match="hf.Iceberg needs pyiceberg"):
            FolderCatalog(tmp_path).sink.prepare(SCHEMA, None)


class TestPostgresCatalogue:
    def test_takes_a_zombie_for_one(self, tmp_path: Path, postgres: PostgresServer) -> None:
        url = _url(postgres, "postgres")
        sink = hf.Iceberg("shop.pg", url, tmp_path, KEY)
        sink.prepare(SCHEMA, KEY)
        zombie = meanwhile(lambda: sink.open(JOB, LEFT).deliver(tag(1), [changes(ANN)]))
        late = sink.opened(JOB, LEFT, fault=zombie)
        assert late.deliver(tag(1), [changes(ANN)]) == AlreadyDelivered(tag(1))
        assert late.deliver(tag(2), [changes((1, "anna"))], tag(1)) == Delivered(1)
        late.close()
        assert sink.repair(back(1), SCHEMA, KEY).restore == 1

    @pytest.mark.parametrize(("asked", "used"), [("off", "on"), ("remote_apply", "remote_apply")])
    def test_confirms_a_commit_once_it_is_on_disk_whatever_its_database_asks_for(
        self, tmp_path: Path, postgres: PostgresServer, asked: str, used: str
    ) -> None:
        url = f"{_url(postgres, 'postgres')}&options=-csynchronous_commit%3D{asked}"
        hf.Iceberg(f"shop.durable_{asked}", url, tmp_path).prepare(SCHEMA, None)
        connection = IcebergConnection(hf.Iceberg(f"shop.durable_{asked}", url, tmp_path).place)
        with closing(connection), connection._opened().engine.connect() as session:
            assert session.exec_driver_sql("SHOW synchronous_commit").scalar() == used

    def test_needs_the_password_of_its_database(
        self, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LAKE_PASSWORD", "a wrong one")
        url = _url(postgres, "postgres")
        hf.Iceberg("shop.guarded", url, tmp_path).prepare(SCHEMA, None)
        with psycopg.connect(postgres.dsn(), autocommit=True) as db:
            db.execute(f"GRANT ALL ON iceberg_tables, iceberg_namespace_properties TO {GUARDED}")
        sink = hf.Iceberg("shop.guarded", _url(postgres, GUARDED), tmp_path, password=hf.secret("env:LAKE_PASSWORD"))
        with pytest.raises(NotAdmitted, match="did not let this user in") as caught:
            sink.probe(SCHEMA, None)
        assert "a wrong one" not in str(caught.value)
        monkeypatch.setenv("LAKE_PASSWORD", PASSWORD)
        assert sink.probe(SCHEMA, None) == "the table, at version 0, has the columns of the stream"


def _url(postgres: PostgresServer, user: str) -> str:
    given = conninfo_to_dict(postgres.dsn(user))
    return f"postgresql://{user}@/{given['dbname']}?host={given['host']}"
