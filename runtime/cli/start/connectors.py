"""`holdfast connectors`: the sources and sinks that jobs can use, one line each."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command
from holdfast.runtime.cli.reporting import print_json
from holdfast.runtime.sources.installed import installed


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "connectors",
        "The sources and sinks that are installed here, by the name that hf.connector takes.",
        "holdfast connectors\nholdfast connectors --json",
    )
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """List the connectors. Exit status: 0."""
    found = installed()
    if args.json:
        print_json([asdict(each) for each in found])
    else:
        rows = [(each.name, each.target, each.package, each.version) for each in found]
        print(text.table(("name", "class", "package", "version"), rows))
    return 0
