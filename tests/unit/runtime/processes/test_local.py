"""Workers as processes of this machine: each launch ends once, however it ends, and nothing outlives the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from patience import wait

import holdfast
from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.processes import local
from holdfast.runtime.processes.companion import ForkedCompanion
from holdfast.runtime.processes.local import LocalHost, Zygote, how_it_ended
from holdfast.runtime.wire.processes import is_gone

LEAVES, FAILS, EXITS, CRASHES, STAYS, SHOWS, PRINTS = range(1, 8)
"""What the worker of a launch does: the last digit of its number."""


def behave(folder: str, number: int, companion: ForkedCompanion | None) -> None:
    """The task of a worker, by the last digit of its number."""
    Path(folder, f"{number}.pid").write_text(str(os.getpid()))
    match number % 10:
        case 2:
            raise ValueError("the task does not fit")
        case 3:
            os._exit(3)
        case 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 5:
            threading.Event().wait()
        case 6:
            seen = [os.environ.get("HOLDFAST_TEST"), os.getcwd(), "marker" in sys.path, os.umask(0)]
            Path(folder, "shown").write_text(json.dumps([*seen, time.strftime("%H:%M", time.localtime(0))]))
        case 7:
            print("printed by a worker")
            threading.Event().wait()


class Started:
    """A host with the ends that it has reported."""

    def __init__(self, folder: Path, ready: Zygote | None = None) -> None:
        self.folder, self.ends, self._next = folder, list[tuple[int, str | None]](), 0
        self.host = LocalHost(partial(behave, str(folder)), lambda number, how: self.ends.append((number, how)), ready)

    def launch(self, digit: int) -> int:
        """Launch a worker that behaves as this digit says; return its number."""
        self._next += 10
        self.host.launch(self._next + digit, ())
        return self._next + digit

    def end_of(self, number: int) -> str | None:
        """Wait for the end of a launch; return how it ended."""
        wait(lambda: any(ended == number for ended, _ in self.ends), f"the end of launch {number}")
        (how,) = [how for ended, how in self.ends if ended == number]
        return how

    def process_of(self, number: int) -> psutil.Process:
        """Wait until the worker of a launch runs its task; return its process."""
        path = self.folder / f"{number}.pid"
        wait(lambda: path.exists() and path.read_text() != "", f"the worker of launch {number}")
        return psutil.Process(int(path.read_text()))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One host for the module: a zygote imports all that a worker needs."""
    started = Started(tmp_path_factory.mktemp("workers"))
    yield started
    alive = [started.process_of(started.launch(STAYS)) for _ in range(2)]
    started.host.close(hurry=True)
    assert all(is_gone(each) for each in alive), "a worker outlives the host"


