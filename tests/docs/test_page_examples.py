"""Every Python example and every command of the documentation has the documented result.

What needs Spark is in test_on_spark.py.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from documents import ROOT, blocks, pages, sessions
from reader import Session, named, needs, reading
from servers import SERVERS

import holdfast as hf


class TestExamples:
    @pytest.mark.parametrize("session", named("quick"))
    def test_the_python_of_a_page_works(
        self, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with reading(tmp_path, monkeypatch) as reader:
            reader.follows(session, "quick")

    @pytest.mark.thorough
    @pytest.mark.parametrize("session", named("commands"))
    def test_the_commands_of_a_page_work(
        self, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with reading(tmp_path, monkeypatch) as reader:
            reader.follows(session, "commands")


class TestMarks:
    def test_blocks_that_start_spark_are_marked(self) -> None:
        starts = re.compile(r"(holdfast (run|demo)|python \S+\.py|spark-submit)\b")
        shown = [block for page in pages() for session in sessions(page) for block in session]
        unmarked = [str(b) for b in shown if b.language == "sh" and b.runs and not b.e2e and starts.search(b.text)]
        assert not unmarked, "mark these blocks with <!-- e2e -->"

    def test_each_server_that_a_page_needs_can_be_started(self) -> None:
        wanted = {server for page in pages() for session in sessions(page) for server in needs(session)}
        assert wanted and wanted <= SERVERS.keys()

    def test_what_a_page_leaves_running_needs_spark_and_so_runs_only_with_the_whole_page(self) -> None:
        left = [block for page in pages() for session in sessions(page) for block in session if block.background]
        assert left and all(block.e2e and block.runs for block in left)

    def test_each_guide_page_has_an_example_that_is_run(self) -> None:
        guide = [page for page in pages() if page.parent.name == "guide" and not sessions(page)]
        assert not guide, "a page of the guide has no example that is run"


class TestUnit:
    def test_the_service_is_not_restarted_after_errors_that_a_restart_cannot_cure(self) -> None:
        [text] = [block.text for block in blocks(ROOT / "docs/deploy/systemd.md") if block.language == "ini"]
        unit = configparser.ConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(text)
        hopeless = [hf.ConfigError, hf.Damaged, hf.Fenced]
        shown = unit["Service"]["RestartPreventExitStatus"]
        assert [int(each) for each in shown.split()] == sorted(kind.exit_status for kind in hopeless)
