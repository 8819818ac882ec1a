"""`holdfast demo`: the flights job on real data, with a worker killed in the middle and the result checked.

Runs `holdfast run` as any user would, in a separate process, and kills one Python worker with SIGKILL while records
flow. Oracles that share no code with Holdfast then compute every row of every output again.

Invariants
    - "verified" is printed only if the kill hit a working process of this run, that process has ended, and the job
      recovered and took more records. It must also finish, no row may differ, and at least one record must be late (in
      continuous mode).
    - Every run starts clean: job history and results of an earlier demo are removed, the converted log is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, HoldfastError, JobFailed
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command
from holdfast.runtime.cli.reporting import print_json
from holdfast.runtime.cli.start.demo_kill import DemoKill, InLog, ProgressLine, kill_one, unproven
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.wire.processes import signal_all
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects

JOB = "flights"
RECORDS_PER_S = 27_000
RUN_LIMIT_S = 150
LINE_EVERY_S = 2.0
TAIL_LINES = 15
_DESCRIPTION = """\
Run the flights job on real data, kill one of its workers in the middle, and check every row of the result.

exit status: 0 verified, 1 not verified, 7 the job failed"""


_PROGRESS = msgspec.json.Decoder(ProgressLine)


@dataclass
class DemoRun:
    """Facts known of the run so far."""

    folder: Path
    mode: str = CONTINUOUS
    last: ProgressLine = field(default_factory=ProgressLine)
    kill: DemoKill | None = None
    shown_at: float = 0.0
    shown: str = ""
    """The last line of progress."""
    too_long: bool = False
    """The demo ended the job because it had run for RUN_LIMIT_S."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    examples = "holdfast demo\nholdfast demo --mode microbatch --folder /tmp/flights"
    parser = add_command(subparsers, "demo", _DESCRIPTION, examples, actions=True)
    parser.add_argument("--folder", type=Path, default=Path("flights-demo"), help="folder for log, history and results")
    rate = f"limit on reading; default: {RECORDS_PER_S}"
    parser.add_argument("--max-records-per-second", type=int, default=RECORDS_PER_S, metavar="N", help=rate)
    parser.add_argument("--kill-at", type=int, metavar="RECORDS", help="kill the worker here; default: half way")
    modes = "continuous: a worker is killed (default); microbatch: a task"
    parser.add_argument("--mode", choices=[CONTINUOUS, MICROBATCH], default=CONTINUOUS, metavar="M", help=modes)
    parser.add_argument("--json", action="store_true", help="print the result and errors as JSON on stdout")
    parser.add_argument("--debug", action="store_true", help="if the demo fails, show the traceback too")
    parser.set_defaults(handler=demo)


def demo(args: argparse.Namespace) -> int:
    """Run the demo. Exit status: 0 verified, 1 not verified, 7 the job failed."""
    _check_least("--max-records-per-second", args.max_records_per_second)
    _check_least("--kill-at", args.kill_at)
    total = prepare(args.folder, args.kill_at)
    kill_at = args.kill_at if args.kill_at is not None else total // 2
    run = DemoRun(args.folder, args.mode)
    with job(run, args.max_records_per_second) as process:
        assert process.stdout is not None
        watch(run, process, process.stdout, kill_at, total)
    print(file=sys.stderr)
    if process.returncode != 0 or run.last.state != "finished":
        raise failed(run, process.returncode)
    return report(run, total, args.json)


