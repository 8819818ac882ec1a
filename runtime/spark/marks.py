"""Reports to Spark which function the Python process of a task runs, and ends a process in which a call takes too long.

With `spark.sql.execution.pyspark.udf.faulthandler.enabled`, Spark names a file to every Python process and quotes it in
the error of the task if that process ends unexpectedly. Here the file holds the mark of the running function. A process
whose interpreter is held by a call is ended by a timer that does not need the interpreter.

I/O: that file, a timer of Python's faulthandler.
Source: docs/decisions/0026-vitals.md.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
from contextlib import suppress
from typing import NamedTuple

from holdfast import children
from holdfast.runtime.wire.vitals import At, advice_for, described

SETTING = "spark.sql.execution.pyspark.udf.faulthandler.enabled"
_FOLDER = "PYTHON_FAULTHANDLER_DIR"
_ENDED = "Python worker exited unexpectedly"
_MARK = re.compile(r"holdfast-mark: (.+)")
_AT = re.compile(r"holdfast-at: (\d+) (\d+) (-?\d+) (-?\d+) (-?\d+) (\d+)")
"""The subtask, then the fields of vitals.At."""
_FATAL = re.compile(r"Fatal Python error: .+")
_TIMEOUT = re.compile(r"^Timeout \(", re.MULTILINE)
_STDERR = 2


class CallMarks:
    """The marks of one task.

    Args:
        hung_after_s: How long a call may last.
        subtask: That of the task.
    """

    def __init__(self, hung_after_s: float, subtask: int = 0) -> None:
        self._hung_after_s, self._file, self._subtask = hung_after_s, -1, subtask
        if folder := os.environ.get(_FOLDER):
            with suppress(FileNotFoundError):
                self._file = os.open(os.path.join(folder, str(os.getpid())), os.O_WRONLY | os.O_APPEND)
                faulthandler.enable(self._file)  # the file as opened by Spark itself would overwrite the mark

    def mark(self, what: str | None, at: At | None = None, /) -> None:
        """See vitals.Mark."""
        if what is None:
            children.end_if_child()
        faulthandler.cancel_dump_traceback_later()
        if self._file >= 0:
            os.ftruncate(self._file, 0)
        if what is None:
            return
        if self._file >= 0:
            place = " ".join(map(str, (self._subtask, *(at or At(0)))))
            os.write(self._file, f"holdfast-mark: {what}\nholdfast-at: {place}\n".encode())
        written = self._file if self._file >= 0 else _STDERR
        faulthandler.dump_traceback_later(self._hung_after_s, exit=True, file=written)

    def close(self) -> None:
        """Record no more."""
        faulthandler.cancel_dump_traceback_later()
        if self._file >= 0:
            faulthandler.enable(sys.__stderr__ or _STDERR)
            os.close(self._file)
            self._file = -1


class PythonEnd(NamedTuple):
    """How the Python process of a task ended."""

    mark: str | None
    """The function that ran."""
    hung: bool
    subtask: int = 0
    at: At | None = None
    """The rows that the function was called for."""
    fatal: str = ""
    """The last report of Python's faulthandler."""

    @property
    def how(self) -> str:
        """How the process ended."""
        return self.fatal or "the Python process of the task ended, and Spark does not say how"

    @property
    def what(self) -> str:
        """The event as a clause without its subject."""
        how = "was ended because one call lasted longer than hung_after_ms" if self.hung else "ended unexpectedly"
        return f"{how}, while it ran {described(self.mark)}"

    @property
    def advice(self) -> str:
        """The next step."""
        return advice_for("hung" if self.hung else "ended")


def ended(report: str) -> PythonEnd | None:
    """Return how the Python process ended that made a job fail, as Spark reports it; None if none did."""
    at = report.find(_ENDED)
    if at < 0:
        return None
    excerpt = report[at:].partition("\tat ")[0]
    mark, place = _MARK.search(excerpt), _AT.search(excerpt)
    subtask, *at_fields = map(int, place.groups()) if place else (0, 0)
    fatal = _FATAL.search(excerpt)
    return PythonEnd(
        mark[1].strip() if mark else None,
        _TIMEOUT.search(excerpt) is not None,
        subtask,
        At(*at_fields) if at_fields[0] else None,
        fatal[0].strip() if fatal else "",
    )
