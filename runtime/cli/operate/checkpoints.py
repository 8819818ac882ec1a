"""`holdfast checkpoints list|show|verify JOB`: the checkpoints that a job can be restored from."""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, add_common, add_job, root_of
from holdfast.runtime.cli.operate.events import GAPS
from holdfast.runtime.cli.operate.newest import add_last, advise_of_rest, newest_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.checkpoints import described_checkpoint, kind_of, listed_checkpoint, name_of
from holdfast.runtime.inspect.stored import checkpoint_of, open_job

NEWEST_SHOWN = 20
SEGMENTS_SHOWN_MAX = 5


def add_parser(subparsers: Any) -> None:
    """Register the command and its actions."""
    examples = (
        "holdfast checkpoints list hot-auctions --last 50\nholdfast checkpoints show hot-auctions latest\n"
        "holdfast checkpoints verify hot-auctions --epoch 117"
    )
    about = "List, show or verify the checkpoints that a job can be restored from."
    parser = add_command(subparsers, "checkpoints", about, examples, actions=True)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, does, handler, example in (
        ("list", "list the completed checkpoints, oldest first", list_all, "list hot-auctions --last 50"),
        ("show", "show the contents of one checkpoint", show, "show hot-auctions latest"),
        ("verify", "read and check every object that the checkpoints name", verify, "verify hot-auctions --epoch 117"),
    ):
        described = f"{does[0].upper()}{does[1:]}."
        typed = f"examples:\n  holdfast checkpoints {example}"
        action = actions.add_parser(name, help=does, description=described, epilog=typed)
        add_common(action)
        add_job(action)
        action.set_defaults(handler=handler)
        if name == "list":
            add_last(action, NEWEST_SHOWN)
        elif name == "show":
            action.add_argument("epoch", metavar="EPOCH", help="epoch number, savepoint name, or latest")
        else:
            action.add_argument("--epoch", metavar="N", help="verify only this checkpoint")
            action.add_argument("--orphans", action="store_true", help="instead, list objects that no checkpoint names")


def list_all(args: argparse.Namespace) -> int:
    """List checkpoints. Exit status: 0."""
    stored_job = open_job(root_of(args), args.job)
    checkpoints = stored_job.job.retained
    newest_checkpoints = newest_of(checkpoints, args, NEWEST_SHOWN)
    if args.json:
        print_json([listed_checkpoint(stored_job, each) for each in newest_checkpoints])
        return 0
    rows = [
        (
            str(c.body.epoch),
            c.timeline,
            kind_of(stored_job.job, c),
            name_of(stored_job.job, c),
            text.moment(c.at),
            text.span(c.body.duration_ms),
            text.size(c.body.bytes_new),
            text.size(c.body.bytes_total),
        )
        for c in newest_checkpoints
    ]
    if rows:
        print(text.table(("epoch", "timeline", "kind", "name", "completed", "took", "new", "total"), rows))
    else:
        advise(f"job {args.job!r} has not completed a checkpoint yet")
    advise_of_rest(newest_checkpoints, checkpoints)
    if any(later.generation != earlier.generation for earlier, later in pairwise(newest_checkpoints)):
        advise(GAPS)
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one checkpoint. Exit status: 0; 4 if its manifest is damaged."""
    stored_job = open_job(root_of(args), args.job)
    checkpoint = checkpoint_of(stored_job.job, args.epoch)
    manifest = stored_job.repository.load_manifest(checkpoint.body.manifest)
    document = described_checkpoint(checkpoint, manifest) | {
        "kind": kind_of(stored_job.job, checkpoint),
        "name": name_of(stored_job.job, checkpoint),
    }
    if args.json:
        print_json(document)
    else:
        print(_render(document))
    return 0


def verify(args: argparse.Namespace) -> int:
    """Read and check every object. Exit status: 0 all are intact, 4 something is damaged."""
    from holdfast.runtime.cli.operate.verify import orphans, verify_all

    stored_job = open_job(root_of(args), args.job)
    if args.orphans:
        if args.epoch is not None:
            raise ConfigError(
                "--orphans always covers all checkpoints", not_done="nothing was read", next_step="leave out --epoch"
            )
        return orphans(stored_job, as_json=args.json)
    chosen = stored_job.job.retained if args.epoch is None else (checkpoint_of(stored_job.job, args.epoch),)
    return verify_all(stored_job, chosen, as_json=args.json)


def _render(shown: dict[str, Any]) -> str:
    lines = [
        f"epoch {shown['epoch']}, follows {shown['follows'] or 'nothing'}"
        + (f", savepoint {shown['name']}" if shown["name"] else ""),
        f"  generation   {shown['generation']}, timeline {shown['timeline']}",
        f"  completed    {text.moment(shown['at'])}, took {text.span(shown['duration_ms'])}",
        f"  state        {text.size(shown['bytes_total'])}, {text.size(shown['bytes_new'])} of it new",
        f"  parallelism  {shown['parallelism']}, {shown['key_groups']} key groups",
        f"  manifest     {shown['manifest']['path']}",
    ]
    positions = [(name, partition, offset) for name, at in shown["offsets"].items() for partition, offset in at.items()]
    state = [
        (
            s["subtask"],
            f"{s['key_groups'][0]}-{s['key_groups'][1] - 1}",
            text.size((s["base"] or {}).get("bytes")),
            len(s["segments"]),
            text.size(s["segment_bytes"]),
        )
        for s in shown["state"]
    ]
    segments = [
        (s["subtask"], str(each["epoch"]), each["follows"], text.size(each["bytes"]), each["path"])
        for s in shown["state"]
        for each in s["segments"][-SEGMENTS_SHOWN_MAX:]
    ]
    pending = [(p["sink"], p["subtask"], str(p["epoch"]), p["rows"], text.size(p["bytes"])) for p in shown["pending"]]
    newest = f"segments (the newest {SEGMENTS_SHOWN_MAX} per subtask)"
    for title, headers, rows in (
        ("positions", ("source", "partition", "next offset"), positions),
        ("state", ("subtask", "key groups", "base", "segments", "bytes"), state),
        (newest, ("subtask", "epoch", "follows", "size", "object"), segments),
        ("staged, not yet known to be delivered", ("sink", "subtask", "epoch", "rows", "size"), pending),
    ):
        if rows:
            lines += ["", title, text.table(headers, rows, indent=2)]
    return "\n".join(lines)
