"""Kills a `holdfast` command at each of its steps in turn, repeats it to its end, and reports the durable result.

    python killed_at_each.py FOLDER COPY FIRST EVERY ARGUMENT...

Before each turn, FOLDER becomes a copy of COPY again. Turns FIRST, FIRST + EVERY, ... end with the first step that the
command does not reach. Each turn prints a line of JSON: step, exit status (negative: the signal) of the command that
was killed and of its repetition, and the durable data after both.

A turn takes two processes. They are forked from this one, which has imported their modules but used none of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import killed_at
import words_job

from holdfast.runtime.cli.main import main as holdfast
from holdfast.runtime.cli.operate import rewind  # noqa: F401
from holdfast.runtime.rewind import stopped as rewind_run  # noqa: F401 - imported once, for all forks


def forked(work: Callable[[], int]) -> int:
    """Run this in its own process; return its exit status, or minus the signal that ended it."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(folder: Path, arguments: list[str], kill_at: int) -> int:
    """Run the command and discard its printed output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    steps = killed_at.Steps(kill_at, folder)
    if kill_at:
        sys.addaudithook(steps.audit)
        sqlite3.connect = steps.connected  # type: ignore[assignment]
    return holdfast(arguments)


def repeated(folder: Path, arguments: list[str], found: Path) -> int:
    """Run the command to its end, and write the durable data to a file."""
    status = command(folder, arguments, 0)
    found.write_text(json.dumps(words_job.durable(folder)))
    return status


def main() -> None:
    """Take turns until the command completes before its kill."""
    folder, copy = Path(sys.argv[1]), Path(sys.argv[2])
    step, every, arguments = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
    found, killed = copy.with_name(f"found-{step}.json"), -1
    while killed < 0:
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        killed = forked(lambda: command(folder, arguments, step))  # noqa: B023 - called immediately
        again = forked(lambda: repeated(folder, arguments, found)) if killed < 0 else None
        left = json.loads(found.read_text()) if again is not None else None
        print(json.dumps({"step": step, "killed": killed, "again": again, "left": left}), flush=True)
        step += every


if __name__ == "__main__":
    main()
