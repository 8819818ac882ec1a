"""Connectors by name: built-in ones, those of installed packages, and refused names."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.cli.main import main
from holdfast.runtime.sources.installed import OWN, installed
from holdfast.traits import Library

Install = Callable[..., None]
ROOT = Path(__file__).resolve().parents[3]


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
    def test_names_of_built_in_connectors_return_the_built_in_classes(self, tmp_path: Path) -> None:
        assert isinstance(hf.connector("log", tmp_path), hf.Log)
        assert hf.connector("sqlite", "out.db", table="t").table == "t"
        assert {each.name for each in installed() if each.package == "holdfast"} == set(OWN)

    def test_connector_names_from_installed_packages_are_resolved(self, install: Install, tmp_path: Path) -> None:
        code = "class Numbers:\n    def __init__(self, last):\n        self.last = last\n"
        (tmp_path / "acme_named.py").write_text(code)
        install("acme", numbers="acme_named:Numbers")
        assert hf.connector("numbers", last=3).last == 3

    def test_unknown_connector_names_are_refused_with_the_known_names(self) -> None:
        with pytest.raises(hf.ConfigError, match="there is no connector 'rabbit'") as caught:
            hf.connector("rabbit")
        assert ", ".join(sorted(OWN)) in caught.value.next_step

    def test_names_of_built_in_connectors_cannot_be_registered_again(self, install: Install) -> None:
        install("acme", log="acme_named:Log")
        with pytest.raises(hf.ConfigError, match="'log' is registered by acme and holdfast"):
            hf.connector("log", "/data")

    def test_whose_module_is_missing_are_refused_with_the_package(self, install: Install) -> None:
        install("acme", broken="acme_gone:Numbers")
        with pytest.raises(hf.ConfigError, match=r"'broken' of package acme cannot be loaded from acme_gone:Numbers"):
            hf.connector("broken")


def listed_as_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the command lists, by name."""
    assert main(["connectors", "--json"]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


class TestCommand:
    def test_the_command_lists_names_with_package_library_and_traits(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = listed_as_json(capsys)
        assert set(found) >= set(OWN)
        assert {name: found[name]["problem"] for name in OWN} == dict.fromkeys(OWN)
        assert found["kafka"]["source"]["traits"]["publishes"] and found["kafka"]["sink"]["traits"]["transacts"]
        postgres = found["postgres"]
        assert postgres["library"] == {"name": "psycopg", "version": metadata.version("psycopg"), "extra": "postgres"}
        assert (postgres["package"], postgres["version"]) == ("holdfast", hf.__version__)
        assert postgres["source"] is None and postgres["problem"] is None
        assert found["log"]["source"]["traits"]["captured"] is False and found["log"]["sink"]["traits"]["commits_once"]
        assert found["spark-frame"]["source"]["traits"]["copied"] and found["generator"]["source"]["traits"]["paced"]
        assert found["files"]["source"]["traits"]["finds"] and found["files"]["sink"]["traits"]["repairs"]
        assert found["sqlite"]["library"] == {"name": "sqlite", "version": sqlite3.sqlite_version, "extra": None}

    def test_every_built_in_connector_can_be_used_and_shows_what_it_can_do(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = listed_as_json(capsys)
        assert {name: found[name]["problem"] for name in OWN} == dict.fromkeys(OWN)
        sides = {name: [found[name][side] for side in ("source", "sink") if found[name][side]] for name in OWN}
        assert all(each and all(side["traits"] for side in each) for each in sides.values()), sides

    def test_a_line_of_the_table_is_a_side(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["connectors"]) == 0
        header, *lines = capsys.readouterr().out.splitlines()
        assert header.split() == ["name", "side", "class", "package", "library", "traits"]
        assert [line.split()[:2] for line in lines if line.startswith("log ")] == [["log", "source"], ["log", "sink"]]
        [postgres] = [line for line in lines if line.startswith("postgres ")]
        assert f"psycopg {metadata.version('psycopg')}" in postgres and "keyed, repairs, audits, immediate" in postgres

    def test_traits_are_those_of_the_connectors_themselves(self, capsys: pytest.CaptureFixture[str]) -> None:
        sink = hf.Postgres("host=db", "t", ["k"], "idempotent")
        shown = listed_as_json(capsys)["postgres"]["sink"]["traits"]
        assert {name for name, has in shown.items() if has} == {
            *("keyed", "exclusive", "repairs", "audits", "immediate", "ownership")
        }
        assert shown["immediate"] == (sink.immediate is not None) and shown["transacts"] == (sink.transacts is not None)

    def test_a_missing_library_is_reported_with_the_extra(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(hf.Postgres, "library", Library(name="psycopg_that_is_missing", extra="postgres"))
        found = listed_as_json(capsys)["postgres"]
        assert found["problem"] == "psycopg_that_is_missing is not installed" and found["library"]["version"] is None
        assert found["next"] == "pip install 'psycopg[binary]>=3.2,<4', on every worker too"
        assert (found["source"], found["sink"]) == (None, {"traits": None})
        assert main(["connectors"]) == 0
        said = capsys.readouterr()
        assert "postgres cannot be used: psycopg_that_is_missing is not installed" in said.err

    @pytest.mark.parametrize("name", sorted(OWN))
    def test_every_extra_that_is_named_installs_its_library(self, name: str) -> None:
        library = getattr(getattr(hf, OWN[name].partition(":")[2]), "library", None)
        if library is not None and library.extra is not None:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert [line for line in project["optional-dependencies"][library.extra] if line.startswith(library.name)]


class TestOtherPackages:
    """What a class of another package says about itself is listed; what it does wrong hides no other connector."""

    CODE = """
from holdfast.connectors import Library, SinkTraits, SourceTraits

class Constant:
    library = Library(name="acme-client", extra="fast", version="7")
    traits = SourceTraits(kind="Constant", local_paths=(), paced=True)

class Silent:
    def __init__(self, topic): ...
    def check(self): ...
    def open(self): ...

class Both:
    def __init__(self, topic): ...
    def source(self): ...
    def sink(self): ...

class Wrong:
    @classmethod
    def example(cls):
        raise RuntimeError("no licence")
"""

    @pytest.fixture
    def found(self, install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        (tmp_path / "acme_listed.py").write_text(self.CODE)
        (tmp_path / "acme_raises.py").write_text("1 / 0")
        classes = {name: f"acme_listed:{name.title()}" for name in ("constant", "silent", "both", "wrong")}
        install("acme", **classes, raises="acme_raises:X", gone="acme_gone:X", log="acme_listed:Silent")
        return listed_as_json(capsys)

    def test_traits_of_the_class_and_the_library_are_listed(self, found: dict[str, Any]) -> None:
        constant = found["constant"]
        assert constant["source"]["traits"]["paced"] and constant["sink"] is None and constant["version"] == "1.2"
        assert constant["library"] == {"name": "acme-client", "version": "7", "extra": "fast"}

    def test_sides_follow_from_methods_where_traits_are_unknown(self, found: dict[str, Any]) -> None:
        assert (found["silent"]["source"], found["silent"]["sink"]) == ({"traits": None}, None)
        assert (found["both"]["source"], found["both"]["sink"]) == ({"traits": None}, {"traits": None})

    def test_a_package_that_cannot_be_used_is_listed_with_the_reason(self, found: dict[str, Any]) -> None:
        assert "acme_listed:Wrong of package acme cannot be used: RuntimeError: no licence" in found["wrong"]["problem"]
        assert "ZeroDivisionError" in found["raises"]["problem"] and found["sqlite"]["problem"] is None
        assert "cannot be loaded from acme_gone:X" in found["gone"]["problem"]

    def test_a_name_that_two_packages_use_is_listed_with_both(self, found: dict[str, Any]) -> None:
        assert found["log"]["problem"] == "the name is registered by acme and holdfast"
