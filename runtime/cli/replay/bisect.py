"""`holdfast bisect JOB.py --check CONDITION`: the checkpoint at which the state went wrong, and the record that did it.

Source: API.md; docs/decisions/0130-replay.md.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from holdfast.checkpoint.joblog import Completed
from holdfast.errors import ConfigError, HoldfastError, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_job
from holdfast.runtime.cli.replay.given import (
    advise_unordered,
    job_and_code,
    place,
    plain,
    shown,
    unordered_as_json,
)
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start.jobfile import function_of
from holdfast.runtime.inspect.stored import LATEST, Stored, checkpoint_of
from holdfast.runtime.replay.bisecting import BisectResult, Condition, Culprit, culprit, expression, first_bad, function
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.unordered import may_differ


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "bisect",
        "Find the first checkpoint at which a condition on the state fails, by reading a few of them, then the record\n"
        "after which it fails, by replaying that epoch in this process. Changes nothing.\n\n"
        "exit status: 0 found, 2 wrong use, or the condition does not change; 4 a checkpoint is damaged;\n"
        "5 a source or store is unreachable",
        "holdfast bisect job.py --check 'turnover < 1000000'\n"
        "holdfast bisect job.py --check invariant.py --good before-deploy --bad latest --json",
    )
    add_job(parser, "the job's Python file")
    condition = "a Polars SQL expression that holds for each row of the operators that have its columns"
    parser.add_argument(
        "--check",
        metavar="CONDITION",
        required=True,
        help=f"{condition}; or a Python file with check(state), which takes a Polars frame per operator",
    )
    parser.add_argument("--good", metavar="N", help="a checkpoint at which it holds; default: the oldest")
    parser.add_argument("--bad", metavar="N", help="a checkpoint at which it fails; default: the latest")
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Find checkpoint and record. Exit status: 0 found."""
    condition = _condition(args.check)
    with ExitStack() as within:
        stored_job, code = job_and_code(args, within)
        good, bad = _ends(args, stored_job)
        bisection = first_bad(stored_job, condition, good, bad)
        record: Culprit | None = None
        why_not = None
        try:
            record = culprit(code, stored_job, bisection, condition)
        except HoldfastError as error:
            why_not = error.what
    if record is None and why_not is None:
        why_not = "the replay of the epoch does not fail: see holdfast check, and whether the code has changed"
    steps_that_may_differ = may_differ(code.plan)
    if args.json:
        in_json = _as_json(stored_job, bisection, record, why_not)
        print_json(in_json | {"may_differ": unordered_as_json(steps_that_may_differ)})
        return 0
    print(
        f"{bisection.bad} is the first checkpoint that fails, of {text.moment(bisection.at)}; {bisection.good} holds "
        f"({text.plural(bisection.read, 'checkpoint')} read)"
    )
    if bisection.failure.operator is not None:
        print(f"  {bisection.failure.operator}: {shown(bisection.failure.row)}")
    if record is not None:
        print(f"record {place(record.at)}: {shown(record.record)}")
    if bisection.changed:
        print(f"the code of the job changed between epochs {bisection.good} and {bisection.bad}")
    if why_not is not None:
        advise(f"no record was found: {why_not}")
        advise_unordered(steps_that_may_differ)
    return 0


def _condition(given: str) -> Condition:
    return function(function_of(given, "check")) if given.endswith(".py") else expression(given)


def _ends(args: argparse.Namespace, stored: Stored) -> tuple[Completed, Completed]:
    job = stored.job
    if len(job.completed) < 2:
        raise ConfigError(
            f"job {stored.name!r} retains {text.plural(len(job.completed), 'checkpoint')}, and a search needs two",
            not_done=NOT_REPLAYED,
            next_step="wait for more, or keep more: retained_checkpoints, retained_for",
            where=Where(job=stored.name),
        )
    good = job.completed[0] if args.good is None else checkpoint_of(job, args.good)
    bad = checkpoint_of(job, LATEST if args.bad is None else args.bad)
    if good.body.epoch >= bad.body.epoch:
        raise ConfigError(
            f"--good is epoch {good.body.epoch}, which is not before --bad, epoch {bad.body.epoch}",
            not_done=NOT_REPLAYED,
            next_step="give the older checkpoint as --good",
            where=Where(job=stored.name),
        )
    return good, bad


def _as_json(stored: Stored, found: BisectResult, record: Culprit | None, why_not: str | None) -> dict[str, Any]:
    at = None if record is None else record.at
    return {
        "job": stored.name,
        "good": found.good,
        "bad": found.bad,
        "at": found.at,
        "checkpoints_read": found.read,
        "code_changed": found.changed,
        "operator": found.failure.operator,
        "row": plain(found.failure.row),
        "source": None if at is None else at.source,
        "partition": None if at is None else at.partition,
        "offset": None if at is None else at.first,
        "record": None if record is None else plain(record.record),
        "no_record": why_not,
    }
