"""What only Iceberg tables have: their catalogue, other writers, snapshots, types, and files that a merge rewrites.

What all tables have in common is in test_lakehouse_tables.py; test_delta_order.py plays races in memory.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from iceberg_tables import NAME, FolderCatalog
from lake_rows import (
    ANN,
    BEA,
    CAT,
    JOB,
    KEY,
    LEFT,
    OTHER,
    SCHEMA,
    back,
    batch,
    changes,
    deliver,
    meanwhile,
    planned,
    tag,
)
from postgres_server import GUARDED, PASSWORD, PostgresServer
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.table import Table
from pyiceberg.types import LongType
from sqlalchemy.exc import OperationalError

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, NotAdmitted, Unavailable
from holdfast.sinks.contract.target import OP, PUT, AlreadyDelivered, Delivered
from holdfast.sinks.iceberg.client import IcebergConnection
from holdfast.sinks.iceberg.errors import meaning_of


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


class TestErrors:
    def test_a_bucket_that_does_not_exist_is_a_mistake_at_a_start(self, added: FolderCatalog) -> None:
        error = OSError("When writing key 'x' in bucket 'lake': AWS Error NO_SUCH_BUCKET: NoSuchBucket: no bucket")
        found = meaning_of(added.sink.place, error)
        assert type(found) is NotAdmitted and "the bucket of the warehouse does not exist" in found.what


class TestCommit:
    @pytest.mark.parametrize("retries", ["0", "10"])
    def test_a_zombies_commit_between_comparison_and_commit_is_not_repeated(
        self, added: FolderCatalog, retries: str
    ) -> None:
        """However often the table's own properties let the library try again."""
        with added.load().transaction() as transaction:
            transaction.set_properties({"commit.retry.num-retries": retries})
        zombie = meanwhile(lambda: deliver(added, 1, ANN))
        late = added.sink.opened(JOB, LEFT, fault=zombie)
        assert late.deliver(tag(1), [batch(ANN)]) == AlreadyDelivered(tag(1)) and added.rows() == [ANN]

    def test_compares_more_than_the_current_snapshot(self, added: FolderCatalog) -> None:
        """A rollback in between brings the snapshot back that was compared, but not its tags."""
        deliver(added, 1, ANN)
        before = added.version()

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
    def test_without_their_metadata_are_damage(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        for each in (added.path / "shop").rglob("*.metadata.json"):
            each.unlink()
        with pytest.raises(Damaged, match="the file of metadata that the catalogue names is missing"):
            added.sink.open(JOB, LEFT).delivered()


class TestRewind:
    def test_leaves_what_it_undoes_out_of_the_history(self, keyed: FolderCatalog) -> None:
        """Expiry deletes the files that snapshots of the history deleted; those of epoch 1 are needed again."""
        deliver(keyed, 1, ANN, BEA)
        base = keyed.version()
        deliver(keyed, 2, (1, "anna"), CAT)
        assert keyed.sink.repair(back(1), SCHEMA, KEY).restore == 1
        snapshot = keyed.load().current_snapshot()
        assert snapshot is not None and snapshot.parent_snapshot_id == base and snapshot.sequence_number == 3
        assert sorted(keyed.rows()) == [ANN, BEA]
        deliver(keyed, 7, CAT, timeline=2)
        assert sorted(keyed.rows()) == [ANN, BEA, CAT]

    def test_is_impossible_once_the_snapshot_is_expired(self, added: FolderCatalog) -> None:
        for epoch in (1, 2, 3):
            deliver(added, epoch, (epoch, "x"))
        assert planned(added, 1).verdict == "truncate"
        added.expire(keep=2)
        assert planned(added, 2).verdict == "truncate"
        found = planned(added, 1)
        assert found.verdict == "impossible" and "beyond the retention of the table's history" in found.reason

    def test_is_impossible_if_the_snapshots_with_the_tags_are_expired(self, added: FolderCatalog) -> None:
        deliver(added, 1, ANN)
        added.load().append(OTHER)
        deliver(added, 2, BEA)
        assert planned(added, 1).verdict == "truncate"
        added.expire(keep=2)
        assert planned(added, 1).verdict == "impossible"

    def test_is_impossible_once_files_are_deleted(self, keyed: FolderCatalog) -> None:
        deliver(keyed, 1, ANN)
        [old] = [Path(each.file.file_path.removeprefix("file://")) for each in keyed.load().scan().plan_files()]
        deliver(keyed, 2, (1, "anna"))
        old.unlink()
        found = planned(keyed, 1)
        assert found.verdict == "impossible" and "1 files of version 1 are missing" in found.reason


class TestColumns:
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
    def test_columns_at_any_position_partition_the_table(
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

    def test_required_columns_are_refused(self, tmp_path: Path) -> None:
        table = FolderCatalog(tmp_path)
        table.sink.prepare(pa.schema([pa.field("n", pa.int64())]), None)
        with table.load().update_schema(allow_incompatible_changes=True) as schema:
            schema.update_column("n", required=True)
        with pytest.raises(ConfigError, match="n must not be null"):
            table.sink.prepare(pa.schema([pa.field("n", pa.int64())]), None)


class TestPlace:
    def test_a_table_location_that_is_only_probed_is_not_created(self, tmp_path: Path) -> None:
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
