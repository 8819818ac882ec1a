"""`holdfast connectors`: the sources and sinks that jobs can use, one line for each side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.sources.listed import SINK, SOURCE, ListedConnector, listed

_HEADERS = ("name", "side", "class", "package", "library", "traits")


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "connectors",
        "The sources and sinks that are installed here, by the name that hf.connector takes: package, library, what a "
        "configuration of each can do, and how to install what is missing.",
        "holdfast connectors\nholdfast connectors --json",
    )
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """List the connectors. Exit status: 0, also if one cannot be used."""
    connectors = listed()
    if args.json:
        print_json([_as_json(each) for each in connectors])
        return 0
    print(text.table(_HEADERS, [row for each in connectors for row in _rows(each)]))
    for each in connectors:
        if each.problem is not None:
            advise(f"\n{each.installed.name} cannot be used: {each.problem}.\nNext: {each.next}")
    return 0


def _as_json(each: ListedConnector) -> dict[str, Any]:
    at, library = each.installed, each.library
    sides = {side: {"traits": each.sides[side]} if side in each.sides else None for side in (SOURCE, SINK)}
    return {
        "name": at.name,
        "target": at.target,
        "package": at.package,
        "version": at.version,
        "library": None if library is None else {"name": library.name, "version": each.version, "extra": library.extra},
        **sides,
        "problem": each.problem,
        "next": each.next,
    }


def _rows(each: ListedConnector) -> Iterator[tuple[str | None, ...]]:
    at, library = each.installed, each.library
    package = " ".join(filter(None, (at.package, at.version)))
    made_with = None if library is None else f"{library.name} {each.version or text.UNKNOWN}"
    for side, traits in each.sides.items() or [(None, None)]:
        yield at.name, side, at.target, package, made_with, _shown(traits)


def _shown(traits: Mapping[str, bool] | None) -> str | None:
    if traits is None:
        return None
    return ", ".join(name.replace("_", " ") for name, has in traits.items() if has) or "none"
