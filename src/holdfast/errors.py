"""The few kinds of error, each named for who has to act.

A message says what happened, what was *not* done, and what to do next. A broken invariant is
an `assert` and stops the process; an expected refusal is an event, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Where:
    """The place an error speaks of; what is not known stays None, never zero."""

    job: str | None = None
    operator: str | None = None
    epoch: int | None = None
    source: str | None = None
    partition: int | None = None
    offset: int | None = None


class HoldfastError(Exception):
    """Every error a user may see: what happened, what was not done, what to do next.

    Args:
        what: What happened, one sentence without a final full stop.
        not_done: What was therefore not done or not changed.
        next_step: What the reader should do.
        where: Job, operator, epoch, source, partition, offset, as far as known.
    """

    kind = "error"
    exit_status = 1

    def __init__(
        self, what: str, *, not_done: str = "nothing was changed", next_step: str, where: Where = Where()
    ) -> None:
        self.what, self.not_done, self.next_step, self.where = what, not_done, next_step, where
        super().__init__(what, not_done, next_step, where)

    def __str__(self) -> str:
        end = "" if self.what.endswith((".", "?")) else "."
        return f"{self.what}{end}\nNot done: {self.not_done}.\nNext: {self.next_step}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.not_done, self.next_step, self.where)

    def as_json(self) -> dict[str, Any]:
        """Return the error in the form of API.md's `errors`."""
        place = self.where
        return {
            "kind": self.kind, "job": place.job, "operator": place.operator, "epoch": place.epoch,
            "source": place.source, "partition": place.partition, "offset": place.offset,
            "what": self.what, "not_done": self.not_done, "next": self.next_step,
        }  # fmt: skip


def _rebuild(kind: type[HoldfastError], what: str, not_done: str, next_step: str, where: Where) -> HoldfastError:
    return kind(what, not_done=not_done, next_step=next_step, where=where)


class ConfigError(HoldfastError):
    """The caller has to change the job, a setting or the command."""

    kind = "config"
    exit_status = 2


class Damaged(HoldfastError):
    """Stored bytes are not what was written; restore from something older."""

    kind = "damaged"
    exit_status = 4


class LocalDamaged(Damaged):
    """The copy of the state on this machine's disk is not what was written; a restart reads the checkpoint instead."""


class Unavailable(HoldfastError):
    """Something outside is not reachable; trying again later may work.

    Raised by a write, it means the outcome is unknown: it may have taken effect.
    """

    kind = "unavailable"
    exit_status = 5


class Fenced(HoldfastError):
    """A newer generation owns the job, or another run does; this process may not write again."""

    kind = "fenced"
    exit_status = 6


class JobFailed(HoldfastError):
    """The job cannot run on; the message holds the first cause, not the last symptom."""

    kind = "failed"
    exit_status = 7


class AlreadyExists(Exception):
    """A conditional create found the name taken; the caller reads what is there."""


class NotFound(Exception):
    """There is no such object."""


def is_failure(error: BaseException) -> bool:
    """Return whether code failed with this: an exception, `sys.exit`, or a panic of native code.

    All else, an interrupt or the time limit of a test, is meant for whoever runs the process.
    """
    return isinstance(error, Exception | SystemExit) or type(error).__module__ == "pyo3_runtime"
