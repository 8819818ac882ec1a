"""`holdfast chaos report`: what is left of a run under live faults, as text, as JSON and as a page.

Exit status: 0 everything held, 1 something did not or is not proven, 2 wrong use, 4 the journal is damaged.

Source: DESIGN section 10.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.chaos import page
from holdfast.chaos.live_report import as_json, summarise, text_lines
from holdfast.runtime.cli.reporting import advise

AddCommand = Callable[[Any, str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]


def add_commands(commands: Any, add: AddCommand) -> None:
    """Add the commands below `chaos`; `add` makes one as the others are."""
    report = add(commands, "report", run_report, "show what a run under live faults came to, and write its page")
    report.add_argument("folder", metavar="FOLDER", help=f"what the run wrote: a folder with {page.JOURNAL}")


def run_report(args: argparse.Namespace) -> int:
    """Write report.json and report.html beside the journal, and show the summary."""
    given = Path(args.folder)
    journal = given if given.suffix == Path(page.JOURNAL).suffix else given / page.JOURNAL
    paths = page.write(journal)
    report = summarise(page.read(journal))
    if args.json:
        print(as_json(report).decode(), end="")
    else:
        print("\n".join(text_lines(report)))
    advise(f"page: {paths.html}")
    return 0 if report.verdict == "held" else 1
