"""Standbys as the status reports them.

Pure: values in, values out.
Source: API.md, JSON `status`; docs/decisions/0054-standbys.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.quantities import plural
from holdfast.runtime.driver.standbys import epochs_behind
from holdfast.runtime.driver.state import Hosted, Master
from holdfast.runtime.job.live import Problem
from holdfast.runtime.wire import messages as m

STANDBYS_FAIL, STANDBY_LAGS = "standbys_fail", "standby_lags"
"""Codes of problems; the job continues anyway."""
FAILURES_SHOWN, LAG_SHOWN_EPOCHS = 3, 20


def is_standby(hosted: Hosted) -> bool:
    """Return whether the worker follows the state of others."""
    return isinstance(hosted.role, m.Standby)


def follows(hosted: Hosted) -> tuple[int, ...]:
    """Return the subtasks whose state a worker follows."""
    return hosted.role.follows if isinstance(hosted.role, m.Standby) else ()


def lag_epochs(state: Master, hosted: Hosted) -> int | None:
    """Return how many epochs a worker's outcome is open, or how many the oldest copy of a standby lacks."""
    return epochs_behind(state, hosted) if is_standby(hosted) else hosted.heartbeat.progress.lag_epochs


def lag_bytes(hosted: Hosted) -> int | None:
    """Return the stored bytes that the copies of a standby lack; None for other workers, and if it is unknown."""
    return (
        sum(each.bytes for each in hosted.heartbeat.copies) if is_standby(hosted) and hosted.heartbeat.copies else None
    )


def problems(state: Master) -> Iterator[Problem]:
    """Yield why a loss would take longer than with complete standbys."""
    if state.standby_failures >= FAILURES_SHOWN:
        yield Problem(
            code=STANDBYS_FAIL,
            what=f"standbys were lost or did not start {state.standby_failures} times since all were complete; "
            f"the last time: {state.standby_error}",
            not_done="nothing else stopped; a new worker would replace a lost one, which takes longer",
            next="see the logs of the executors; a standby needs a free slot, and memory for the state that it follows",
        )
    for worker, hosted in state.workers.items():
        lag = epochs_behind(state, hosted) if is_standby(hosted) else None
        if lag is not None and lag >= LAG_SHOWN_EPOCHS and hosted.heartbeat.progress.restored is None:
            refused = f": {hosted.heartbeat.progress.refused}" if hosted.heartbeat.progress.refused else ""
            yield Problem(
                code=STANDBY_LAGS,
                what=f"standby {worker} lacks the last {plural(lag, 'epoch')}{refused}",
                not_done="nothing else stopped; a takeover would read the state that the standby lacks",
                next="check the load of its machine, and its connection to the root",
            )
