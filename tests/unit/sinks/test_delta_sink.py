"""What only Delta tables have: columns, other writers, maintenance, versions, and options of their store.

What all tables have in common is in test_lakehouse_tables.py; test_delta_order.py plays races in memory.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from delta_tables import FolderTable
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from lake_rows import (
    ANN,
    BEA,
    CAT,
    FIRST,
    JOB,
    KEY,
    LEFT,
    SCHEMA,
    back,
    batch,
    changes,
    deliver,
    planned,
    rows_of_every_type,
    tag,
)

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, HoldfastError, NotAdmitted, Unavailable
from holdfast.sinks.contract.target import OP, PUT, Delivered
from holdfast.sinks.delta.client import HISTORY_READ, DeltaConnection, LoadedVersion
from holdfast.sinks.delta.errors import is_conflict, meaning_of
from holdfast.sinks.delta.place import DEFAULTS, place_of, unsafe


@pytest.fixture
def added(tmp_path: Path) -> FolderTable:
    table = FolderTable(tmp_path)
    table.sink.prepare(SCHEMA, None)
    return table


@pytest.fixture
def keyed(tmp_path: Path) -> FolderTable:
    table = FolderTable(tmp_path, KEY)
    table.sink.prepare(SCHEMA, KEY)
    return table


def loaded(table: FolderTable) -> LoadedVersion:
    return DeltaConnection(place_of(str(table.path), None)).latest()


class TestCommit:
    def test_consecutive_commits_to_one_target_need_no_new_read_of_the_tag(
        self, added: FolderTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = added.sink.open(JOB, LEFT, FIRST)
        target.deliver(tag(1), [batch(ANN)])
        monkeypatch.setattr(DeltaTable, "transaction_version", None)
        assert target.deliver(tag(2), [batch(BEA)], tag(1)) == Delivered(1)
        assert target.delivered() == tag(2)

    @pytest.mark.parametrize("key", [None, KEY])
    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            ({"user": [9], "name": ["x"], "more": [1]}, "more is not in the stream"),
            ({"user": [9]}, "name is missing"),
            ({"user": ["9"], "name": ["x"]}, "user is string, the stream needs int64"),
        ],
        ids=["added", "dropped", "retyped"],
    )
    def test_to_a_table_whose_columns_were_changed_meanwhile_is_refused(
        self, tmp_path: Path, key: tuple[str, ...] | None, change: dict[str, list[Any]], fault: str
    ) -> None:
        table = FolderTable(tmp_path, key)
        table.sink.prepare(SCHEMA, key)
        deliver(table, 1, ANN)
        write_deltalake(str(table.path), pa.table(change), mode="overwrite", schema_mode="overwrite")
        rows = changes(BEA) if key else batch(BEA)
        with pytest.raises(ConfigError, match=f"columns were changed since the job started: {fault}") as caught:
            table.sink.open(JOB, LEFT).deliver(tag(2), [rows], tag(1))
        assert caught.value.not_done == "nothing was delivered"
        assert table.sink.open(JOB, LEFT).delivered() == tag(1) and table.load().version() == 2

    @pytest.mark.parametrize("key", [None, KEY])
    def test_cleans_the_log_with_a_checkpoint_alone(self, tmp_path: Path, key: tuple[str, ...] | None) -> None:
        """To clean it is to list all of it, which is up to a month of epochs."""
        table = FolderTable(tmp_path, key)
        DeltaTable.create(str(table.path), SCHEMA, configuration={"delta.checkpointInterval": "4"})
        for epoch in (1, 2, 3):
            deliver(table, epoch, (epoch, "x"))
        log = table.path / "_delta_log"
        assert (log / f"{3:020}.checkpoint.parquet").exists()
        for each in log.glob("*.json"):
            os.utime(each, (0, 0))
        for epoch in (4, 5):
            deliver(table, epoch, *[(epoch, "x")] * (epoch == 4))
            assert (log / f"{1:020}.json").exists()
        deliver(table, 6, (6, "x"))
        deliver(table, 7, (7, "x"))
        assert not (log / f"{1:020}.json").exists() and len(table.rows()) == 6

    def test_another_programs_commit_under_our_metadata_name_is_not_ours(self, added: FolderTable) -> None:
        deliver(added, 1, ANN)
        said = CommitProperties(custom_metadata={"holdfast": "hello"})
        target = added.sink.open(JOB, LEFT)
        target.deliver(tag(2), [batch(BEA)])
        write_deltalake(str(added.path), pa.table({"user": [9], "name": ["x"]}), mode="append", commit_properties=said)
        assert target.deliver(tag(3), [batch(CAT)]) == Delivered(1)
        assert "WRITE in version 3" in planned(added, 1).reason


class TestTags:
    def test_tags_missing_since_an_old_restore_are_damage(self, added: FolderTable) -> None:
        """Beyond the commits that are read at first."""
        deliver(added, 1, ANN)
        added.load().restore(0)
        for _ in range(HISTORY_READ[0]):
            write_deltalake(added.load(), pa.Table.from_batches([batch(BEA)]), mode="append")
        with pytest.raises(Damaged, match="RESTORE in version 2"):
            added.sink.open(JOB, LEFT).deliver(tag(2), [batch(CAT)], tag(1))


class TestColumns:
    @pytest.mark.parametrize(
        "kind",
        [
            *(pa.uint64(), pa.timestamp("ns"), pa.time64("us"), pa.duration("s"), pa.float16(), pa.null()),
            *(pa.struct([]), pa.list_(pa.struct([]))),
        ],
        ids=str,
    )
    def test_columns_unsupported_by_delta_are_refused_at_planning(self, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match="the column 'x' is .*, which a Delta table cannot hold"):
            hf.Delta("t").check(pa.schema([pa.field("x", kind)]), None)

    @pytest.mark.parametrize("name", ["a b", "a,b", "a=b", "a`b", "a\n"])
    def test_with_names_that_a_table_cannot_hold_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="has a character out of"):
            hf.Delta("t").check(pa.schema([pa.field(name, pa.int64())]), None)

    def test_whose_names_differ_in_case_alone_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="if letter case is ignored"):
            hf.Delta("t").check(pa.schema([pa.field("a", pa.int64()), pa.field("A", pa.int64())]), None)

    def test_whose_fields_differ_in_case_alone_are_refused(self) -> None:
        kind = pa.list_(pa.struct([("in", pa.struct([("a", pa.int64()), ("A", pa.int64())]))]))
        with pytest.raises(ConfigError, match="two fields in the column 'x' are named 'a' if letter case is ignored"):
            hf.Delta("t").check(pa.schema([pa.field("x", kind)]), None)

    @pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.list_(pa.int64())], ids=str)
    def test_columns_that_cannot_be_compared_are_refused_as_keys(self, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match="which a merge cannot compare reliably"):
            hf.Delta("t", key="x").check(pa.schema([pa.field("x", kind)]), ("x",))

    def test_key_columns_are_never_null(self, keyed: FolderTable) -> None:
        with pytest.raises(ConfigError, match="1 rows have no value in the key column 'user'"):
            keyed.sink.accept(pa.RecordBatch.from_pylist([{"user": None, "name": "x"}], schema=SCHEMA))


def _days(schema: pa.Schema, *days: int) -> pa.RecordBatch:
    """Rows with these days since 1970."""
    return pa.record_batch([pa.array([1] * len(days)), pa.array(days, pa.int32()).cast(pa.date32())], schema=schema)


class TestPartitions:
    def test_are_folders_by_value_and_a_row_moves_between_them(self, tmp_path: Path) -> None:
        table = FolderTable(tmp_path, KEY, partition_by=["name"])
        table.sink.prepare(SCHEMA, KEY)
        deliver(table, 1, ANN, (2, "a/b=c %"))
        deliver(table, 2, (1, "bea"), CAT)
        assert sorted(table.rows()) == [(1, "bea"), (2, "a/b=c %"), CAT]
        assert all(each.parent.name.startswith("name=") for each in table.path.glob("*/*.parquet"))

    @pytest.mark.parametrize(("value", "fault"), [("", "is empty"), ("ö" * 40, "is longer than 200 bytes")])
    def test_partition_values_that_would_be_read_as_another_value_are_refused(
        self, tmp_path: Path, value: str, fault: str
    ) -> None:
        sink = FolderTable(tmp_path, partition_by=["name"]).sink
        with pytest.raises(ConfigError, match=fault):
            sink.accept(batch((1, value)))
        sink.accept(pa.RecordBatch.from_pylist([{"user": 1, "name": None}], schema=SCHEMA))

    @pytest.mark.parametrize(
        ("given", "fault"),
        [
            (["x"], "names unknown columns"),
            (["name", "name"], "names a column twice"),
            (["user", "name"], "all columns"),
        ],
    )
    def test_partition_columns_that_do_not_fit_are_refused(self, given: list[str], fault: str) -> None:
        with pytest.raises(ConfigError, match=fault):
            hf.Delta("t", partition_by=given).check(SCHEMA, None)

    def test_are_checked_by_the_text_that_they_become(self, tmp_path: Path) -> None:
        kind = pa.dictionary(pa.int32(), pa.string())
        schema = pa.schema([SCHEMA.field(0), pa.field("name", kind)])
        sink = FolderTable(tmp_path, partition_by=["name"]).sink
        sink.check(schema, None)
        with pytest.raises(ConfigError, match="is empty, which Delta reads as null"):
            sink.accept(pa.record_batch([pa.array([1]), pa.array([""]).dictionary_encode()], schema=schema))

    @pytest.mark.parametrize("day", [-719_163, 2_932_897])
    def test_by_a_day_that_no_reader_can_parse_are_refused(self, tmp_path: Path, day: int) -> None:
        schema = pa.schema([SCHEMA.field(0), pa.field("day", pa.date32())])
        table = FolderTable(tmp_path, partition_by=["day"])
        table.sink.prepare(schema, None)
        with pytest.raises(ConfigError, match="'day' lies outside the years 1 to 9999"):
            table.sink.accept(_days(schema, 0, day))
        furthest = _days(schema, -719_162, 2_932_896)
        table.sink.accept(furthest)
        table.sink.open(JOB, LEFT).deliver(tag(1), [furthest])
        assert sorted(table.rows()) == [(1, date.min), (1, date.max)]

    def test_by_a_fraction_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="the partition column 'x' is double"):
            hf.Delta("t", partition_by="x").check(
                pa.schema([pa.field("x", pa.float64()), pa.field("y", pa.int8())]), None
            )


class TestExistingTable:
    def make(self, path: Path, schema: pa.Schema = SCHEMA, **arguments: Any) -> DeltaTable:
        return DeltaTable.create(str(path / "table"), schema, **arguments)

    def test_is_taken_with_its_columns_in_any_order(self, tmp_path: Path) -> None:
        self.make(tmp_path, pa.schema([SCHEMA.field("name"), SCHEMA.field("user")]))
        table = FolderTable(tmp_path)
        table.sink.prepare(SCHEMA, None)
        deliver(table, 1, ANN)
        assert table.rows() == [("ann", 1)]

    @pytest.mark.parametrize(
        ("arguments", "key", "fault"),
        [
            ({"configuration": {"delta.setTransactionRetentionDuration": "interval 7 days"}}, None, "forget the tags"),
            ({"configuration": {"delta.appendOnly": "true"}}, KEY, "delta.appendOnly, but the sink replaces rows"),
            ({"configuration": {"delta.columnMapping.mode": "name"}}, None, "has delta.columnMapping.mode=name"),
            (
                {"configuration": {"delta.minWriterVersion": "6", "delta.minReaderVersion": "2"}},
                None,
                "a sink does not support: identityColumns",
            ),
            ({"partition_by": ["name"]}, None, r"partitioned by \['name'\], the sink has \[\]"),
            ({"schema": SCHEMA.append(pa.field("more", pa.int64()))}, None, "more is not in the stream"),
            ({"schema": SCHEMA.remove(1)}, None, "name is missing"),
            ({"schema": SCHEMA.set(0, pa.field("user", pa.int32()))}, None, "user is int32, the stream needs int64"),
            ({"schema": SCHEMA.set(0, pa.field("user", pa.int64(), nullable=False))}, None, "user must not be null"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_an_existing_table_that_does_not_fit_is_refused(
        self, tmp_path: Path, arguments: dict[str, Any], key: tuple[str, ...] | None, fault: str
    ) -> None:
        made = self.make(tmp_path, raise_if_key_not_exists=False, **arguments)
        for act in (hf.Delta(tmp_path / "table", key).prepare, hf.Delta(tmp_path / "table", key).probe):
            with pytest.raises(ConfigError, match=fault):
                act(SCHEMA, key)
        assert FolderTable(tmp_path).load().version() == made.version()

    def test_is_not_created_around_other_files(self, tmp_path: Path) -> None:
        """VACUUM would delete them, such as those of the tables in a folder that was named by mistake."""
        table = FolderTable(tmp_path)
        (table.path / "_delta_log").mkdir(parents=True)
        assert "the first start creates it" in table.sink.probe(SCHEMA, None)
        (table.path / "sales").mkdir()
        for act in (table.sink.prepare, table.sink.probe):
            with pytest.raises(ConfigError, match="holds no table, but other things, such as sales"):
                act(SCHEMA, None)
        (table.path / "sales").rmdir()
        table.sink.prepare(SCHEMA, None)

    def test_is_not_created_in_the_place_of_a_file(self, tmp_path: Path) -> None:
        table = FolderTable(tmp_path)
        table.path.write_text("a file")
        for act in (table.sink.prepare, table.sink.probe):
            with pytest.raises(ConfigError, match="the path is a file, and a table is a folder"):
                act(SCHEMA, None)

    def test_with_a_constraint_is_refused(self, tmp_path: Path) -> None:
        self.make(tmp_path).alter.add_constraint({"positive": "user > 0"})
        with pytest.raises(ConfigError, match=r"checks or computes values itself: delta\.constraints\.positive"):
            FolderTable(tmp_path).sink.prepare(SCHEMA, None)


class TestRewind:
    def test_after_maintenance_shows_the_base_epoch(self, keyed: FolderTable) -> None:
        deliver(keyed, 1, ANN, BEA)
        deliver(keyed, 2, (1, "anna"), CAT)
        keyed.load().optimize.compact()
        deliver(keyed, 3, (2, None))
        keyed.load().create_checkpoint()
        found = keyed.sink.repair(back(1), SCHEMA, KEY)
        assert (found.verdict, found.restore, found.delete, found.changed_by_others) == ("overwrite", 2, 1, 0)
        assert sorted(keyed.rows()) == [ANN, BEA]
        assert sorted(row["user"] for row in found.sample) == [1, 2, 3]

    def test_a_rewind_of_a_partitioned_table_counts_its_rows(self, tmp_path: Path) -> None:
        table = FolderTable(tmp_path, KEY, partition_by=["name"])
        table.sink.prepare(SCHEMA, KEY)
        odd = (2, "a/b=c %25 ö")
        deliver(table, 1, ANN, odd)
        deliver(table, 2, (1, "x"), (2, "b"), CAT)
        found = planned(table, 1)
        assert (found.restore, found.delete) == (2, 1)
        table.sink.repair(back(1), SCHEMA, KEY)
        assert sorted(table.rows()) == [ANN, odd]

    def test_counts_rows_of_every_type(self, tmp_path: Path) -> None:
        table, rows = FolderTable(tmp_path, KEY), rows_of_every_type(1, 2)
        table.sink.prepare(rows.schema, KEY)
        for epoch, each in ((1, rows), (2, rows_of_every_type(2, 3))):
            given = each.append_column(OP, pa.array([PUT, PUT], pa.int8()))
            table.sink.open(JOB, LEFT).deliver(tag(epoch), [given])
        found = table.sink.plan_repair(back(1), rows.schema, KEY)
        assert (found.restore, found.delete) == (1, 1)

    def test_is_impossible_once_files_are_vacuumed(self, keyed: FolderTable) -> None:
        deliver(keyed, 1, ANN)
        deliver(keyed, 2, (1, "anna"))
        keyed.load().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        found = planned(keyed, 1)
        assert found.verdict == "impossible" and "maintenance of the table deletes" in found.reason
        with pytest.raises(ConfigError, match="cannot undo its output"):
            keyed.sink.repair(back(1), SCHEMA, KEY)
        assert keyed.rows() == [(1, "anna")] and keyed.sink.open(JOB, LEFT).delivered() == tag(2)

    @pytest.mark.parametrize("failures", [1, 10])
    def test_takes_no_store_that_is_unreachable_for_a_cleaned_log(
        self, added: FolderTable, monkeypatch: pytest.MonkeyPatch, failures: int
    ) -> None:
        for epoch in (1, 2):
            deliver(added, epoch, (epoch, "x"))
        version, load, left = (
            loaded(added),
            DeltaConnection.load,
            [DeltaError("Generic S3 error: timed out")] * failures,
        )

        def failing(self: DeltaConnection, version: int | None = None) -> DeltaTable:
            if left:
                raise left.pop()
            return load(self, version)

        monkeypatch.setattr(DeltaConnection, "load", failing)
        if failures == 1:
            assert (older := version.at(1)) is not None and older.version == 1
        else:
            with pytest.raises(Unavailable, match="timed out"):
                version.at(1)

    def test_a_rewind_immediately_followed_by_another_commit_succeeds(
        self, added: FolderTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The library loads the newest version after it has restored one."""
        deliver(added, 1, ANN)
        deliver(added, 2, BEA)
        restore = DeltaTable.restore

        def followed(table: DeltaTable, *args: Any, **named: Any) -> dict[str, Any]:
            found: dict[str, Any] = restore(table, *args, **named)
            write_deltalake(str(added.path), pa.table({"user": [9], "name": ["x"]}), mode="append")
            table.update_incremental()
            return found

        monkeypatch.setattr(DeltaTable, "restore", followed)
        assert added.sink.repair(back(1), SCHEMA, None).delete == 1
        assert sorted(added.rows()) == [ANN, (9, "x")] and added.sink.open(JOB, LEFT).delivered() == tag(1, 2)


