"""What the ends of drivers and the causes of restarts tell: a fault that was survived, or a rule that was broken.

Errors that somebody foresaw are sentences; one that nobody did is told by its type and the place where it arose
(runtime/spark/host.py, runtime/cli/reporting.py). A job under faults may lose any process, but none of them may
find that what has to be so is not: the simulator calls the same thing a violation.

Invariant
    - What a fault of the run did to a driver is held against nobody.

Pure: texts and numbers.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.chaos.findings import Finding
from holdfast.errors import Damaged, JobFailed

UNEXPECTED = 1
"""Exit status of a driver that met an error which nobody foresaw."""
GAVE_UP = (Damaged.exit_status, JobFailed.exit_status)
"""A driver that ends with one of these says that it would be in vain to start another one."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that a process brings upon itself."""
MISTAKES = (
    "AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "RecursionError", "TypeError",
    "UnboundLocalError", "ZeroDivisionError",
)  # fmt: skip
"""Errors of the code itself; others may come from a disk or a connection that a fault has struck."""
_MISTAKE = re.compile(rf"^(?:unexpected )?(?:{'|'.join(MISTAKES)})\b|\bAssertionError\b")
SHOWN_MAX = 3


@dataclass(frozen=True)
class Ended:
    """A driver that ended otherwise than with 0."""

    status: int
    """Below 0: by this signal."""
    why: str
    """What it said last."""
    struck: bool
    """A fault of the run ended it, or it refused what a fault had damaged."""
    epochs: int
    """How many were completed since the run began."""


def raised(causes: Iterable[str], ends: Iterable[Ended]) -> Finding:
    """Return whether any process met an error that nobody foresaw.

    Args:
        causes: Why generations were started, as the job log says.
        ends: Of every driver.
    """
    wrong = [cause for cause in causes if _MISTAKE.search(cause)]
    wrong += [f"the driver ended with status {end.status}: {end.why}" for end in ends if _is_wrong(end)]
    return Finding("raised", not wrong, detail="; ".join(dict.fromkeys(wrong[:SHOWN_MAX])))


def gave_up(ends: Iterable[Ended]) -> Finding | None:
    """Return whether the job, once it had run, could not go on; no fault excuses that (I11), None if it could."""
    for end in ends:
        if end.status in GAVE_UP and not end.struck and end.epochs > 0:
            said = f"the driver ended with status {end.status}, and nothing had struck it: {end.why}"
            return Finding("progress", False, "I11", detail=said)
    return None


def _is_wrong(end: Ended) -> bool:
    if end.struck:
        return False
    said = end.why.removeprefix("holdfast: ")
    # Before the job has run, an unexpected error may as well be of the job's own file.
    crashed = end.epochs > 0 and (end.status == UNEXPECTED or -end.status in CRASHES)
    return crashed or _MISTAKE.search(said) is not None
