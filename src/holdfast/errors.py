"""The few kinds of error. Each kind decides who has to act.

A message states the event, what was *not* done, and the next step. A broken invariant is
an `assert` and stops the process; an expected refusal is an event, never an exception.
"""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from opcode import opmap
from typing import Any

_RAISE = opmap["RAISE_VARARGS"]


@dataclass(frozen=True)
class Where:
    """The place an error refers to; an unknown part is None, never zero."""

    job: str | None = None
    operator: str | None = None
    epoch: int | None = None
    source: str | None = None
    partition: int | None = None
    offset: int | None = None
    object: str | None = None
    """A damaged object of the job's root, as its path below it."""


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """An error as a value: on the wire, in the master's state, and in JSON as `errors` of API.md."""

    kind: str
    job: str | None = None
    operator: str | None = None
    epoch: int | None = None
    source: str | None = None
    partition: int | None = None
    offset: int | None = None
    object: str | None = None
    """See Where; omitted from JSON if there is none."""
    what: str
    not_done: str
    next: str

    def as_json(self) -> dict[str, Any]:
        """Return the error in the form of `errors` in API.md."""
        return {name: value for name, value in asdict(self).items() if name != "object" or value is not None}

    def as_error(self) -> HoldfastError:
        """Return the error that this report was made of."""
        where = Where(self.job, self.operator, self.epoch, self.source, self.partition, self.offset, self.object)
        raised = _KINDS.get(self.kind, JobFailed)
        return raised(self.what, not_done=self.not_done, next_step=self.next, where=where)


class HoldfastError(Exception):
    """Every error that a user may see: the event, the action that was not done, the next step.

    Args:
        what: The event, one sentence without a final full stop.
        not_done: The action that was not done, or the data that was not changed, as a result.
        next_step: Instruction to the reader.
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

    def report(self) -> ErrorReport:
        """Return the error as a value."""
        return ErrorReport(
            kind=self.kind, what=self.what, not_done=self.not_done, next=self.next_step, **asdict(self.where)
        )

    def as_json(self) -> dict[str, Any]:
        """Return the error in the form of `errors` in API.md."""
        return self.report().as_json()


def _rebuild(kind: type[HoldfastError], what: str, not_done: str, next_step: str, where: Where) -> HoldfastError:
    return kind(what, not_done=not_done, next_step=next_step, where=where)


class ConfigError(HoldfastError):
    """The caller has to change the job, a setting or the command."""

    kind = "config"
    exit_status = 2


class Damaged(HoldfastError):
    """Stored bytes differ from what was written; restore an older copy."""

    kind = "damaged"
    exit_status = 4


class TooLarge(Damaged):
    """An object is larger than any that Holdfast writes there: another program wrote it."""

    def __init__(self, path: str, bytes_max: int) -> None:
        super().__init__(
            f"{path} has more than {bytes_max:,} bytes, which no such object has",
            not_done="it was not read",
            next_step="remove it, or restore it from a copy",
        )


class LocalDamaged(Damaged):
    """The state on this machine's disk differs from what was written; a restart reads the checkpoint instead."""


class Unavailable(HoldfastError):
    """A source, target or store is unreachable; a later retry may succeed.

    If a write raises it, the outcome is unknown: the write may have taken effect.
    """

    kind = "unavailable"
    exit_status = 5


class NotAdmitted(Unavailable):
    """A target refuses the login or a statement of the job's user, or there is nothing to log in with.

    An administrator may change that at any time. So it is a reason to wait, but for a job that has not used the target
    before: there it is a mistake of the configuration.
    """


class Fenced(HoldfastError):
    """A newer generation or another run owns the job; this process may not write again."""

    kind = "fenced"
    exit_status = 6


class JobFailed(HoldfastError):
    """The job cannot continue; the message holds the first cause, not the last symptom."""

    kind = "failed"
    exit_status = 7


_KINDS: dict[str, type[HoldfastError]] = {
    each.kind: each for each in (ConfigError, Damaged, Unavailable, Fenced, JobFailed)
}


class AlreadyExists(Exception):
    """A conditional create found the name taken; the caller reads the existing object."""


class NotFound(Exception):
    """The object does not exist."""


def is_failure(error: BaseException) -> bool:
    """Return whether this error is a failure of the code that raised it, whatever its class is.

    An error from the handler of a signal, such as an interrupt or the time limit of a test, is meant for the program
    that runs the code.
    """
    if isinstance(error, Exception):
        return True
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    raised_by_code, at = True, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in handlers:
            return False
        raised_by_code, at = at.tb_frame.f_code.co_code[at.tb_lasti] == _RAISE, at.tb_next
    # Python's own handler of SIGINT is not Python code: it raises wherever the code is, at no `raise`.
    return raised_by_code or not isinstance(error, KeyboardInterrupt)
