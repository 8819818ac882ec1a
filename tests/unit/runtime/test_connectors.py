"""Connectors by name: built-in ones, those of installed packages, and refused names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime.cli.main import main
from holdfast.runtime.sources.installed import OWN, installed

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put packages with entry points on the path, as an installer leaves them."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, **points: str) -> None:
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name} = {target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[holdfast.connectors]", *lines, ""]))

    return install


class TestNames:
    def test_of_built_in_connectors_give_the_built_in_classes(self, tmp_path: Path) -> None:
        assert isinstance(hf.connector("log", tmp_path), hf.Log)
        assert hf.connector("sqlite", "out.db", table="t").table == "t"
        assert {each.name for each in installed() if each.package == "holdfast"} == set(OWN)

    def test_of_installed_packages_are_found(self, install: Install, tmp_path: Path) -> None:
        code = "class Numbers:\n    def __init__(self, last):\n        self.last = last\n"
        (tmp_path / "acme_named.py").write_text(code)
        install("acme", numbers="acme_named:Numbers")
        assert hf.connector("numbers", last=3).last == 3

    def test_that_are_unknown_are_refused_with_the_known_names(self) -> None:
        with pytest.raises(hf.ConfigError, match="there is no connector 'redis'") as caught:
            hf.connector("redis")
        assert "generator, kafka, log, postgres, spark-frame, sqlite" in caught.value.next_step

    def test_of_built_in_connectors_cannot_be_registered_again(self, install: Install) -> None:
        install("acme", log="acme_named:Log")
        with pytest.raises(hf.ConfigError, match="'log' is registered by acme and holdfast"):
            hf.connector("log", "/data")

    def test_whose_module_is_missing_are_refused_with_the_package(self, install: Install) -> None:
        install("acme", broken="acme_gone:Numbers")
        with pytest.raises(hf.ConfigError, match=r"'broken' of package acme cannot be loaded from acme_gone:Numbers"):
            hf.connector("broken")


class TestCommand:
    def test_the_command_lists_names_with_their_packages(
        self, install: Install, capsys: pytest.CaptureFixture[str]
    ) -> None:
        install("acme", numbers="acme_named:Numbers")
        assert main(["connectors", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {"name": "numbers", "target": "acme_named:Numbers", "package": "acme", "version": "1.2"} in found
        assert main(["connectors"]) == 0
        assert "sqlite" in capsys.readouterr().out
