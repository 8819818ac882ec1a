"""The command line finds its commands, refuses wrong use in three parts, and loads no more than it needs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.runtime.cli.arguments import Parser
from holdfast.runtime.cli.main import COMMANDS, module_of
from holdfast.runtime.cli.reporting import expect_end, expect_stop, guarded

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended

    Holdfast = Callable[..., Ended]


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return the parsers of a parser's commands, and those of their actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from below(each)


class TestHelp:
    def test_every_command_is_listed(self, holdfast: Holdfast) -> None:
        ended = holdfast("--help")
        assert ended.status == 0
        assert all(f"\n    {command}" in ended.out for command in COMMANDS)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_the_help_of_every_command_shows_an_example(self, holdfast: Holdfast, command: str) -> None:
        ended = holdfast(command, "--help")
        assert ended.status == 0
        assert f"examples:\n  holdfast {command}" in ended.out

    @pytest.mark.parametrize("command", COMMANDS)
    def test_the_help_of_every_action_shows_an_example_that_parses(self, command: str) -> None:
        top = Parser(prog="holdfast")
        module_of(command).add_parser(top.add_subparsers())
        for parser in below(top):
            examples = re.findall(r"^  (holdfast [^|>\n]+)", parser.epilog or "", re.MULTILINE)
            assert any(f"{line} ".startswith(f"{parser.prog} ") for line in examples), parser.prog
            for line in examples:
                top.parse_args(shlex.split(line)[1:])

    def test_holdfast_without_a_command_shows_the_help_as_wrong_use(self, holdfast: Holdfast) -> None:
        ended = holdfast()
        assert (ended.status, ended.out) == (2, "")
        assert "COMMAND" in ended.err

    def test_the_version_is_printed(self, holdfast: Holdfast) -> None:
        ended = holdfast("--version")
        assert ended.status == 0
        assert ended.out.startswith("holdfast ")

    def test_the_help_of_run_defines_records(self, holdfast: Holdfast) -> None:
        assert "sum of all next offsets" in holdfast("run", "--help").out


class TestRefusedLogin:
    def test_ends_a_command_as_a_mistake_of_the_configuration(self, capsys: pytest.CaptureFixture[str]) -> None:
        def work() -> int:
            raise NotAdmitted("the store does not know the access key", next_step="set AWS_ACCESS_KEY_ID")

        assert guarded(["--json"], work) == ConfigError.exit_status == 2
        error = json.loads(capsys.readouterr().out)
        assert (error["kind"], error["what"]) == ("config", "the store does not know the access key")

    def test_is_not_a_server_that_is_unreachable(self) -> None:
        def work() -> int:
            raise Unavailable("the store does not answer", next_step="try again")

        assert guarded([], work) == 5


class TestWrongUse:
    def test_an_unknown_command_names_the_nearest(self, holdfast: Holdfast) -> None:
        ended = holdfast("stauts", "hot")
        assert ended.status == 2
        assert ended.err.splitlines() == [
            "holdfast: there is no command 'stauts'.",
            "Not done: the command did nothing.",
            "Next: did you mean holdfast status?",
        ]

    @pytest.mark.parametrize(
        "arguments",
        [
            ("run", "job.py", "--twice"),
            ("plan",),
            ("jobs", "hot"),
            ("status",),
            ("stop", "hot", "--soon"),
            ("stop", "hot", "--now", "--finish"),
            ("events",),
            ("explain",),
            ("savepoint", "hot"),
            ("completion", "tcsh"),
            ("checkpoints", "list"),
            ("checkpoints", "repair", "hot"),
            ("checkpoints", "list", "hot", "--last", "few"),
            ("doctor", "--fix"),
        ],
    )
    def test_invalid_arguments_are_refused_in_three_parts(self, holdfast: Holdfast, arguments: tuple[str, ...]) -> None:
        ended = holdfast(*arguments)
        assert (ended.status, ended.out) == (2, "")
        what, not_done, next_step = ended.err.splitlines()
        assert what.startswith("holdfast: ")
        assert not_done == "Not done: the command did nothing."
        assert next_step.startswith(f"Next: see holdfast {arguments[0]}")

    @pytest.mark.parametrize(
        ("arguments", "next_step"),
        [
            (("run", "job.py", "--paralelism", "3"), "did you mean --parallelism? All: holdfast run --help"),
            (("log", "append", "data", "rows.csv"), "see holdfast log append --help"),
            (("log", "append", "data", "--fil", "rows.csv"), "did you mean --file? All: holdfast log append --help"),
            (("dlq", "list", "hot", "--limt=2"), "did you mean --limit? All: holdfast dlq list --help"),
            (("stop", "hot", "--soon"), "see holdfast stop --help"),
        ],
    )
    def test_an_unknown_flag_is_refused_by_its_own_command(
        self, holdfast: Holdfast, arguments: tuple[str, ...], next_step: str
    ) -> None:
        assert holdfast(*arguments).err.splitlines()[-1] == f"Next: {next_step}"

    @pytest.mark.parametrize("arguments", [("--root", "x", "status", "hot"), ("--json", "status", "hot")])
    def test_a_flag_before_the_command_is_refused_with_its_place(
        self, holdfast: Holdfast, arguments: tuple[str, ...]
    ) -> None:
        ended = holdfast(*arguments)
        message = ended.json["what"] + ended.json["next"] if "--json" in arguments else ended.err
        assert ended.status == 2
        assert f"{arguments[0]} was given before the command" in message
        assert "give options after it: holdfast COMMAND ... " + arguments[0] in message

    def test_with_json_an_error_is_an_object_on_stdout(self, holdfast: Holdfast) -> None:
        ended = holdfast("status", "hot", "--json", "--wrong")
        assert (ended.status, ended.err) == (2, "")
        assert list(ended.json) == [
            "kind",
            "job",
            "operator",
            "epoch",
            "source",
            "partition",
            "offset",
            "what",
            "not_done",
            "next",
        ]
        assert ended.json["kind"] == "config"

    def test_an_empty_root_is_refused(self, holdfast: Holdfast) -> None:
        ended = holdfast("jobs", "--root", "")
        assert ended.status == 2
        assert "--root is empty" in ended.err


@pytest.fixture
def handlers() -> Iterator[None]:
    """Start a test without handlers, whatever the shell ignores, and put those of before back after it."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
