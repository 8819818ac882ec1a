"""The demo kills only processes of its job, and reports a kill only after it saw the process end."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from holdfast.errors import ConfigError
from holdfast.examples import flights_data
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start import demo_kill
from holdfast.runtime.cli.start.demo import RECORDS_PER_S, DemoRun, add_parser, describe, failed, in_log, prepare, show
from holdfast.runtime.cli.start.demo_kill import (
    DAEMON,
    DemoKill,
    InLog,
    ProgressLine,
    ProgressRestart,
    WorkerSeen,
    kill_one,
    unproven,
)
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

WAITS = "import sys; sys.stdin.read()"
WORKS = "while True: pass"
LOG = Path(__file__).parents[3] / "formats" / "checkpoint_v2"


def logged(generation: int = 1, epoch: int = 4) -> InLog:
    return InLog(generation, epoch)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process below this one that does nothing until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def seen(*workers: WorkerSeen) -> ProgressLine:
    return ProgressLine(records_in=500, generation=1, workers=list(workers))


class TestArguments:
    def test_the_help_names_the_actual_default(self) -> None:
        commands = argparse.ArgumentParser().add_subparsers()
        add_parser(commands)
        text = " ".join(commands.choices["demo"].format_help().split())
        assert f"--max-records-per-second N limit on reading; default: {RECORDS_PER_S}" in text


class TestShow:
    def test_a_line_is_printed_again_only_if_it_says_something_new(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.cli.start.demo.LINE_EVERY_S", 0.0)
        run = DemoRun(Path("unused"))
        told = (ProgressLine(), ProgressLine(), ProgressLine(generation=1), ProgressLine(generation=1), seen(), seen())
        for run.last in told:
            show(run, 1_000)
        assert capsys.readouterr().err.splitlines() == [
            "Starting Spark",
            "Starting the workers",
            "500 of 1,000  ?/s  epoch ?  lag ?  generation 1",
        ]


class TestKillOne:
    def test_a_worker_with_a_subtask_is_killed_and_its_end_confirmed(self, child: subprocess.Popen[bytes]) -> None:
        kill = kill_one(seen(WorkerSeen("w1", child.pid, [0])), os.getpid(), logged)
        assert kill == DemoKill("worker w1", child.pid, 500, 1, gone=True, epoch=4)
        assert child.wait() == -9

    def test_the_generation_is_that_of_the_kill_and_not_of_an_older_line(self, child: subprocess.Popen[bytes]) -> None:
        kill = kill_one(seen(WorkerSeen("w1", child.pid, [0])), os.getpid(), lambda: InLog(2, 4))
        assert kill is not None
        kill.look(ProgressLine(records_in=900, generation=2))
        assert not kill.recovered, "the line was in the pipe before the kill"
        kill.look(ProgressLine(records_in=901, generation=3))
        assert kill.recovered

    def test_a_worker_that_has_ended_is_not_killed(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert kill_one(seen(WorkerSeen("w1", child.pid, [0])), os.getpid(), logged) is None
        child.wait()
        assert kill_one(seen(WorkerSeen("w1", child.pid, [0])), os.getpid(), logged) is None

    def test_a_worker_without_a_subtask_is_not_killed(self, child: subprocess.Popen[bytes]) -> None:
        assert kill_one(seen(WorkerSeen("w1", child.pid, [])), os.getpid(), logged) is None
        assert psutil.pid_exists(child.pid)

    def test_a_process_that_is_no_descendant_of_the_job_is_never_killed(self, child: subprocess.Popen[bytes]) -> None:
        with pytest.raises(AssertionError, match="below its job"):
            kill_one(seen(WorkerSeen("w1", os.getpid(), [0])), child.pid, logged)

    def test_a_worker_without_a_known_pid_is_not_killed(self) -> None:
        assert kill_one(seen(WorkerSeen("w1", None, [0])), os.getpid(), logged) is None


def forking(child: str) -> subprocess.Popen[bytes]:
    """Start what looks like Spark's daemon, with one process that it forked and that does this."""
    code = f"import os, sys\nif os.fork() == 0:\n    {child}\n    os._exit(0)\n{WAITS}"
    return subprocess.Popen([sys.executable, "-c", code, DAEMON], stdin=subprocess.PIPE, start_new_session=True)


