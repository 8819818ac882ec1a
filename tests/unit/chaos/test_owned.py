"""No process of a run outlives it, however the run ends; and no other process is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.chaos.live.faults.scenario import LiveScenario, parse
from holdfast.chaos.live.faults.strikes import seen
from holdfast.chaos.live.owned import JOB, SOURCE, end_all, living, marks
from holdfast.chaos.live.testbed import Testbed
from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.wire.processes import is_gone

WAITS = "import signal; signal.pause()"
DETACHED = f"""
import os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"],
                         start_new_session=True)
os.waitpid(child.pid, os.WUNTRACED)
pathlib.Path(sys.argv[1]).write_text(f"{{os.getpid()}} {{child.pid}}")
{WAITS}
"""
"""Starts a stopped process in its own session, prints the process ids, and waits."""
HARNESS = """
import pathlib, sys
from holdfast.chaos.live.running import run
from holdfast.chaos.live.faults.scenario import parse
detached, out = sys.argv[1], pathlib.Path(sys.argv[2])
raw = {
    "duration": "60s", "platform": "local[3]", "faults": {"worker-kill": 1},
    "drive": {"from": "a", "to": "b", "prepare": [sys.executable, "-c", detached, str(out.with_name("pids"))]},
}
run(parse(raw, "name", toxiproxy=False, checked_elsewhere=True), pathlib.Path(__file__), out, check=lambda _: ())
"""
RESPAWNING = """
import subprocess, sys
while True:
    subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE).wait()
"""


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process of another run."""
    child = subprocess.Popen([sys.executable, "-c", WAITS], env={**os.environ, **marks("another run")})
    yield psutil.Process(child.pid)
    child.kill()
    child.wait()


def started(code: str, *arguments: str, part: str = JOB) -> psutil.Process:
    return psutil.Popen([sys.executable, "-c", code, *arguments], env={**os.environ, **marks("this run", part)})


def reported(pipe: Path) -> list[psutil.Process]:
    return [psutil.Process(int(pid)) for pid in pipe.read_text().split()]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pids")
    return tmp_path / "pids"


class TestEndAll:
    def test_processes_started_during_the_kills_are_ended_too(self, stranger: psutil.Process) -> None:
        respawning = started(RESPAWNING)
        assert seen(lambda: len(living("this run")) > 1)
        assert end_all("this run") == [] == living("this run")
        assert is_gone(respawning) and not is_gone(stranger)

    def test_one_part_of_a_run_can_be_ended_alone(self) -> None:
        job, source = started(WAITS), started(WAITS, part=SOURCE)
        assert seen(lambda: len(living("this run")) == 2)
        assert end_all("this run", SOURCE) == []
        assert living("this run") == [job] and is_gone(source)
        assert end_all("this run") == []


class TestGuard:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
    def test_a_harness_that_is_ended_leaves_no_process(
        self, tmp_path: Path, pipe: Path, stranger: psutil.Process, number: signal.Signals
    ) -> None:
        harness = tmp_path / "harness.py"
        harness.write_text(HARNESS)
        own = subprocess.Popen(
            [sys.executable, str(harness), DETACHED, str(tmp_path / "out")], stderr=subprocess.DEVNULL
        )
        begun = [*reported(pipe), *psutil.Process(own.pid).children(recursive=True)]
        own.send_signal(number)
        assert own.wait() != 0
        assert seen(lambda: all(map(is_gone, begun)))
        assert not is_gone(stranger)


def field_of(out: Path, **more: object) -> Testbed:
    raw = {"duration": "60s", "platform": "local[3]", "faults": {"worker-kill": 1}, **more}
    scenario: LiveScenario = parse(raw, "name", toxiproxy=False, checked_elsewhere=True)
    return Testbed(scenario, out)


class TestTestbed:
    def test_the_value_of_a_variable_is_not_shown_when_a_command_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOAD_PASSWORD", "open sesame")
        fails = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1:] != ['another'])", "u:$LOAD_PASSWORD@db"]
        testbed = field_of(tmp_path, drive={"from": "a", "to": "b", "prepare": fails})
        with pytest.raises(ConfigError) as caught:
            testbed.open()
        assert "sesame" not in str(caught.value) and "u:$LOAD_PASSWORD@db" in str(caught.value)
        testbed.close()

    def test_a_missing_source_is_refused_before_a_cluster_is_started(self, tmp_path: Path) -> None:
        testbed = field_of(tmp_path, platform="standalone", drive={"from": "{out}/none", "to": "{out}/fed"})
        with pytest.raises(HoldfastError):
            testbed.open()
        assert not (tmp_path / "cluster").exists()
        testbed.close()

    def test_a_command_that_writes_the_source_is_ended_and_not_counted_as_the_jobs(
        self, tmp_path: Path, pipe: Path
    ) -> None:
        testbed = field_of(tmp_path, drive={"command": [sys.executable, "-c", DETACHED, "{out}/pids"]})
        testbed.open()
        testbed.job(tmp_path / "job.py")
        testbed.feed()
        begun = reported(pipe)
        driven = [testbed.driven]
        assert testbed.left() == []
        testbed.end_command()
        testbed.look()
        driven.append(testbed.driven)
        assert all(map(is_gone, begun)) and driven == [False, True] and testbed.error is None
        testbed.close()

    def test_an_error_in_one_step_of_closing_does_not_skip_the_others(self, tmp_path: Path, pipe: Path) -> None:
        testbed = field_of(tmp_path, drive={"command": [sys.executable, "-c", DETACHED, "{out}/pids"]})
        testbed.open()
        job = testbed.job(tmp_path / "job.py")
        testbed.closing.callback(Path.read_bytes, tmp_path / "nothing is here")
        testbed.feed()
        begun = [*reported(pipe), *job.all()]
        with pytest.raises(FileNotFoundError):
            testbed.close()
        assert all(map(is_gone, begun)) and not living(testbed.token)
