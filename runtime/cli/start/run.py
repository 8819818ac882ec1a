"""`holdfast run JOB.py`, `python job.py` and `spark-submit job.py`: three ways into one function.

Source: API.md, command line and exit statuses.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, JobFailed, Unavailable, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import Parser, add_app, add_command, add_common
from holdfast.runtime.cli.reporting import advise, expect_end, expect_stop, guarded, print_json
from holdfast.runtime.cli.start.jobfile import load, refuse_while_loading, ship_by_value
from holdfast.runtime.cli.start.progress import STYLES, ProgressWriter, Tally
from holdfast.runtime.cli.start.sparklog import diverted
from holdfast.runtime.config.settings import MICROBATCH, misspelt, resolve, wants_local
from holdfast.runtime.wire.standard import fill_standard_streams

if TYPE_CHECKING:
    from holdfast.runtime.api.app import App
    from holdfast.runtime.config.settings import Settings
    from holdfast.runtime.execution.executing import Execution, RunOutcome
    from holdfast.runtime.execution.facts import Choices
    from holdfast.runtime.execution.metrics_port import MetricsPort
    from holdfast.runtime.execution.prepare import Prepared
    from holdfast.runtime.execution.results import Printer
    from holdfast.runtime.job.live import Status
    from holdfast.runtime.plan.model import Plan
    from holdfast.runtime.processes.local import Zygote

SETTING_FLAGS = (
    *("root", "mode", "parallelism", "standbys", "master", "local", "checkpoint_every", "max_records_per_second"),
)
_DESCRIPTION = """\
Run a job until its input ends, it is stopped, or it fails permanently. Started again, it resumes from its last
checkpoint. Ctrl-C takes a last checkpoint and ends it; a second Ctrl-C ends it immediately, which loses nothing either.

"records" in the progress is how far the sources are read: the sum of all next offsets. It continues over restarts.
Files of text count bytes: "1.2 MiB of text". With --once a bar shows the part that is read, and the time left."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    examples = (
        "holdfast run job.py\nholdfast run job.py --parallelism 4 --checkpoint-every 500ms --root s3://bucket/streams\n"
        "holdfast run job.py --once --local\nholdfast run job.py --progress json | jq .records_per_s"
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
    parser.add_argument(
        "--mode", metavar="M", help="continuous: workers stay (default); microbatch: every epoch is a Spark job"
    )
    parser.add_argument("--parallelism", metavar="N", help="number of workers; default: 2")
    parser.add_argument(
        "--standbys", metavar="N", help="number of further workers that follow the state of the others; default: 0"
    )
    parser.add_argument(
        "--local",
        action="store_const",
        const="true",
        help="run driver and workers as processes of this machine, without Spark and Java; or set HOLDFAST_LOCAL=1",
    )
    parser.add_argument("--master", metavar="M", help="Spark master URL; default: Spark's own, else local")
    parser.add_argument(
        "--checkpoint-every",
        "--every",
        metavar="D",
        help="time between checkpoints, such as 500ms; default: 1s. In microbatch mode: between the starts of two jobs",
    )
    parser.add_argument("--max-records-per-second", metavar="N", help="limit for all sources together")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a run that are not settings."""
    parser.add_argument(
        "--progress",
        choices=STYLES,
        default="auto",
        help="auto: on stderr, in place on a terminal; plain: a line per second; json: an object per second on stdout",
    )
    add_drop_state(parser)
    parser.add_argument(
        "--once", action="store_true", help="read up to the current ends of the sources, checkpoint, deliver, stop"
    )
    parser.add_argument(
        "--takeover", action="store_true", help="if another run of the job is alive, fence it and run in its place"
    )
    parser.add_argument(
        "--from", metavar="SAVEPOINT", dest="savepoint", help="start from it; it must be the job's last checkpoint"
    )
    add_adopt(parser)


def add_drop_state(parser: argparse.ArgumentParser) -> None:
    """Add the flag that gives up state; `holdfast plan` shows its effect."""
    parser.add_argument(
        "--drop-state",
        metavar="OP[.AGG][#SUFFIX]",
        action="append",
        default=[],
        help="give up the state of an operator, or of one of its aggregates, that was removed or has changed; may be "
        "given several times. It takes effect once; to repeat it, append #2",
    )


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Add the flag that moves targets to the job on purpose."""
    parser.add_argument(
        "--adopt-targets",
        metavar="SINK",
        action="append",
        default=[],
        help="take over the target of this sink from a run that is not in the job's log: a run of a copy of the "
        "job's folder, or of the folder before it was restored; or a table from another sink to which it belongs; may "
        "be given several times",
    )


