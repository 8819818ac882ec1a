"""`holdfast log compact` as a user types it, and what read and tail show afterwards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.cli.log.commands import add_parser

NOW = ("--older-than", "0s", "--grace", "0s")


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser(prog="holdfast")
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["log", *map(str, arguments)])
    handler: Callable[[argparse.Namespace], int] = args.handler
    return handler(args)


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A log of one partition with the keys 1, 2, 1, 3, 1, and a tombstone of 3."""
    path = tmp_path / "log"
    run("create", path, "--schema", "k:int64,v:int64?", "--partitions", 1, "--key", "k")
    rows = [(1, 10), (2, 20), (1, 11), (3, 30), (1, 12), (3, None)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in rows))
    run("append", path, "--file", tmp_path / "rows.jsonl")
    capsys.readouterr()
    return path


class TestCompact:
    def test_the_text_reports_each_partition(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("compact", log, *NOW) == 0
        shown = capsys.readouterr().out
        assert f"{log} compacted: 3 of 6 records" in shown
        assert "partition 0: 6 -> 3 records" in shown and "1 tombstone kept, 0 newer offsets untouched" in shown

    def test_the_json_reports_each_partition(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("compact", log, *NOW, "--json")
        shown = json.loads(capsys.readouterr().out)
        (part,) = shown.pop("partitions")
        assert shown == {"path": str(log), "committed": True, "dry_run": False, "deleted_objects": 1, "more": False}
        assert (part["records_before"], part["records_after"], part["tombstones"]) == (6, 3, 1)
        assert set(part) == {
            "partition",
            "records_before",
            "records_after",
            "bytes_before",
            "bytes_after",
            "tombstones",
            "untouched",
        }

    def test_a_dry_run_changes_nothing_and_exits_with_status_3(
        self, log: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = sorted(log.rglob("*"))
        assert run("compact", log, *NOW, "--dry-run") == 3
        assert "would leave 3 of 6 records" in capsys.readouterr().out
        assert sorted(log.rglob("*")) == before

    def test_the_last_hour_is_not_compacted_by_default(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("compact", log) == 0
        shown = capsys.readouterr()
        assert "nothing to compact" in shown.out and "6 newer offsets untouched" in shown.out
        assert "--older-than" in shown.err

    def test_tombstones_can_be_removed_immediately(self, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("compact", log, *NOW, "--keep-tombstones", "0s")
        capsys.readouterr()
        run("read", log, "--json")
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["offset"], row["row"]["k"]) for row in rows] == [(1, 2), (4, 1)]

    def test_a_log_without_a_key_is_refused(self, tmp_path: Path) -> None:
        run("create", tmp_path / "plain", "--schema", "k:int64")
        with pytest.raises(ConfigError, match="has no key"):
            run("compact", tmp_path / "plain")

    def test_an_invalid_duration_is_refused(self, log: Path) -> None:
        with pytest.raises(ConfigError, match="--older-than"):
            run("compact", log, "--older-than", "soon")


class TestReadingAfterwards:
    @pytest.fixture
    def compacted(self, log: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        run("compact", log, *NOW)
        capsys.readouterr()
        return log

    def offsets(self, capsys: pytest.CaptureFixture[str]) -> list[int]:
        return [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()]

    def test_read_shows_the_original_offsets(self, compacted: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("read", compacted, "--json")
        assert self.offsets(capsys) == [1, 4, 5]

    def test_an_offset_in_a_gap_shows_the_next_row(self, compacted: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("read", compacted, "--json", "--partition", 0, "--offset", 2, "--limit", 1)
        shown = capsys.readouterr()
        assert json.loads(shown.out)["offset"] == 4 and "1 of 3 rows shown" in shown.err

    @pytest.mark.parametrize("lines", [0, 1, 2, 3, 9])
    def test_tail_shows_the_requested_number_of_old_rows(
        self, compacted: Path, capsys: pytest.CaptureFixture[str], lines: int
    ) -> None:
        run("seal", compacted)
        capsys.readouterr()
        run("tail", compacted, "--json", "--lines", lines)
        assert self.offsets(capsys) == [1, 4, 5][max(0, 3 - lines) :]

    def test_tail_counts_rows_appended_after_the_compaction(
        self, compacted: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "more.jsonl").write_text('{"k": 7, "v": 1}\n')
        run("append", compacted, "--file", tmp_path / "more.jsonl")
        run("seal", compacted)
        capsys.readouterr()
        run("tail", compacted, "--json", "--lines", 2)
        assert self.offsets(capsys) == [5, 6]
