"""`holdfast audit JOB`: proves that records in = effects out, for every checkpoint kept.

The audit rereads ranges of the sources, reads targets back, and compares both with the digests in the checkpoints. Only
the job's file names its sources and targets; given the job's name alone, the audit compares the checkpoints with each
other. A running job is audited as of its last completed epoch.

Source: API.md; DESIGN section 13 (audit digests); docs/decisions/0018-audit.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Damaged, Unavailable, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_job
from holdfast.runtime.cli.operate.rewind import job_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job

if TYPE_CHECKING:
    from holdfast.runtime.audit.report import Report
    from holdfast.runtime.plan.model import Plan

EPOCHS_SHOWN_MAX = 3
ROUNDS_MAX = 2
"""Attempts at an audit that rewinds interrupt."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "audit",
        "Prove that every record read came out once, by reading sources and targets again. Changes nothing.\n\n"
        "exit status: 0 proven, or reported as not provable, 2 wrong use, 4 something differs or is damaged,\n"
        "5 a source, target or store is unreachable",
        "holdfast audit job.py\nholdfast audit job.py --from 117 --to 120 --json\nholdfast audit hot-auctions",
    )
    add_job(parser, "the job's Python file; given the job's name alone, no source or target is read")
    parser.add_argument("--epoch", metavar="N", type=int, help="audit only this checkpoint")
    parser.add_argument("--from", metavar="N", type=int, dest="first", help="first checkpoint to audit")
    parser.add_argument("--to", metavar="M", type=int, dest="last", help="last checkpoint to audit")
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Audit the job.

    Exit status: 0 proven, or reported as not provable; 4 something differs; 5 a source, target or store is unreachable.
    """
    root, name, plan = job_of(args)
    report = audited(lambda: open_job(root, name), plan, args)
    print_json(report.as_json()) if args.json else _print(report)
    return Damaged.exit_status if report.verdict == "differs" else 0


def audited(open_: Callable[[], Stored], plan: Plan | None, args: argparse.Namespace) -> Report:
    """Audit the job; start over if a rewind intervenes, because targets then hold rows that no manifest read describes.

    Raises:
        Unavailable: rewinds interrupted every attempt.
    """
    for _ in range(ROUNDS_MAX):
        stored_job = open_()
        kept = _kept(stored_job)
        report = _audit(stored_job, plan, kept, _chosen(args, stored_job, kept))
        now = stored_job.repository.read_log()  # Rewound is appended before any target is repaired
        if now is not None and (now.uuid, now.timeline) == (stored_job.job.uuid, stored_job.job.timeline):
            return report
    raise Unavailable(
        f"job {stored_job.name!r} was rewound during the audit, {ROUNDS_MAX} times",
        not_done="the audit has no result, because it read several timelines",
        next_step="audit again after the rewind has completed",
        where=Where(job=stored_job.name),
    )


def _audit(stored: Stored, plan: Plan | None, kept: Sequence[Manifest], chosen: list[int]) -> Report:
    from holdfast.runtime.audit import checks as audit_checks
    from holdfast.runtime.audit import reading as audit_reading
    from holdfast.runtime.audit.report import Report

    manifests = [manifest for manifest in kept if manifest.epoch in chosen]
    lines = audit_checks.chain(kept, chosen)
    for manifest in manifests:
        lines += audit_checks.balances(manifest)
    if plan is None:
        reason = "only the job's file says where it is: holdfast audit JOB.py"
        lines += audit_reading.unread(manifests, reason)
    elif kept:
        lines += audit_reading.sources(plan.sources, manifests)
        lines += audit_reading.sinks(stored.repository, stored.job, plan.sinks, kept, set(chosen))
    return Report(stored.name, tuple(chosen), tuple(lines))


def _kept(stored: Stored) -> list[Manifest]:
    """Return the manifests of the job's lineage, oldest first, without those that expire meanwhile."""
    manifests = []
    for each in stored.job.completed:
        try:
            manifests.append(stored.repository.load_manifest(each.body.manifest))
        except Damaged:
            now = stored.repository.read_log()
            if now is None or each.body.epoch in {other.body.epoch for other in now.retained}:
                raise
    return manifests


def _chosen(args: argparse.Namespace, stored: Stored, kept: Sequence[Manifest]) -> list[int]:
    """Return the epochs to audit. Raises ConfigError if there is none."""
    if args.epoch is not None and (args.first is not None or args.last is not None):
        raise ConfigError(
            "--epoch names one checkpoint, --from and --to name several",
            not_done="nothing was read",
            next_step="give one or the other",
        )
    first = args.epoch if args.first is None else args.first
    last = args.epoch if args.last is None else args.last
    if first is not None and last is not None and first > last:
        raise ConfigError(
            f"--from is {first}, which is above --to {last}",
            not_done="nothing was read",
            next_step="give the older checkpoint as --from",
        )
    epochs = [int(manifest.epoch) for manifest in kept]
    requested_epochs = [e for e in epochs if (first is None or e >= first) and (last is None or e <= last)]
    if not requested_epochs and (epochs or (first, last) != (None, None)):
        raise ConfigError(
            f"job {stored.name!r} keeps none of the requested checkpoints; epoch numbers have gaps",
            not_done="nothing was read",
            next_step=f"it keeps {epochs[0]} to {epochs[-1]}: holdfast checkpoints list {stored.name}"
            if epochs
            else "wait for its first checkpoint",
            where=Where(job=stored.name),
        )
    return requested_epochs


def _print(report: Report) -> None:
    from holdfast.runtime.audit.report import grouped

    if not report.epochs:
        print(f"{report.job}: there is no checkpoint to audit yet")
        return
    rows = [
        (line.kind, line.name or "chain", line.part, _epochs(epochs), line.rows, line.verdict, line.reason)
        for line, epochs in grouped(report.lines)
    ]
    print(
        f"{report.job}: {report.verdict}, as of epoch {report.epochs[-1]} "
        f"({text.plural(len(report.epochs), 'checkpoint')})\n"
    )
    print(text.table(("what", "name", "part", "epochs", "rows", "verdict", "reason"), rows))
    if late := report.late():
        names = ", ".join(f"{name} {text.count(count)}" for name, count in late.items())
        print(f"\n{text.plural(sum(late.values()), 'record')} came late, after their windows had closed: {names}")
    if lost := report.lost():
        names = ", ".join(f"{name} partition {part} {text.count(count)}" for (name, part), count in lost.items())
        print(f"\n{text.plural(sum(lost.values()), 'offset')} of sources were removed before they were read: {names}")
    if report.verdict == "differs":
        advise(
            f"holdfast: {report.job}: sources or targets differ from the checkpoints\n"
            "Not done: nothing was changed.\n"
            "Next: see the lines that differ; holdfast audit JOB.py --json lists every epoch separately"
        )


def _epochs(epochs: Sequence[int]) -> str:
    if not epochs:
        return "all kept"
    if len(epochs) <= EPOCHS_SHOWN_MAX:
        return ", ".join(map(str, epochs))
    return f"{epochs[0]} to {epochs[-1]} ({len(epochs)})"