def handle(args: argparse.Namespace) -> int:
    """Load the file and run its app."""
    zygote = _forked(args) if wants_local(flags_of(args), os.environ) else None
    app = load(args.file, args.app)
    return run_app(app, args, Path(args.file).absolute().parent, zygote=zygote)


def _forked(args: argparse.Namespace) -> Zygote | None:
    """Fork the process that forks workers, before the job's file starts threads; None if that is impossible."""
    if threading.active_count() > 1:
        return None
    from holdfast.runtime.processes.local import Zygote

    return Zygote.fork()


def main_of(app: App) -> NoReturn:
    """Run an app from the process of its own file; ends the process.

    Raises:
        ConfigError: the file is only being loaded, by `holdfast run` or another command.
    """
    refuse_while_loading()
    fill_standard_streams()
    expect_stop()
    program = Path(sys.argv[0])
    arguments = sys.argv[1:]
    sys.exit(guarded(arguments, lambda: run_app(app, _parsed(program.name, arguments), program.absolute().parent)))


def run_here(app: App, **given: object) -> None:
    """Run an app in a notebook or script; see `App.run`."""
    refuse_while_loading()
    fill_standard_streams()
    program = getattr(sys.modules["__main__"], "__file__", None)
    args = _parsed("app.run", [])
    for name, value in given.items():
        setattr(args, name, value)
    with nullcontext() if wants_local(flags_of(args), os.environ) else _own_context():
        run_app(app, args, Path.cwd() if program is None else Path(program).absolute().parent, returns=True)


@contextmanager
def _own_context() -> Iterator[None]:
    """Stop the Spark context that is started meanwhile, so that the next run may choose another size."""
    from pyspark import SparkContext

    from holdfast.runtime.spark.jvm import finish_abandoned

    before = SparkContext._active_spark_context
    try:
        yield
    finally:
        finish_abandoned()  # a context that is half created cannot be stopped
        context = SparkContext._active_spark_context
        if context is not None and context is not before:
            context.stop()


def run_app(
    app: App, args: argparse.Namespace, folder: Path, *, returns: bool = False, zygote: Zygote | None = None
) -> int:
    """Run an app to its end.

    Args:
        folder: Where the job's file is; modules beside it travel to the workers.
        returns: The program continues after the run, and may read what the job collected.
        zygote: Forks the workers of a run without Spark; None: one is started.

    Returns:
        Exit status: 0 finished, stopped, ended by `holdfast stop --now`, or finished already.

    Raises:
        HoldfastError: the job cannot be started, was fenced, or failed; the kind sets the exit status.
    """
    from holdfast.runtime.execution.executing import execute
    from holdfast.runtime.execution.prepare import prepare
    from holdfast.runtime.execution.results import Printer, collected, refuse_collect

    flags = flags_of(args)
    settings = resolve(app, flags, os.environ, _no_spark() if wants_local(flags, os.environ) else submitted_conf())
    plan = app.plan()
    if not returns:
        refuse_collect(plan)
    preparation = prepare(plan, settings, choices_of(args), advise)
    bound = collected(preparation.plan)
    for name, sink in collected(plan).items():
        sink.follow(bound[name])
    for warning in (*misspelt(os.environ), *(f"{each}." for each in preparation.warnings)):
        advise(f"\nWarning: {warning}\n")
    code = ship_by_value(folder, local=settings.local == "true")
    preparation = replace(preparation, plan=replace(preparation.plan, code=code))
    start, late = _positions(preparation), late_so_far(preparation)
    tally = Tally(start, preparation.plan.in_bytes(), preparation.inputs.until)
    progress = ProgressWriter(args.progress, tally)
    printer = Printer(preparation.plan, (sys.stderr if args.json or args.progress == "json" else sys.stdout).write)
    began = time.monotonic()
    with diverted(enabled=not args.debug and settings.local != "true"):
        with _served(settings) as port, closing(progress):
            outcome = execute(preparation, execution_of(settings, zygote), _Shown(progress, printer, port))
            expect_end()
        printer.poll()
        progress.end(outcome.status, _state_of(outcome))
        if outcome.kind in ("failed", "fenced", "refused"):
            raise error_of(_with_way_out(preparation, outcome), preparation.plan.app)
    if args.json:
        print_json(outcome.status.as_json())
    advise(summary(preparation, outcome, amount_of(preparation.plan, tally), time.monotonic() - began, late))
    return 0


