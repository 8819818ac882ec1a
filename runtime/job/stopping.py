"""Explains why a stopping job still waits: it delivers its last epoch first, and a sink may keep refusing it.

Pure: a status in, a finding out.
Source: API.md, `holdfast run`; DESIGN section 13 (`--once` and `stop` wait for delivery).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.quantities import plural
from holdfast.runtime.job.explain import GOOD, JobFinding, findings
from holdfast.runtime.job.live import Status
from holdfast.runtime.job.waiting import STOP

SINK_ERROR = "sink_error"
_SYMPTOMS = GOOD | {"ending", "delivery_full", "event_time_held"}
"""Findings that do not delay a stop, or follow from one that does."""


@dataclass(frozen=True)
class StopWaits:
    """The reason why a stop waits."""

    on: frozenset[str]
    """The sinks, or the code of the finding: the same while only the words change, such as a number of seconds."""
    refused: bool
    """A sink refuses its output, so waiting alone may not help."""
    what: str
    next: str | None


def stop_waits(shown: Status) -> StopWaits | None:
    """Return the obstacle to a job's stop; None if it is not stopping, or no obstacle is known."""
    if not is_stopping(shown):
        return None
    causes = [each for each in findings(shown) if each.code not in _SYMPTOMS]
    if errors := [each for each in causes if each.code == SINK_ERROR]:
        sinks = frozenset(sink.name for sink in shown.sinks if sink.error)
        return StopWaits(sinks, True, "; ".join(each.what for each in errors), errors[0].next)
    if causes:
        return _of(causes[0])
    backlog = () if shown.activity is None else shown.activity.backlog
    if not backlog:
        return None
    left = ", ".join(
        f"{plural(each.rows, 'row')} of {plural(each.epochs, 'epoch')} for {each.sink}" for each in backlog
    )
    return StopWaits(frozenset(each.sink for each in backlog), False, f"output is being delivered: {left}", None)


def is_stopping(shown: Status) -> bool:
    """Return whether the job was asked to stop, and has not ended."""
    ended = shown.state in ("stopped", "finished", "failed")
    return not ended and shown.activity is not None and shown.activity.ending == STOP


def _of(finding: JobFinding) -> StopWaits:
    return StopWaits(frozenset({finding.code}), False, finding.what, finding.next)