class TestARunThatIsStoppedBeforeItBegins:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_has_done_nothing_and_succeeds(self, number: int, capsys: pytest.CaptureFixture[str]) -> None:
        def work() -> int:
            expect_stop()
            os.kill(os.getpid(), number)
            return 1

        assert guarded([], work) == 0
        assert "nothing was read or changed" in capsys.readouterr().err

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_is_not_one_that_has_ended(self, number: int, capsys: pytest.CaptureFixture[str]) -> None:
        def work() -> int:
            expect_stop()
            expect_end()
            os.kill(os.getpid(), number)
            return 7

        assert guarded([], work) == 7
        assert capsys.readouterr().err == ""

    def test_continues_after_a_hangup_that_nohup_ignores(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

        def work() -> int:
            expect_stop()
            os.kill(os.getpid(), signal.SIGHUP)
            return 7

        assert guarded([], work) == 7


class TestARunThatHasEnded:
    PROGRAM = """
import os, signal, sys
from holdfast.runtime.cli.reporting import expect_end, expect_stop, guarded

class Last:
    \"\"\"A global, deleted when the interpreter has restored the default handlers.\"\"\"

    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.{name}):
        print("deleted", flush=True)
        kill(pid, number)

def work():
    global last
    expect_stop()
    last = Last()
    expect_end()
    return {status}

sys.exit(guarded([], work))
"""

    @pytest.mark.parametrize(("name", "status"), [("SIGTERM", 0), ("SIGTERM", 7), ("SIGHUP", 0)])
    def test_keeps_its_exit_status_if_a_signal_reaches_the_process_while_the_interpreter_ends(
        self, name: str, status: int
    ) -> None:
        program = self.PROGRAM.format(name=name, status=status)
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (status, "deleted\n"), ended.stderr


class TestStandardStreams:
    def test_the_command_line_needs_no_open_standard_streams(self) -> None:
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "--version"]
        subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True)


class TestLoading:
    @pytest.mark.parametrize("arguments", [["--help"], ["jobs"], ["status", "--help"], ["stop", "--help"]])
    def test_neither_spark_nor_polars_is_loaded(self, arguments: list[str]) -> None:
        code = (
            "import sys; from holdfast.runtime.cli.main import main; status = main(sys.argv[1:]); "
            "print(status, sorted({'pyspark', 'polars'} & set(sys.modules)))"
        )
        said = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert said.stdout.splitlines()[-1] == "0 []"

    @pytest.mark.parametrize(
        "module", ["plan.compiler", "operators.windows.window", "execution.prepare", "worker.routing"]
    )
    def test_planning_a_job_loads_no_compiler(self, module: str) -> None:
        code = (
            f"import sys, holdfast, holdfast.runtime.cli.main, holdfast.runtime.{module}; "
            "print(sorted({'numba', 'llvmlite'} & set(sys.modules)))"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert said.stdout == "[]\n"

    def test_importing_the_command_line_does_not_load_arrow(self) -> None:
        heavy = "{'pyspark', 'polars', 'pyarrow'}"
        code = f"import sys, holdfast.runtime.cli.main; print(sorted({heavy} & set(sys.modules)))"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert said.stdout == "[]\n"


class TestADeletedDirectory:
    def test_is_named_when_it_is_the_current_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert guarded([], lambda: len(os.getcwd())) == 2
        shown = capsys.readouterr().err
        assert "the current directory was deleted" in shown and "unexpected" not in shown

    def test_is_not_blamed_for_another_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert guarded([], lambda: Path("/no/such/file").stat().st_size) == 1
        assert "unexpected FileNotFoundError" in capsys.readouterr().err
