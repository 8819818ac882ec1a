"""`holdfast fork JOB NEW --from-epoch N`: a new job that begins with a checkpoint of another one.

The other job is only read, whether it runs or not. The new job keeps nothing of it but the names in its first record.

Source: DESIGN section 9; docs/decisions/0086-fork.md.
"""

from __future__ import annotations

import argparse
import shlex
import time
import uuid
from collections import Counter
from typing import Any

from holdfast.checkpoint.forks import NewJob
from holdfast.errors import ConfigError, Where
from holdfast.model import JobUuid
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, add_job, root_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.fork.forking import Fork, check_new, fork
from holdfast.runtime.inspect.stored import checkpoint_of, open_job
from holdfast.runtime.operators.contract import operator_of
from holdfast.runtime.plan.graph import is_name
from holdfast.runtime.wire.clock import SystemClock
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join
from holdfast.storage.probe import prove

RETRY_S = 0.5


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "fork",
        "Create a job that begins with the state and the source offsets of a checkpoint of another job, to try other\n"
        "code on real state. The other job is only read, and may run meanwhile. NEW takes the name of an app.",
        "holdfast fork hot-auctions hot-auctions-2 --from-epoch 57\n"
        "holdfast fork hot-auctions trial --from-epoch before-upgrade --json",
    )
    add_job(parser)
    parser.add_argument("new", metavar="NEW", help="name of the new job, under the same root")
    parser.add_argument(
        "--from-epoch", metavar="N", required=True, help="the checkpoint: its epoch, a savepoint's name, or latest"
    )
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Create the job. Exit status: 0 it exists, 2 refused, 4 the checkpoint is damaged, 5 the store is unreachable."""
    root = root_of(args)
    stored_job = open_job(root, args.job)
    _check_name(args.new)
    folder, not_done = join(root, args.new), f"job {args.new!r} was not created; job {args.job!r} was only read"
    check_new(args.new, open_objects(folder, writable=False))  # creates no folder
    checkpoint = checkpoint_of(stored_job.job, args.from_epoch)
    into, clock = open_objects(folder), SystemClock()
    prove(into, f"the root {folder}", not_done)
    new = NewJob(args.new, JobUuid(uuid.uuid4().hex), uuid.uuid4().hex, clock.wall_us())
    summary = described(fork(stored_job, checkpoint, into, new, clock, lambda: time.sleep(RETRY_S)), new)
    if args.json:
        print_json(summary)
    else:
        print(render(summary))
        advise(f"\n{_next(args, summary)}")
    return 0


def described(made: Fork, new: NewJob) -> dict[str, Any]:
    """Return a fork as JSON-able values.

    Returns:
        The new job and its uuid; the checkpoint; per partition, where reading begins; the stored state of each
        operator; the targets of the other job, which sinks of the new one may not have; and the copied objects.
    """
    origin, manifest, copy_totals = made.origin, made.manifest, made.copied
    sizes = Counter[str]()
    for each in manifest.operators:
        if not each.dropped:
            sizes[operator_of(each.name)] += copy_totals.by_operator[each.id]
    return {
        "job": new.name,
        "uuid": new.uuid,
        "from": {"job": origin.job, "timeline": origin.timeline, "epoch": origin.epoch, "at": made.at},
        "sources": [
            {"name": at.source, "partition": at.partition, "offset": at.offset, "watermark": at.watermark}
            for at in manifest.positions
        ],
        "state": [{"operator": name, "bytes": size} for name, size in sizes.items()],
        "sinks": [
            {"name": name, "kind": there["kind"], "place": {part: at for part, at in there.items() if part != "kind"}}
            for name, there in origin.targets.items()
        ],
        "copied": {"objects": copy_totals.objects, "bytes": copy_totals.bytes, "duration_ms": made.duration_ms},
    }


def render(shown: dict[str, Any]) -> str:
    """Return a fork as text."""
    there, copy_totals = shown["from"], shown["copied"]
    took = text.span(copy_totals["duration_ms"])
    lines = [
        f"{shown['job']} begins with epoch {there['epoch']} of {there['job']}, of {text.moment(there['at'])}",
        f"copied: {text.plural(copy_totals['objects'], 'object')}, {text.size(copy_totals['bytes'])}, in {took}",
    ]
    sources = [(at["name"], at["partition"], at["offset"]) for at in shown["sources"]]
    state = [(each["operator"], text.size(each["bytes"])) for each in shown["state"]]
    sinks = [
        (each["name"], " ".join([each["kind"], *(f"{part}={at}" for part, at in each["place"].items())]))
        for each in shown["sinks"]
    ]
    for title, headers, rows in (
        ("reading begins at", ("source", "partition", "offset"), sources),
        ("state", ("operator", "size"), state),
        (f"targets that stay those of {there['job']}", ("sink", "target"), sinks),
    ):
        if rows:
            lines += ["", title, text.table(headers, rows, indent=2)]
    return "\n".join(lines)


def _next(args: argparse.Namespace, shown: dict[str, Any]) -> str:
    """Return the next step with the new job."""
    flags = [] if args.root is None else ["--root", args.root]
    plan, run = (shlex.join(["holdfast", command, "JOB.py", *flags]) for command in ("plan", "run"))
    return (
        f"Next: in a copy of the job's file, name the app: hf.App({shown['job']!r}), and give every sink, and the DLQ, "
        f"another target. Then see what differs: {plan}; and start it: {run}"
    )


def _check_name(name: str) -> None:
    """Refuse a name that no app can have."""
    if not is_name(name):
        a_file = "give the name of the new job, not a file"
        signs = "use small letters, digits, '-' and '_', beginning with a letter or digit"
        raise ConfigError(
            f"{name!r} cannot be the name of a job",
            not_done="nothing was copied",
            next_step=a_file if name.endswith(".py") else signs,
            where=Where(job=name),
        )
