"""The observations and conclusions of a worker's companion process.

A worker whose Python function holds the interpreter sends no heartbeat; a killed worker cannot report which function
it was running. So a small process beside it reads a board in shared memory, where the worker counts beats and marks
the next call, and reports for the worker when the worker cannot.

Invariants
    - The companion does not report for a worker that beats.
    - It does not report for a worker stopped by a signal: to the driver that worker is as silent as a partitioned host.
    - Time in which the companion itself did not run, or the worker was stopped, does not count towards a limit.
    - A worker that holds its interpreter for too long is killed, and sooner if the driver has dismissed it.

Pure: no clock, thread or I/O. Driven by runtime/processes/companion.py.
Source: docs/decisions/0026-vitals.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

FUNCTION = "function: "
"""Prefix of the mark for the Python function of a step; the step's name follows."""
SOURCE = "source: "
"""Prefix of the mark for a read of a source; the source's name follows."""
INTERPRETER = "interpreter"
"""The mark for code that holds the interpreter while nothing is marked."""
SPEAKS_AFTER_BEATS = 1.5
"""The companion reports for a worker that has not beaten for this many intervals."""

State = Literal["held", "hung", "ended", "lost"]
UNKNOWN = -1
"""The partition of rows that do not come from a source directly."""


class At(NamedTuple):
    """The rows that were given to a function (docs/decisions/0117)."""

    rows: int
    """How many at most."""
    partition: int = UNKNOWN
    offset: int = 0
    """The offset of the first record, if the partition is known."""
    following: int = 0
    """The offset after the last record."""
    digest: int = 0
    """Hash of the row, if it is a single one and the function is under suspicion; else 0."""


class Mark(Protocol):
    """Records what is about to be called, None when it has returned; and for which rows."""

    def __call__(self, what: str | None, at: At | None = None, /) -> None: ...


def described(mark: str | None) -> str:
    """Return a mark in words, to follow "while it ran"."""
    if mark is not None and mark.startswith(FUNCTION):
        return f"the Python function of step {mark.removeprefix(FUNCTION)!r}"
    if mark is not None and mark.startswith(SOURCE):
        return f"a read of source {mark.removeprefix(SOURCE)!r}"
    return "code outside Python functions"


def advice_for(state: State) -> str:
    """Return what a user can do about a function that ran when a process reached this state."""
    match state:
        case "hung":
            return "limit its run time (set timeouts on calls, avoid patterns that backtrack), or raise hung_after_ms"
        case "held":
            return "check whether the machine was overloaded, cut off or stopped"
        case "ended" | "lost":
            return "check whether it ends its process (os._exit, a crash of native code), or needs too much memory"


@dataclass(frozen=True)
class Observation:
    """One observation of the worker."""

    at: float
    """Time of the observation, in seconds."""
    beats: int
    """How often the worker has shown that its threads run."""
    alive: bool
    stopped: bool = False
    """A signal has stopped the process."""
    linked: bool = True
    """The companion's stream to the driver is open."""


@dataclass(frozen=True)
class CompanionLimits:
    """Settings of a companion, in seconds."""

    every: float
    """Interval between two beats of a healthy worker."""
    hung_after: float
    session_timeout: float


@dataclass(frozen=True)
class VitalsWatch:
    """The state of the worker as of the last observation."""

    looked: float
    beats: int = -1
    held: float = 0.0
    """How long the worker has not beaten although it could run."""


def look(watch: VitalsWatch, seen: Observation, limits: CompanionLimits) -> tuple[VitalsWatch, State | None]:
    """Take one observation.

    Returns:
        The report on the worker, None if the worker reports itself. `held`: it is alive and its interpreter is held.
        `hung` and `lost`: it must also be killed, after `hung_after` or because the driver has dismissed it. `ended`.
    """
    elapsed_s = min(seen.at - watch.looked, 2 * limits.every)
    watch = replace(watch, looked=seen.at)
    if not seen.alive:
        return watch, "ended"
    if seen.beats != watch.beats:
        return replace(watch, beats=seen.beats, held=0.0), None
    if seen.stopped:
        return watch, None
    watch = replace(watch, held=watch.held + elapsed_s)
    if watch.held > limits.hung_after:
        return watch, "hung"
    if not seen.linked and watch.held > limits.session_timeout:
        return watch, "lost"
    return watch, "held" if watch.held > SPEAKS_AFTER_BEATS * limits.every else None
