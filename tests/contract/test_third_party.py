"""A connector of another project (tests/acme): installed, found by its name, conforming, and part of a running job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.testing.tested_sink import SCHEMA
from holdfast.storage.objects import MemoryObjects
from holdfast.testing import SinkKit, SourceKit, sink_conformance, source_conformance

ACME = Path(__file__).resolve().parents[1] / "acme"
OFFLINE = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip installs it."""
    copy, target = tmp_path_factory.mktemp("acme"), tmp_path_factory.mktemp("packages")
    subprocess.run(["cp", *map(str, ACME.iterdir()), str(copy)], check=True)
    command = [sys.executable, "-m", "pip", "install", *OFFLINE, "--target", str(target), str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(packages)
    yield
    sys.modules.pop("acme_notebook", None)


def notebook(path: Path, columns: pa.Schema, *rows: dict[str, Any]) -> Any:
    if rows:
        path.write_text(json.dumps({"uuid": str(path), "rows": rows, "tags": {}}))
    return hf.connector("notebook", str(path), columns)


@pytest.fixture
def source_kit(installed: None, tmp_path: Path) -> SourceKit:
    path = tmp_path / "in.json"
    found = notebook(path, NUMBERS, {"n": 1}, {"n": 2}, {"n": 3})

    def append() -> None:
        contents = json.loads(path.read_text())
        contents["rows"].append({"n": 4})
        path.write_text(json.dumps(contents))

    return SourceKit(found.source, append)


@source_conformance
def test_the_source_conforms(promise: Callable[[SourceKit], None], source_kit: SourceKit) -> None:
    promise(source_kit)


@pytest.fixture
def sink_kit(installed: None, tmp_path: Path) -> SinkKit:
    path = tmp_path / "out.json"
    return SinkKit(
        notebook(path, SCHEMA).sink, lambda: [tuple(row.values()) for row in json.loads(path.read_text())["rows"]]
    )


@sink_conformance
def test_the_sink_conforms(promise: Callable[[SinkKit], None], sink_kit: SinkKit) -> None:
    promise(sink_kit)


@pytest.mark.usefixtures("installed")
def test_a_job_reads_and_writes_with_it_through_a_crash(tmp_path: Path) -> None:
    app = hf.App("notes", key_groups=16)
    rows = [{"n": n} for n in range(50)]
    read = app.source("in", notebook(tmp_path / "in.json", NUMBERS, *rows))
    read.filter(pl.col("n") % 2 == 0).sink("out", notebook(tmp_path / "out.json", NUMBERS))
    plan = app.plan()
    plan.sinks[0].sink.prepare(NUMBERS, None)
    cluster = Cluster(plan, 2, 7, MemoryObjects(), 1.0, {"in": (0,)})
    cluster.begin()
    cluster.pass_time(2.0)
    cluster.crash(next(iter(cluster.members)))
    cluster.pass_time(5.0)
    found = [row["n"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]]
    assert found == list(range(0, 50, 2))


@pytest.mark.usefixtures("installed")
def test_paths_are_checked_and_the_location_is_recorded(tmp_path: Path) -> None:
    made = notebook(tmp_path / "in.json", NUMBERS)
    assert made.source().traits.local_paths == made.sink().traits.local_paths == (str(tmp_path / "in.json"),)
