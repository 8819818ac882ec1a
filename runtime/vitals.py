"""What a companion process sees of its worker, and what it makes of that.

A worker whose Python function holds the interpreter can show no sign of life; one that is killed cannot say what it was
doing. So a small process beside it looks at a board in shared memory, where the worker counts beats and marks what
it is about to call, and speaks for the worker when the worker cannot.

Invariants
    - A worker that beats is not spoken for.
    - A worker that is stopped by a signal is not spoken for: for the driver it is as silent as a partitioned host.
    - Time in which the companion itself did not run, or the worker was stopped, does not count towards a limit.
    - A worker that holds its interpreter for too long is ended, and after a shorter time if the driver has let it go.

Pure: no clock, thread or I/O. Driven by runtime/spark/companion.py.
Source: docs/design/0026-vitals.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

FUNCTION = "function: "
"""Begins a mark that stands for the Python function of a step; its name follows."""
SOURCE = "source: "
"""Begins a mark that stands for a source that is read; its name follows."""
INTERPRETER = "interpreter"
"""Stands for code that holds the interpreter where nothing is marked."""
SPEAKS_AFTER_BEATS = 1.5
"""A worker is spoken for when it has not beaten for so many intervals."""

State = Literal["held", "hung", "ended", "lost"]


def described(mark: str | None) -> str:
    """Return a mark in words, to follow "while it ran"."""
    if mark is not None and mark.startswith(FUNCTION):
        return f"the Python function of step {mark.removeprefix(FUNCTION)!r}"
    if mark is not None and mark.startswith(SOURCE):
        return f"a read of source {mark.removeprefix(SOURCE)!r}"
    return "code outside of Python functions"


@dataclass(frozen=True)
class Seen:
    """One look at the worker."""

    at: float
    """Time of the look, in seconds."""
    beats: int
    """How often the worker has shown that its threads run."""
    alive: bool
    stopped: bool = False
    """A signal has stopped the process."""
    linked: bool = True
    """The driver still listens to the companion."""


@dataclass(frozen=True)
class Limits:
    """Settings of a companion, in seconds."""

    every: float
    """Between two beats of a healthy worker."""
    hung_after: float
    session_timeout: float


@dataclass(frozen=True)
class Watch:
    """What is known of the worker after the last look."""

    looked: float
    beats: int = -1
    held: float = 0.0
    """For how long the worker has not beaten although it could run."""


def look(watch: Watch, seen: Seen, limits: Limits) -> tuple[Watch, State | None]:
    """Take one look.

    Returns:
        What is to be said of the worker, None if it speaks for itself: `held`, it lives and its interpreter is held;
        `hung` and `lost`, it is also to be ended, after `hung_after`, or because the driver has let it go; `ended`.
    """
    passed = min(seen.at - watch.looked, 2 * limits.every)
    watch = replace(watch, looked=seen.at)
    if not seen.alive:
        return watch, "ended"
    if seen.beats != watch.beats:
        return replace(watch, beats=seen.beats, held=0.0), None
    if seen.stopped:
        return watch, None
    watch = replace(watch, held=watch.held + passed)
    if watch.held > limits.hung_after:
        return watch, "hung"
    if not seen.linked and watch.held > limits.session_timeout:
        return watch, "lost"
    return watch, "held" if watch.held > SPEAKS_AFTER_BEATS * limits.every else None
