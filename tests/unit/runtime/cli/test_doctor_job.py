"""`holdfast doctor JOB.py`: finds beforehand what a start would refuse, and creates nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start import doctor
from holdfast.runtime.cli.start.doctor_cluster import Check
from holdfast.runtime.cli.start.doctor_job import job
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.sqlite.sink import SQLite
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects

ROWS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
JOB = """
import pyarrow as pa, holdfast as hf
ROWS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
app = hf.App("checked", root={root!r})
rows = app.source("rows", hf.Log({rows!r}, ROWS))
rows.sink("table", hf.SQLite({out!r}, table="t", key=["k"]))
rows.sink("log", hf.Log({log!r}))
rows.sink("server", hf.Postgres("postgresql://app@127.0.0.1:1/x", "t", password=hf.secret("env:SECRET_OF_A_TEST")))
"""

FILES = """
import pyarrow as pa
import holdfast as hf

app = hf.App("job", root={root!r})
rows = app.source("rows", hf.Files({files!r}, pa.schema([("k", pa.int64()), ("n", pa.int64())]), "csv"))
rows.sink("log", hf.Log({log!r}))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A job whose source exists and whose targets do not; nothing listens where its server should."""
    create_log(LocalObjects(tmp_path / "rows"), ROWS, 3)
    places = {"root": "root", "rows": "rows", "out": "out.db", "log": "out-log"}
    file = tmp_path / "job.py"
    file.write_text(JOB.format(**{name: str(tmp_path / place) for name, place in places.items()}))
    return file


def checks(file: Path) -> dict[str, Check]:
    return {check.name: check for check in job(str(file), None, None, None)}


class TestJob:
    def test_sources_and_targets_that_do_not_exist_yet_are_reported_and_nothing_is_created(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_OF_A_TEST", "open sesame")
        before = sorted(tmp_path.rglob("*"))
        found = checks(file)
        assert sorted(tmp_path.rglob("*")) == before
        assert [found[each].state for each in ("source rows", "sink table", "sink log")] == ["ok", "ok", "ok"]
        assert found["source rows"].found == f"log {tmp_path}/rows: 3 partitions can be read"
        assert "the file is missing" in found["sink table"].found and "creates it" in found["sink table"].found
        assert found["sink log"].found == f"log {tmp_path}/out-log: the first start creates the log"

    def test_a_missing_secret_is_reported(self, file: Path) -> None:
        found = checks(file)
        assert found["secret"].state == "fail" and "SECRET_OF_A_TEST" in found["secret"].found
        assert (found["secret"].exit_status, found["sink server"].exit_status) == (2, 2)

    def test_an_unreachable_server_is_reported(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_OF_A_TEST", "open sesame")
        server = checks(file)["sink server"]
        assert (server.state, server.exit_status) == ("fail", 5)
        assert server.next is not None and "check that the server runs" in server.next
        assert "sesame" not in f"{server}"

    def test_a_table_that_exists_is_compared_and_not_changed(self, file: Path, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER)")
            db.commit()
            assert checks(file)["sink table"].found.endswith("the table exists and fits the stream")
            assert db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("t",)]
            db.execute("ALTER TABLE t RENAME n TO m")
            db.commit()
        table = checks(file)["sink table"]
        assert (table.state, table.exit_status) == ("fail", 2) and "'n' is missing" in table.found

    def test_a_table_of_another_sink_is_reported(self, file: Path, tmp_path: Path) -> None:
        table = SQLite(tmp_path / "out.db", "t", ["k"])
        table.prepare(ROWS, ("k",))
        with closing(table.open("another", Writer("there", Subtask(0)), Claim("driver", Generation(1)))) as target:
            target.deliver(Tag(Timeline(1), Epoch(1)), [])
        found = checks(file)["sink table"]
        assert (found.state, found.exit_status) == ("fail", 2)
        assert "belongs to sink 'there' of another job, another" in found.found
        assert found.next is not None and "--adopt-targets" in found.next

    def test_a_source_that_does_not_exist_fails(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "rows").rename(tmp_path / "elsewhere")
        assert (checks(file)["source rows"].state, checks(file)["source rows"].exit_status) == ("fail", 2)

    def test_files_that_a_first_start_refuses_are_reported_and_no_list_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        file, files = tmp_path / "job.py", tmp_path / "files"
        file.write_text(FILES.format(root=str(tmp_path / "root"), files=str(files), log=str(tmp_path / "out-log")))
        files.mkdir()
        (files / "good.csv").write_text("k,n\n1,2\n")
        before = sorted(tmp_path.rglob("*"))
        assert checks(file)["source rows"].found == f"folder {files}: the first start copies its list of files"
        assert sorted(tmp_path.rglob("*")) == before
        (files / "other.csv").write_text("k,m\n1,2\n")
        found = checks(file)["source rows"]
        assert found.state == "fail" and "other.csv" in found.found
        assert list((tmp_path / "temporary").iterdir()) == []


class TestCommand:
    def test_the_exit_status_is_that_of_the_first_check_that_fails(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        for group in ("python", "java", "packages", "machine"):
            monkeypatch.setattr(doctor, group, lambda: iter(()))
        command = ["doctor", str(file), "--root", str(tmp_path / "other"), "--json"]
        assert main(command) == 2
        shown = json.loads(capsys.readouterr().out)
        failed = [check["name"] for check in shown["checks"] if check["state"] == "fail"]
        assert not shown["ok"] and failed == ["secret", "sink server"]
        monkeypatch.setenv("SECRET_OF_A_TEST", "open sesame")
        assert main(command) == 5
