"""Marks of tasks, and the end of a process in which a call lasts too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import run as run_command
from patience import wait_for_end

from holdfast.runtime.spark.marks import CallMarks, ended

PROGRAM = """
import os, re, signal, sys
from holdfast.runtime.spark.marks import CallMarks
marks = CallMarks(float(sys.argv[2]))
marks.mark("function: first")
marks.mark(None)
marks.mark("function: second")
if sys.argv[1] == "hang":
    re.match(r"(a|a)*$", "a" * 40 + "b")  # holds the interpreter
if sys.argv[1] == "after":
    marks.mark(None)
os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] != "crash" else signal.SIGSEGV)
"""


@pytest.fixture
def quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs a process as Spark does, and returns its status with what Spark would quote of it."""
    monkeypatch.setenv("PYTHON_FAULTHANDLER_DIR", str(tmp_path))

    def run(how: str, hung_after_s: float = 60.0) -> tuple[int, str]:
        start = (
            f"import os, faulthandler; f = open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w'); "
            f"faulthandler.enable(f)\n{PROGRAM}"
        )
        command = [sys.executable, "-c", start, how, str(hung_after_s)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        status = wait_for_end(process, "a process that ends itself")
        return status, (tmp_path / str(process.pid)).read_text()

    return run


def report(text: str) -> str:
    """Return what Spark reports with this text of the process."""
    return f"Lost task 0.0: SparkException: Python worker exited unexpectedly (crashed): {text}\n\tat org.apache"


class TestAProcessThatEnds:
    def test_is_quoted_with_the_function_that_ran(self, quoted: Callable[..., tuple[int, str]]) -> None:
        status, text = quoted("kill")
        assert status == -signal.SIGKILL
        found = ended(report(text))
        assert found is not None and (found.mark, found.hung) == ("function: second", False)

    def test_is_quoted_without_a_function_that_has_returned(self, quoted: Callable[..., tuple[int, str]]) -> None:
        _, text = quoted("after")
        found = ended(report(text))
        assert found is not None and found.mark is None

    def test_a_crashed_process_keeps_the_function_before_the_traceback(
        self, quoted: Callable[..., tuple[int, str]]
    ) -> None:
        status, text = quoted("crash")
        assert status == -signal.SIGSEGV and "Segmentation fault" in text
        found = ended(report(text))
        assert found is not None and (found.mark, found.hung) == ("function: second", False)

    def test_is_ended_if_a_call_holds_the_interpreter_too_long(self, quoted: Callable[..., tuple[int, str]]) -> None:
        status, text = quoted("hang", 0.3)
        assert status == 1 and "re.match" not in text and "most recent call first" in text
        found = ended(report(text))
        assert found is not None and (found.mark, found.hung) == ("function: second", True)


def test_without_the_file_calls_are_still_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_FAULTHANDLER_DIR", raising=False)
    command = [sys.executable, "-c", PROGRAM, "hang", "0.3"]
    status, _, errors = run_command(command, tmp_path, "a call that hangs")
    assert status == 1 and "Timeout" in errors


def test_marks_can_be_closed_between_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_FAULTHANDLER_DIR", str(tmp_path))
    place = tmp_path / str(os.getpid())
    place.touch()
    marks = CallMarks(60.0)
    marks.mark("function: f")
    assert place.read_text() == "holdfast-mark: function: f\nholdfast-at: 0 0 -1 0 0 0\n"
    marks.close()
    marks.close()


def test_other_failures_are_not_ends_of_a_process() -> None:
    assert ended("Job aborted due to stage failure: ValueError: no") is None
