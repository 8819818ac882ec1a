"""`holdfast state get|scan|diff|history|du JOB OPERATOR`: the state of operators, as checkpoints hold it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from holdfast.checkpoint.manifest import Manifest
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, add_common, add_job, root_of
from holdfast.runtime.cli.operate.state_output import StateAnswer, check_output, described, give, headline
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.comparison import differences, schema_of
from holdfast.runtime.inspect.keyhistory import history_of
from holdfast.runtime.inspect.reading import (
    StateCheckpoint,
    at_checkpoint,
    objects_of,
    operator_in,
    parts_of,
    reading_of,
)
from holdfast.runtime.inspect.sizes import OperatorSize, Stock, size_of
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.inspect.topic import with_topic
from holdfast.runtime.inspect.view import view_of

_ACTIONS = (
    ("get", "show the state of one key", "get hot-auctions hot 17"),
    ("scan", "show the state of all keys, by key group and key", "scan hot-auctions hot --out hot.parquet"),
    ("diff", "show the keys that two checkpoints hold differently", "diff hot-auctions hot --from 117 --to 120"),
    ("history", "show how the state of one key changed, by checkpoint", "history hot-auctions hot 17"),
    ("du", "show rows and bytes by operator, subtask and key group", "du hot-auctions"),
)


def add_parser(subparsers: Any) -> None:
    """Register the command and its actions."""
    about = (
        "Read the committed state of operators from a checkpoint, also while the job runs. Aggregates are shown by\n"
        "their results, windows with start and end. Nothing is changed."
    )
    examples = "\n".join(f"holdfast state {example}" for _, _, example in _ACTIONS)
    parser = add_command(subparsers, "state", about, examples, actions=True)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    handlers = {"get": get, "scan": scan, "diff": diff, "history": history, "du": du}
    for name, does, example in _ACTIONS:
        typed = f"examples:\n  holdfast state {example}"
        action = actions.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.", epilog=typed)
        add_common(action)
        add_job(action)
        action.set_defaults(handler=handlers[name])
        several: dict[str, Any] = {"nargs": "?"} if name == "du" else {}
        action.add_argument(
            "operator", metavar="OPERATOR", help="name of the operator, as in .agg(NAME, ...)", **several
        )
        if name in ("get", "diff", "history"):
            _add_key(action, optional=name == "diff")
        if name == "diff":
            action.add_argument("--from", dest="first", metavar="N", required=True, help=f"the older side: {_WHICH}")
            action.add_argument("--to", dest="epoch", metavar="N", help=f"the newer side: {_WHICH}; default: latest")
        else:
            action.add_argument("--epoch", metavar="N", help=f"{_WHICH}; default: latest")
        if name != "du":
            shown = "default: 100, with --json or --out all"
            action.add_argument("--limit", metavar="N", type=int, help=f"show at most N rows; {shown}")
            action.add_argument("--out", metavar="FILE", help="write to a new file instead: NAME.arrow or NAME.parquet")


_WHICH = "epoch number, savepoint name, or latest"


def get(args: argparse.Namespace) -> int:
    """Show the rows of one key. Exit status: 0, also if the key has no state; 4 if the checkpoint is damaged."""
    return _rows(args, args.key)


def scan(args: argparse.Namespace) -> int:
    """Show all rows. Exit status: 0; 4 if the checkpoint is damaged."""
    return _rows(args, None)


def diff(args: argparse.Namespace) -> int:
    """Show the differences. Exit status: 0, whether or not something differs; 4 if a checkpoint is damaged."""
    check_output(args)
    stored = open_job(root_of(args), args.job)
    before = reading_of(stored, args.operator, args.first, key=args.key)
    after = reading_of(stored, args.operator, args.epoch, key=args.key)
    found = differences(before, after)
    answer = StateAnswer(after.at, args.operator, schema_of(after.view), before.at)
    give(answer, found, args)
    return 0


def history(args: argparse.Namespace) -> int:
    """Show the changes of one key. Exit status: 0, also if the key never had state; 4 if a checkpoint is damaged."""
    check_output(args)
    key_history = history_of(open_job(root_of(args), args.job), args.operator, args.key, args.epoch)
    newest, oldest = key_history.states[0].at, key_history.states[-1].at
    give(StateAnswer(newest, args.operator, key_history.schema, since=oldest), key_history.batches(), args)
    if key_history.beyond is not None:
        epoch, why = key_history.beyond.at.epoch, key_history.beyond.why
        advise(f"at epoch {epoch} and before, {args.operator} had {why}; for its history there: --epoch {epoch}")
    return 0


def du(args: argparse.Namespace) -> int:
    """Show rows and bytes. Exit status: 0; 4 if the checkpoint is damaged."""
    stored_job = open_job(root_of(args), args.job)

    def read(at: StateCheckpoint, manifest: Manifest) -> tuple[StateCheckpoint, list[OperatorSize]]:
        operators = [each for each in manifest.operators if not each.dropped]
        if args.operator is not None:
            operators = [operator_in(manifest, args.operator, at)]
        span = (0, manifest.key_groups)
        holding, manifest = with_topic(stored_job, manifest, span)
        objects = objects_of(holding, manifest, span)
        return at, [
            size_of(o.name, parts_of(manifest, objects, view_of(o).spec, span), manifest.key_groups) for o in operators
        ]

    at, sizes = at_checkpoint(stored_job, args.epoch, read)
    if args.json:
        print_json(described(at) | {"operators": [_as_json(each) for each in sizes]})
    else:
        print(headline(at, args.operator))
        print(_render(sizes))
    return 0


def _rows(args: argparse.Namespace, key: str | None) -> int:
    check_output(args)
    reading = reading_of(open_job(root_of(args), args.job), args.operator, args.epoch, key=key)
    give(StateAnswer(reading.at, args.operator, reading.view.schema), reading.batches(), args)
    return 0


def _add_key(action: argparse.ArgumentParser, *, optional: bool) -> None:
    several: dict[str, Any] = {"nargs": "?"} if optional else {}
    only = "only this key" if optional else "the key"
    form = "a value, such as 17, or a JSON list for several columns or null: '[\"GB\", 17]'"
    action.add_argument("key", metavar="KEY", help=f"{only}: {form}", **several)


def _as_json(size: OperatorSize) -> dict[str, Any]:
    largest = [{"key_group": group, "rows": rows} for group, rows in size.largest]
    subtasks = [asdict(each) | {"key_groups": list(each.key_groups)} for each in size.subtasks]
    return {"name": size.name, "rows": size.rows, "bytes": size.bytes, "subtasks": subtasks, "largest": largest}


def _render(sizes: list[OperatorSize]) -> str:
    totals = [(size.name, size.rows, text.size(size.bytes)) for size in sizes]
    subtasks = [
        (size.name, s.subtask, f"{s.key_groups[0]}-{s.key_groups[1] - 1}", s.rows, *_stock(s.base), *_stock(s.tail))
        for size in sizes
        for s in size.subtasks
    ]
    largest = [(size.name, str(group), rows) for size in sizes for group, rows in size.largest]
    stocks = (*("base", "rows stored", "bytes"), *("segments", "rows stored", "bytes"))
    lines = [text.table(("operator", "rows", "bytes"), totals)]
    for title, headers, rows in (
        ("subtasks", ("operator", "subtask", "key groups", "rows", *stocks), subtasks),
        ("largest key groups", ("operator", "key group", "rows"), largest),
    ):
        if rows:
            lines += ["", title, text.table(headers, rows, indent=2)]
    return "\n".join(lines)


def _stock(stock: Stock) -> tuple[int, int, str]:
    return stock.pieces, stock.rows, text.size(stock.bytes)
