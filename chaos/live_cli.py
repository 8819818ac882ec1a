"""`holdfast chaos run SCENARIO.toml --job JOB.py`: a real job under real faults, from a shell.

Exit status: 0 held, 4 a violation was found, 7 the job failed, 1 nothing was proven, 2 wrong use.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

from holdfast.chaos import evidence_cli, page
from holdfast.chaos.live_records import DriverNews, Journal
from holdfast.chaos.live_report import summarise
from holdfast.runtime.cli.reporting import advise

JOB_FAILED = 7


def add_parser(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; `command` makes parsers beside the others of `holdfast chaos`."""
    parser = command("run", handle, "break a real job by a scenario, and check what comes out of it")
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.toml", help="a file, or a built-in name")
    parser.add_argument("--job", type=Path, required=True, metavar="JOB.py", help="the job's file")
    parser.add_argument("--out", type=Path, default=Path("chaos-run"), help="folder of the run; default: chaos-run")
    parser.add_argument("--seed", type=int, metavar="S", help="instead of the scenario's")


def handle(args: argparse.Namespace) -> int:
    """Run a scenario, and show its report."""
    from holdfast.chaos import live, loading  # loads Spark, which simulations do not need

    # Whoever ends this process ends the job with it, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scenario = loading.load(args.scenario, seed=args.seed)
    path = live.run(scenario, args.job, args.out, progress=advise)
    evidence_cli.show(path, args.json)
    return exit_status(page.read(path))


def exit_status(journal: Journal) -> int:
    """Return what a journal means to a shell: as its report says, but that a job which failed is no mere doubt."""
    verdict = summarise(journal).verdict
    ends = [news.exit for news in journal.of(DriverNews) if news.phase == "ended"]
    failed = bool(ends) and ends[-1] is not None and ends[-1] > 0
    return JOB_FAILED if verdict == "not_proven" and failed else evidence_cli.STATUS[verdict]
