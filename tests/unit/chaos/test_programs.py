"""Missing programs of a scenario: refused before anything is started, or reported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from holdfast.chaos.live.faults.proxy import VARIABLE, find_server
from holdfast.chaos.live.faults.scenario import LiveScenario, parse
from holdfast.chaos.live.loading import prepared
from holdfast.chaos.live.testbed import Testbed
from holdfast.errors import ConfigError

FAULTS = """
duration = "60s"
platform = "local[3]"
faults = { worker-kill = 1 }
"""
FEED = 'from = "a", to = "b", prepare'


def scenario(drive: str, *lines: str) -> LiveScenario:
    text = "\n".join([FAULTS, f"drive = {{ {drive} }}", *lines])
    return parse(tomllib.loads(text), "name", toxiproxy=False, checked_elsewhere=True)


class TestProgramsOfTheDrive:
    @pytest.mark.parametrize("key", ["command", FEED])
    @pytest.mark.parametrize("program", ["no-such-program-here", "/tmp", "$NOWHERE/made"])
    def test_missing_programs_are_refused_before_anything_starts(self, key: str, program: str) -> None:
        with pytest.raises(ConfigError, match=r"there is no program .* for the source") as caught:
            prepared(scenario(f'{key} = ["{program}", "1"]'), Path(__file__))
        assert caught.value.not_done == "nothing was started"

    @pytest.mark.parametrize("program", ["{python}", "true", "{out}/made-by-prepare"])
    def test_programs_that_exist_or_may_be_created_are_accepted(self, program: str) -> None:
        assert prepared(scenario(f'{FEED} = ["{program}"]'), Path(__file__))[1] == []

    def test_are_searched_on_the_path_of_the_jobs_environment(self, tmp_path: Path) -> None:
        (tmp_path / "made-here").touch(mode=0o755)
        path = f'job.environment.PATH = "{tmp_path}"'
        prepared(scenario('command = ["made-here"]', path), Path(__file__))
        with pytest.raises(ConfigError, match="'true'"):
            prepared(scenario('command = ["true"]', path), Path(__file__))

    def test_programs_that_cannot_be_executed_are_reported(self, tmp_path: Path) -> None:
        (tmp_path / "made").write_bytes(b"\\x00 is no program")
        (tmp_path / "made").chmod(0o755)
        testbed = Testbed(scenario(f'{FEED} = ["{tmp_path / "made"}"]'), tmp_path / "out")
        (tmp_path / "out").mkdir()
        try:
            with pytest.raises(ConfigError, match="the command that prepares the source cannot be run: "):
                testbed.open()
        finally:
            testbed.close()

    def test_a_drive_program_that_cannot_be_executed_during_the_job_ends_the_run(self, tmp_path: Path) -> None:
        testbed = Testbed(scenario('command = ["/no/such/program"]'), tmp_path)
        try:
            testbed.job(Path(__file__))
            testbed.feed()
            assert "the command that drives the source cannot be run: " in (testbed.error or "")
        finally:
            testbed.close()


class TestServerOfToxiproxy:
    @pytest.mark.parametrize("there", [True, False])
    def test_is_not_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        if there:
            monkeypatch.setenv(VARIABLE, str(tmp_path))
        (tmp_path / "holdfast" / "bin" / "toxiproxy-server").mkdir(parents=True)
        assert find_server() is None
