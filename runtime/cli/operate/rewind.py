"""`holdfast rewind JOB`: shows the plan, then goes back to an earlier checkpoint.

For a running job, the command asks the driver. For any other job, the command itself fences, repairs the targets and
leaves the job stopped. Only the job's file names its targets; for a running job the name is enough, because the driver
knows them. If the driver that was asked turns out to be dead, the command makes a new plan and acts in its place;
should the driver be alive after all, the job log keeps the two apart (P6).

Exit status 3 means that only the plan was shown.

Source: DESIGN sections 9, 13; API.md, command line and JSON `rewind`; PROTOCOL P6, P21.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.errors import ConfigError, Fenced, Unavailable, Where
from holdfast.model import Epoch
from holdfast.quantities import BYTES
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_accept, add_app, add_command, add_job, add_timeout, root_of, timeout_of
from holdfast.runtime.cli.operate.history import RUNNING, status_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start.run import add_adopt
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.job import requests
from holdfast.runtime.wire.clock import SystemClock
from holdfast.runtime.wire.presence import is_gone

if TYPE_CHECKING:
    from holdfast.runtime.job.live import Status
    from holdfast.runtime.plan.model import Plan
    from holdfast.runtime.rewind.target import RewindPoint

PLAN_ONLY = 3
"""Exit status: the plan was shown and nothing was changed."""
LOOK_EVERY_S = 0.2
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "rewind",
        "Go back to an earlier checkpoint: state, offsets and the rows in targets. Shows the plan; acts on --apply.",
        "holdfast rewind hot-auctions --to-epoch 57\nholdfast rewind job.py --to-time 2026-11-20T18:00:00Z --apply\n"
        "holdfast rewind job.py --to-offset bids:0:1500 --apply --accept out:impossible\n"
        "holdfast rewind hot-auctions --to-savepoint before-upgrade --apply --plan 3f9c01d2ab44 --stop",
    )
    add_job(parser, "name of the job under the root, or its Python file")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-epoch", metavar="N", type=int, help="this checkpoint, see holdfast checkpoints list JOB")
    where.add_argument("--to-time", metavar="T", help="the last checkpoint not after this time; needs a time zone")
    where.add_argument("--to-savepoint", metavar="NAME", help="the checkpoint of this name")
    where.add_argument(
        "--to-offset",
        metavar="S:P:O",
        help="the last checkpoint from which this record is read again: source, partition, offset",
    )
    parser.add_argument("--apply", action="store_true", help="carry out the plan; without it nothing is changed")
    parser.add_argument("--plan", metavar="ID", help="apply only this plan, and only while the same run continues")
    add_accept(parser)
    parser.add_argument("--stop", action="store_true", help="leave the job stopped at that checkpoint")
    add_adopt(parser)
    add_app(parser)
    add_timeout(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Plan a rewind, and carry it out with --apply.

    Exit status: 0 done, 2 refused, 3 plan shown only, 5 not in time, 6 another process was first or the job continued.
    """
    from holdfast.runtime.rewind import plan as rewind_plan
    from holdfast.runtime.rewind.target import Offset, RewindPoint

    timeout_s = timeout_of(args, "nothing was changed")
    if args.plan is not None and not args.apply:
        raise _wrong("--plan says which plan to apply", "add --apply, or leave out --plan")
    offset = None if args.to_offset is None else Offset.parsed(args.to_offset)
    target = RewindPoint(args.to_epoch, _time(args), args.to_savepoint, offset)
    root, name, plan = job_of(args)
    _check_accept(args.accept, plan)
    complete = False
    while not complete:  # again only if the driver that was asked is dead; it is not asked again
        opened = open_job(root, name)
        adopted_targets = _adopted(opened, plan, args.adopt_targets)
        stored_job, base, proposal, repairs_s = planned(
            opened, target, plan, stop=args.stop, adopted=adopted_targets, adopt=args.adopt_targets
        )
        if not args.apply:
            print_json(proposal) if args.json else print(render(proposal))
            advise(f"\nNothing was changed. {_next(args, stored_job, plan, proposal)}")
            return PLAN_ONLY
        if args.plan is not None and args.plan != proposal["plan_id"]:
            raise _moved(stored_job, args.plan)
        rewind_plan.check(proposal, args.accept)
        complete = _apply(stored_job, base, plan, args, proposal["accept"], repairs_s, timeout_s, adopted_targets)
    proposal["applied"] = True
    print_json(proposal) if args.json else print(render(proposal))
    return 0


