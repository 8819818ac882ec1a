"""The JVM's standard error: lines of every start are dropped, everything else is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from holdfast.runtime.spark import jvm
from holdfast.runtime.spark.archive import Boost
from holdfast.runtime.spark.jvm import (
    NOISE,
    RETRIED,
    STORING,
    Quieter,
    end_jvm,
    finish_abandoned,
    start_jvm,
    uninterrupted,
)

[INCUBATOR] = NOISE


class TestQuieter:
    def test_a_line_of_noise_is_dropped(self) -> None:
        assert Quieter().feed(INCUBATOR + b"OutOfMemoryError\n") == b"OutOfMemoryError\n"

    @pytest.mark.parametrize("cut", range(1, len(INCUBATOR)))
    def test_a_line_of_noise_in_two_chunks_is_dropped(self, cut: int) -> None:
        quieter = Quieter()
        assert quieter.feed(INCUBATOR[:cut]) + quieter.feed(INCUBATOR[cut:] + b"rest\n") + quieter.end() == b"rest\n"

    def test_an_incomplete_line_that_is_not_noise_is_shown_immediately(self) -> None:
        assert Quieter().feed(b"one\npassword? ") == b"one\npassword? "

    def test_a_line_that_only_begins_like_noise_is_shown_completely(self) -> None:
        quieter = Quieter()
        assert quieter.feed(b"WARNING: ") == b""
        assert quieter.feed(b"low on memory") == b"WARNING: low on memory"

    def test_buffered_text_is_shown_at_the_end(self) -> None:
        quieter = Quieter()
        quieter.feed(b"WARN")
        assert quieter.end() == b"WARN"


def install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder a Spark whose JVM is this shell script."""
    submit = folder / "bin/spark-submit"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\n{script}\nexit 1\n")
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(folder))
    monkeypatch.setattr(SparkContext, "_gateway", None)


class TestStart:
    def test_a_failed_jvm_start_shows_the_cause_without_the_noise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        install(tmp_path, f"echo '{INCUBATOR.decode().strip()}' >&2; echo 'no such java' >&2", monkeypatch)
        with pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
            start_jvm()
        assert capfd.readouterr().err == "no such java\n"

    def test_a_jvm_start_that_fails_with_holdfast_options_is_retried_without_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        install(tmp_path, 'echo "options: $SPARK_SUBMIT_OPTS" >&2', monkeypatch)
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss2m")
        monkeypatch.setattr(jvm, "boost", lambda environment, home: Boost("-Xint"))
        with pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
            start_jvm()
        assert capfd.readouterr().err == f"options: -Xint -Xss2m\n{RETRIED.decode()}options: -Xss2m\n"

    def test_an_interrupted_start_waits_for_the_jvm_and_leaves_no_orphan(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PySpark removes the folder in which the JVM reports its port; a JVM that finds none never ends."""
        reports = '[ -d "$(dirname "$_PYSPARK_DRIVER_CONN_INFO_PATH")" ] && touch "$SPARK_HOME/could-report"'
        install(tmp_path, f"kill -INT $PPID; sleep 1; {reports}", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            start_jvm()
        assert (tmp_path / "could-report").exists()


CHILD = "import sys, time; print(0, flush=True); sys.stdin.read(); time.sleep(0.3)"
"""Ends a little later than its parent."""
JVM = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE); "
    "child.stdout.readline(); print(child.pid, flush=True); sys.stdin.read(); {then}"
)


def stand_in(then: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that stands in for a JVM, with a child in its session; return it and the child's pid."""
    stream = subprocess.PIPE
    command = [sys.executable, "-c", JVM.replace("{then}", then)]
    started = subprocess.Popen(command, stdin=stream, stdout=stream, start_new_session=True)
    assert started.stdout is not None
    return started, int(started.stdout.readline())


def runs(pid: int) -> bool:
    try:
        return " (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class TestEnd:
    @pytest.mark.skipif(sys.platform != "linux", reason="only /proc shows the processes of a session")
    def test_waits_for_the_jvm_and_what_it_started(self) -> None:
        started, child = stand_in("pass")
        assert runs(child)
        end_jvm(started)
        assert started.returncode == 0 and not runs(child)

    def test_kills_a_jvm_that_does_not_end(self) -> None:
        started, _ = stand_in("import signal; signal.pause()")
        end_jvm(started, within_s=0.0)
        assert started.returncode == -signal.SIGKILL


class TestArchive:
    """Boost is what archive.boost returns for a JVM that is to store its classes."""

    def storing(self, folder: Path, worthwhile: bool) -> Boost:
        part = folder / "a.part"
        part.write_bytes(b"classes")
        return Boost("-Xint", folder / "a.jsa", worthwhile, part)

    def test_is_stored_by_a_jvm_that_had_a_context_which_the_user_reads(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        started, _ = stand_in("pass")
        jvm._end(started, self.storing(tmp_path, worthwhile=True))
        assert started.returncode == 0
        assert capfd.readouterr().err == f"{STORING.format(tmp_path / 'a.jsa')}\n"
        assert [file.name for file in tmp_path.iterdir()] == ["a.jsa"]

    def test_is_not_waited_for_without_a_context(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        started, _ = stand_in("import signal; signal.pause()")
        jvm._end(started, self.storing(tmp_path, worthwhile=False))
        assert started.returncode == -signal.SIGKILL
        assert capfd.readouterr().err == "" and not list(tmp_path.iterdir())

    def test_is_not_mentioned_by_other_starts(self, capfd: pytest.CaptureFixture[str]) -> None:
        started, _ = stand_in("pass")
        jvm._end(started, Boost("-Xint"))
        assert started.returncode == 0 and capfd.readouterr().err == ""


class TestUninterrupted:
    def test_returns_the_result_or_raises_the_error(self) -> None:
        assert uninterrupted(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            uninterrupted(lambda: 1 // 0)

    def test_passes_a_second_interrupt_on_and_completes_the_work_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits, may_end, ended = threading.Semaphore(0), threading.Event(), threading.Event()
        wait_for = jvm._wait_for

        def waited(thread: threading.Thread) -> None:
            waits.release()
            wait_for(thread)

        def work() -> None:
            for _ in range(2):
                waits.acquire()
                os.kill(os.getpid(), signal.SIGINT)
            may_end.wait()
            ended.set()

        monkeypatch.setattr(jvm, "_wait_for", waited)
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(work)
        assert not ended.is_set()
        may_end.set()
        finish_abandoned()
        assert ended.is_set()
