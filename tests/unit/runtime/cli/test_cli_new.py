"""`holdfast new`: the project that it creates works, and nothing that exists is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.cli.start import new
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects

SRC = Path(__file__).resolve().parents[4] / "src"
Holdfast = Callable[..., Any]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


class TestNew:
    def test_the_projects_own_test_passes(self, tmp_path: Path) -> None:
        new.create(tmp_path / "sales")
        ended = python(tmp_path / "sales", "-m", "pytest", "-q", "-p", "no:cacheprovider")
        assert ended.returncode == 0, ended.stdout
        assert "2 passed" in ended.stdout

    def test_its_job_can_be_planned_and_its_log_contains_the_rows_of_the_file(self, tmp_path: Path) -> None:
        new.create(tmp_path / "north-sales")
        ended = python(tmp_path / "north-sales", "-m", "holdfast.runtime.cli.main", "plan", "job.py")
        assert ended.returncode == 0, ended.stderr
        assert "north-sales" in ended.stdout
        ends = LogReader(open_objects(str(tmp_path / "north-sales/data/sales"), writable=False)).end_offsets()
        assert sum(ends.values()) == len((tmp_path / "north-sales/data/sales.jsonl").read_text().splitlines())

    def test_the_command_reports_the_next_step(
        self, holdfast: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        ended = holdfast("new", "sales")
        assert (ended.status, ended.out) == (0, "created sales: job.py, test_job.py, data/sales\n")
        assert "holdfast run job.py --local --once" in ended.err


class TestRefusals:
    def test_an_existing_folder_is_refused_and_not_changed(self, holdfast: Holdfast, tmp_path: Path) -> None:
        (tmp_path / "sales").mkdir()
        ended = holdfast("new", str(tmp_path / "sales"))
        assert ended.status == 2
        assert "already exists" in ended.err
        assert list((tmp_path / "sales").iterdir()) == []

    @pytest.mark.parametrize("name", ["My Sales", "..", ""])
    def test_an_invalid_job_name_is_refused(self, holdfast: Holdfast, tmp_path: Path, name: str) -> None:
        ended = holdfast("new", str(tmp_path / "below" / name) if name else "")
        assert ended.status == 2
        assert "cannot be the name of a job" in ended.err
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_parent_folder_is_refused(self, holdfast: Holdfast, tmp_path: Path) -> None:
        ended = holdfast("new", str(tmp_path / "below/sales"))
        assert ended.status == 2
        assert f"{tmp_path / 'below'} does not exist" in ended.err
        assert f"Next: create it: mkdir -p {tmp_path / 'below'}" in ended.err

    def test_a_project_that_cannot_be_completed_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(folder: Path) -> None:
            (folder / "job.py").write_text("half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(new, "_fill", full)
        with pytest.raises(OSError, match="No space"):
            new.create(tmp_path / "sales")
        assert list(tmp_path.iterdir()) == []
