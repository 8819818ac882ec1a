"""`holdfast chaos report|soak|statement`: what runs under faults prove, and how much of it there is.

Exit status: 0 everything held, 1 nothing is proven, 2 wrong use, 4 something did not hold, or a journal or log is
damaged, 6 a soak runs in that folder already.

Source: DESIGN section 10.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.chaos import live_port, page, soak
from holdfast.chaos.live_records import Verdict
from holdfast.chaos.live_report import as_json, summarise, text_lines
from holdfast.chaos.report import Summary
from holdfast.chaos.soak_log import SoakLog, state, statement_json, statement_lines
from holdfast.errors import ConfigError
from holdfast.runtime.cli.reporting import advise, print_json

STATUS: dict[Verdict, int] = {"held": 0, "not_proven": 1, "violated": 4}
PlayAll = Callable[[range, int], Summary]
AddCommand = Callable[[Any, str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]


def add_commands(commands: Any, add: AddCommand, play_all: PlayAll) -> None:
    """Add the commands below `chaos`; `add` makes one as the others are, `play_all` plays seeds in processes."""
    report = add(commands, "report", run_report, "show what a run under live faults came to, and write its page")
    report.add_argument("folder", metavar="FOLDER", help=f"what the run wrote: a folder with {page.JOURNAL}")
    does = "play the simulator and live runs for hours; started again, go on where it was"
    soaking = add(commands, "soak", lambda args: run_soak(args, play_all), does)
    hours = "in all, over every start with this code"
    soaking.add_argument("--hours", type=float, required=True, metavar="N", help=hours)
    soaking.add_argument("--folder", required=True, metavar="F", help="where the log is kept")
    soaking.add_argument("--workers", type=int, default=1, metavar="N", help="processes to play in; default 1")
    soaking.add_argument(
        "--batch", type=int, default=soak.BATCH_SEEDS, metavar="N", help=f"seeds of a batch; default {soak.BATCH_SEEDS}"
    )
    soaking.add_argument("--scenario", metavar="S.toml", help="live runs too, by this scenario")
    soaking.add_argument("--job", metavar="JOB.py", help="the job of live runs")
    stating = add(commands, "statement", run_statement, "say what the log of a soak proves")
    stating.add_argument("folder", metavar="FOLDER", help="the folder of the soak")


def run_report(args: argparse.Namespace) -> int:
    """Write report.json and report.html beside the journal, and show the summary."""
    given = Path(args.folder)
    journal = given if given.suffix == Path(page.JOURNAL).suffix else given / page.JOURNAL
    show(journal, args.json)
    return STATUS[summarise(page.read(journal)).verdict]


def show(journal: Path, in_json: bool) -> None:
    """Write report.json and report.html beside the journal, and show the summary."""
    paths = page.write(journal)
    report = summarise(page.read(journal))
    if in_json:
        print(as_json(report).decode(), end="")
    else:
        print("\n".join(text_lines(report)))
    advise(f"page: {paths.html}")


def run_soak(args: argparse.Namespace, play_all: PlayAll) -> int:
    """Soak; show the statement."""
    if args.hours <= 0 or args.workers < 1 or args.batch < 1:
        raise _wrong("--hours is above 0, --workers and --batch are at least 1")
    log = soak.Soak(
        folder=Path(args.folder),
        hours=args.hours,
        play=lambda seeds: play_all(seeds, args.workers),
        live=_live_runs(args.scenario, args.job),
        batch_seeds=args.batch,
        progress=advise,
    ).run()
    return _show(log, args.json, Path(args.folder))


def run_statement(args: argparse.Namespace) -> int:
    """Show what a log proves."""
    folder = Path(args.folder)
    return _show(soak.read(folder), args.json, folder)


def _show(log: SoakLog, as_json: bool, folder: Path) -> int:
    stated = state(log)
    if as_json:
        print_json(statement_json(stated))
    else:
        print("\n".join(statement_lines(stated)))
    advise(f"log: {folder / soak.LOG}")
    if not stated or not stated[0].recoveries:
        return STATUS["not_proven"]
    newest = stated[0]
    return STATUS["violated" if newest.violations else "not_proven" if newest.never_struck else "held"]


def _live_runs(scenario: str | None, job: str | None) -> soak.LiveRuns | None:
    if (scenario is None) != (job is None):
        raise _wrong("live runs take both --scenario and --job")
    if scenario is None or job is None:
        return None
    lacking = live_port.missing()
    if lacking is not None:
        advise(f"no live runs: {lacking}")
        return None
    return soak.LiveRuns(live_port.of_file(Path(scenario), Path(job)), Path(job))


def _wrong(what: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was played", next_step="see holdfast chaos soak --help")
