"""`holdfast txn list|abort JOB.py`: transactions that a killed job left open, which hide records from readers.

Only the job's file names the brokers and how to log in. Nothing here is needed for exactly-once delivery: the next run
of the job ends open transactions, and so do the brokers after the transaction's timeout. These commands are for readers
that cannot wait.

Source: API.md, command line; docs/decisions/0109-open-transactions.md.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import ConfigError, Fenced, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_common, add_job
from holdfast.runtime.cli.operate.history import RUNNING, status_of
from holdfast.runtime.cli.operate.rewind import PLAN_ONLY, job_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.wire.clock import SystemClock
from holdfast.sinks.contract.transactions import Hidden, Transactions

GONE_WITHIN_S = 5.0
"""How long brokers may take to show readers that a transaction was aborted."""
LOOK_EVERY_S = 0.1
_WHOSE = (
    "The client library cannot ask brokers whose a transaction is: one may be that of another producer which writes to "
    "the same topic."
)
_LIST = f"""\
List records that open transactions hide in the topics of a job: per partition, from which offset on readers with
isolation.level=read_committed see nothing yet. {_WHOSE} A running job has
one open during each delivery, for a moment.

exit status: 0 listed, also if there are none, 2 wrong use, 5 the brokers are unreachable"""
_ABORT = f"""\
Abort the transactions that a job left open, and complete those that it had begun to commit, by initialising the
transactional id of each sink in whose topics something is hidden. Shows what it would do; does it with --apply. No
output is lost: the next run of the job delivers what is missing. {_WHOSE}
Such a transaction stays open, and is listed again.

exit status: 0 done, or nothing is open, 2 wrong use, 3 shown only, 5 the brokers are unreachable,
6 the job is running"""


@dataclass(frozen=True)
class SinkTransactions:
    """A sink, and the rows that are hidden in its topics."""

    sink: str
    transactions: Transactions
    hidden: Sequence[Hidden]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-able values; whose transactions these are is unknown."""
        hidden = [{**asdict(each), "records": each.end - each.first, "owner": None} for each in self.hidden]
        return {"sink": self.sink, "transactional_id": self.transactions.id, "hidden": hidden}


def add_parser(subparsers: Any) -> None:
    """Register the command and its actions."""
    about = "List or abort transactions that a killed job left open in Kafka, which hide records from readers."
    examples = "holdfast txn list job.py\nholdfast txn abort job.py --apply"
    parser = add_command(subparsers, "txn", about, examples, actions=True)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    formatter = argparse.RawDescriptionHelpFormatter
    show = actions.add_parser(
        "list",
        help="show the records that open transactions hide",
        description=_LIST,
        epilog="examples:\n  holdfast txn list job.py\n  holdfast txn list job.py --json",
        formatter_class=formatter,
    )
    end = actions.add_parser(
        "abort",
        help="abort the transactions that the job left open",
        description=_ABORT,
        epilog="examples:\n  holdfast txn abort job.py\n  holdfast txn abort job.py --sink tops-out --apply",
        formatter_class=formatter,
    )
    for action, handler in ((show, list_all), (end, abort)):
        add_common(action)
        add_job(action, "the job's Python file, which names its brokers")
        add_app(action)
        action.add_argument("--sink", metavar="NAME", help="only this sink; default: every sink with transactions")
        action.set_defaults(handler=handler)
    end.add_argument("--apply", action="store_true", help="abort; without it nothing is changed")


def list_all(args: argparse.Namespace) -> int:
    """Show the rows that open transactions hide. Exit status: 0, even if there are none."""
    stored_job, sinks = _looked(args)
    running = status_of(stored_job, SystemClock().wall_us()).state in RUNNING
    if args.json:
        print_json({"job": stored_job.name, "running": running, "transactions": [each.as_json() for each in sinks]})
        return 0
    _print(stored_job.name, sinks)
    if any(each.hidden for each in sinks):
        why = "The job is running, and ends its own" if running else f"To end the job's own: {_command(args)} --apply"
        advise(f"\n{_WHOSE}\n{why}")
    return 0


