"""`holdfast why JOB.py SINK|OPERATOR KEY`: the records that changed a key, found by replaying.

Source: API.md; docs/decisions/0130-replay.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.model import NO_EPOCH
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_job
from holdfast.runtime.cli.replay.given import (
    advise_unordered,
    announce,
    job_and_code,
    place,
    plain,
    positive,
    proof_as_json,
    shown,
    unordered_as_json,
    unordered_of,
    verdict_of,
)
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect import keys
from holdfast.runtime.inspect.keyhistory import history_of
from holdfast.runtime.inspect.stored import LATEST, Stored, checkpoint_of
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.replay.epochs import Replayable, can_begin, newest, replayable
from holdfast.runtime.replay.player import Code
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.why import Cause, Explained, ReplayWatch, WatchedRows, WatchedState, explained

EPOCHS, LIMIT = 3, 20


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "why",
        "Show which records changed a key of an operator, or made rows of a sink: epochs are replayed in this\n"
        "process with the present code, from checkpoints and sources. Targets are not touched, and the job may\n"
        "run meanwhile.\n\n"
        "exit status: 0, also if nothing changed the key; 2 wrong use, or records were removed;\n"
        "4 a checkpoint is damaged; 5 a source or store is unreachable",
        "holdfast why job.py totals north\n"
        "holdfast why job.py out north --at 117\n"
        'holdfast why job.py rows \'{"shop": "north"}\' --json',
    )
    add_job(parser, "the job's Python file")
    parser.add_argument("name", metavar="SINK|OPERATOR", help="name of the operator or sink")
    form = "a value such as north, a JSON list for several columns, or of a sink a JSON object of columns"
    parser.add_argument("key", metavar="KEY", help=f"the key: {form}")
    parser.add_argument("--at", metavar="EPOCH", help="only this epoch: its number, a savepoint's name, or latest")
    newest_of = f"of an operator the newest in which the key changed; default: {EPOCHS}"
    parser.add_argument(
        "--epochs", metavar="N", type=int, default=EPOCHS, help=f"how many epochs to replay: {newest_of}"
    )
    parser.add_argument(
        "--limit", metavar="N", type=int, default=LIMIT, help=f"records of an epoch; default: the first {LIMIT}"
    )
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Replay and show. Exit status: 0."""
    positive(args.epochs, "--epochs")
    positive(args.limit, "--limit")
    with ExitStack() as within:
        stored_job, code = job_and_code(args, within)
        watch, epochs = _watched(args, stored_job, code)
        announce(epochs)
        explanations = [explained(code, epoch, watch, args.limit) for epoch in epochs]
        steps_that_may_differ = unordered_of(code, (each.proof for each in explanations))
    if args.json:
        kind = "operator" if isinstance(watch, WatchedState) else "sink"
        epochs_shown = [_as_json(each) for each in explanations]
        head = {"job": stored_job.name, "kind": kind, "name": args.name, "key": args.key}
        print_json({**head, "epochs": epochs_shown, "may_differ": unordered_as_json(steps_that_may_differ)})
        return 0
    for each in explanations:
        print(_render(args, each))
        print()
    if not any(each.causes for each in explanations):
        extent = (
            f"in the {text.plural(len(explanations), 'epoch')} that "
            f"{'was' if len(explanations) == 1 else 'were'} "
            "replayed"
        )
        advise(
            f"no record changed {args.name}, key {args.key}, {extent if explanations else 'in any retained checkpoint'}"
        )
    if any(each.proof.differences for each in explanations):
        advise_unordered(steps_that_may_differ, (each.proof for each in explanations))
    return 0


def _watched(args: argparse.Namespace, stored: Stored, code: Code) -> tuple[ReplayWatch, list[Replayable]]:
    """Return what is watched, and the epochs to replay, oldest first."""
    operators = _operators(stored)
    sinks = {spec.name: spec for spec in code.plan.sinks}
    if args.name in operators:
        watch: ReplayWatch = WatchedState(args.name, args.key)
        return watch, _chosen(args, stored) if args.at is not None else list(_changed(args, stored))
    if args.name in sinks:
        spec = sinks[args.name]
        watch = WatchedRows(args.name, _columns(spec, args.key), spec.upsert_key is not None)
        return watch, _chosen(args, stored) if args.at is not None else newest(stored, args.epochs)
    names = sorted({*operators, *sinks})
    raise ConfigError(
        f"job {stored.name!r} has no operator or sink {args.name!r}",
        not_done=NOT_REPLAYED,
        next_step=f"use one of {', '.join(names)}" if names else "wait for its first checkpoint",
        where=Where(job=stored.name),
    )