class TestALaunch:
    def test_a_launch_that_returns_has_no_error(self, started: Started) -> None:
        assert started.end_of(started.launch(LEAVES)) is None

    def test_a_launch_that_raises_is_reported_with_its_error(self, started: Started) -> None:
        assert started.end_of(started.launch(FAILS)) == "ValueError: the task does not fit"

    def test_a_launch_that_exits_is_reported_with_the_exit_status(self, started: Started) -> None:
        assert started.end_of(started.launch(EXITS)) == "its process ended with exit status 3"

    def test_a_launch_that_crashes_is_reported_with_the_signal(self, started: Started) -> None:
        assert started.end_of(started.launch(CRASHES)) == "its process was killed by SIGSEGV"

    def test_a_cancelled_launch_is_killed(self, started: Started) -> None:
        number = started.launch(STAYS)
        process = started.process_of(number)
        started.host.cancel(number)
        assert started.end_of(number) == "its process was killed by SIGKILL"
        assert is_gone(process)

    def test_cancelling_an_ended_launch_has_no_effect(self, started: Started) -> None:
        ended, other = started.launch(LEAVES), started.launch(STAYS)
        started.end_of(ended)
        started.host.cancel(ended)
        started.host.cancel(other)
        started.end_of(other)
        assert [number for number, _ in started.ends].count(ended) == 1

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_ignores_the_signals_that_a_terminal_sends_to_all(self, started: Started, number: int) -> None:
        launch = started.launch(STAYS)
        process = started.process_of(launch)
        process.send_signal(number)
        assert started.end_of(started.launch(LEAVES)) is None  # the zygote works on
        assert not is_gone(process) and launch not in dict(started.ends)
        started.host.cancel(launch)
        started.end_of(launch)

    def test_has_the_surroundings_of_the_driver_when_the_host_was_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zygote = Zygote.start()
        zygote.wait_until_ready(lambda: None)
        monkeypatch.setenv("HOLDFAST_TEST", "from the job's file")
        monkeypatch.setenv("TZ", "HERE-5:30")  # POSIX: east of Greenwich by 5 hours and 30 minutes
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend("marker")
        before = os.umask(0o027)
        try:
            mine = Started(tmp_path, zygote)
        finally:
            os.umask(before)
        try:
            mine.end_of(mine.launch(SHOWS))
        finally:
            mine.host.close(hurry=True)
        seen = json.loads((tmp_path / "shown").read_text())
        assert seen == ["from the job's file", str(tmp_path), True, 0o027, "05:30"]

    def test_ignores_entries_of_the_module_path_that_are_no_text_and_finds_those_of_any_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, os.fsdecode(bytes(tmp_path) + b"/\xff")])
        mine = Started(tmp_path)
        try:
            assert mine.end_of(mine.launch(LEAVES)) is None
        finally:
            mine.host.close(hurry=True)

    def test_prints_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        mine, said = Started(tmp_path), list[str]()

        def printed() -> bool:
            said.append(capfd.readouterr().err)
            return "printed by a worker" in "".join(said)

        try:
            mine.launch(PRINTS)
            wait(printed, "what the worker prints")
        finally:
            mine.host.close(hurry=True)

    def test_is_in_another_process_group_so_that_ctrl_c_spares_programs_that_functions_start(
        self, started: Started
    ) -> None:
        launch = started.launch(STAYS)
        assert os.getpgid(started.process_of(launch).pid) != os.getpgrp()
        started.host.cancel(launch)
        started.end_of(launch)

    def test_does_without_a_companion_that_cannot_be_forked(self) -> None:
        program = (
            "import resource\n"
            "from holdfast.runtime.processes import local, zygote\n"
            "task = local._anonymous(zygote.packed(print))\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (task + 1, task + 1))\n"
            "zygote.work(task, 7)\n"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert said.stdout == "7 None\n"


class TestTheZygote:
    def test_is_replaced_when_it_is_killed_and_its_workers_die_with_it(self, started: Started) -> None:
        launches = [started.launch(STAYS) for _ in range(2)]
        processes = [started.process_of(launch) for launch in launches]
        (zygote,) = {process.ppid() for process in processes}
        os.kill(zygote, signal.SIGKILL)
        for launch in launches:
            assert started.end_of(launch) == "its process was killed with the process that starts workers"
        assert started.end_of(started.launch(LEAVES)) is None
        wait(lambda: all(map(is_gone, processes)), "the end of the workers")

    def test_is_waited_for_with_a_word_to_the_user_if_it_has_to_compile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "NOTED_AFTER_S", 0.0)
        zygote, noted = Zygote.start(), list[str]()
        zygote.wait_until_ready(lambda: noted.append("compiling"))
        zygote.close()
        assert noted == ["compiling"]

    def test_a_zygote_that_ends_before_it_is_ready_is_an_error(self) -> None:
        zygote = Zygote.start()
        os.kill(zygote.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="has ended before it was ready"):
            zygote.wait_until_ready(lambda: None)
        zygote.close()

    def test_ends_if_its_host_cannot_be_made(self) -> None:
        zygote = Zygote.start()
        process = psutil.Process(zygote.pid)
        with pytest.raises(ConfigError, match="cannot be sent to workers: TypeError: cannot pickle '_thread.lock'"):
            LocalHost(partial(print, threading.Lock()), lambda number, how: None, zygote)
        assert is_gone(process)

    def test_is_closed_by_a_program_that_ignores_the_ends_of_its_children(self) -> None:
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them then
        try:
            zygote = Zygote.start()
            process = psutil.Process(zygote.pid)
            zygote.close()
        finally:
            signal.signal(signal.SIGCHLD, before)
        assert is_gone(process)

    def test_keeps_ignoring_a_hangup_that_nohup_ignores_for_programs_that_functions_start(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            zygote = Zygote.start()
        finally:
            signal.signal(signal.SIGHUP, before)
        zygote.wait_until_ready(lambda: None)
        lines = Path(f"/proc/{zygote.pid}/status").read_text().splitlines()
        (ignored,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
        zygote.close()
        assert ignored >> (signal.SIGHUP - 1) & 1

    @pytest.mark.parametrize("how", ["fork", "start"])
    def test_starts_from_a_process_without_standard_streams(self, tmp_path: Path, how: str) -> None:
        program = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from holdfast.runtime.processes.local import Zygote\n"
            f"zygote = Zygote.{how}()\n"
            "zygote.wait_until_ready(lambda: None)\n"
            "Path(sys.argv[1], 'sessions').write_text(f'{os.getsid(0)} {os.getsid(zygote.pid)} {zygote.pid}')\n"
            "zygote.close()\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path)]
        subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True)
        own, its, pid = map(int, (tmp_path / "sessions").read_text().split())
        assert own != its == pid

    def test_ends_with_its_driver(self, tmp_path: Path) -> None:
        program = (
            "import os, sys, threading; sys.path[:0] = sys.argv[2:]\n"
            "from functools import partial\n"
            "from holdfast.runtime.processes.local import LocalHost\n"
            "from tests.unit.runtime.processes.test_local import behave\n"
            "LocalHost(partial(behave, sys.argv[1]), lambda number, how: None).launch(5, ())\n"
            "threading.Event().wait()\n"
        )
        root = Path(__file__).parents[4]
        paths = [str(Path(holdfast.__file__).parent.parent), str(root), str(root / "tests" / "shared")]
        with subprocess.Popen([sys.executable, "-c", program, str(tmp_path), *paths]) as driver:
            wait(
                lambda: (tmp_path / "5.pid").exists() and (tmp_path / "5.pid").read_text() != "", "a worker", driver.pid
            )
            worker = psutil.Process(int((tmp_path / "5.pid").read_text()))
            zygote = psutil.Process(worker.ppid())
            driver.kill()
        wait(lambda: is_gone(worker) and is_gone(zygote), "the end of both")


class TestTheEndOfAProcess:
    def test_is_named_by_status_or_signal(self) -> None:
        assert how_it_ended(0) is None
        assert how_it_ended(75) == "its process ended with exit status 75"
        assert how_it_ended(-9) == "its process was killed by SIGKILL"
        assert how_it_ended(-50) == "its process was killed by signal 50"
