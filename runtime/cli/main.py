"""`holdfast`: finds the command, and loads only that one.

Loading Spark or Polars takes longer than most commands do, so a command's module is imported when it is asked for,
and the list of commands stands here.

Source: API.md, command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from holdfast.errors import ConfigError
from holdfast.runtime.cli.arguments import Parser
from holdfast.runtime.cli.reporting import guarded

COMMANDS = {
    "demo": "the main job on real data: kills a worker on purpose, checks the result",
    "run": "run the job that a Python file describes",
    "plan": "what a job would do: graph, settings, changes against the last checkpoint",
    "jobs": "the jobs under a root",
    "status": "how a job is doing",
    "events": "what happened to a job: starts, restarts and their causes, ends",
    "explain": "why a job makes no progress, and what to do about it",
    "stop": "take a last checkpoint and end a running job; it can be started again",
    "savepoint": "name a checkpoint of a job, so that it is kept",
    "rewind": "go back to an earlier checkpoint: state, offsets and what targets show",
    "checkpoints": "list, show or verify the checkpoints of a job",
    "audit": "prove that what was read is what came out, from sources and targets, for every checkpoint kept",
    "dlq": "list dead letters, and append their records to the log that they came from",
    "log": "create, write, read, compact and seal embedded logs",
    "chaos": "play whole jobs in a world that fails, and check every answer",
    "doctor": "check this machine: Python, Java, Spark, packages, storage",
    "completion": "print the completion script of a shell",
}
ELSEWHERE = {"chaos": "holdfast.chaos.cli"}
"""Commands of layers above this one: named here, imported by nobody until they are asked for."""
_EPILOG = """\
examples:
  holdfast demo
  holdfast run job.py --parallelism 4
  holdfast status hot-auctions --json

JOB is the name of a job under the root, JOB.py a Python file that builds an hf.App.
exit status: 0 done, 1 unexpected, 2 wrong use or configuration, 3 plan shown only, 4 damaged data,
or something is not as it must be, 5 something is unavailable, 6 fenced or already running, 7 the job failed"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return guarded(arguments, lambda: _dispatch(arguments))


def module_of(command: str) -> ModuleType:
    """Load the module of a command."""
    return import_module(ELSEWHERE.get(command, f"holdfast.runtime.cli.{command}"))


def _dispatch(arguments: list[str]) -> int:
    parser = Parser(prog="holdfast", description="Stateful stream processing on Spark.", epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    command = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if command is None:
        for name, does in COMMANDS.items():
            subparsers.add_parser(name, help=does)
        if parser.parse_args(arguments).version:
            print(f"holdfast {_version()}")
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
    chosen = subparsers.choices[command]
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}")
    status: int = args.handler(args)
    return status


def _version() -> str:
    from importlib import metadata  # slow to load, and only needed here

    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
