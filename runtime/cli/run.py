"""`holdfast run JOB.py`, `python job.py` and `spark-submit job.py`: three ways into one function.

Source: API.md, command line and exit statuses.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, JobFailed, Unavailable, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import Parser, add_app, add_command, add_common
from holdfast.runtime.cli.jobfile import load, refuse_while_loading, ship_by_value
from holdfast.runtime.cli.progress import STYLES, Progress, Tally
from holdfast.runtime.cli.reporting import advise, guarded, print_json
from holdfast.runtime.cli.sparklog import diverted
from holdfast.runtime.settings import resolve

if TYPE_CHECKING:
    from holdfast.runtime.app import App
    from holdfast.runtime.run import Outcome, Prepared

SETTING_FLAGS = ("root", "parallelism", "master", "checkpoint_every", "max_records_per_second")
_DESCRIPTION = """\
Run a job until its input ends, it is stopped, or it fails for good. Started again, it goes on from its last
checkpoint. Ctrl-C takes a last checkpoint and ends it; a second Ctrl-C ends it at once, which loses nothing either.

"records" in the progress is how far the sources are read: the sum of all next offsets. It goes on over restarts."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    examples = (
        "holdfast run job.py\nholdfast run job.py --parallelism 4 --checkpoint-every 500ms --root s3://bucket/streams\n"
        "holdfast run job.py --once\nholdfast run job.py --progress json | jq .records_per_s"
    )
    parser = add_command(subparsers, "run", _DESCRIPTION, examples)
    add_job_arguments(parser)
    add_run_arguments(parser)
    parser.set_defaults(handler=handle)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and the flags that choose the app in it and set its settings."""
    parser.add_argument("file", metavar="JOB.py", help="Python file that builds an hf.App")
    add_app(parser)
    add_setting_arguments(parser)


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are settings; the names in the namespace are those of the settings."""
    parser.add_argument("--parallelism", metavar="N", help="workers; default: 2")
    parser.add_argument("--master", metavar="M", help="Spark master URL; default: Spark's own, else local")
    parser.add_argument("--checkpoint-every", metavar="D", help="time between checkpoints, such as 500ms; default: 1s")
    parser.add_argument("--max-records-per-second", metavar="N", help="limit on what all sources read together")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags about a run that are no settings."""
    parser.add_argument(
        "--progress",
        choices=STYLES,
        default="auto",
        help="auto: on stderr, in place on a terminal; plain: a line per second; json: an object per second on stdout",
    )
    parser.add_argument(
        "--drop-state",
        metavar="OP",
        action="append",
        default=[],
        help="give up the kept state of an operator that is gone or has changed; may be given several times",
    )
    parser.add_argument(
        "--once", action="store_true", help="read to the ends that the sources have now, checkpoint, deliver, stop"
    )
    parser.add_argument(
        "--takeover", action="store_true", help="if another run of the job is alive, fence it and run in its place"
    )
    parser.add_argument(
        "--from", metavar="SAVEPOINT", dest="savepoint", help="start here; has to be the job's last checkpoint"
    )
    add_adopt(parser)


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Add the flag that moves targets to the job on purpose."""
    parser.add_argument(
        "--adopt-targets",
        metavar="SINK",
        action="append",
        default=[],
        help="take the target of this sink over, though a run took it over that the job's log does not know: a copy of "
        "the job's folder, or the folder before it was restored; may be given several times",
    )


def handle(args: argparse.Namespace) -> int:
    """Load the file and run its app."""
    app = load(args.file, args.app)
    return run_app(app, args, Path(args.file).absolute().parent)


def main_of(app: App) -> NoReturn:
    """Run an app from the process of its own file; ends the process.

    Raises:
        ConfigError: the file is only being loaded, by `holdfast run` or another command.
    """
    refuse_while_loading()
    program = Path(sys.argv[0])
    arguments = sys.argv[1:]
    sys.exit(guarded(arguments, lambda: run_app(app, _parsed(program.name, arguments), program.absolute().parent)))


def run_app(app: App, args: argparse.Namespace, folder: Path) -> int:
    """Run an app to its end.

    Args:
        folder: Where the job's file is; modules beside it travel to the workers.

    Returns:
        Exit status: 0 finished, stopped, ended by `holdfast stop --now`, or finished already.

    Raises:
        HoldfastError: the job cannot be started, was fenced, or failed; the kind tells the exit status.
    """
    from holdfast.runtime import run as runner

    settings = resolve(app, flags_of(args), os.environ, submitted_conf())
    prepared = runner.prepare(
        app.plan(),
        settings,
        args.drop_state,
        once=args.once,
        takeover=args.takeover,
        savepoint=args.savepoint,
        adopt_targets=args.adopt_targets,
        note=advise,
    )
    for warning in prepared.warnings:
        advise(f"\nWarning: {warning}.\n")
    ship_by_value(folder)
    start, late = _positions(prepared), late_so_far(prepared)
    tally = Tally(start)
    progress = Progress(args.progress, tally)
    began = time.monotonic()
    with diverted(app.name, enabled=not args.debug):
        outcome = runner.run(prepared, progress.update, progress.note)
        progress.end(outcome.status, _state_of(outcome))
        if outcome.kind in ("failed", "fenced", "refused"):
            raise error_of(outcome, prepared.plan.app)
    if args.json:
        print_json(outcome.status)
    advise(summary(prepared, outcome, tally.records, time.monotonic() - began, late))
    return 0


