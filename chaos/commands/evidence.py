"""`holdfast chaos report|soak|statement`: the claims that runs under faults support, and by how many recoveries.

Exit status: 0 everything held, 1 nothing is proven, 2 wrong use, 4 something did not hold, or a journal or log is
damaged, 6 another soak runs in that folder.

Source: DESIGN section 10.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.chaos.evidence import page, soak
from holdfast.chaos.evidence.report import as_json, summarise, text_lines
from holdfast.chaos.evidence.soak_log import SoakLog, state, statement_json, statement_lines
from holdfast.chaos.explore.playing import SEEDS_MAX, WORKERS_MAX, play_all, saying_if_interrupted
from holdfast.chaos.judge.records import Begin, Verdict
from holdfast.chaos.live import port as live_port
from holdfast.errors import ConfigError
from holdfast.runtime.cli.reporting import advise, print_json

STATUS: dict[Verdict, int] = {"held": 0, "not_proven": 1, "violated": 4}
AddCommand = Callable[..., argparse.ArgumentParser]
_STATED = "0 everything held, 1 nothing is proven, 2 wrong use, 4 something did not hold, or the log is damaged"


def add_commands(commands: Any, add: AddCommand) -> None:
    """Add the commands below `chaos`; `add` makes one in the style of the others."""
    report = add(
        commands,
        "report",
        run_report,
        "show the result of a run under live faults and write its page",
        "holdfast chaos report chaos-run\nholdfast chaos report chaos-run/journal.jsonl --json",
        "0 everything held, 1 nothing is proven, 2 wrong use, 4 something did not hold, or the journal is damaged",
    )
    report.add_argument("folder", metavar="FOLDER", help=f"folder of the run, or its {page.JOURNAL}")
    does = "play the simulator and live runs for hours; resumes when started again"
    soaking = add(
        commands,
        "soak",
        run_soak,
        does,
        "holdfast chaos soak --hours 8 --folder soak --workers 2\n"
        "holdfast chaos soak --hours 8 --folder soak --scenario flights-short --job job.py",
        f"{_STATED}, 6 another soak runs in that folder",
    )
    hours = "total hours over all starts with this code"
    soaking.add_argument("--hours", type=float, required=True, metavar="N", help=hours)
    soaking.add_argument("--folder", required=True, metavar="F", help="folder of the log")
    soaking.add_argument("--workers", type=int, default=1, metavar="N", help="processes to play in; default 1")
    soaking.add_argument(
        "--batch", type=int, default=soak.BATCH_SEEDS, metavar="N", help=f"seeds of a batch; default {soak.BATCH_SEEDS}"
    )
    soaking.add_argument("--scenario", metavar="S.toml", help="add live runs of this scenario")
    soaking.add_argument("--job", metavar="JOB.py", help="the job of live runs")
    stating = add(
        commands,
        "statement",
        run_statement,
        "state what the log of a soak proves",
        "holdfast chaos statement soak\nholdfast chaos statement soak --json",
        _STATED,
    )
    stating.add_argument("folder", metavar="FOLDER", help="the folder of the soak")


def run_report(args: argparse.Namespace) -> int:
    """Write report.json and report.html beside the journal, and show the summary."""
    given = Path(args.folder)
    journal = given if given.suffix == Path(page.JOURNAL).suffix else given / page.JOURNAL
    _check_begins(journal)
    show(journal, args.json)
    return STATUS[summarise(page.read(journal)).verdict]


def _check_begins(journal: Path) -> None:
    """Refuse a file that no run wrote: a journal without its first record could only ever prove nothing."""
    records = page.read(journal).records
    if not records or not isinstance(records[0], Begin):
        raise ConfigError(
            f"{journal} is not the journal of a run: its first line is not a run's",
            not_done="no report was made",
            next_step=f"give the folder that holdfast chaos run wrote; it holds {page.JOURNAL}",
        )


def show(journal: Path, in_json: bool) -> None:
    """Write report.json and report.html beside the journal, and show the summary."""
    again = journal.with_name(page.PAGE).exists()
    paths = page.write(journal)
    report = summarise(page.read(journal))
    if in_json:
        print(as_json(report).decode(), end="")
    else:
        print("\n".join(text_lines(report)))
    advise(f"page: {paths.html}{'; the older one was replaced' if again else ''}")


def run_soak(args: argparse.Namespace) -> int:
    """Soak; show the statement."""
    if not (math.isfinite(args.hours) and args.hours > 0):
        raise _wrong(f"--hours must be a number above 0, not {args.hours}")
    for flag, given, most in (("workers", args.workers, WORKERS_MAX), ("batch", args.batch, SEEDS_MAX)):
        if not 1 <= given <= most:
            raise _wrong(f"--{flag} must be at {'least 1' if given < 1 else f'most {most:,}'}, not {given}")
    soaking = soak.Soak(
        folder=Path(args.folder),
        hours=args.hours,
        play=lambda seeds: play_all(seeds, args.workers),
        live=_live_runs(args.scenario, args.job),
        batch_seeds=args.batch,
        progress=advise,
    )
    with saying_if_interrupted("finished batches are in the log; the next soak in that folder resumes after them"):
        log = soaking.run()
    return _show(log, args.json, Path(args.folder))


def run_statement(args: argparse.Namespace) -> int:
    """Show the evidence in a log."""
    folder = Path(args.folder)
    return _show(soak.read(folder), args.json, folder)


def _show(log: SoakLog, as_json: bool, folder: Path) -> int:
    statements = state(log)
    if as_json:
        print_json(statement_json(statements))
    else:
        print("\n".join(statement_lines(statements)))
    advise(f"log: {folder / soak.LOG}")
    if not statements or not statements[0].recoveries:
        return STATUS["not_proven"]
    newest = statements[0]
    doubtful = newest.never_struck or newest.live_not_proven
    return STATUS["violated" if newest.violations else "not_proven" if doubtful else "held"]


def _live_runs(scenario: str | None, job: str | None) -> soak.LiveRuns | None:
    if (scenario is None) != (job is None):
        raise _wrong("live runs need both --scenario and --job")
    if scenario is None or job is None:
        return None
    lacking = live_port.missing()
    if lacking is not None:
        advise(f"no live runs: {lacking}")
        return None
    return soak.LiveRuns(live_port.of_file(Path(scenario), Path(job)), Path(job))


def _wrong(what: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was played", next_step="see holdfast chaos soak --help")