def _check_least(flag: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise ConfigError(
            f"{flag} is {number}", not_done="the demo was not started", next_step=f"give {flag} as a number above 0"
        )


def prepare(folder: Path, kill_at: int | None = None) -> int:
    """Convert the data unless an earlier demo did, remove that demo's other files; return the records in the log.

    Raises:
        ConfigError: the folder is not a demo's, the log is not sealed, or the log ends before record `kill_at`.
    """
    from holdfast.examples import flights_data

    _check_ours(folder)
    log = flights_data.written(str(folder / "events"))
    reader = LogReader(open_objects(log))
    if not reader.sealed:
        raise ConfigError(
            f"the log {log} is not sealed, so the job would wait for more",
            not_done="the demo was not started",
            next_step="remove the folder, or give another one with --folder",
        )
    total = sum(reader.end_offsets().values())
    if kill_at is not None and kill_at >= total:
        raise ConfigError(
            f"--kill-at is {kill_at:,}, but the job has only {total:,} records: no worker would be killed",
            not_done="the demo was not started, nothing was removed",
            next_step=f"give a number below {total}, or leave it out to kill a worker half way",
        )
    for left_folder in ("root", "out"):
        shutil.rmtree(folder / left_folder, ignore_errors=True)
    for left in folder.glob("flights.db*"):
        left.unlink()
    return total


def _check_ours(folder: Path) -> None:
    """Refuse a folder with files that no demo made, because a demo removes the files of the last one.

    Raises:
        ConfigError: it is not a folder, or it is not empty and holds no log of flights.
    """
    if folder.exists() and not folder.is_dir():
        fault = "is not a folder"
    elif (
        folder.is_dir()
        and not (folder / "events" / "meta.json").exists()
        and any(not each.name.startswith("events-unfinished-") for each in folder.iterdir())
    ):
        fault = "holds files that no demo made"
    else:
        return
    raise ConfigError(
        f"{folder} {fault}",
        not_done="the demo was not started, nothing was removed",
        next_step="give an empty folder or a new one: holdfast demo --folder flights-demo",
    )


@contextmanager
def job(run: DemoRun, records_per_s: int) -> Iterator[subprocess.Popen[str]]:
    """Start the job; end it, with everything below it, when it takes too long or the demo is interrupted."""
    code = Path(str(files("holdfast.examples").joinpath("flights.py")))
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", str(code), "--root", str(run.folder / "root")]
    command += ["--mode", run.mode, "--progress", "json", "--max-records-per-second", str(records_per_s)]
    places = {"FLIGHTS_LOG": "events", "FLIGHTS_DB": "flights.db", "FLIGHTS_OUT": "out"}
    where = {name: str(run.folder / place) for name, place in places.items()}
    with (run.folder / "run.log").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | where, start_new_session=True
        )
        limit = threading.Timer(RUN_LIMIT_S, _end_late, [run, process])
        limit.start()
        try:
            yield process
            process.wait()
        finally:
            limit.cancel()
            if process.poll() is None:
                signal_all(process, signal.SIGKILL)
                process.wait()


def watch(run: DemoRun, process: subprocess.Popen[str], lines: IO[str], kill_at: int, total: int) -> None:
    """Follow the job to its end; kill one worker on the way."""
    for line in lines:
        if not line.startswith("{"):
            continue
        run.last = _PROGRESS.decode(line)
        show(run, total)
        if run.kill is not None:
            run.kill.look(run.last)
        elif kill_at <= (run.last.records_in or 0) < total:
            run.kill = kill_one(run.last, process.pid, lambda: in_log(run.folder), run.mode)


def in_log(folder: Path) -> InLog:
    """Return the position of the job according to its log."""
    if not (folder / "root" / JOB / "log").exists():
        return InLog(0, 0)
    read = Repository(open_objects(str(folder / "root" / JOB), writable=False)).read_log()
    return InLog(0, 0) if read is None else InLog(read.generation, read.base_epoch)


def show(run: DemoRun, total: int) -> None:
    """One line of progress: rewritten on a terminal; elsewhere every few seconds, if there is news."""
    now, terminal, text = time.monotonic(), sys.stderr.isatty(), progress_of(run, total)
    if not terminal and (now - run.shown_at < LINE_EVERY_S or text == run.shown):
        return
    run.shown_at, run.shown = now, text
    print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)


def progress_of(run: DemoRun, total: int) -> str:
    """Return the line of progress."""
    p = run.last
    if p.records_in is None:
        return "Starting Spark" if p.generation is None else "Starting the workers"
    known = ["?" if n is None else f"{n:,.0f}" for n in (p.records_in, p.records_per_s, p.epoch, p.lag, p.generation)]
    killed = f"  killed pid {run.kill.pid}" if run.kill else ""
    return "{} of {:,}  {}/s  epoch {}  lag {}  generation {}{}".format(known[0], total, *known[1:], killed)


