"""A source that would read what a sink of the same job writes is refused when the job is planned.

Source: docs/decisions/0115-own-output.md, 0080-files-source.md, 0095-topics-by-pattern.md.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.cli.main import main
from holdfast.runtime.execution.checks import own_root
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.targets import reads_target
from holdfast.runtime.rows.schema import schema_of
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects


@dataclass
class Bid:
    auction: int
    price: float


SINKS: dict[str, Callable[[str], Any]] = {
    "files": hf.Files,
    "log": hf.Log,
    "delta": hf.Delta,
    "sqlite": lambda path: hf.SQLite(path, "bids"),
    "iceberg": lambda path: hf.Iceberg("shop.bids", catalog="sqlite:////elsewhere/catalog.db", warehouse=path),
}
JOB = """
import pyarrow as pa, holdfast as hf
BIDS = pa.schema([pa.field("auction", pa.int64())])
app = hf.App("bids", root={root!r})
app.source("bids", hf.Files({read!r}, BIDS)).sink("out", hf.Files({written!r}))
"""


def planned(read: str, sink: Any) -> Plan:
    app = hf.App("bids")
    app.source("bids", hf.Files(read, Bid)).sink("out", sink)
    return app.plan()


class TestFolderOfASink:
    def test_below_a_link_to_the_folder_of_a_source_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "linked").symlink_to(tmp_path / "data")
        for read, written in (("data", "linked"), ("linked", "data/out"), ("data", "linked/out")):
            with pytest.raises(hf.ConfigError, match="and so also the rows that sink 'out' writes to"):
                planned(str(tmp_path / read), hf.Files(tmp_path / written))

    @pytest.mark.parametrize("kind", SINKS)
    @pytest.mark.parametrize(
        ("read", "written"),
        [
            ("/data", "/data"),
            ("/data", "/data/out"),
            ("/data/", "/data/2026/out"),
            ("file:///data", "/data/out"),
            ("file://localhost/data", "/data/out"),
            ("/data/in/..", "/data/out"),
            ("s3://lake/data", "s3://lake/data/out"),
        ],
    )
    def test_below_the_folder_of_a_source_is_refused(self, kind: str, read: str, written: str) -> None:
        if kind == "sqlite" and "://" in written:
            written = "/data/out"
            read = "/data"
        with pytest.raises(
            hf.ConfigError, match="'bids' reads folder .*, and so also the rows that sink 'out' writes to"
        ) as no:
            planned(read, SINKS[kind](written))
        assert (no.value.not_done, no.value.exit_status) == ("the job was not planned", 2)

    @pytest.mark.parametrize("kind", SINKS)
    @pytest.mark.parametrize(
        ("read", "written"),
        [
            ("/data/in", "/data/out"),
            ("/data/in", "/data/in-done"),
            ("/data/in", "/data"),
            ("/data", "/data/_out"),
            ("/data", "/data/.out/2026"),
            ("/data", "/data/out.tmp"),
            ("s3://lake/data", "s3://pond/data/out"),
            ("/lake/data", "s3://lake/data/out"),
        ],
    )
    def test_a_sink_folder_outside_the_source_is_planned(self, kind: str, read: str, written: str) -> None:
        if kind != "sqlite" or "://" not in written:
            planned(read, SINKS[kind](written))

    def test_is_refused_if_a_source_reads_one_value_of_it(self) -> None:
        written = hf.Files("/data", partition_by=["auction"])
        with pytest.raises(hf.ConfigError, match="and so also the rows that sink 'out' writes to"):
            planned("/data/auction=7/date=2026-11-27", written)
        planned("/data/auction=7/in", written)

    def test_a_dead_letter_folder_inside_the_source_is_refused(self) -> None:
        app = hf.App("bids", dlq=hf.Log("/data/letters"))
        app.source("bids", hf.Files("/data", Bid, "jsonl"), on_error="dlq").sink("out", hf.Files("/out"))
        with pytest.raises(hf.ConfigError, match="and so also the rows that sink 'dlq' writes to log"):
            app.plan()


class TestRoot:
    """The job's own folder grows while the job runs, so a source that reads it never ends."""

    @pytest.mark.parametrize(
        ("read", "root"),
        [("/data", "/data/jobs"), ("/data", "file://localhost/data/jobs"), ("s3://lake", "s3://lake/x")],
    )
    def test_below_the_folder_of_a_source_is_refused(self, read: str, root: str) -> None:
        plan = planned(read, hf.Files("/out"))
        with pytest.raises(hf.ConfigError, match="and so also the files of the job itself") as refusal:
            refuse(own_root.refusal(plan, root))
        assert refusal.value.exit_status == 2

    @pytest.mark.parametrize(
        ("read", "root"), [("/data", "/data/.holdfast"), ("/data/in", "/data"), ("/data", "/root")]
    )
    def test_a_root_that_no_source_reads_is_accepted(self, read: str, root: str) -> None:
        refuse(own_root.refusal(planned(read, hf.Files("/out")), root))


