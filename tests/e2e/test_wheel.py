"""The wheel contains the modules of the tree; links and package lists hide mistakes until a user installs it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
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
