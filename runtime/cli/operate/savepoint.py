"""`holdfast savepoint JOB NAME`: names a checkpoint, which then never expires.

The driver of a running job takes a new checkpoint immediately and writes the name into the checkpoint's own record.
Without a driver, the last checkpoint gets the name, in a record that any process may append at any time (PROTOCOL P6):
a run that starts meanwhile reads it and continues.

Source: DESIGN sections 4 and 13; PROTOCOL P4, P6, P13.
"""

from __future__ import annotations

import argparse
import time
import uuid
from typing import Any

from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, Unavailable, Where
from holdfast.runtime.cli.arguments import add_command, add_job, add_timeout, root_of, timeout_of
from holdfast.runtime.cli.operate.history import RUNNING, status_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.job import requests
from holdfast.runtime.job.naming import Naming, check_name
from holdfast.runtime.wire.clock import SystemClock

LOOK_EVERY_S = 0.2
ATTEMPTS_MAX = 20
"""Attempts to append the record when other processes take its number or the outcome of an append is unknown."""
RETRY_S = 0.2


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "savepoint",
        "Name a checkpoint: a new one if the job is running, otherwise its last one. A savepoint never expires.\n"
        "A name stays with its checkpoint; names begin with a letter.",
        "holdfast savepoint hot-auctions before-upgrade\nholdfast savepoint hot-auctions v2 --timeout 5m --json",
    )
    add_job(parser)
    parser.add_argument("name", metavar="NAME", help="letters, digits, dots, dashes; begins with a letter")
    add_timeout(parser, "the savepoint")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Take or name a savepoint. Exit status: 0 it is in the log, 2 the name is refused, 5 no driver answers in time."""
    timeout_s = timeout_of(args, "no savepoint was taken")
    stored_job = open_job(root_of(args), args.job)
    check_name(stored_job.job, args.name)
    status = status_of(stored_job, SystemClock().wall_us())
    if is_running := status.state in RUNNING:
        assert status.generation is not None, "the log names the generation of a running job"
        job = _ask(stored_job, args.name, status.generation, time.monotonic() + timeout_s, args.timeout)
    else:
        job = name_last(stored_job, args.name, uuid.uuid4().hex, SystemClock().wall_us())
    savepoint = job.savepoint(args.name)
    assert savepoint is not None
    if args.json:
        print_json(
            {
                "job": args.job,
                "name": savepoint.name,
                "epoch": savepoint.epoch,
                "taken": is_running,
                "state": status.state,
            }
        )
    else:
        print(f"{args.job}: savepoint {savepoint.name} is epoch {savepoint.epoch}")
        if not is_running:
            advise(f"the job is not running ({status.state}); its last checkpoint got the name")
    return 0


def name_last(stored: Stored, name: str, owner: str, at_us: int) -> joblog.Job:
    """Name the last completed checkpoint; return the job as the log then describes it.

    Raises:
        ConfigError: there is no checkpoint, or the name is taken.
        Unavailable: the outcome is unknown.
    """
    naming = Naming(stored.repository, name, owner, at_us)
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            time.sleep(RETRY_S)
        if (job := naming.look()) is not None:
            return job
        if naming.append():
            job = stored.repository.read_log()
            assert job is not None, "a job log does not vanish"
            return job
    raise Unavailable(
        f"the job log of {stored.name!r} could not be written to in {ATTEMPTS_MAX} attempts",
        not_done=f"it is unknown whether the savepoint {name!r} was named",
        next_step=f"see holdfast checkpoints list {stored.name}, then try again",
        where=Where(job=stored.name),
    )


def _ask(stored: Stored, name: str, generation: int, deadline: float, timeout: str) -> joblog.Job:
    """Ask the driver, and wait until the log holds the name."""
    request, has_reply = requests.ask(stored.store, "savepoint", {"name": name}, generation), False
    while True:
        if (job := stored.repository.read_log()) is not None and job.savepoint(name) is not None:
            return job
        status = status_of(stored, SystemClock().wall_us())
        reply = requests.answer_to(stored.store, request)  # a run refuses undone requests, then ends
        has_reply = has_reply or reply is not None
        if reply is not None and not reply["accepted"]:
            raise ConfigError(
                f"job {stored.name!r} refused the savepoint {name!r}: {reply.get('reason') or 'no reason was given'}",
                not_done="nothing was named",
                next_step=f"see holdfast status {stored.name} and holdfast checkpoints list {stored.name}",
                where=Where(job=stored.name),
            )
        if status.state not in RUNNING or time.monotonic() > deadline:
            why = f"within {timeout}" if status.state in RUNNING else f"before the run ended ({status.state})"
            reported = "the driver has accepted the request" if has_reply else "no driver has answered the request"
            raise Unavailable(
                f"job {stored.name!r} has not completed the savepoint {name!r} {why}; {reported}",
                not_done="it is not in the log; the request remains valid as long as the run lasts",
                next_step=f"see what delays it: holdfast explain {stored.name}; then try again",
                where=Where(job=stored.name),
            )
        time.sleep(LOOK_EVERY_S)