def report(run: DemoRun, total: int, as_json: bool) -> int:
    """Check the result and print the events; return exit status 0 or 1."""
    from holdfast.examples import flights_hours_oracle, flights_oracle

    print("Computing every row again from the data", file=sys.stderr)
    totals = flights_oracle.verify(run.folder / "flights.db")
    hours = flights_hours_oracle.verify(run.folder / "flights.db", run.folder / "out")
    wrong = totals.differences + hours.differences + unproven(run.kill, run.last)
    wrong += [f"the log holds {total} events, the data {v.events}" for v in (totals, hours) if v.events != total][:1]
    rows = totals.rows | hours.rows
    late, unknown = rows.pop("late"), rows.pop("unknown-airports")
    if not late and run.mode == CONTINUOUS:
        wrong.append("no record was late: the run proves nothing about late records; use a lower rate")
    times = [restart.recovery_ms for restart in run.last.restarts if restart.recovery_ms is not None]
    result = {
        "records_in": total,
        "epochs": _checkpoints(run.folder),
        "rows_out": rows,
        "late": late,
        "unknown_airports": unknown,
        "killed": None if run.kill is None else asdict(run.kill),
        "recovery_ms": times[0] if times else None,
        "generation": run.last.generation,
        "verified": not wrong,
        "problems": wrong,
    }
    print_json(result) if as_json else print(describe(result))
    return 1 if wrong else 0


def describe(result: dict[str, Any]) -> str:
    """Return the result as lines of text."""
    rows, kill, took = result["rows_out"], result["killed"], result["recovery_ms"]
    lines = [
        f"records in   {result['records_in']:,}, in {text.plural(result['epochs'], 'epoch')}",
        f"rows out     {', '.join(f'{count:,} {output}' for output, count in rows.items())}",
        f"late         {result['late']:,}, in a separate output; all other records are in their hour",
        f"unknown      {text.plural(result['unknown_airports'], 'event')} at airports missing from the list, copied",
    ]
    if kill is not None:
        lines.append(f"killed       {kill['what']}, pid {kill['pid']}, at record {kill['at_records']:,}")
        after = "unknown time" if took is None else f"{took / 1000:.2f} s"
        how = f"after {after}, generation {kill['generation']} to {result['generation']}"
        if kill["generation"] == result["generation"]:
            how = f"epochs after {kill['epoch']:,} were completed"
        lines.append(f"recovered    {how if kill['recovered'] else 'not shown'}")
    lines += [f"problem      {problem}" for problem in result["problems"][:TAIL_LINES]]
    verdict = "verified: every row of every output is correct" if result["verified"] else "NOT verified"
    return "\n".join([*lines, f"result       {verdict}"])


def failed(run: DemoRun, status: int) -> HoldfastError:
    """Return the error to raise for a job that did not finish."""
    if run.too_long:
        records = run.last.records_in
        at = "no record was read" if records is None else f"it had read {text.plural(records, 'record')}"
        return JobFailed(
            f"the job had not finished after {RUN_LIMIT_S} s, {at}; the demo ended it",
            not_done="the result was not checked",
            next_step="run holdfast demo again when the machine has two cores to spare; it starts clean",
        )
    log = run.folder / "run.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    what = f"the job ended with status {status} in state {run.last.state!r}; the last lines of {log}:\n{tail}"
    next_step = f"read {log}, then run holdfast demo again; it starts clean"
    kind = ConfigError if status == ConfigError.exit_status else JobFailed
    return kind(what, not_done="the result was not checked", next_step=next_step)


def _checkpoints(folder: Path) -> int:
    """Count the completed epochs in the job log, because epoch numbers have gaps."""
    records = (folder / "root" / JOB / "log").glob("*.json")
    return sum(msgspec.json.decode(record.read_bytes())["body"]["kind"] == "CheckpointCompleted" for record in records)


def _end_late(run: DemoRun, process: subprocess.Popen[str]) -> None:
    run.too_long = True
    signal_all(process, signal.SIGKILL)