def flags_of(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings given as flags; None means "not given"."""
    return {name: getattr(args, name) for name in SETTING_FLAGS}


def submitted_conf() -> dict[str, str]:
    """Return Spark's configuration where spark-submit made one; a Spark of our own takes its from the settings."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        return dict(SparkContext._active_spark_context.getConf().getAll())
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # connects to the JVM that started this process
    return dict(SparkConf().getAll())


def summary(
    prepared: Prepared, outcome: Outcome, records: int, seconds: float, late_before: Mapping[str, int] | None = None
) -> str:
    """Return the last line of a run: what was done, and where the results are.

    Args:
        late_before: What `late_so_far` said when the run began.
    """
    plan, status = prepared.plan, outcome.status
    if outcome.kind == "already finished":
        return (
            f"{plan.app} has finished already, at epoch {status['checkpoint']['epoch']}; nothing was run. "
            "To run it from the beginning give it another name or --root"
        )
    how = "ended at once, it can be run again" if outcome.kind == "ended" else outcome.kind
    epochs = status.get("epochs", 0) - (len(prepared.job.completed) if prepared.job is not None else 0)
    results = "; ".join(dict.fromkeys(str(getattr(sink.sink, "where", sink.sink)) for sink in plan.sinks))
    return (
        f"{plan.app} {how}: {text.plural(epochs, 'epoch')}, {text.plural(records, 'record')}, "
        f"{_late(late_so_far(prepared), late_before)}"
        f"{_restarts(status)} in {text.span(seconds * 1000)}; results: {results}"
    )


def late_so_far(prepared: Prepared) -> Mapping[str, int] | None:
    """Return how many records were late by now, by operator; None if nothing can be, or it is not known."""
    from holdfast.runtime.status import late_of

    try:
        job = prepared.repository.read_log()
        if job is None or not job.completed:
            return None
        found = late_of(prepared.repository.load_manifest(job.completed[-1].body.manifest))
    except (Damaged, Unavailable):
        return None  # what the run did stands, whether or not it can be counted now
    return None if found is None else found["operators"]


def _late(now: Mapping[str, int] | None, before: Mapping[str, int] | None) -> str:
    if now is None:
        return ""
    came = {name: rows - (before or {}).get(name, 0) for name, rows in now.items()}
    names = ", ".join(name for name, rows in came.items() if rows)
    return f"{text.plural(sum(came.values()), 'late record')}{f' ({names})' if names else ''}, "


def _restarts(status: Mapping[str, Any]) -> str:
    """Return how often something failed, and how often the job went back because that was asked."""
    rewinds = sum(bool(restart.get("rewind")) for restart in status["restarts"])
    restarts = text.plural(len(status["restarts"]) - rewinds, "restart")
    return f"{restarts}, {text.plural(rewinds, 'rewind')}" if rewinds else restarts


def error_of(outcome: Outcome, job: str) -> HoldfastError:
    """Return the error that tells why the run ended."""
    error: Mapping[str, Any] = outcome.error or {}
    if outcome.kind == "fenced":
        return Fenced(
            f"another run took over job {job!r}, which is in generation {error.get('theirs', 'unknown')} now",
            not_done="nothing was written after the take-over",
            next_step=f"let it go on; to see it: holdfast status {job}",
            where=Where(job=job),
        )
    if outcome.kind == "refused":
        return ConfigError(error["what"], not_done=error["not_done"], next_step=error["next"], where=Where(job=job))
    if error.get("kind") == Fenced.kind:
        return Fenced(error["what"], not_done=error["not_done"], next_step=error["next"], where=Where(job=job))
    checkpoint = outcome.status["checkpoint"]
    kept = f"everything up to epoch {checkpoint['epoch']} is kept" if checkpoint else "no epoch was completed"
    place = {name: error.get(name) for name in ("operator", "epoch", "source", "partition", "offset")}
    return JobFailed(
        f"job {job!r} failed: {str(error.get('what') or 'no cause is known').removesuffix('.')}",
        not_done="; ".join(part for part in (error.get("not_done"), kept) if part),
        next_step=error.get("next") or "remove the cause, then run the job again: it goes on from there",
        where=Where(job=job, **place),
    )


def _parsed(program: str, arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog=program, description=_DESCRIPTION, epilog=f"examples:\n  python {program} --parallelism 4")
    add_common(parser)
    add_setting_arguments(parser)
    add_run_arguments(parser)
    return parser.parse_args(arguments)


def _positions(prepared: Prepared) -> dict[tuple[str, int], int]:
    """Where the run begins to read, as the last checkpoint says."""
    if prepared.job is None or not prepared.job.completed:
        return {}
    manifest = prepared.repository.load_manifest(prepared.job.completed[-1].body.manifest)
    return {(at.source, at.partition): at.offset for at in manifest.positions if at.offset >= 0}


def _state_of(outcome: Outcome) -> str:
    states = {"finished": "finished", "already finished": "finished", "stopped": "stopped", "ended": "stopped"}
    return states.get(outcome.kind, "failed")
