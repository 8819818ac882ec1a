"""The tables of docs/conformance.md name tests that exist, and every connector has a row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance import SINKS, SOURCES, TESTS, Row, tests_of
from documents import ROOT

from holdfast.runtime.sources.installed import connector_class, installed
from holdfast.sinks.contract.sink import Sink

ROWS = (*SINKS, *SOURCES)


@pytest.fixture(scope="module")
def collected() -> frozenset[str]:
    """The names of all tests in the files that the tables name."""
    files = sorted({name.split("::")[0] for row in ROWS for _, name in tests_of(row)})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:]
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


def exists(name: str, collected: frozenset[str]) -> bool:
    """Return whether a name is that of a test, of all cases of a test, or of all tests of a class or file."""
    return name in collected or any(each.startswith((f"{name}[", f"{name}::")) for each in collected)


def has_sink(of: Any) -> bool:
    """Return whether a connector can be written to: it is a sink, or has one."""
    return issubclass(of, Sink) or hasattr(of, "sink")


class TestTables:
    def test_name_tests_that_exist(self, collected: frozenset[str]) -> None:
        missing = [f"{row.name}: {name}" for row in ROWS for _, name in tests_of(row) if not exists(name, collected)]
        assert not missing

    def test_notice_a_test_that_does_not(self, collected: frozenset[str]) -> None:
        gone = Row("sqlite", "SQLite", "sqlite of yesterday", ("a",))
        assert [name for _, name in tests_of(gone) if exists(name, collected)] == []

    def test_name_each_test_of_the_list(self) -> None:
        assert {letter for row in ROWS for letter, _ in tests_of(row)} == set(TESTS)

    def test_have_a_row_for_each_side_of_each_connector(self) -> None:
        ours = {each.name for each in installed() if each.package == "holdfast"}
        assert {row.connector for row in ROWS} == ours
        assert {row.connector for row in SINKS} == {name for name in ours if has_sink(connector_class(name))}


def test_the_page_is_in_the_navigation() -> None:
    assert '"conformance.md"' in Path(ROOT / "zensical.toml").read_text()
