"""`holdfast promote JOB.py NEW.py`: stops a job and makes it ready for changed code, which the next run starts.

With --from EPOCH the job is rewound to that checkpoint, and its targets are repaired by the code that wrote them, so
that the new code replaces what the former code has given since. Each step leaves a state in which the command can be
repeated: a job that is stopped is not stopped again, and a rewind that was interrupted is completed.

Exit status 3 means that only the plan was shown.

Source: API.md; docs/decisions/0132-shadow.md; PROTOCOL P6, P16, P21.
"""

from __future__ import annotations

import argparse
import shlex
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Where
from holdfast.runtime.cli.arguments import add_accept, add_app, add_command, add_job, add_timeout, timeout_of
from holdfast.runtime.cli.operate import rewind
from holdfast.runtime.cli.operate.history import RUNNING, status_of
from holdfast.runtime.cli.operate.savepoint import name_last
from holdfast.runtime.cli.operate.stop import ended
from holdfast.runtime.cli.replay.versions import JobFile, again, versions_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start import plan_changes
from holdfast.runtime.cli.start.run import add_drop_state
from holdfast.runtime.execution.checks import second_run
from holdfast.runtime.execution.checks.ordered import refuse
from holdfast.runtime.inspect.stored import LATEST, Stored, checkpoint_of
from holdfast.runtime.plan.given_up import given_up
from holdfast.runtime.plan.kept_state import numbered, state_refusal
from holdfast.runtime.rewind import plan as rewind_plan
from holdfast.runtime.rewind.target import NOTHING_DONE, RewindPoint
from holdfast.runtime.wire.clock import SystemClock

