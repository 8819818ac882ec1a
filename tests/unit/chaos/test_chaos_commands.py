"""`holdfast chaos ...` as a user types it: numbers out of range are refused before anything is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.cli.main import main

COMMANDS = ("simulate", "replay", "mutants", "run", "soak", "statement", "report")

FAULTS = """
duration = "60s"
platform = "local[3]"
check = "audit"
faults = { worker-kill = 1 }
"""


class TestWrongNumbers:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("simulate", "--seeds", "0"), "--seeds must be at least 1"),
            (("simulate", "--seeds", "1", "--workers", "0"), "--workers must be at least 1"),
            (("simulate", "--seeds", "1", "--first", "-1"), "--first must be at least 0"),
            (("replay", "--seed", "-1"), "--seed must be at least 0"),
            (("replay", "--seed", "0", "--lines", "-5"), "--lines must be at least 1"),
            (("soak", "--folder", "s", "--hours", "0"), "--hours must be a number above 0"),
            (("soak", "--folder", "s", "--hours", "1", "--workers", "0"), "--workers must be at least 1"),
            (("soak", "--folder", "s", "--hours", "1", "--batch", "0"), "--batch must be at least 1"),
            (("simulate", "--seeds", "99999999999999999999"), "--seeds must be at most 1,000,000,000,000"),
            (("simulate", "--seeds", "1", "--workers", "1001"), "--workers must be at most 1,000"),
            (("replay", "--seed", "99999999999999999999"), "--seed must be at most 1,000,000,000,000"),
            (("soak", "--folder", "s", "--hours", "1", "--batch", "9999999999999"), "--batch must be at most"),
            (("mutants", "--seeds", "0"), "--seeds must be at least 1"),
            (("mutants", "--seeds", "1", "--first", "-1"), "--first must be at least 0"),
        ],
    )
    def test_the_invalid_flag_is_named_and_nothing_is_run(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
    ) -> None:
        assert main(["chaos", *arguments]) == 2
        reported = capsys.readouterr()
        assert reported.out == ""
        what, not_done, next_step = reported.err.splitlines()
        assert says in what and what.count("--") == 1
        assert (not_done, next_step) == (
            "Not done: nothing was played.",
            f"Next: see holdfast chaos {arguments[0]} --help",
        )

    @pytest.mark.parametrize("hours", ["nan", "inf", "0", "-1"])
    def test_a_soak_refuses_hours_that_are_not_finite_and_creates_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], hours: str
    ) -> None:
        assert main(["chaos", "soak", f"--hours={hours}", "--folder", str(tmp_path / "soak")]) == 2
        assert "--hours" in capsys.readouterr().err
        assert not (tmp_path / "soak").exists()


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_the_help_of_every_command_explains_its_exit_status(
        self, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        assert main(["chaos", command, "--help"]) == 0
        assert "exit status: 0 " in capsys.readouterr().out


class TestEmptyPaths:
    @pytest.mark.parametrize(("scenario", "job"), [("", "job.py"), ("flights-short", "")])
    def test_are_refused_and_are_not_the_current_folder(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        scenario: str,
        job: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["chaos", "run", scenario, "--job", job]) == 2
        assert "a path is empty" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


class TestWithoutJava:
    def test_nothing_is_started_and_the_folder_of_the_run_is_not_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
        (tmp_path / "job.py").write_text("")
        (tmp_path / "faults.toml").write_text(FAULTS)
        arguments = ("--job", str(tmp_path / "job.py"), "--out", str(tmp_path / "out"))
        assert main(["chaos", "run", str(tmp_path / "faults.toml"), *arguments]) == 2
        assert "a live run is not possible: no java was found" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