class TestKillATask:
    @pytest.fixture
    def daemon(self, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
        process = forking(request.param)
        yield process
        os.killpg(process.pid, 9)
        process.communicate()

    @pytest.fixture
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Do not wait long for a process that is not found."""
        monkeypatch.setattr(demo_kill, "BUSY_LIMIT_S", 0.3)

    @pytest.mark.parametrize("daemon", [WORKS], indirect=True)
    def test_a_process_at_work_is_killed_and_not_the_daemon(self, daemon: subprocess.Popen[bytes]) -> None:
        kill = kill_one(seen(), os.getpid(), logged, "microbatch")
        assert kill is not None and kill.gone and kill.what == "a task"
        assert kill.pid != daemon.pid and daemon.poll() is None

    @pytest.mark.usefixtures("soon")
    def test_a_daemon_that_has_forked_nothing_yet_is_not_killed(self) -> None:
        with subprocess.Popen([sys.executable, "-c", WORKS, DAEMON], start_new_session=True) as daemon:
            try:
                assert kill_one(seen(), os.getpid(), logged, "microbatch") is None
                assert daemon.poll() is None
            finally:
                daemon.kill()

    @pytest.mark.usefixtures("soon")
    @pytest.mark.parametrize("daemon", [WORKS], indirect=True)
    @pytest.mark.parametrize("method", ["ppid", "kill", "cpu_times", "children"])
    def test_a_process_that_ends_meanwhile_is_not_killed(
        self, daemon: subprocess.Popen[bytes], method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ended(process: psutil.Process, **_: object) -> None:
            raise psutil.NoSuchProcess(process.pid)

        monkeypatch.setattr(psutil.Process, method, ended)
        assert kill_one(seen(), os.getpid(), logged, "microbatch") is None

    @pytest.mark.usefixtures("soon")
    @pytest.mark.parametrize("daemon", [WAITS], indirect=True)
    def test_an_idle_process_is_not_killed(self, daemon: subprocess.Popen[bytes]) -> None:
        assert kill_one(seen(), os.getpid(), logged, "microbatch") is None

    @pytest.mark.parametrize("daemon", [WORKS], indirect=True)
    def test_lines_from_before_the_kill_prove_nothing(self, daemon: subprocess.Popen[bytes]) -> None:
        kill = kill_one(
            ProgressLine(records_in=500, epoch=4, generation=1), os.getpid(), lambda: InLog(1, 9), "microbatch"
        )
        assert kill is not None
        for epoch in range(5, 11):  # the tenth was being run when its task was killed
            kill.look(ProgressLine(records_in=100 * epoch, epoch=epoch, generation=1))
            assert not kill.recovered
        kill.look(ProgressLine(records_in=900, epoch=11, generation=1))
        assert not kill.recovered, "it has read nothing more"
        kill.look(ProgressLine(records_in=1_000, epoch=11, generation=1))
        assert kill.recovered

    def test_epochs_with_more_records_prove_the_recovery(self) -> None:
        kill = DemoKill("a task", 77, 500, 1, gone=True, epoch=4, mode="microbatch")
        for epoch, records in ((5, 900), (6, 500)):
            kill.look(ProgressLine(records_in=records, epoch=epoch, generation=1))
            assert not kill.recovered and "epoch 4" in unproven(kill, ProgressLine(epoch=5))[0]
        kill.look(ProgressLine(records_in=900, epoch=6, generation=1))
        assert unproven(kill, ProgressLine(epoch=6)) == []


class TestProof:
    KILL = DemoKill("w1", 77, 500, 1, gone=True, recovered=True)

    def test_a_kill_with_a_recovery_leaves_nothing_unproven(self) -> None:
        assert unproven(self.KILL, ProgressLine(generation=2, restarts=[ProgressRestart(recovery_ms=400)])) == []

    def test_a_run_without_a_kill_proves_nothing(self) -> None:
        assert len(unproven(None, ProgressLine(generation=2))) == 1

    def test_a_kill_without_a_newer_generation_proves_nothing(self) -> None:
        kill = DemoKill("w1", 77, 500, 1, gone=True)
        assert len(unproven(kill, ProgressLine(generation=1))) == 1

    def test_a_process_that_survived_the_kill_is_reported(self) -> None:
        kill = DemoKill("w1", 77, 500, 1, gone=False, recovered=True)
        assert "77" in unproven(kill, ProgressLine(generation=2))[0]


class TestReport:
    RESULT: ClassVar[dict[str, Any]] = {
        "records_in": 1_000,
        "epochs": 9,
        "rows_out": {"tails": 7},
        "late": 3,
        "unknown_airports": 0,
        "recovery_ms": None,
        "generation": 1,
        "verified": False,
        "problems": [],
    }

    @pytest.mark.parametrize(
        ("recovered", "line"), [(False, "recovered    not shown"), (True, "recovered    epochs after 4 were completed")]
    )
    def test_a_recovery_is_reported_only_if_it_was_seen(self, recovered: bool, line: str) -> None:
        kill = DemoKill("a task", 77, 500, 1, gone=True, recovered=recovered, epoch=4, mode="microbatch")
        assert line in describe(self.RESULT | {"killed": asdict(kill)}).splitlines()


class TestLog:
    def test_names_generation_and_epoch(self, tmp_path: Path) -> None:
        shutil.copytree(LOG, tmp_path / "root" / "flights")
        assert in_log(tmp_path) == InLog(3, 206)

    def test_is_empty_before_the_job_has_begun(self, tmp_path: Path) -> None:
        assert in_log(tmp_path) == InLog(0, 0)
        assert list(tmp_path.iterdir()) == []


class TestFolder:
    def test_a_folder_with_other_files_is_refused_and_not_changed(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "flights.db").write_text("mine")
        with pytest.raises(ConfigError, match="files that no demo made"):
            prepare(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["flights.db", "out"]

    def test_a_file_in_place_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="is not a folder"):
            prepare(tmp_path / "file")

    def test_a_path_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="cannot be created"):
            prepare(tmp_path / "file" / "demo")

    def test_files_of_an_earlier_demo_are_removed_except_the_log(self, tmp_path: Path) -> None:
        store = open_objects(str(tmp_path / "events"))
        create_log(store, flights_data.SCHEMA)
        LogWriter(store).seal()
        for left in ("root", "out"):
            (tmp_path / left).mkdir()
        (tmp_path / "flights.db-journal").write_text("")
        assert prepare(tmp_path) == 0
        assert [path.name for path in tmp_path.iterdir()] == ["events"]

    def test_a_kill_after_the_last_record_is_refused_and_nothing_is_removed(self, tmp_path: Path) -> None:
        store = open_objects(str(tmp_path / "events"))
        create_log(store, flights_data.SCHEMA)
        LogWriter(store).seal()
        (tmp_path / "out").mkdir()
        with pytest.raises(ConfigError, match="--kill-at is 7, but the job has only 0 records"):
            prepare(tmp_path, 7)
        assert (tmp_path / "out").exists()

    @pytest.mark.parametrize(("flag", "number"), [("--kill-at", "-1"), ("--max-records-per-second", "0")])
    def test_an_invalid_number_is_refused_before_data_is_converted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, number: str
    ) -> None:
        assert main(["demo", "--folder", str(tmp_path / "demo"), flag, number]) == 2
        assert f"{flag} is {number}" in capsys.readouterr().err
        assert not (tmp_path / "demo").exists()


class TestFailed:
    def test_a_run_that_the_demo_ended_is_reported_as_ended_by_it(self, tmp_path: Path) -> None:
        error = failed(DemoRun(tmp_path, last=ProgressLine(records_in=1_234), too_long=True), -9)
        assert "the demo ended it" in error.what and "1,234 records" in error.what
        assert error.exit_status == 7
