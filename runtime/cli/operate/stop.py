"""`holdfast stop JOB`: asks a running job to end, and waits until it has ended.

The request is an object under the job's folder; the driver answers it and appends `Stopped` once the last epoch is
delivered. With --finish the job first reads everything that its sources hold at that moment; the driver then appends
`Finished`, which is permanent. --drop-unread skips the records not yet read, and the command reports how many. With
--now nothing is appended, as if the driver had been killed. A job that is not running is left as it is, so asking twice
does no harm. It cannot be finished without a run, because the end of input makes operators emit.

Source: DESIGN section 13 (requests); PROTOCOL P13.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError, JobFailed, Unavailable, Where
from holdfast.quantities import of_sources
from holdfast.runtime.cli.arguments import add_command, add_job, add_timeout, root_of, timeout_of
from holdfast.runtime.cli.operate.history import CHECK_DRIVER, RUNNING, status_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.job import requests
from holdfast.runtime.job.live import Status
from holdfast.runtime.job.stopping import stop_waits
from holdfast.runtime.wire.clock import SystemClock

LOOK_EVERY_S = 0.2
DOT_EVERY_S = 1.0
SAY_AFTER_S = 3.0
"""From then on, a waiting stop reports the reason."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "stop",
        "Take a last checkpoint, deliver it, and end a running job. It can be started again and resumes from there.",
        "holdfast stop hot-auctions\nholdfast stop hot-auctions --timeout 5m\nholdfast stop hot-auctions --finish\n"
        "holdfast stop hot-auctions --finish --drop-unread",
    )
    add_job(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--finish",
        dest="how",
        action="store_const",
        const="finish",
        help="read what the sources hold now, then treat the input as ended; permanent",
    )
    how.add_argument(
        "--now", dest="how", action="store_const", const="now", help="take no last checkpoint; the next run rereads"
    )
    parser.add_argument(
        "--drop-unread", action="store_true", help="with --finish: permanently skip the records that are not read yet"
    )
    add_timeout(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Stop the job.

    Exit status: 0 ended or not running, 2 it cannot end this way, 5 no driver answers or not in time, 7 it failed.
    """
    timeout_s = timeout_of(args, "the job was not asked to stop")
    if args.drop_unread and args.how != "finish":
        raise ConfigError(
            "--drop-unread is given without --finish",
            not_done="the job was not asked to stop",
            next_step="leave it out: a job that stops otherwise reads those records when it runs again",
        )
    stored_job = open_job(root_of(args), args.job)
    status = status_of(stored_job, SystemClock().wall_us())
    if status.state in RUNNING:
        assert status.generation is not None, "the log names the generation of a running job"
        deadline = time.monotonic() + timeout_s
        asked = {} if args.how is None else {"how": args.how}
        asked |= {"unread": "drop"} if args.drop_unread else {}
        ends = {row.place: row.end_offset for row in status.sources}
        request = requests.ask(stored_job.store, "stop", asked, status.generation)
        status = _wait(stored_job, request, deadline, args)
        message = f"{args.job}: {status.state}{_at_epoch(status)}"
        if args.drop_unread and status.state == "finished":
            advise(_dropped(status, ends))
    elif status.state == "unreachable":
        raise _unreachable(args.job, status, "no request was made")
    elif args.how == "finish" and status.state != "finished":
        raise ConfigError(
            f"job {args.job!r} is not running ({status.state}), and only a run can finish it",
            not_done="it was not finished; it can be run again as before",
            next_step=f"run it, then holdfast stop {args.job} --finish; or seal its input and run it",
            where=Where(job=args.job),
        )
    else:
        message = f"{args.job} is not running: {status.state}{_at_epoch(status)}; there was nothing to stop"
    if args.json:
        print_json(status.as_json())
    else:
        print(message)
        if status.state == "stopped":
            if args.how == "now":
                advise(
                    "no last checkpoint was taken; the next run reads the records after the previous checkpoint again"
                )
            advise("to resume from there: holdfast run JOB.py")
    return 0


def ended(stored: Stored, timeout: str, timeout_s: float) -> Status:
    """Ask a running job to take a last checkpoint and end, and wait until it has; return its status then.

    Args:
        timeout: As the user typed it, for messages.

    Raises:
        ConfigError: the driver refused.
        JobFailed: the job failed first.
        Unavailable: no driver answers, or not in time.
    """
    status = status_of(stored, SystemClock().wall_us())
    if status.state not in RUNNING:
        return status
    assert status.generation is not None, "the log names the generation of a running job"
    request = requests.ask(stored.store, "stop", {}, status.generation)
    args = argparse.Namespace(how=None, drop_unread=False, timeout=timeout)
    return _wait(stored, request, time.monotonic() + timeout_s, args)


def _wait(stored: Stored, request: str, deadline: float, args: argparse.Namespace) -> Status:
    """Wait until the log or the driver's last report shows that the run has ended; return that status."""
    reply: Mapping[str, Any] | None = None
    began = last_dot = time.monotonic()
    dots, reported_waits = 0, set[frozenset[str]]()
    try:
        while True:
            status = status_of(stored, SystemClock().wall_us())
            reply = requests.answer_to(stored.store, request) or reply  # a run may end before it has done so
            if status.state in ("stopped", "finished"):
                return status
            if reply is not None and not reply["accepted"]:
                raise _refused(stored.name, reply)
            if status.state == "failed":
                raise JobFailed(
                    f"job {stored.name!r} failed before it stopped: {status.reason}",
                    not_done="no last checkpoint was taken; everything up to the one before is kept",
                    next_step=f"see the cause: holdfast status {stored.name}",
                    where=Where(job=stored.name),
                )
            if status.state == "unreachable":
                if args.how == "now" and reply is not None:
                    return status
                raise _unreachable(stored.name, status, "whether it took a last checkpoint is unknown")
            if time.monotonic() > deadline:
                raise _too_slow(stored, args, reply is not None, status)
            if time.monotonic() - last_dot >= DOT_EVERY_S:
                last_dot, dots = time.monotonic(), dots + 1
                print(".", end="", file=sys.stderr, flush=True)
                waits = stop_waits(status)
                if waits is not None and waits.on not in reported_waits and time.monotonic() - began >= SAY_AFTER_S:
                    reported_waits.add(waits.on)  # once each: a slow function comes and goes with every batch
                    dots = 0
                    now = f"To end it without waiting: holdfast stop {stored.name} --now"
                    advise(f"\n{stored.name} waits: {waits.what}. {now}")
            time.sleep(LOOK_EVERY_S)
    finally:
        if dots:
            advise("")


def _dropped(shown: Status, ends: Mapping[tuple[str, int], int | None]) -> str:
    """Return how much was skipped: the ends last reported before the request, minus the final offsets."""
    known = [(ends.get(row.place), row.offset, row.unit) for row in shown.sources]
    unread = of_sources((max(0, end - max(0, at or 0)), unit) for end, at, unit in known if end is not None)
    at_least = "at least " if any(end is None for end, _, _ in known) else ""
    return f"{at_least}{unread} skipped, which this job will never read"


def _at_epoch(shown: Status) -> str:
    return f" at epoch {shown.checkpoint.epoch}" if shown.checkpoint else ""


def _refused(job: str, reply: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"job {job!r} refused to stop this way: {reply.get('reason') or 'no reason was given'}",
        not_done="the request was not carried out",
        next_step=f"see holdfast status {job}, then ask again",
        where=Where(job=job),
    )


def _unreachable(job: str, shown: Status, not_done: str) -> Unavailable:
    return Unavailable(
        f"job {job!r} is unreachable: {shown.reason}",
        not_done=not_done,
        next_step=shown.problems[0].next or CHECK_DRIVER,
        where=Where(job=job),
    )


def _too_slow(stored: Stored, args: argparse.Namespace, answered: bool, shown: Status) -> Unavailable:
    finishing = args.how == "finish" and not args.drop_unread
    until = "all records of its sources are read and " if finishing else ""
    response = "has accepted the request" if answered else "has not answered the request"
    waits = stop_waits(shown)
    why = "" if waits is None else f", and waits: {waits.what}"
    return Unavailable(
        f"job {stored.name!r} has not stopped within {args.timeout}; its driver {response}{why}",
        not_done=f"it still runs; the request remains valid, and it stops once {until}its last epoch is delivered",
        next_step=f"see what delays it: holdfast explain {stored.name}; to wait again: holdfast stop {stored.name}",
        where=Where(job=stored.name),
    )
