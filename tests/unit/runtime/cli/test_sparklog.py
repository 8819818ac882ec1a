"""Where Spark's own log goes: to one file for the process, as its JVM outlives a run."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, JobFailed
from holdfast.runtime.cli.start import sparklog
from holdfast.runtime.cli.start.sparklog import VARIABLE, diverted


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Begin as a process does that has not run a job; its folder is in `tmp_path`."""
    for name in (VARIABLE, "PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sparklog._place.cache_clear()


def log_of() -> Path:
    """Return the file that a JVM which starts now logs to."""
    properties = Path(os.environ[VARIABLE].partition("configurationFile=")[2].rstrip('"'))
    [name] = [line for line in properties.read_text().splitlines() if "fileName" in line]
    return Path(name.partition(" = ")[2])


class TestDiverted:
    def test_every_run_of_a_process_names_the_log_of_its_jvm(self) -> None:
        with diverted(enabled=True):
            first = log_of()
        with diverted(enabled=True):
            assert log_of() == first
        assert first.parent.is_dir()
        assert VARIABLE not in os.environ

    def test_a_run_that_fails_names_the_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        with diverted(enabled=True):
            log = log_of()
            log.write_text("WARN at every start\n")
        assert capsys.readouterr().err == ""
        with pytest.raises(JobFailed), diverted(enabled=True):
            log.write_text("WARN at every start\nERROR\n")
            raise JobFailed("it failed", not_done="nothing", next_step="look")
        assert capsys.readouterr().err == f"Spark's own log is in {log}\n"

    def test_a_run_without_log_output_names_no_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        with diverted(enabled=True):
            log_of().write_text("WARN of the first run\n")
        with pytest.raises(JobFailed), diverted(enabled=True):
            raise JobFailed("it failed", not_done="nothing", next_step="look")
        assert capsys.readouterr().err == ""

    def test_a_run_with_a_config_error_names_no_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ConfigError), diverted(enabled=True):
            log_of().write_text("WARN\n")
            raise ConfigError("wrong", not_done="nothing", next_step="correct it")
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(("fails", "kept"), [(False, []), (True, ["log4j2.properties", "spark.log"])])
    def test_the_file_is_kept_after_the_process_only_if_a_run_failed(
        self, fails: bool, kept: list[str], tmp_path: Path
    ) -> None:
        run = (
            "import sys; from test_sparklog import diverted, log_of\n"
            "with diverted(enabled=True):\n"
            f"    log_of().write_text('WARN'); assert not {fails}"
        )
        subprocess.run(
            [sys.executable, "-c", run],
            env=os.environ
            | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])},
            capture_output=True,
            check=False,
        )
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == kept

    def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(self, tmp_path: Path) -> None:
        run = (
            "import sys; from test_sparklog import diverted, log_of\n"
            "with diverted(enabled=True):\n"
            "    log_of().write_text('WARN'); print(log_of(), flush=True); sys.stdin.read()"
        )
        paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
        environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": paths}
        command, pipe = [sys.executable, "-c", run], subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as other:
            assert other.stdout is not None
            log = Path(other.stdout.readline().strip())
            with diverted(enabled=True):
                assert log.exists(), "its process lives"
            other.kill()
        sparklog._place.cache_clear()
        with diverted(enabled=True):
            assert not log.parent.exists()
            assert log_of().parent.is_dir()

    def test_another_run_that_starts_at_any_moment_leaves_the_new_folder(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        flock, tidied = fcntl.flock, list[int]()

        def flock_after_the_other_run(opened: int, how: int) -> None:
            if not tidied:
                tidied.append(opened)
                sparklog._remove_left(tmp_path)
            flock(opened, how)

        monkeypatch.setattr(fcntl, "flock", flock_after_the_other_run)
        with diverted(enabled=True):
            assert log_of().parent.is_dir()
            sparklog._remove_left(tmp_path)
            assert log_of().parent.is_dir()

    def test_a_file_system_without_locks_stops_no_run_and_loses_no_folder(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        other = tmp_path / "holdfast-spark-other"
        other.mkdir()
        (other / "lock").touch()

        def refuse(_opened: int, _how: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", refuse)
        with diverted(enabled=True):
            own = log_of().parent
        sparklog._place()._leave()
        assert other.is_dir() and not own.exists()

    def test_a_folder_that_was_kept_meanwhile_is_not_removed(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Its process has unlinked the lock and ended after this one had opened it."""
        kept = tmp_path / "holdfast-spark-kept"
        kept.mkdir()
        (kept / "lock").touch()
        monkeypatch.setattr(fcntl, "flock", lambda _opened, _how: (kept / "lock").unlink())
        sparklog._remove_left(tmp_path)
        assert kept.is_dir()

    def test_a_log_configuration_of_the_user_is_not_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "-Dlog4j2.configurationFile=mine.properties")
        with diverted(enabled=True):
            assert os.environ[VARIABLE] == "-Dlog4j2.configurationFile=mine.properties"
