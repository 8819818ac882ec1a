"""`holdfast log` on a changelog: records are created, appended, shown with what they do, and read as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.storage.log.log import read_meta
from holdfast.storage.objects import LocalObjects
from tests.unit.runtime.test_cli_log import from_stdin, refused, run

RECORDS = """
{"id": 1, "name": "Ada", "n": 5}
{"id": 2, "name": "Grace", "holdfast_deleted": false}
{"id": 1, "holdfast_deleted": true}
"""


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A changelog with one partition."""
    made = tmp_path / "log"
    schema = "id:int64,name:string,n:int64?"
    assert run("create", made, "--schema", schema, "--partitions", 1, "--key", "id", "--changelog") == 0
    capsys.readouterr()
    return made


@pytest.fixture
def filled(log: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert from_stdin(RECORDS, log) == 0
    capsys.readouterr()
    return log


class TestCreate:
    def test_a_changelog_has_the_mark_and_values_that_may_be_null(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("create", tmp_path / "log", "--schema", "id:int64?,name:string", "--key", "id", "--changelog")
        wanted = "a changelog: 4 partitions, key id, columns holdfast_deleted:bool, id:int64, name:string?"
        assert wanted in capsys.readouterr().out
        meta = read_meta(LocalObjects(tmp_path / "log"))
        assert meta is not None and meta.changelog

    def test_json_tells_whether_it_is_one(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name, flags in (("yes", ["--changelog"]), ("no", [])):
            run("create", tmp_path / name, "--schema", "id:int64,n:int64", "--key", "id", "--json", *flags)
            assert json.loads(capsys.readouterr().out)["changelog"] == (name == "yes")

    def test_a_changelog_without_a_key_is_refused(self, tmp_path: Path) -> None:
        assert (
            "a changelog needs a key" in refused("create", tmp_path / "log", "--schema", "n:int64", "--changelog").what
        )


class TestAppend:
    def test_a_csv_file_may_leave_the_mark_out_or_empty(
        self, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "a.csv").write_text("id,name,n\n1,Ada,5\n2,Grace,6\n")
        (tmp_path / "b.csv").write_text("holdfast_deleted,id,name,n\ntrue,1,,\n,3,Edsger,\n")
        for name in ("a.csv", "b.csv"):
            run("append", log, "--file", tmp_path / name)
        capsys.readouterr()
        run("read", log, "--json")
        ops = [(line["op"], line["row"]["id"]) for line in map(json.loads, capsys.readouterr().out.splitlines())]
        assert ops == [("put", 1), ("put", 2), ("delete", 1), ("put", 3)]

    def test_a_delete_with_a_value_is_refused(self, log: Path) -> None:
        with pytest.raises(HoldfastError, match="row 2 deletes its key, but column 'n' has a value"):
            from_stdin('{"id": 1}\n{"id": 1, "holdfast_deleted": true, "n": 3}\n', log)
        assert LocalObjects(log).list("commits") == []

    def test_a_null_as_key_is_refused_with_its_line(self, log: Path) -> None:
        with pytest.raises(HoldfastError, match="line 2 of stdin: column 'id' is null"):
            from_stdin('{"id": 1}\n{"id": null}\n', log)

    def test_the_key_chooses_the_partition(self, log: Path) -> None:
        assert "the log is partitioned by id" in refused("append", log, "--partition", 0).what


class TestRead:
    def test_a_table_shows_what_each_record_does(self, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("read", filled)
        assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
            ["partition", "offset", "op", "id", "name", "n"],
            ["0", "0", "put", "1", "Ada", "5"],
            ["0", "1", "put", "2", "Grace", "null"],
            ["0", "2", "delete", "1", "null", "null"],
        ]

    def test_json_tells_it_and_keeps_the_row_as_append_takes_it(
        self, filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("read", filled, "--json")
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["op"] for line in lines] == ["put", "put", "delete"]
        run("create", tmp_path / "copy", "--schema", "id:int64,name:string,n:int64", "--key", "id", "--changelog")
        from_stdin("\n".join(json.dumps(line["row"]) for line in lines), tmp_path / "copy", "--every", 2)
        capsys.readouterr()
        run("read", tmp_path / "copy", "--as-table", "--json")
        assert [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()] == [
            {"id": 2, "name": "Grace", "n": None}
        ]

    def test_tail_shows_it_too(self, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("seal", filled)
        capsys.readouterr()
        run("tail", filled, "--lines", 1)
        assert capsys.readouterr().out.splitlines() == [
            "partition\toffset\top\tid\tname\tn",
            "0\t2\tdelete\t1\tnull\tnull",
        ]
        run("tail", filled, "--lines", 1, "--json")
        assert json.loads(capsys.readouterr().out)["op"] == "delete"

    def test_a_log_that_is_no_changelog_shows_its_columns_as_they_are(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("create", tmp_path / "log", "--schema", "holdfast_deleted:bool,n:int64", "--partitions", 1)
        from_stdin('{"holdfast_deleted": true, "n": 1}', tmp_path / "log")
        capsys.readouterr()
        run("read", tmp_path / "log")
        assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
            ["partition", "offset", "holdfast_deleted", "n"],
            ["0", "0", "true", "1"],
        ]


class TestReadAsTable:
    def test_the_newest_rows_are_shown_at_their_offsets(self, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("read", filled, "--as-table")
        assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
            ["partition", "offset", "id", "name", "n"],
            ["0", "1", "2", "Grace", "null"],
        ]

    def test_the_limit_counts_rows_of_the_table(self, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from_stdin('{"id": 3}\n{"id": 4}\n', filled)
        capsys.readouterr()
        run("read", filled, "--as-table", "--limit", 2, "--json")
        shown = capsys.readouterr()
        assert [json.loads(line)["row"]["id"] for line in shown.out.splitlines()] == [2, 3]
        assert shown.err == "2 of 3 rows shown; --limit shows more\n"

    def test_one_partition_may_be_chosen(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("create", tmp_path / "log", "--schema", "id:int64", "--key", "id", "--changelog")
        from_stdin("\n".join(f'{{"id": {n}}}' for n in range(20)), tmp_path / "log")
        found = []
        for partition in range(4):
            capsys.readouterr()
            run("read", tmp_path / "log", "--as-table", "--partition", partition, "--json")
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert {line["partition"] for line in lines} <= {partition}
            found += [line["row"]["id"] for line in lines]
        assert sorted(found) == list(range(20))

    def test_an_offset_is_refused(self, filled: Path) -> None:
        assert "--offset with --as-table" in refused("read", filled, "--as-table", "--partition", 0, "--offset", 1).what

    def test_a_log_without_a_key_is_refused(self, tmp_path: Path) -> None:
        run("create", tmp_path / "log", "--schema", "n:int64")
        assert "the log has no key" in refused("read", tmp_path / "log", "--as-table").what