def _operators(stored: Stored) -> list[str]:
    if not stored.job.completed:
        return []
    manifest: Manifest = stored.repository.load_manifest(stored.job.completed[-1].body.manifest)
    return [each.name for each in manifest.operators if not each.dropped and not is_part(each.name)]


def _chosen(args: argparse.Namespace, stored: Stored) -> list[Replayable]:
    return [replayable(stored, args.at)]


def _changed(args: argparse.Namespace, stored: Stored) -> Iterator[Replayable]:
    """Yield the newest epochs in which the key changed, by the changelog, as far as they can be replayed."""
    history = history_of(stored, args.name, args.key, LATEST)
    rows = [row for batch in history.batches() for row in batch.to_pylist()]
    changed = sorted({row["epoch"] for row in rows})
    present = {row["epoch"] for row in rows if row["change"] == "present"}
    for epoch in changed[-args.epochs :]:
        manifest = stored.repository.load_manifest(checkpoint_of(stored.job, str(epoch)).body.manifest)
        if (manifest.follows == NO_EPOCH or epoch not in present) and can_begin(stored, manifest):
            yield replayable(stored, str(epoch))
        elif epoch not in present:
            advise(f"epoch {epoch} changed the key too, but the checkpoint before it has expired")


def _columns(spec: SinkSpec, key: str) -> tuple[tuple[str, Any], ...]:
    """Return the columns and values that rows of a sink must have. Raises ConfigError."""
    names = spec.upsert_key or spec.sink.key
    if key.startswith("{"):
        try:
            given = json.loads(key)
        except ValueError as error:
            raise _no_key(spec, f"{key!r} is not a JSON object: {error}") from error
        names, key = tuple(given), json.dumps(list(given.values()))
    if not names:
        raise _no_key(spec, f"sink {spec.name!r} has no key")
    if unknown := [name for name in names if name not in spec.schema.names]:
        raise _no_key(spec, f"sink {spec.name!r} has no column {unknown[0]!r}")
    arrays = keys.columns(key, [spec.schema.field(name) for name in names])
    return tuple((name, array[0].as_py()) for name, array in zip(names, arrays, strict=True))


def _no_key(spec: SinkSpec, what: str) -> ConfigError:
    columns = ", ".join(spec.schema.names)
    example = json.dumps({spec.schema.names[0]: "..."})
    return ConfigError(
        what, not_done=NOT_REPLAYED, next_step=f"give columns with values, such as '{example}'; columns: {columns}"
    )


def _as_json(each: Explained) -> dict[str, Any]:
    at = each.epoch
    return {
        "epoch": at.manifest.epoch,
        "at": at.done.at,
        "records": at.records,
        **proof_as_json(each.proof),
        "more": each.more,
        "causes": [_cause_as_json(cause) for cause in each.causes],
    }


def _cause_as_json(cause: Cause) -> dict[str, Any]:
    at = cause.at
    changes = [
        {"change": c.change, "key": plain(c.key), "before": plain(c.before), "after": plain(c.after)}
        for c in cause.changes
    ]
    return {
        "source": None if at is None else at.source,
        "partition": None if at is None else at.partition,
        "offset": None if at is None else at.first,
        "record": plain(cause.record),
        "changes": changes,
    }


def _render(args: argparse.Namespace, each: Explained) -> str:
    """Return one epoch as text."""
    at = each.epoch
    title = (
        f"{args.name}, key {args.key}: epoch {at.manifest.epoch} of {text.moment(at.done.at)}, "
        f"{text.plural(at.records, 'record')} replayed, which {verdict_of(each.proof)}"
    )
    rows = [
        (place(cause.at), shown(cause.record), change.change, shown(change.before), shown(change.after))
        for cause in each.causes
        for change in cause.changes
    ]
    lines = [title]
    if rows:
        lines.append(text.table(("record", "value", "change", "before", "after"), rows, indent=2))
    if each.more:
        lines.append(f"  and more: --limit {2 * args.limit}")
    lines += [f"  {each.kind} {each.name!r}: {each.what}" for each in each.proof.differences]
    return "\n".join(lines)