def abort(args: argparse.Namespace) -> int:
    """Abort the transactions that the job left open.

    Exit status: 0 done, or nothing is open; 2 refused; 3 shown only, needs --apply; 5 the brokers are unreachable;
    6 the job is running.
    """
    stored_job, sinks = _looked(args)
    todo = [each for each in sinks if each.hidden]
    if todo and args.apply:
        _refuse_running(stored_job)
        for each in todo:
            each.transactions.abort()
    left = _left(todo) if args.apply else []
    if args.json:
        shown = {"job": stored_job.name, "transactions": [each.as_json() for each in sinks], "applied": args.apply}
        print_json({**shown, "left": [each.as_json() for each in left]})
    else:
        _print(stored_job.name, sinks)
        for each in todo if args.apply else ():
            advise(f"{each.transactions.id}: the open transactions of the job are aborted")
        for each in left:
            advise(
                f"{each.sink}: records are still hidden in {', '.join(sorted({one.topic for one in each.hidden}))}, by "
                "the transaction of another producer. Its next start ends it, or the brokers do after its "
                "transaction.timeout.ms"
            )
        if todo and not args.apply:
            advise(f"\n{_WHOSE}\nNothing changed. To abort the job's open transactions: {_command(args)} --apply")
    return PLAN_ONLY if todo and not args.apply else 0


def _looked(args: argparse.Namespace) -> tuple[Stored, list[SinkTransactions]]:
    """Return the job and its sinks with transactions. Raises ConfigError if there is no such job or sink."""
    from holdfast.runtime.plan.topic import outputs_of

    root, name, plan = job_of(args)
    if plan is None:
        raise ConfigError(
            f"{args.job!r} is the name of a job, which does not say where its brokers are",
            not_done="nothing was looked at",
            next_step=f"give the job's file: holdfast txn {args.action} JOB.py",
            where=Where(job=name),
        )
    stored_job = open_job(root, name)
    transactional_sinks = [
        (spec.name, transacts) for spec in outputs_of(plan) if (transacts := spec.sink.transacts) is not None
    ]
    names = [each for each, _ in transactional_sinks]
    if args.sink is not None and args.sink not in names:
        raise ConfigError(
            f"job {name!r} has no sink {args.sink!r} with transactions",
            not_done="nothing was looked at",
            next_step=f"use one of {', '.join(names)}" if names else "such are sinks of hf.Kafka; this job has none",
            where=Where(job=name),
        )
    sinks = []
    for each, transacts in transactional_sinks:
        if args.sink in (None, each):
            transactions = transacts.transactions(stored_job.job.uuid, each)
            sinks.append(SinkTransactions(each, transactions, transactions.hidden()))
    return stored_job, sinks


def _refuse_running(stored: Stored) -> None:
    """Raise Fenced if a driver runs the job: aborting would fail a delivery that is under way."""
    from holdfast.runtime.execution.checks import second_run

    if (running := second_run.refusal(stored.store, stored.job, advise)) is not None:
        raise Fenced(
            running.what,
            not_done="no transaction was aborted",
            next_step=f"wait: a running job ends its open transactions. Or stop it first: holdfast stop {stored.name}",
            where=running.where,
        )


def _left(done: Sequence[SinkTransactions]) -> list[SinkTransactions]:
    """Return rows that a transaction from before still hides, once aborts had time to take effect."""
    until = time.monotonic() + GONE_WITHIN_S
    while True:
        left = []
        for each in done:
            before = {(one.topic, one.partition, one.first) for one in each.hidden}
            now = [one for one in each.transactions.hidden() if (one.topic, one.partition, one.first) in before]
            left += [SinkTransactions(each.sink, each.transactions, now)] if now else []
        if not left or time.monotonic() >= until:
            return left
        time.sleep(LOOK_EVERY_S)


def _print(job: str, found: Sequence[SinkTransactions]) -> None:
    if not found:
        print(f"{job} has no sink with transactions")
        return
    headers = ("sink", "transactional id", "topic", "partition", "hidden from", "records")
    rows = [
        (each.sink, each.transactions.id, one.topic, one.partition, one.first, one.end - one.first)
        for each in found
        for one in each.hidden
    ]
    print(text.table(headers, rows) if rows else f"no open transaction hides records in the topics that {job} writes")


def _command(args: argparse.Namespace) -> str:
    flags = (("--root", args.root), ("--app", args.app), ("--sink", args.sink))
    given = "".join(f" {flag} {shlex.quote(value)}" for flag, value in flags if value)
    return f"holdfast txn abort {shlex.quote(args.job)}{given}"
