"""Metadata of the package for pip, package indexes and users: version, interpreters, bounds of dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import holdfast as hf

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [
    line for name, lines in PROJECT["optional-dependencies"].items() if name not in ("dev", "docs") for line in lines
]
FOR_USERS = [Requirement(line) for line in (*PROJECT["dependencies"], *EXTRAS)]
LOCKED = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^(\S+)==(\S+) \\$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
}
PYTHONS = re.findall(r"Python ([0-9., ]+)\.", (ROOT / "requirements.lock").read_text())[0].split(", ")


class TestVersion:
    def test_the_version_is_that_of_the_project(self) -> None:
        assert hf.__version__ == PROJECT["version"]

    def test_a_copy_that_is_not_installed_has_a_valid_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lacking(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", lacking)
        monkeypatch.delitem(vars(hf), "__version__", raising=False)
        assert Version(hf.__version__) < Version(PROJECT["version"])
        monkeypatch.delitem(vars(hf), "__version__")

    def test_the_version_is_listed_among_the_names(self) -> None:
        assert "__version__" in dir(hf)


class TestDependencies:
    @pytest.mark.parametrize("requirement", FOR_USERS, ids=lambda each: each.name)
    def test_each_has_bounds_on_both_sides(self, requirement: Requirement) -> None:
        assert {each.operator for each in requirement.specifier} == {">=", "<"}

    @pytest.mark.parametrize("requirement", FOR_USERS, ids=lambda each: each.name)
    def test_the_tested_version_is_within_the_bounds(self, requirement: Requirement) -> None:
        assert LOCKED[canonicalize_name(requirement.name)] in requirement.specifier


class TestInterpreters:
    def test_exactly_the_interpreters_of_the_lock_file_are_accepted_and_listed(self) -> None:
        accepted = SpecifierSet(PROJECT["requires-python"])
        prefix = "Programming Language :: Python :: 3."
        assert [f"3.{minor}" for minor in range(30) if f"3.{minor}.0" in accepted] == PYTHONS
        assert [
            f"3.{each.removeprefix(prefix)}" for each in PROJECT["classifiers"] if each.startswith(prefix)
        ] == PYTHONS


class TestImports:
    def test_no_module_that_a_worker_loads_imports_pandas(self) -> None:
        """It would take every start of a process 0.2 to 1 s; pyarrow imports it with the first Python value."""
        rooms = ("state", "checkpoint", "storage", "sinks", "runtime/operators", "runtime/worker", "runtime/driver")
        modules = [
            "holdfast." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for room in rooms
            for path in sorted((ROOT / room).rglob("*.py"))
            if path.stem != "__init__"
        ]
        code = (
            "import sys, importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
            "    assert 'pandas' not in sys.modules, name"
        )
        ended = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