def planned(
    stored: Stored,
    wanted: RewindPoint,
    plan: Plan | None,
    *,
    stop: bool,
    adopted: tuple[str, ...] = (),
    adopt: Collection[str] = (),
) -> tuple[Stored, Completed, dict[str, Any], float | None]:
    """Return the job as of the plan, the checkpoint to go back to, the plan, and how long repairs take.

    The last is in seconds; None if it is unknown.
    """
    from holdfast.runtime.execution.checks.ordered import refuse
    from holdfast.runtime.execution.checks.targets import adoption
    from holdfast.runtime.execution.holdings import read_holdings
    from holdfast.runtime.plan.topic import outputs_of
    from holdfast.runtime.rewind.plan import worked_out
    from holdfast.runtime.rewind.target import target_of, while_it_goes_on

    def made(job: Job) -> tuple[Stored, Completed, dict[str, Any], float | None]:
        base = target_of(stored.repository, job, wanted)
        if plan is not None and adopt:
            outputs = outputs_of(plan)
            holdings = read_holdings(job, outputs)
            refuse(adoption.doubtful(stored.repository, job, base, specs=outputs, holdings=holdings, adopt=adopt))
        return (
            replace(stored, job=job),
            base,
            *worked_out(stored.repository, job, base, plan, stop=stop, clock=SystemClock(), adopted=adopted),
        )

    return while_it_goes_on(stored.repository, stored.job, made)


def _adopted(stored: Stored, plan: Plan | None, names: list[str]) -> tuple[str, ...]:
    """Return the owners from which the rewind may take targets over. Raises ConfigError."""
    from holdfast.runtime.execution.checks.ordered import refuse
    from holdfast.runtime.execution.checks.targets import adoption
    from holdfast.runtime.execution.holdings import adopted_from, read_holdings
    from holdfast.runtime.plan.topic import outputs_of

    if not names:
        return ()
    if plan is None or status_of(stored, SystemClock().wall_us()).state in RUNNING:
        raise _wrong(
            "--adopt-targets moves the targets of a job that is not running, and only the job's file names them",
            "stop the job, and give its file: holdfast rewind JOB.py ... --adopt-targets SINK",
        )
    outputs = outputs_of(plan)
    holdings = read_holdings(stored.job, outputs)
    refuse(adoption.refusal(stored.job, outputs, holdings, names))
    return adopted_from(stored.job, holdings, names)


def _apply(
    stored: Stored,
    base: Completed,
    plan: Plan | None,
    args: argparse.Namespace,
    accept: list[str],
    repairs_s: float | None,
    timeout_s: float,
    adopted: tuple[str, ...],
) -> bool:
    """Carry out the plan; return False if the driver that was asked is dead."""
    job = stored.job
    if status_of(stored, SystemClock().wall_us()).state in RUNNING:
        if not _ask(stored, base, args, timeout_s):
            return False
        how = "stopped at" if args.stop else "resumes from"
        advise(f"{job.name}: {how} epoch {base.body.epoch}, on timeline {job.timeline + 1}")
        return True
    if plan is None:
        raise ConfigError(
            f"job {job.name!r} is not running, and only its file names its targets",
            not_done="nothing was changed",
            next_step=f"give the job's file: holdfast rewind JOB.py --to-epoch {base.body.epoch} --apply",
            where=Where(job=job.name),
        )
    rewind_here(stored, base, plan, accept, repairs_s, timeout_s, adopted)
    advise(f"{job.name}: stopped at epoch {base.body.epoch}, on timeline {job.timeline + 1}; run it to resume")
    return True


def rewind_here(
    stored: Stored,
    base: Completed,
    plan: Plan,
    accept: list[str],
    repairs_s: float | None,
    timeout_s: float,
    adopted: tuple[str, ...] = (),
) -> None:
    """Rewind a job that is not running, in this process, and leave it stopped. See `rewind_stopped` for errors."""
    from holdfast.runtime.driver.state import RewindWanted
    from holdfast.runtime.execution.checks import second_run
    from holdfast.runtime.execution.checks.ordered import refuse
    from holdfast.runtime.plan.topic import outputs_of
    from holdfast.runtime.rewind.stopped import check_in_time, rewind_stopped

    job = stored.job
    refuse(second_run.refusal(stored.store, job, advise))
    check_in_time(job.name, repairs_s, timeout_s)
    stored = open_job_for_writing(stored)
    store, request = stored.store, RewindWanted(Epoch(base.body.epoch), True, tuple(accept))

    def tell(reported: Status) -> None:
        store.put("live.json", json.dumps(msgspec.structs.replace(reported, root=stored.folder).as_json()).encode())

    rewind_stopped(stored.repository, job, request, outputs_of(plan), timeout_s, tell, adopted)


