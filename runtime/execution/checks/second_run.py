"""Another live run of the job.

The check is a courtesy, and a takeover skips it: the job log keeps two drivers apart (PROTOCOL P6).

Source: DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.checkpoint import joblog
from holdfast.errors import Fenced, NotFound, Where
from holdfast.model import DriverProcess
from holdfast.ports import ObjectStore
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.inspect.stored import read_live
from holdfast.runtime.job import status
from holdfast.runtime.wire.presence import is_gone

LOOK_EVERY_S = 0.2
NOTED_AFTER_S = 1.0
"""By then a live driver has usually renewed its `live.json`."""


def check(facts: Facts) -> Fenced | None:
    """Refuse to start beside it."""
    job = facts.folder.job
    return None if job is None or facts.choices.takeover else refusal(facts.folder.store, job, facts.note)


def refusal(
    store: ObjectStore,
    job: joblog.Job,
    note: Callable[[str], None] = lambda _: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Fenced | None:
    """Return the error if another driver runs the job; wait long enough for a live one to renew its `live.json`.

    This process's clock measures the wait: the time in the file is another machine's and may lie in the future.

    Args:
        note: Called with a line for the user if there is a driver to wait for.
    """
    first: int | None = None
    began, user_knows = monotonic(), False
    while (driver := _live_driver(store)) is not None:
        first = driver.at if first is None else first
        waited_s = monotonic() - began
        if driver.at == first and waited_s > status.STALE_AFTER_MS / 1000:
            return None
        if waited_s >= NOTED_AFTER_S and not user_knows:
            user_knows = True
            note(
                f"waiting up to {status.STALE_AFTER_MS / 1000:.0f} s to see whether the driver on {driver.host} "
                f"(pid {driver.pid}) still runs {job.name}"
            )
        if driver.at != first:
            return Fenced(
                f"job {job.name!r} is running on {driver.host} (pid {driver.pid}), generation {job.generation}",
                not_done="this run was not started and nothing was changed",
                next_step=f"to see it: holdfast status {job.name}; to end it: holdfast stop {job.name}; "
                "to run in its place: add --takeover",
                where=Where(job=job.name),
            )
        sleep(LOOK_EVERY_S)
    return None


def _live_driver(store: ObjectStore) -> DriverProcess | None:
    """Return the driver that `live.json` names if it may be alive; None also if the file cannot be understood."""
    try:
        live = read_live(store)
    except NotFound:
        return None
    if live is None or live.driver is None or live.state in ("stopped", "finished", "failed"):
        return None
    age_ms = (time.time_ns() // 1000 - live.driver.at) / 1000
    return None if age_ms > status.STALE_AFTER_MS or is_gone(live.driver) else live.driver