def choices_of(args: argparse.Namespace) -> Choices:
    """Return the options of this start from the flags."""
    from holdfast.runtime.execution.facts import Choices

    return Choices(
        drop_state=args.drop_state,
        once=args.once,
        takeover=args.takeover,
        savepoint=args.savepoint,
        adopt_targets=args.adopt_targets,
    )


def _with_way_out(prepared: Prepared, outcome: RunOutcome) -> RunOutcome:
    """Return the outcome; an error about a damaged object names the checkpoint that can do without it."""
    from holdfast.runtime.inspect.damage import with_way_out

    if outcome.error is None:
        return outcome
    return replace(outcome, error=with_way_out(prepared.folder.repository, prepared.plan.app, outcome.error))


def execution_of(settings: Settings, zygote: Zygote | None = None) -> Execution:
    """Return the execution that carries out the plan."""
    from holdfast.runtime.execution.resident import Resident

    if settings.local == "true":
        from holdfast.runtime.execution.local import OnThisMachine

        return Resident(OnThisMachine(zygote))
    if settings.mode == MICROBATCH:
        from holdfast.runtime.execution.microbatch import Microbatch

        return Microbatch()
    from holdfast.runtime.execution.on_spark import OnSpark

    return Resident(OnSpark())


@contextmanager
def _served(settings: Settings) -> Iterator[MetricsPort | None]:
    """Serve metrics meanwhile, if the settings ask for it."""
    from holdfast.runtime.execution.metrics_port import MetricsPort

    port = MetricsPort(settings.metrics_host, settings.metrics_port) if settings.metrics_port else None
    try:
        yield port
    finally:
        if port is not None:
            port.close()


class _Shown:
    """Shows the reports of a run: rows for the console, metrics, progress. See executing.Ports."""

    def __init__(self, progress: ProgressWriter, printer: Printer, port: MetricsPort | None) -> None:
        self._progress, self._printer, self._port = progress, printer, port

    def update(self, status: Status) -> None:
        self._printer.poll()
        if self._port is not None:
            self._port.take(status)
        self._progress.update(status)

    def note(self, words: str) -> None:
        self._progress.note(words)


