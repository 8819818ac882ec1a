"""The JVM's standard error: lines of every start are dropped, everything else is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from holdfast.runtime.spark.jvm import NOISE, Quieter, start_jvm

[INCUBATOR] = NOISE


class TestQuieter:
    def test_a_line_of_noise_is_dropped(self) -> None:
        assert Quieter().feed(INCUBATOR + b"OutOfMemoryError\n") == b"OutOfMemoryError\n"

    @pytest.mark.parametrize("cut", range(1, len(INCUBATOR)))
    def test_a_line_of_noise_that_arrives_in_two_pieces_is_dropped(self, cut: int) -> None:
        quieter = Quieter()
        assert quieter.feed(INCUBATOR[:cut]) + quieter.feed(INCUBATOR[cut:] + b"rest\n") + quieter.end() == b"rest\n"

    def test_an_incomplete_line_that_is_no_noise_is_shown_immediately(self) -> None:
        assert Quieter().feed(b"one\npassword? ") == b"one\npassword? "

    def test_a_line_that_only_begins_as_noise_is_shown_whole(self) -> None:
        quieter = Quieter()
        assert quieter.feed(b"WARNING: ") == b""
        assert quieter.feed(b"low on memory") == b"WARNING: low on memory"

    def test_what_is_held_back_at_the_end_is_shown(self) -> None:
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
    def test_that_fails_shows_the_cause_without_the_noise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        install(tmp_path, f"echo '{INCUBATOR.decode().strip()}' >&2; echo 'no such java' >&2", monkeypatch)
        with pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
            start_jvm()
        assert capfd.readouterr().err == "no such java\n"

    def test_that_is_interrupted_waits_for_the_jvm_which_would_live_on_without_an_owner(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PySpark removes the folder in which the JVM reports its port; a JVM that finds none never ends."""
        reports = '[ -d "$(dirname "$_PYSPARK_DRIVER_CONN_INFO_PATH")" ] && touch "$SPARK_HOME/could-report"'
        install(tmp_path, f"kill -INT $PPID; sleep 1; {reports}", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            start_jvm()
        assert (tmp_path / "could-report").exists()