def refused(source: Any, sink: Any, *, as_table: bool = False) -> str:
    """Return why a job is refused that reads one place and writes to the other; empty if it is planned."""
    app = hf.App("bids")
    read = app.table("bids", source, key=["auction"]).to_changes() if as_table else app.source("bids", source)
    read.sink("out", sink)
    try:
        app.plan()
    except hf.ConfigError as error:
        return error.what
    return ""


class TestLogOfASink:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        create_log(LocalObjects(tmp_path / "bids"), schema_of(Bid), partitions=1)
        (tmp_path / "linked").symlink_to(tmp_path / "bids")
        (tmp_path / "above").symlink_to(tmp_path)
        return tmp_path / "bids"

    @pytest.mark.parametrize("spelled", ["bids", "./bids/", "x/../bids", "linked", "above/bids", "above/above/linked"])
    @pytest.mark.parametrize("scheme", ["", "file://"])
    @pytest.mark.parametrize("written", [False, True])
    def test_a_sink_log_that_the_source_reads_is_refused_in_any_spelling(
        self, log: Path, spelled: str, scheme: str, written: bool
    ) -> None:
        other = f"{scheme}{log.parent}/{spelled}"
        read, target = (log, other) if written else (other, log)
        assert "and so also the rows that sink 'out' writes to log" in refused(hf.Log(read, Bid), hf.Log(target))

    @pytest.mark.parametrize("other", ["bids-2", "bid", "bids/below"])
    def test_beside_it_is_planned(self, log: Path, other: str) -> None:
        assert refused(hf.Log(log, Bid), hf.Log(log.parent / other)) == ""

    def test_a_dead_letter_log_that_the_source_reads_is_refused(self, log: Path) -> None:
        app = hf.App("bids", dlq=hf.Log(log.parent / "linked"))
        app.source("bids", hf.Log(log, Bid)).sink("out", hf.Log(log.parent / "out"))
        with pytest.raises(hf.ConfigError, match="and so also the rows that sink 'dlq' writes to log"):
            app.plan()

    def test_a_sink_log_filled_by_a_captured_table_is_refused(self, log: Path) -> None:
        source = hf.SQLiteChanges(log.parent / "sales.db", "bids", into=hf.Log(log))
        assert "and so also the rows that sink 'out' writes to log" in refused(source, hf.Log(log.parent / "linked"))