def open_job_for_writing(stored: Stored) -> Stored:
    """Return the job with a writable store."""
    from holdfast.checkpoint.repository import Repository
    from holdfast.storage.objects import open_objects

    store = open_objects(stored.folder)
    return Stored(stored.name, stored.folder, store, Repository(store), stored.job)


def _ask(stored: Stored, base: Completed, args: argparse.Namespace, timeout_s: float) -> bool:
    """Ask the driver, and wait until the job resumes or has stopped there; return False if the driver is dead."""
    job, deadline = stored.job, time.monotonic() + timeout_s
    plan_generation = job.generation if args.plan is not None else None
    body = {
        "epoch": base.body.epoch,
        "timeline": job.timeline,
        "planned": plan_generation,
        "stop": args.stop,
        "accept": args.accept,
    }
    request = requests.ask(stored.store, "rewind", body, job.generation)
    has_reply = False
    while True:
        now = stored.repository.read_log() or job
        status = status_of(stored, SystemClock().wall_us())
        reply = requests.answer_to(stored.store, request)  # a run refuses undone requests, then ends
        has_reply = has_reply or reply is not None
        if reply is not None and not reply["accepted"]:
            raise _refused(stored, str(reply.get("reason") or "no reason was given"), reply.get("outdated") is True)
        if now.timeline > job.timeline and _arrived(now, base, status, args.stop):
            return True
        if status.state == "unreachable" and status.driver is not None and is_gone(status.driver):
            return False
        if status.state not in (*RUNNING, "stopped") or time.monotonic() > deadline:
            raise _not_in_time(stored, now, status, has_reply, args.timeout)
        time.sleep(LOOK_EVERY_S)


def _arrived(now: Job, base: Completed, shown: Status, stop: bool) -> bool:
    """Return whether the rewind is complete: targets are repaired before the job runs again."""
    done = now.rewinds[-1].base_epoch == base.body.epoch
    return done and (now.ended is not None if stop else not now.repair_due or shown.state == "running")


def job_of(args: argparse.Namespace) -> tuple[str, str, Plan | None]:
    """Return root, name and plan of the job; no plan if only its name is given."""
    if not args.job.endswith(".py"):
        if args.app is not None:
            raise _wrong("--app chooses an app of a file, but only a job's name is given", "give its file, or no --app")
        return root_of(args), args.job, None
    from holdfast.runtime.cli.start.jobfile import load
    from holdfast.runtime.config.settings import resolve
    from holdfast.runtime.execution.results import with_places

    app = load(args.job, args.app)
    settings = resolve(app, {"root": args.root}, os.environ)
    return settings.root, app.name, with_places(app.plan(), settings.root)


def _time(args: argparse.Namespace) -> int | None:
    if args.to_time is None:
        return None
    try:
        at = datetime.fromisoformat(args.to_time)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        fault = "is not a time" if at is None else "has no time zone"
        raise _wrong(f"--to-time {args.to_time!r} {fault}", "give one such as 2026-11-20T18:00:00Z")
    return (at - _UNIX) // timedelta(microseconds=1)


def _amount(number: int | None, unit: str | None) -> str:
    return text.count(number) + (" B" if unit == BYTES and number is not None else "")


def render(shown: Mapping[str, Any]) -> str:
    """Return the plan as text."""
    there, here = shown["to"], shown["from"]
    done = "rewound" if shown["applied"] else "would be rewound"
    came_from = f"{shown['job']} {done} from epoch {here['epoch']} (timeline {here['timeline']})"
    lines = [
        f"{came_from} to epoch {there['epoch']} of {text.moment(there['at'])}, as timeline {there['timeline']}",
    ]
    sources = [
        (
            at["name"],
            at["partition"],
            *(_amount(at[name], at.get("unit")) for name in ("from_offset", "to_offset", "records")),
            f"no, {at['reason']}" if at.get("reason") else _yes(at["available"]),
        )
        for at in shown["sources"]
    ]
    state = [(each["operator"], each["action"], text.size(each["bytes"])) for each in shown["state"]]
    sinks = [
        (
            each["name"],
            each["verdict"],
            text.count(each["restore"]),
            text.count(each["delete"]),
            text.count(each["changed_by_others"]),
            each["reason"],
        )
        for each in shown["sinks"]
    ]
    for title, headers, rows in (
        ("read again", ("source", "partition", "now at", "back to", "records", "still there"), sources),
        ("state", ("operator", "action", "size"), state),
        ("targets", ("sink", "verdict", "rows restored", "rows deleted", "changed by others", ""), sinks),
    ):
        if rows:
            lines += ["", title, text.table(headers, rows, indent=2)]
    estimate = shown["estimate_ms"]
    took = "unknown" if estimate is None else f"about {text.span(estimate)}, and the time of a restart"
    lines += ["", f"time until the job is back where it is now: {took}"]
    if shown["accept"]:
        lines += [f"rows that stay must be accepted: {' '.join(f'--accept {what}' for what in shown['accept'])}"]
    return "\n".join([*lines, "", f"plan {shown['plan_id']}"])


