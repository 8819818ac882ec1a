"""`holdfast`: finds the command, and loads only that one.

Loading Spark or Polars takes longer than most commands run. So the list of commands is here, and the module of a
command is imported only when the command is given.

Source: API.md, command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

import holdfast
from holdfast.errors import ConfigError
from holdfast.runtime.cli.arguments import Parser
from holdfast.runtime.cli.reporting import expect_stop, guarded
from holdfast.runtime.wire.standard import fill_standard_streams

COMMANDS = {
    "demo": "run a job on real data, kill a worker on purpose, and check the result",
    "new": "create a folder with a job, its test and its data",
    "run": "run the job that a Python file describes",
    "capture": "append requests over HTTP, or the changes of a table, to the log that a job reads",
    "plan": "show the plan of a job: graph, settings, changes against the last checkpoint",
    "jobs": "list the jobs under a root",
    "status": "show how a job is doing",
    "events": "list events of a job: starts, restarts and their causes, ends",
    "explain": "explain why a job makes no progress, and the next step",
    "stop": "take a last checkpoint and end a running job; it can be started again",
    "savepoint": "name a checkpoint of a job, so that it is kept",
    "rewind": "go back to an earlier checkpoint: state, offsets and the rows in targets",
    "fork": "start another job from a checkpoint of a job, to try new code on its state",
    "checkpoints": "list, show or verify the checkpoints of a job",
    "state": "read the state of operators: one key, all rows, changes, size",
    "audit": "prove from sources and targets that every record read came out once, for every checkpoint kept",
    "why": "show which records changed a key of an operator, or made a row of a sink, by replaying",
    "bisect": "find the checkpoint at which a condition on the state fails, and the record that made it fail",
    "shadow": "replay changed code beside the present one, and show which rows and keys differ",
    "promote": "stop a job, and make it ready for changed code, rewound with its targets repaired if need be",
    "check": "replay the newest epochs and compare them with the checkpoints: finds code that is not deterministic",
    "incident": "write one epoch of a job to a file, with state and records, to be replayed anywhere",
    "replay": "run a job's code on an incident file, without root, sources and targets",
    "dlq": "list dead letters, and append their records to the log that they came from",
    "txn": "list or abort transactions that a killed job left open in Kafka",
    "log": "create, write, read, compact and seal embedded logs",
    "chaos": "run whole jobs under injected faults, and check every result",
    "connectors": "list the installed sources and sinks",
    "doctor": "check this machine: Python, Java, Spark, packages, storage",
    "completion": "print a completion script for a shell",
}
PLACES = {
    "start": ("demo", "new", "run", "capture", "plan", "connectors", "doctor"),
    "operate": (
        *("jobs", "status", "events", "explain", "stop", "savepoint", "rewind", "fork"),
        *("checkpoints", "state", "audit", "dlq", "txn"),
    ),
    "replay": ("why", "bisect", "check", "shadow", "promote", "incident", "replay"),
}
ELSEWHERE = {
    "chaos": "holdfast.chaos.commands.chaos",  # of a layer above this one, so imported by name alone
    "log": "holdfast.runtime.cli.log.commands",
    "completion": "holdfast.runtime.cli.completion",
} | {command: f"holdfast.runtime.cli.{place}.{command}" for place, commands in PLACES.items() for command in commands}
"""The module of each command, imported only when the command is given."""
_EPILOG = """\
examples:
  holdfast demo
  holdfast new sales
  holdfast run job.py --parallelism 4
  holdfast status hot-auctions --json

JOB is the name of a job under the root, JOB.py a Python file that builds an hf.App.
exit status: 0 done, 1 unexpected, 2 wrong use or configuration, 3 plan shown only, 4 damaged data,
or a check found something wrong, 5 something is unavailable, 6 fenced or already running, 7 the job failed"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    fill_standard_streams()
    if arguments[:1] == ["run"]:
        expect_stop()
    return guarded(arguments, lambda: _dispatch(arguments))


def module_of(command: str) -> ModuleType:
    """Load the module of a command."""
    return import_module(ELSEWHERE[command])


def _dispatch(arguments: list[str]) -> int:
    parser = Parser(prog="holdfast", description="Stateful stream processing on Spark.", epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    command = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if command is None:
        _refuse_in_front(arguments)
        for name, does in COMMANDS.items():
            subparsers.add_parser(name, help=does)
        if parser.parse_args(arguments).version:
            print(f"holdfast {holdfast.__version__}")
            return 0
        parser.print_help(sys.stderr)
        return ConfigError.exit_status
    if command not in COMMANDS:
        close = get_close_matches(command, COMMANDS, 1)
        raise ConfigError(
            f"there is no command {command!r}",
            not_done="the command did nothing",
            next_step=f"did you mean holdfast {close[0]}?" if close else f"use one of {', '.join(COMMANDS)}",
        )
    module_of(command).add_parser(subparsers)
    args = parser.parse_args(arguments)
    status: int = args.handler(args)
    return status


def _refuse_in_front(arguments: list[str]) -> None:
    """Refuse options before the command, but those of holdfast itself."""
    flag = arguments[0].partition("=")[0] if arguments else "--help"
    if flag not in ("-h", "--help", "--version"):
        raise ConfigError(
            f"option {flag} was given before the command",
            not_done="the command did nothing",
            next_step=f"give options after it: holdfast COMMAND ... {flag}; commands: holdfast --help",
        )


if __name__ == "__main__":
    sys.exit(main())
