"""A source that would read what a sink of the same job writes is refused when the job is planned.

Source: docs/design/0080-files-source.md, 0095-topics-by-pattern.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.cli.main import main


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


def planned(read: str, sink: Any) -> None:
    app = hf.App("bids")
    app.source("bids", hf.Files(read, Bid)).sink("out", sink)
    app.plan()


class TestFolderOfASink:
    @pytest.mark.parametrize("kind", SINKS)
    @pytest.mark.parametrize(
        ("read", "written"),
        [
            ("/data", "/data"),
            ("/data", "/data/out"),
            ("/data/", "/data/2026/out"),
            ("file:///data", "/data/out"),
            ("/data/in/..", "/data/out"),
            ("s3://lake/data", "s3://lake/data/out"),
        ],
    )
    def test_below_the_folder_of_a_source_is_refused(self, kind: str, read: str, written: str) -> None:
        if kind == "sqlite" and "://" in written:
            written = "/data/out"
            read = "/data"
        with pytest.raises(hf.ConfigError, match="'bids' reads folder .*, and so also what sink 'out' writes to") as no:
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
    def test_that_the_source_does_not_read_is_planned(self, kind: str, read: str, written: str) -> None:
        if kind != "sqlite" or "://" not in written:
            planned(read, SINKS[kind](written))

    def test_is_refused_if_a_source_reads_one_value_of_it(self) -> None:
        written = hf.Files("/data", partition_by=["auction"])
        with pytest.raises(hf.ConfigError, match="and so also what sink 'out' writes to"):
            planned("/data/auction=7/date=2026-11-27", written)
        planned("/data/auction=7/in", written)

    def test_of_dead_letters_is_refused_too(self) -> None:
        app = hf.App("bids", dlq=hf.Log("/data/letters"))
        app.source("bids", hf.Files("/data", Bid, "jsonl"), on_error="dlq").sink("out", hf.Files("/out"))
        with pytest.raises(hf.ConfigError, match="and so also what sink 'dlq' writes to log"):
            app.plan()


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
        assert "and so also what sink 'out' writes to" in said.out + said.err
        assert sorted(tmp_path.rglob("*")) == before

    def test_say_nothing_of_a_source_beside_the_sink(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "in").mkdir()
        places = {"root": tmp_path / "root", "read": tmp_path / "in", "written": tmp_path / "out"}
        (tmp_path / "job.py").write_text(JOB.format(**{name: str(place) for name, place in places.items()}))
        assert main(["plan", str(tmp_path / "job.py"), "--json"]) == 0
        assert [each["what"] for each in json.loads(capsys.readouterr().out)["changes"]["refused"]] == []