def _next(args: argparse.Namespace, stored: Stored, plan: Plan | None, shown: Mapping[str, Any]) -> str:
    """Return how to carry out the plan; only the job's file and its driver know the targets."""
    if plan is None and status_of(stored, SystemClock().wall_us()).state not in RUNNING:
        return (
            f"Job {shown['job']!r} is not running, and only its file names its targets. "
            f"Give the file instead of the name: holdfast rewind JOB.py --to-epoch {shown['to']['epoch']}"
        )
    return f"To apply it: {_command(args, shown)}"


def _command(args: argparse.Namespace, shown: Mapping[str, Any]) -> str:
    """Return the shell command that carries out the plan, on the same job in the same root."""
    words = ["holdfast", "rewind", args.job, "--to-epoch", str(shown["to"]["epoch"]), "--apply"]
    words += ["--plan", shown["plan_id"], *(["--stop"] if args.stop else [])]
    words += [word for what in shown["accept"] for word in ("--accept", what)]
    words += [word for sink in args.adopt_targets for word in ("--adopt-targets", sink)]
    words += [word for flag in ("root", "app") if (at := getattr(args, flag)) is not None for word in (f"--{flag}", at)]
    return shlex.join(words)


def _check_accept(accepted: list[str], plan: Plan | None) -> None:
    """Refuse values that are not SINK:VERDICT; without the job's file only its driver can check the sink."""
    from holdfast.runtime.rewind.sinks import IMPOSSIBLE, no_such_sink

    for what in accepted:
        name, _, verdict = what.rpartition(":")
        if not name or verdict != IMPOSSIBLE:
            raise _wrong(f"--accept {what!r} names no sink's verdict", f"give SINK:{IMPOSSIBLE}")
    sinks = [] if plan is None else sorted(spec.name for spec in plan.sinks)
    if plan is not None and (unknown := no_such_sink(accepted, sinks)) is not None:
        raise _wrong(f"the app has no sink {unknown!r}, which --accept names", f"its sinks: {', '.join(sinks)}")


def _yes(known: bool | None) -> str | None:
    return None if known is None else "yes" if known else "no"


def _wrong(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was changed", next_step=next_step)


def _moved(stored: Stored, wanted: str) -> Fenced:
    return Fenced(
        f"plan {wanted} does not fit job {stored.name!r} as it is now, at epoch {stored.job.base_epoch} of timeline "
        f"{stored.job.timeline}: the job was started, recovered or rewound since, or the plan was for something else",
        not_done="nothing was changed",
        next_step="show the plan again, and apply the new one",
        where=Where(job=stored.name),
    )


def _refused(stored: Stored, reason: str, outdated: bool) -> ConfigError | Fenced:
    return (Fenced if outdated else ConfigError)(
        f"job {stored.name!r} was not rewound: {reason}",
        not_done="nothing was changed",
        next_step=f"see holdfast status {stored.name} and holdfast checkpoints list {stored.name}, then plan again",
        where=Where(job=stored.name),
    )


def _not_in_time(stored: Stored, now: Job, shown: Status, heard: bool, timeout: str) -> Unavailable:
    progress = "the driver has accepted the request" if heard else "no driver has answered the request"
    if now.timeline > stored.job.timeline:
        progress = "the rewind is in the log; whether its targets are repaired is unknown"
    why = f"within {timeout}" if shown.state in RUNNING else f"before the run ended ({shown.state})"
    return Unavailable(
        f"job {stored.name!r} has not completed the rewind {why}; {progress}",
        not_done="a request remains valid while the run lasts; a rewind in the log is completed first by the next run",
        next_step=f"see what delays it: holdfast explain {stored.name}",
        where=Where(job=stored.name),
    )
