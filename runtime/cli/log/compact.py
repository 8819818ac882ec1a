"""`holdfast log compact`: keeps the newest row of every key and drops earlier ones.

Source: API.md, command line; docs/decisions/0014-log-compaction.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.text import plural
from holdfast.runtime.config.durations import duration_ms
from holdfast.sinks.log.changelog import refuse_changelog_of_a_job
from holdfast.storage.log.compaction import CompactionResult, Compactor, PartitionResult, Wishes
from holdfast.storage.objects import open_objects

SHOWN_ONLY = 3
_NOT_DONE = "the log was not compacted"
ABOUT = """\
Compact a log that has a key: among rows that are old enough, keep the newest row of every key and partition, at its
offset, and drop earlier ones. A tombstone, which is a delete record of a changelog or else a row with only its key set,
is dropped later.

Readers that come later do not see the dropped rows. A rewind that would have to read them again is refused, and so is
one that would have to undo compacted output: choose --older-than longer than you may want to go back."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that the command takes besides the path."""
    parser.description = ABOUT
    parser.add_argument(
        "--older-than",
        default="1h",
        metavar="T",
        help="leave younger rows as they are; default 1h, the rewind horizon of a job; 0 compacts everything",
    )
    parser.add_argument(
        "--keep-tombstones",
        default="1d",
        metavar="T",
        help="keep tombstones for this long after the first compaction that reached them; default 1d",
    )
    parser.add_argument(
        "--grace", default="10s", metavar="T", help="wait this long before deleting replaced objects; default 10s"
    )
    parser.add_argument("--dry-run", action="store_true", help="read and count, change nothing")


def compact(args: argparse.Namespace) -> int:
    """Compact a log.

    Exit status: 0 done, or nothing to do; 2 no such log or no key; 3 dry run; 4 damaged data found; 5 another process
    came first, or the store is unreachable.
    """
    wishes = Wishes(
        1_000 * duration_ms(args.older_than, "--older-than", _NOT_DONE),
        1_000 * duration_ms(args.keep_tombstones, "--keep-tombstones", _NOT_DONE),
        duration_ms(args.grace, "--grace", _NOT_DONE) / 1_000,
        args.dry_run,
    )
    store = open_objects(args.path, writable=not args.dry_run)
    compactor = Compactor(store)
    refuse_changelog_of_a_job(store, _NOT_DONE)
    result = compactor.compact(wishes)
    while result.more and not args.dry_run:
        result = _together(result, compactor.compact(wishes))
    if args.json:
        print_json(
            {
                "path": args.path,
                "committed": result.committed,
                "dry_run": args.dry_run,
                "deleted_objects": result.deleted,
                "more": result.more,
                "partitions": [vars(each) for each in result.partitions],
            }
        )
    else:
        _print(args, result)
    return SHOWN_ONLY if args.dry_run else 0


def _print(args: argparse.Namespace, result: CompactionResult) -> None:
    parts = result.partitions
    before, after = sum(p.records_before for p in parts), sum(p.records_after for p in parts)
    did = "would leave" if args.dry_run else "compacted:" if result.committed else "nothing to compact:"
    print(f"{args.path} {did} {after:,} of {plural(before, 'record')}")
    for p in parts:
        print(
            f"  partition {p.partition}: {p.records_before:,} -> {plural(p.records_after, 'record')}, "
            f"{p.bytes_before:,} -> {p.bytes_after:,} bytes, {plural(p.tombstones, 'tombstone')} kept, "
            f"{plural(p.untouched, 'newer offset')} untouched"
        )
    if args.dry_run and result.more:
        advise("this is the first of several steps; without --dry-run all are taken")
    if not result.committed and not args.dry_run and any(p.untouched for p in parts):
        advise(f"rows younger than {args.older_than} stay as they are; see --older-than")


def _together(first: CompactionResult, second: CompactionResult) -> CompactionResult:
    """Return the combined result of two consecutive compactions."""
    return CompactionResult(
        first.committed or second.committed,
        first.deleted + second.deleted,
        second.more,
        tuple(_summed(a, b) for a, b in zip(first.partitions, second.partitions, strict=True)),
    )


def _summed(first: PartitionResult, second: PartitionResult) -> PartitionResult:
    return replace(
        second,
        records_before=second.records_before + first.records_before - first.records_after,
        bytes_before=second.bytes_before + first.bytes_before - first.bytes_after,
    )