def flags_of(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings given as flags; None means "not given"."""
    return {name: getattr(args, name) for name in SETTING_FLAGS}


def _no_spark() -> dict[str, str]:
    """Return the Spark configuration of a run without Spark.

    Raises:
        ConfigError: spark-submit started this process, and Spark with it.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise ConfigError(
            "spark-submit has started Spark, and local=true runs without it",
            not_done="the job was not started",
            next_step="run the file with holdfast run --local or with python; or remove --local and HOLDFAST_LOCAL",
        )
    return {}


def submitted_conf() -> dict[str, str]:
    """Return the Spark configuration that spark-submit made, or nothing: a Spark of our own follows the settings."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        return dict(SparkContext._active_spark_context.getConf().getAll())
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # connects to the JVM that started this process
    return dict(SparkConf().getAll())


def summary(
    prepared: Prepared, outcome: RunOutcome, amount: str, seconds: float, late_before: Mapping[str, int] | None = None
) -> str:
    """Return the last line of a run: a summary, and where the results are.

    Args:
        amount: How much was read.
        late_before: The result of `late_so_far` when the run began.
    """
    plan, status = prepared.plan, outcome.status
    if outcome.kind == "already finished":
        assert status.checkpoint is not None, "a job finishes at a checkpoint"
        return (
            f"{plan.app} has already finished, at epoch {status.checkpoint.epoch}; nothing was run. "
            "To run it from the beginning, give it another name or --root"
        )
    how = "ended without a last checkpoint, it can be run again" if outcome.kind == "ended" else outcome.kind
    epochs = (status.epochs or 0) - (0 if prepared.folder.job is None else len(prepared.folder.job.completed))
    results = "; ".join(dict.fromkeys(sink.sink.where for sink in plan.sinks))
    return (
        f"{plan.app} {how}: {text.plural(epochs, 'epoch')}, {amount}, "
        f"{_late(late_so_far(prepared), late_before)}"
        f"{_restarts(status)} in {text.span(seconds * 1000)}; results: {results}"
    )


def amount_of(plan: Plan, tally: Tally) -> str:
    """Return how much was read, in the units that the sources count in."""
    counts_records = len(plan.in_bytes()) < len(plan.sources)
    records = [text.plural(tally.records, "record")] if counts_records else []
    return ", ".join([*records, *([] if tally.bytes is None else [f"{text.size(tally.bytes)} of text"])])


def late_so_far(prepared: Prepared) -> Mapping[str, int] | None:
    """Return how many records have been late, by operator; None if none can be late, or it is unknown."""
    from holdfast.runtime.job.status import late_of

    try:
        repository = prepared.folder.repository
        job = repository.read_log()
        if job is None or not job.completed:
            return None
        found = late_of(repository.load_manifest(job.completed[-1].body.manifest))
    except (Damaged, Unavailable):
        return None  # the results of the run are valid, whether or not they can be counted now
    return None if found is None else found.operators


def _late(now: Mapping[str, int] | None, before: Mapping[str, int] | None) -> str:
    if now is None:
        return ""
    came = {name: rows - (before or {}).get(name, 0) for name, rows in now.items()}
    names = ", ".join(name for name, rows in came.items() if rows)
    return f"{text.plural(sum(came.values()), 'late record')}{f' ({names})' if names else ''}, "


def _restarts(status: Status) -> str:
    """Return how often the job recovered from a failure, and how often it was rewound."""
    rewinds = sum(restart.rewind for restart in status.restarts)
    restarts = text.plural(len(status.restarts) - rewinds, "restart")
    return f"{restarts}, {text.plural(rewinds, 'rewind')}" if rewinds else restarts


def error_of(outcome: RunOutcome, job: str) -> HoldfastError:
    """Return the error that ended the run."""
    error = outcome.error
    if error is not None and (outcome.kind in ("refused", "fenced") or error.kind == Fenced.kind):
        return replace(error, job=job).as_error()
    checkpoint = outcome.status.checkpoint
    progress = f"everything up to epoch {checkpoint.epoch} is kept" if checkpoint else "no epoch was completed"
    if error is None:
        next_step = "remove the cause, then run the job again: it resumes from there"
        return JobFailed(
            f"job {job!r} failed: no cause is known", not_done=progress, next_step=next_step, where=Where(job=job)
        )
    what, not_done = f"job {job!r} failed: {error.what.removesuffix('.')}", f"{error.not_done}; {progress}"
    return replace(error, kind=JobFailed.kind, job=job, what=what, not_done=not_done).as_error()


def _parsed(program: str, arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog=program, description=_DESCRIPTION, epilog=f"examples:\n  python {program} --parallelism 4")
    add_common(parser)
    add_setting_arguments(parser)
    add_run_arguments(parser)
    return parser.parse_args(arguments)


def _positions(prepared: Prepared) -> dict[tuple[str, int], int]:
    """Return where the run begins to read, from the last checkpoint."""
    return {(at.source, at.partition): at.offset for at in prepared.folder.positions if at.offset >= 0}


def _state_of(outcome: RunOutcome) -> str:
    states = {"finished": "finished", "already finished": "finished", "stopped": "stopped", "ended": "stopped"}
    return states.get(outcome.kind, "failed")