class TestTopicOfASink:
    @pytest.mark.parametrize(
        ("read", "written", "topic", "is_one"),
        [
            ("kafka:9092", "kafka:9092", "bids", True),
            ("a:9092,b:9092", "b:9092,c:9092", "bids", True),
            ("localhost:9092", "127.0.0.1:9092", "bids", True),
            ("Kafka.Example:9092", "kafka.example.:9092", "bids", True),
            ("SASL_SSL://kafka:9092", "kafka:09092", "bids", True),
            ("kafka:9092", "kafka:9093", "bids", False),
            ("a:9092", "b:9092", "bids", False),
            ("kafka:9092", "kafka:9092", "bids-2", False),
        ],
    )
    @pytest.mark.parametrize("delivery", ["transactional", "at-least-once"])
    def test_is_compared_by_its_name_and_a_common_server(
        self, read: str, written: str, topic: str, is_one: bool, delivery: Any
    ) -> None:
        why = refused(hf.Kafka(read, "bids", hf.JSON(Bid)), hf.Kafka(written, topic, delivery=delivery))
        assert ("and so also the rows that sink 'out' writes to Kafka" in why) == is_one


class TestTableOfASink:
    @pytest.mark.parametrize(("table", "is_one"), [("bids", True), ("BIDS", True), ("totals", False)])
    @pytest.mark.parametrize("file", ["sales.db", "linked.db"])
    def test_a_sink_table_captured_into_the_source_is_refused(
        self, tmp_path: Path, table: str, is_one: bool, file: str
    ) -> None:
        with closing(sqlite3.connect(tmp_path / "sales.db")) as db:
            db.execute("CREATE TABLE bids (auction INTEGER PRIMARY KEY, price REAL NOT NULL)")
        (tmp_path / "linked.db").symlink_to(tmp_path / "sales.db")
        source = hf.SQLiteChanges(tmp_path / "sales.db", "bids", into=hf.Log(tmp_path / "log"))
        why = refused(source, hf.SQLite(tmp_path / file, table, key=["auction"]), as_table=True)
        assert ("and so also the rows that sink 'out' writes to" in why) == is_one

    @pytest.mark.parametrize(
        ("dsn", "table", "schema", "is_one"),
        [
            ("postgresql://app@db:5432/sales", "bids", "public", True),
            ("host=db dbname=sales user=other", "bids", "public", True),
            ("postgresql://app@DB/sales", "bids", "public", True),
            ("postgresql://app@db/sales", "bids", "archive", False),
            ("postgresql://app@db:5433/sales", "bids", "public", False),
            ("postgresql://app@db/other", "bids", "public", False),
        ],
    )
    def test_postgres_sink_tables_are_compared_by_server_database_and_schema(
        self, tmp_path: Path, dsn: str, table: str, schema: str, is_one: bool
    ) -> None:
        source = hf.PostgresChanges("postgresql://app@db/sales", "bids", into=hf.Log(tmp_path / "log")).source()
        target = hf.Postgres(dsn, table, key=["auction"], schema=schema)
        assert reads_target(source, target.traits.place) == is_one


class TestCommands:
    @pytest.mark.parametrize("command", ["plan", "doctor", "run"])
    def test_report_it_before_anything_is_created(
        self, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "data").mkdir()
        places = {"root": tmp_path / "root", "read": tmp_path / "data", "written": tmp_path / "data" / "out"}
        (tmp_path / "job.py").write_text(JOB.format(**{name: str(place) for name, place in places.items()}))
        before = sorted(tmp_path.rglob("*"))
        assert main([command, str(tmp_path / "job.py"), "--json"]) == 2
        said = capsys.readouterr()
        assert "and so also the rows that sink 'out' writes to" in said.out + said.err
        assert sorted(tmp_path.rglob("*")) == before

    def test_say_nothing_of_a_source_beside_the_sink(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "in").mkdir()
        places = {"root": tmp_path / "root", "read": tmp_path / "in", "written": tmp_path / "out"}
        (tmp_path / "job.py").write_text(JOB.format(**{name: str(place) for name, place in places.items()}))
        assert main(["plan", str(tmp_path / "job.py"), "--json"]) == 0
        assert [each["what"] for each in json.loads(capsys.readouterr().out)["changes"]["refused"]] == []