class TestPlace:
    def test_relative_paths_are_absolute_and_local(self) -> None:
        sink = hf.Delta("lake/t")
        assert sink.place.path == str(Path("lake/t").absolute()) and sink.traits.local_paths == (sink.place.path,)
        assert (
            hf.Delta("s3://lake/t/").traits.local_paths == () and hf.Delta("s3://lake/t/").place.path == "s3://lake/t"
        )

    @pytest.mark.parametrize("path", ["", "ftp://host/t", "hdfs://host/t"])
    def test_an_impossible_table_location_is_refused(self, path: str) -> None:
        with pytest.raises(ConfigError, match=r"hf\.Delta"):
            hf.Delta(path)

    @pytest.mark.parametrize("part", ["a#b", "a?sig=hunter2", "[a]", "a^", "a|b", "a\\b", "a\nb", "%20"])
    @pytest.mark.parametrize("root", ["/lake", "s3://lake"])
    def test_a_location_that_the_library_would_misread_is_refused(self, root: str, part: str) -> None:
        with pytest.raises(ConfigError, match="would look for the table in another place") as caught:
            hf.Delta(f"{root}/{part}/t")
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize("part", ["50%", "a b", "ü", "a+b=c;d", "(x)", "%zz"])
    def test_with_other_characters_is_found_again(self, tmp_path: Path, part: str) -> None:
        (tmp_path / part).mkdir()
        table = FolderTable(tmp_path / part)
        table.sink.prepare(SCHEMA, None)
        deliver(table, 1, ANN)
        deliver(table, 2, BEA)
        assert table.sink.repair(back(1), SCHEMA, None).delete == 1 and table.rows() == [ANN]
        assert [each.name for each in tmp_path.iterdir()] == [part]

    def test_with_a_password_is_refused_and_not_repeated(self) -> None:
        with pytest.raises(ConfigError) as caught:
            hf.Delta("s3://user:hunter2@lake/t")
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        "name",
        [
            *("AWS_SECRET_ACCESS_KEY", "aws_session_token", "aws_sse_customer_key_base64", "azure_storage_account_key"),
            *("azure_storage_master_key", "google_service_account_key"),
        ],
    )
    def test_takes_secrets_by_their_place_alone(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match="holds a secret") as caught:
            hf.Delta("s3://lake/t", options={name: "hunter2"})
        assert "hunter2" not in str(caught.value)
        monkeypatch.setenv("LAKE", "hunter2")
        sink = hf.Delta("s3://lake/t", options={name: hf.secret("env:LAKE"), "AWS_ACCESS_KEY_ID": "me"})
        assert sink.traits.secrets == (hf.secret("env:LAKE"),) and b"hunter2" not in pickle.dumps(sink)
        assert sink.place.settings() == {**DEFAULTS, name: "hunter2", "AWS_ACCESS_KEY_ID": "me"}
        assert sink.place.without_secrets("key hunter2 is bad") == "key *** is bad"

    @pytest.mark.parametrize("name", ["AWS_S3_ALLOW_UNSAFE_RENAME", "aws_s3_locking_provider", "conditional_put"])
    def test_options_that_decide_how_commits_are_made_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="is refused"):
            hf.Delta("s3://lake/t", options={name: "true"})

    def test_an_option_with_a_password_in_a_url_is_refused_and_not_repeated(self) -> None:
        with pytest.raises(ConfigError, match="the option 'proxy_url' of hf.Delta") as caught:
            hf.Delta("s3://lake/t", options={"proxy_url": "http://me:hunter2@proxy:3128"})
        assert "hunter2" not in str(caught.value)

    def test_unsafe_commits_by_the_environment_are_refused(
        self, added: FolderTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert unsafe({"AWS_S3_ALLOW_UNSAFE_RENAME": "false"}) is None
        monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
        with pytest.raises(ConfigError, match="AWS_S3_ALLOW_UNSAFE_RENAME, with which two commits"):
            added.sink.open(JOB, LEFT).delivered()

    def test_without_the_library_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "holdfast.sinks.delta.client", None)
        with pytest.raises(ConfigError, match="needs deltalake") as caught:
            hf.Delta("t").prepare(SCHEMA, None)
        assert "pip install 'deltalake>=" in caught.value.next_step


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "meaning"),
        [
            (OSError("Generic S3 error: connection refused"), Unavailable),
            (OSError("Permission denied (os error 13)"), NotAdmitted),
            (OSError("403 Forbidden: SignatureDoesNotMatch"), NotAdmitted),
            (CommitFailedError("Log storage error: timed out"), Unavailable),
            (DeltaError("Kernel error: Expected contiguous commit files, but found gap: ..."), Damaged),
            (DeltaError("Unsupported table features required: [RowTracking]"), ConfigError),
        ],
        ids=str,
    )
    def test_have_a_meaning_for_the_delivery(self, error: Exception, meaning: type[HoldfastError]) -> None:
        found = meaning_of(place_of("/t", None), error)
        assert type(found) is meaning and "Delta table /t" in found.what

    def test_s3_errors_are_shown_without_the_surrounding_document(self) -> None:
        document = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchBucket</Code><Message>No bucket.</Message>'
            "<RequestId>YOD7H4</RequestId><HostId>0exi</HostId></Error>"
        )
        found = meaning_of(place_of("s3://lake/t", None), OSError(f"Server returned 404 Not Found: {document}"))
        assert type(found) is NotAdmitted and found.next_step == "create the bucket, or correct its name"
        assert found.what.endswith("the bucket does not exist: Server returned 404 Not Found: NoSuchBucket: No bucket.")

    def test_without_a_class_are_reasons_to_retry_and_those_of_the_program_are_not(
        self, added: FolderTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The library raises a bare Exception for some errors of Arrow."""

        def failing(error: Exception) -> Callable[..., DeltaTable]:
            def load(*_: object) -> DeltaTable:
                raise error

            return load

        monkeypatch.setattr(DeltaConnection, "load", failing(Exception("Compute error: no room")))
        with pytest.raises(Unavailable, match="Compute error: no room"):
            added.sink.open(JOB, LEFT).delivered()
        monkeypatch.setattr(DeltaConnection, "load", failing(KeyError("a mistake")))
        with pytest.raises(KeyError, match="a mistake"):
            added.sink.open(JOB, LEFT).delivered()

    @pytest.mark.parametrize("name", ["constraint", "forbidden", "not implemented", "unsupported"])
    @pytest.mark.parametrize(
        "form", ["PUT http://host/lake/{}/t/_delta_log/1.json", "GET http://h/lake?prefix={}%2Ft%2F"]
    )
    def test_are_not_judged_by_the_names_of_folders(self, name: str, form: str) -> None:
        said = form.format(name) if "PUT" in form else form.format(quote(name))
        found = meaning_of(place_of(f"s3://lake/{name}/t", None), OSError(f"Error performing {said}: reset"))
        assert type(found) is Unavailable
        local = meaning_of(place_of(f"/lake/{name}", None), OSError(f"/lake/{name}/_delta_log: Input/output error"))
        assert type(local) is Unavailable

    def test_never_show_a_secret_of_several_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LAKE", "-----BEGIN-----\nhunter2\n-----END-----")
        place = place_of("gs://lake/t", {"google_service_account_key": hf.secret("env:LAKE")})
        found = meaning_of(place, OSError("cannot parse -----BEGIN-----\nhunter2\n-----END----- as a key"))
        assert "hunter2" not in str(found) and "***" in found.what

    def test_lost_commit_races_are_not_errors(self, added: FolderTable) -> None:
        stale = added.load()
        deliver(added, 1, ANN)
        with pytest.raises(CommitFailedError) as caught:
            write_deltalake(
                stale,
                pa.table({"user": [1], "name": ["x"]}),
                mode="append",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        assert is_conflict(caught.value)
        assert not is_conflict(CommitFailedError("Log storage error: timed out"))
