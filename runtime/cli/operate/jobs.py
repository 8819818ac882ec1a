"""`holdfast jobs`: the jobs under a root, one line each."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.errors import Damaged
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, root_of
from holdfast.runtime.cli.operate.history import status_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import job_names, open_job
from holdfast.runtime.wire.clock import SystemClock

FIELDS = ("job", "state", "generation", "timeline", "checkpoint", "driver", "reason")


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers, "jobs", "List the jobs under a root.", "holdfast jobs\nholdfast jobs --root s3://bucket/streams"
    )
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """List the jobs. Exit status: 0; 4 if the log of one is damaged, after listing all."""
    root, rows, damage = root_of(args), [], None
    for name in job_names(root):
        try:
            status = status_of(open_job(root, name), SystemClock().wall_us()).as_json()
        except Damaged as error:
            damage = error
            status = {"job": name, "state": None, "reason": error.what}
        rows.append({field: status.get(field) for field in FIELDS})
    if args.json:
        print_json(rows)
    elif rows:
        print(text.table(("job", "state", "epoch", "checkpoint", "generation", "driver"), map(_row, rows)))
    else:
        advise(f"there are no jobs under {root}; start one: holdfast run JOB.py")
    if damage is not None and not args.json:
        raise damage
    return 0 if damage is None else damage.exit_status


def _row(shown: dict[str, Any]) -> tuple[object, ...]:
    checkpoint, driver = shown["checkpoint"] or {}, shown["driver"] or {}
    age = f"{text.span(checkpoint['age_ms'])} ago" if checkpoint else None
    running = shown["state"] in ("starting", "running", "recovering", "unreachable")
    where = f"pid {driver['pid']} on {driver['host']}" if driver and running else None
    return shown["job"], shown["state"] or "damaged", checkpoint.get("epoch"), age, shown["generation"], where