PLAN_ONLY = 3
"""Exit status: the plan was shown and nothing was changed."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "promote",
        "Stop a job and make it ready for changed code: name the checkpoint with which the new code begins, and with\n"
        "--from go back to an earlier one first, so that the new code replaces what the present code has written\n"
        "since. Shows the plan; acts on --apply. The command that starts the new code is shown at the end.\n\n"
        "exit status: 0 done, 2 refused, 3 plan shown only, 5 not in time, or a target is unreachable,\n"
        "6 another process was first",
        "holdfast promote job.py new.py\n"
        "holdfast promote job.py new.py --from before-deploy --apply\n"
        "holdfast promote job.py new.py --apply --drop-state totals",
    )
    add_job(parser, "the job's Python file, as it runs: it names the targets to repair")
    parser.add_argument("new", metavar="NEW.py", help="the file with the changed code")
    parser.add_argument(
        "--from",
        metavar="EPOCH",
        dest="start",
        help="rewind to this checkpoint: its epoch, or a savepoint's name; default: the job's last one, no rewind",
    )
    parser.add_argument("--apply", action="store_true", help="carry out the plan; without it nothing is changed")
    add_accept(parser)
    add_drop_state(parser)
    add_app(parser)
    add_timeout(parser, "the end of the run, and for repairs")
    parser.set_defaults(handler=handle)


@dataclass(frozen=True)
class Changeover:
    """The steps of a promotion, as the job is now.

    Args:
        state: State of the job, as `status` shows it.
        base: The checkpoint with which the new code begins.
        back: The plan of the rewind to it; None: no output has to be undone.
        changes: Changes and refusals at a start of the new code, as `holdfast plan` shows them.
    """

    stored: Stored
    state: str
    base: Completed
    back: dict[str, Any] | None
    changes: dict[str, Any]

    @property
    def savepoint(self) -> str:
        """Return the name that the checkpoint gets."""
        return f"before-promote-{self.base.body.epoch}"

    @property
    def is_running(self) -> bool:
        """Return whether the job has to be stopped."""
        return self.state in RUNNING


def handle(args: argparse.Namespace) -> int:
    """Show what is to be done, and do it with --apply.

    Exit status: 0 done, 2 refused, 3 plan shown only, 5 not in time, 6 another process was first.
    """
    timeout_s = timeout_of(args, NOTHING_DONE)
    job, before, after = versions_of(args, NOTHING_DONE)
    changeover = _promotion(args, job, before, after)
    if changeover.back is not None:
        rewind_plan.check(changeover.back, args.accept)
    if not args.apply:
        _show(args, changeover, applied=False)
        advise(f"\nNothing was changed. To do it: {_again(args, changeover)}")
        return PLAN_ONLY
    if changeover.is_running:
        ended(job, args.timeout, timeout_s)
        changeover = replace(_promotion(args, again(job), before, after), state=changeover.state)
    else:
        refuse(second_run.refusal(job.store, job.job, advise))
    _carry_out(args, changeover, before, timeout_s)
    _show(args, changeover, applied=True)
    advise(f"\nTo start the new code: {_start(args)}")
    return 0


def _carry_out(args: argparse.Namespace, changeover: Changeover, before: JobFile, timeout_s: float) -> None:
    """Rewind a stopped job if that is wanted, and name the checkpoint."""
    if changeover.back is not None:
        _rewind(args, changeover, before, timeout_s)
    now = again(changeover.stored)
    if now.job.savepoint(changeover.savepoint) is None:
        owner, at_us = uuid.uuid4().hex, SystemClock().wall_us()
        name_last(rewind.open_job_for_writing(now), changeover.savepoint, owner, at_us)


def _promotion(args: argparse.Namespace, stored: Stored, before: JobFile, after: JobFile) -> Changeover:
    """Return the steps for a job as it is now.

    Raises:
        ConfigError: the job has finished, there is no such checkpoint, or the new code cannot read its state.
    """
    job = stored.job
    if job.finished:
        raise ConfigError(
            f"job {stored.name!r} has finished, which is permanent",
            not_done=NOTHING_DONE,
            next_step="run the new code under another name, or in another root",
            where=Where(job=stored.name),
        )
    base = checkpoint_of(job, args.start or LATEST)
    manifest = stored.repository.load_manifest(base.body.manifest)
    given = given_up(after.plan, manifest.operators, args.drop_state)
    if (refusal := state_refusal(after.plan, manifest.operators, given)) is not None:
        refusal.not_done = NOTHING_DONE
        raise refusal
    back = None
    if args.start is not None and not _is_there(job, base):
        wanted = RewindPoint(epoch=base.body.epoch)
        stored, base, back, _ = rewind.planned(stored, wanted, before.plan, stop=True)
    status = status_of(stored, SystemClock().wall_us())
    changeover = Changeover(stored, status.state, base, back, _changes(args, stored, after, manifest))
    _check_start(changeover, args.new)
    return changeover


def _check_start(changeover: Changeover, file: str) -> None:
    """Refuse new code that a run would refuse; checks that depend on the stop or the rewind are left to the run."""
    changes = changeover.changes
    is_settled = not changeover.is_running and changeover.back is None
    refused = changes["refused"] if is_settled or changes["key_groups"] is not None else ()
    for refusal in refused[:1]:
        raise ConfigError(
            f"a run of {file} would be refused: {refusal['what']}",
            not_done=NOTHING_DONE,
            next_step=refusal["next"],
            where=Where(job=changeover.stored.name),
        )


def _is_there(job: Job, base: Completed) -> bool:
    """Return whether a job has stopped at a checkpoint, with all targets as they were then."""
    return job.base_epoch == base.body.epoch and job.ended is not None


def _changes(args: argparse.Namespace, changeover: Stored, after: JobFile, manifest: Manifest) -> dict[str, Any]:
    """Return how the new code differs from a checkpoint, as `holdfast plan` has it."""
    given = given_up(after.plan, manifest.operators, args.drop_state)
    plan = numbered(after.plan, manifest.operators, given)
    return plan_changes.changes(plan, after.settings, changeover.job, manifest, changeover.repository.records, given)


def _rewind(args: argparse.Namespace, changeover: Changeover, before: JobFile, timeout_s: float) -> None:
    """Go back, and repair the targets of the present code."""
    wanted = RewindPoint(epoch=changeover.base.body.epoch)
    stored, base, back, repairs_s = rewind.planned(changeover.stored, wanted, before.plan, stop=True)
    rewind_plan.check(back, args.accept)
    rewind.rewind_here(stored, base, before.plan, back["accept"], repairs_s, timeout_s)


def _show(args: argparse.Namespace, changeover: Changeover, *, applied: bool) -> None:
    back = None if changeover.back is None else {**changeover.back, "applied": applied}
    if args.json:
        print_json(
            {
                "job": changeover.stored.name,
                "state": changeover.state,
                "epoch": changeover.base.body.epoch,
                "savepoint": changeover.savepoint,
                "rewind": back,
                "changes": changeover.changes,
                "start": _start(args),
                "applied": applied,
            }
        )
        return
    print("\n".join(_lines(args, changeover, back, applied)))


def _lines(
    args: argparse.Namespace, changeover: Changeover, back: dict[str, Any] | None, applied: bool
) -> Iterator[str]:
    name, epoch = changeover.stored.name, changeover.base.body.epoch
    would = "was " if applied else "would be "
    if changeover.is_running:
        yield f"{name} {'was' if applied else 'is'} {changeover.state}: it {would}stopped with a last checkpoint"
    if back is not None:
        yield rewind.render(back).rpartition("\n\n")[0] + "\n"  # without the number of the plan
    is_open = changeover.is_running and back is None and not applied
    begins = "the last checkpoint" if is_open else f"epoch {epoch}"
    name_of_it = "before-promote-EPOCH" if is_open else changeover.savepoint
    yield f"{begins} of {name} {would}named {name_of_it}, and {args.new} begins there"
    yield f"\nchanges of {args.new} against epoch {epoch}"
    yield plan_changes.render(changeover.changes)


def _again(args: argparse.Namespace, changeover: Changeover) -> str:
    """Return the command that carries the plan out."""
    start = [] if args.start is None else ["--from", args.start]
    accept = [word for what in (changeover.back or {}).get("accept", ()) for word in ("--accept", what)]
    return shlex.join(["holdfast", "promote", args.job, args.new, *start, "--apply", *accept, *_flags(args)])


def _start(args: argparse.Namespace) -> str:
    """Return the command that starts the new code."""
    return shlex.join(["holdfast", "run", args.new, *_flags(args)])


def _flags(args: argparse.Namespace) -> list[str]:
    words = [word for flag in ("root", "app") if (at := getattr(args, flag)) is not None for word in (f"--{flag}", at)]
    return words + [word for what in args.drop_state for word in ("--drop-state", what)]
