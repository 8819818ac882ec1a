"""The wheel contains the modules of the tree; links and package lists hide mistakes until a user installs it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from documents import blocks
from wheels import FOLDERS, built_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tracked files in the tree."""
    return built_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_contains_every_module_of_the_tree_once(wheel: Path) -> None:
    tree = {f"holdfast/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    shared = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/holdfast").rglob("*.py") if path.resolve() == path
    }
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    assert sorted(names) == sorted(tree | shared)


def test_the_wheel_contains_the_typing_marker_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    assert "holdfast/py.typed" in archive.namelist()
    [entry_points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "holdfast = holdfast.runtime.cli.main:main" in archive.read(entry_points).decode()


@pytest.mark.slow
def test_a_bare_environment_runs_the_quick_start_and_every_install_line(wheel: Path, tmp_path: Path) -> None:
    """An environment with the wheel alone, in which the packages of each page are then installed."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", env], check=True)
    bare = {"PATH": f"{env / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", command], check=False, cwd=tmp_path, env=bare, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    run(f"pip install --quiet {wheel}")
    shown = blocks(ROOT / "README.md")
    [job] = [each for each in shown if "hf.App" in each.text]
    (tmp_path / "sales.py").write_text(job.text)
    [commands] = [each.text for each in shown if "holdfast log create" in each.text]
    assert "('north', 1, 2.5) ('south', 1, 4.0)" in run(commands)
    lines = {line for page in sorted((ROOT / "docs").rglob("*.md")) for line in install_lines(page)}
    assert len(lines) > 10
    for line in sorted(lines):
        run(f"{line} --quiet")
    modules = "confluent_kafka, fastavro, psycopg, redis, aiohttp, urllib3, deltalake, pyiceberg, s3fs, google.protobuf"
    run(f"python -c 'import {modules}' && holdfast connectors --json && holdfast doctor --local")


def install_lines(page: Path) -> list[str]:
    found = re.findall(r"pip install (?:'[^'\n]+' ?)+", page.read_text())
    return [] if page.parent.name == "decisions" else [each for each in found if "'/" not in each]
