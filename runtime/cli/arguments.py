"""Common parts of all commands: how they refuse wrong use, and the flags that mean the same everywhere.

Wrong use raises ConfigError, so its message has three parts and the exit status is 2.
"""

from __future__ import annotations

import argparse
import os
from difflib import get_close_matches
from typing import Any, NoReturn

from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import duration_ms
from holdfast.runtime.config.settings import root_given

_ALIKE = 0.8
"""Flags as similar as this are taken for each other's misspelling."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError and accepts no abbreviated flags."""

    def __init__(self, **given: Any) -> None:
        given.setdefault("formatter_class", _Help)
        super().__init__(allow_abbrev=False, **given)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; the parser of an action refuses unknown arguments before the parser above it can."""
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [each.partition("=")[0].lstrip("-") for each in unknown if each.startswith("--")]
            known = [flag.removeprefix("--") for flag in self._option_string_actions]
            close = get_close_matches(flags[0], known, 1, _ALIKE) if flags else []
            raise ConfigError(
                f"unrecognized arguments: {' '.join(unknown)}",
                not_done="the command did nothing",
                next_step=f"did you mean --{close[0]}? All: {self.prog} --help" if close else f"see {self.prog} --help",
            )
        return arguments, unknown

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, not_done="the command did nothing", next_step=f"see {self.prog} --help")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def add_command(subparsers: Any, name: str, description: str, examples: str, *, actions: bool = False) -> Parser:
    """Add a command; `examples` are lines as users type them. With `actions`, its actions add the common flags."""
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    parser: Parser = subparsers.add_parser(name, description=description, epilog=f"examples:\n{lines}")
    if not actions:
        add_common(parser)
    return parser


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add --root, --json and --debug."""
    parser.add_argument(
        "--root", metavar="R", help="folder or URL that holds the jobs; default: HOLDFAST_ROOT, else ./.holdfast"
    )
    parser.add_argument("--json", action="store_true", help="print results and errors as JSON on stdout")
    parser.add_argument("--debug", action="store_true", help="if the command fails, show the traceback too")


def add_job(parser: argparse.ArgumentParser, called: str = "name of the job under the root") -> None:
    """Add the argument that names the job."""
    parser.add_argument("job", metavar="JOB", help=called)


def add_app(parser: argparse.ArgumentParser) -> None:
    """Add the flag that chooses among the apps of a job's file."""
    parser.add_argument("--app", metavar="NAME", help="which app, if the file builds several")


def add_timeout(parser: argparse.ArgumentParser, what: str = "the end") -> None:
    """Add --timeout, which limits the wait for `what`; `timeout_of` reads it."""
    parser.add_argument("--timeout", metavar="D", default="60s", help=f"how long to wait for {what}; default: 60s")


def add_accept(parser: argparse.ArgumentParser) -> None:
    """Add --accept, which leaves rows in a target that a rewind cannot undo."""
    parser.add_argument(
        "--accept",
        metavar="WHAT",
        action="append",
        default=[],
        help="leave a sink's rows that cannot be undone; the plan shows WHAT, as SINK:VERDICT",
    )


def timeout_of(args: argparse.Namespace, not_done: str) -> float:
    """Return --timeout in seconds. Raises ConfigError, with `not_done`, if it is not a duration."""
    return duration_ms(args.timeout, "--timeout", not_done) / 1000


def root_of(args: argparse.Namespace) -> str:
    """Return the root that the command works on: flag, else environment, else default.

    Raises:
        ConfigError: the root is empty.
    """
    return root_given(args.root, "--root", os.environ)
