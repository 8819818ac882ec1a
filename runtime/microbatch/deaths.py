"""The end of a task's process during a call of a function, as the job reports it (docs/decisions/0117).

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import Unavailable
from holdfast.runtime.wire.vitals import At


class TaskDeath(NamedTuple):
    """A function call during which a process ended."""

    mark: str | None
    """The mark of the function."""
    subtask: int
    at: At | None
    """The rows that it was called for; None: no rows of a stream."""
    how: str
    """How it ended."""


class ProcessEnded(Unavailable):
    """The process of a task has ended unexpectedly.

    Args:
        death: The function call during which it ended, if there was one.
    """

    def __init__(self, what: str, *, not_done: str, next_step: str, death: TaskDeath | None) -> None:
        super().__init__(what, not_done=not_done, next_step=next_step)
        self.death = death
