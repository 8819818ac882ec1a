"""`holdfast chaos run SCENARIO.toml --job JOB.py`: a real job under real faults, from a shell.

Exit status: 0 held, 4 a violation was found, 7 the job failed, 1 nothing was proven, 2 wrong use.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

from holdfast.chaos.commands import evidence as evidence_cli
from holdfast.chaos.evidence import page
from holdfast.chaos.evidence.report import summarise
from holdfast.chaos.judge.records import EndRecord, Journal
from holdfast.chaos.live import port as live_port
from holdfast.errors import ConfigError
from holdfast.runtime.cli.reporting import advise

JOB_FAILED = 7


def add_parser(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; `command` makes parsers beside the others of `holdfast chaos`."""
    parser = command(
        "run",
        handle,
        "break a real job by a scenario, and check its results",
        "holdfast chaos run flights-short --job job.py\n"
        "holdfast chaos run faults.toml --job job.py --out run-2 --seed 7",
        "0 held, 1 nothing was proven, 2 wrong use, 4 a violation was found, 7 the job failed",
    )
    parser.add_argument("scenario", type=_path, metavar="SCENARIO.toml", help="a file, or a built-in name")
    parser.add_argument("--job", type=_path, required=True, metavar="JOB.py", help="the job's file")
    parser.add_argument("--out", type=Path, default=Path("chaos-run"), help="folder of the run; default: chaos-run")
    parser.add_argument("--seed", type=int, metavar="S", help="overrides the scenario's seed")


def handle(args: argparse.Namespace) -> int:
    """Run a scenario, and show its report."""
    live_port.required()
    from holdfast.chaos.live import loading
    from holdfast.chaos.live import running as live  # loads Spark, which simulations do not need

    # A signal that ends this process ends the job with it, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scenario = loading.load(args.scenario, seed=args.seed)
    path = live.run(scenario, args.job, args.out, progress=advise)
    evidence_cli.show(path, args.json)
    return exit_status(page.read(path))


def _path(text: str) -> Path:
    """Refuse an empty path: it would mean the current folder."""
    if not text:
        raise ConfigError("a path is empty", not_done="nothing was started", next_step="see holdfast chaos run --help")
    return Path(text)


def exit_status(journal: Journal) -> int:
    """Return a journal's exit status: that of its report, except that a failed job has its own."""
    verdict = summarise(journal).verdict
    failed = any(end.failed == "job" for end in journal.of(EndRecord))
    return JOB_FAILED if verdict == "not_proven" and failed else evidence_cli.STATUS[verdict]
