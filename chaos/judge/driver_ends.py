"""Decides from exit statuses and restart causes whether the job survived a fault or broke a rule.

Expected errors are sentences; an unexpected one is reported by its type and where it was raised
(runtime/processes/host.py, runtime/cli/reporting.py). A job under faults may lose any process, but no process may
find an invariant broken: the simulator, too, calls that a violation.

Invariant
    - An end that a fault of the run caused never counts as a violation.

Pure: texts and numbers.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.chaos.judge.findings import Finding
from holdfast.errors import Damaged, JobFailed

UNEXPECTED = 1
"""Exit status of a driver after an unexpected error."""
GAVE_UP = (Damaged.exit_status, JobFailed.exit_status)
"""Exit statuses by which a driver reports that starting another one would be useless."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that a process causes itself."""
MISTAKES = (
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "RecursionError",
    "TypeError",
    "UnboundLocalError",
    "ZeroDivisionError",
)
"""Errors of the code itself; others may come from a disk or a connection under a fault."""
_MISTAKE = re.compile(rf"^(?:unexpected )?(?:{'|'.join(MISTAKES)})\b|\bAssertionError\b")
SHOWN_MAX = 3


@dataclass(frozen=True)
class Ended:
    """A driver that did not exit with status 0."""

    status: int
    """Negative: ended by this signal."""
    why: str
    """Its last message."""
    struck: bool
    """A fault of the run ended it, or it refused an object that a fault had damaged."""
    epochs: int
    """Epochs completed since the run began."""


def raised(causes: Iterable[str], ends: Iterable[Ended]) -> Finding:
    """Return whether any process met an unexpected error.

    Args:
        causes: Why generations were started, from the job log.
        ends: How each driver ended.
    """
    wrong = [cause for cause in causes if _MISTAKE.search(cause)]
    wrong += [f"the driver ended with status {end.status}: {end.why}" for end in ends if _is_wrong(end)]
    return Finding("raised", not wrong, detail="; ".join(dict.fromkeys(wrong[:SHOWN_MAX])))


def gave_up(ends: Iterable[Ended]) -> Finding | None:
    """Return whether the job, once running, could not continue; no fault excuses that (I11). None if it could."""
    for end in ends:
        if end.status in GAVE_UP and not end.struck and end.epochs > 0:
            said = f"the driver ended with status {end.status} although no fault had struck it: {end.why}"
            return Finding("progress", False, "I11", detail=said)
    return None


def _is_wrong(end: Ended) -> bool:
    if end.struck:
        return False
    said = end.why.removeprefix("holdfast: ")
    # Before the job has run, the job's own file may be the cause of an unexpected error.
    crashed = end.epochs > 0 and (end.status == UNEXPECTED or -end.status in CRASHES)
    return crashed or _MISTAKE.search(said) is not None
