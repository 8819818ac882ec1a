"""`--last N`: text shows the newest part of a long list and mentions the rest; JSON is complete without the flag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeVar

from holdfast.errors import ConfigError
from holdfast.runtime.cli.reporting import advise

T = TypeVar("T")


def add_last(parser: argparse.ArgumentParser, shown: int) -> None:
    """Add --last; without it, `shown` entries are shown."""
    default = f"default: {shown}, with --json all"
    parser.add_argument("--last", metavar="N", type=int, help=f"only the newest N; {default}")


def newest_of(found: Sequence[T], args: argparse.Namespace, shown: int) -> Sequence[T]:
    """Return the part to show of a list whose newest entry is last. Raises ConfigError if `--last` is below 1."""
    if args.last is not None and args.last < 1:
        raise ConfigError(f"--last is {args.last}", not_done="nothing was listed", next_step="give at least 1")
    return found[-(args.last or (len(found) if args.json else shown)) :]


def advise_of_rest(listed: Sequence[T], found: Sequence[T]) -> None:
    """Print how to see the rest, if any."""
    if len(listed) < len(found):
        advise(f"these are the newest {len(listed)} of {len(found):,}; for more: --last {len(found)}")
