"""`holdfast explain JOB`: why a job makes no progress, and the next step for each cause."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.runtime.cli.arguments import add_command, add_job, root_of
from holdfast.runtime.cli.operate.history import status_of
from holdfast.runtime.cli.reporting import print_json
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.job.explain import findings
from holdfast.runtime.wire.clock import SystemClock


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "explain",
        "Explain why a job makes no progress: missing workers, an unacked epoch, sinks, sources, a silent driver.",
        "holdfast explain hot-auctions\nholdfast explain hot-auctions --json | jq .findings",
    )
    add_job(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print the causes found. Exit status: 0, whatever they are."""
    status = status_of(open_job(root_of(args), args.job), SystemClock().wall_us())
    causes = findings(status)
    if args.json:
        print_json({"job": args.job, "state": status.state, "findings": [each.as_json() for each in causes]})
        return 0
    print(f"{args.job}: {status.state}")
    for each in causes:
        print(f"- {each.what}." + (f"\n  Next: {each.next}." if each.next else ""))
    return 0
