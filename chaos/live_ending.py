"""How a job under faults comes to its end: by itself if its sources do, else it is stopped once it has read them.

A check that compares results with the whole source may only see a job that has read it, so a job that is stopped before
is no evidence against it. An audit compares what was read, however much that is.

Invariants
    - A job whose sources have all come to their end is not stopped: its last windows close by that end alone.
    - A job that is stopped behind its source is said to be.

Source: docs/design/0016-live-chaos.md.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from holdfast.chaos.live_field import Field
from holdfast.chaos.live_job import LiveJob

CAUGHT_UP_WITHIN_S = 60.0
"""For a command that writes the source, and for what an audit may do without."""
END_SEEN_WITHIN_S = 3.0
SEAL_SEEN_WITHIN_S = 30.0
"""So long after it was read a source that was sealed may go unnoticed; then another one is what never ends."""
WaitUntil = Callable[[Callable[[], bool], float], bool]


def let_end(
    job: LiveJob, field: Field, wait_until: WaitUntil, limit_s: float, *, sealed: bool, whole: bool
) -> str | None:
    """Let the job read what there is, and stop it unless it ends by itself; return why that proves nothing.

    Args:
        wait_until: True once it is so or the job is over, False if that took too long.
        sealed: A log that the job reads is sealed from here, so lag says nothing until that was noticed.
        whole: Something will be compared with all that the sources hold.
    """
    wait_until(lambda: field.driven, CAUGHT_UP_WITHIN_S)
    field.end_command()
    within_s = limit_s if whole else 0 if sealed else min(limit_s, CAUGHT_UP_WITHIN_S)
    if not wait_until(lambda: job.lag == 0, within_s) and whole:
        lag = "an unknown number of" if job.lag is None else f"{job.lag:,}"
        return f"the job was still {lag} records behind its source {limit_s:.0f} s after the faults (wait.end)"
    if not _ends(job, wait_until, SEAL_SEEN_WITHIN_S if sealed else END_SEEN_WITHIN_S, limit_s, sealed):
        job.terminate()
    return None


def was_done(status: int | None, job: LiveJob) -> bool:
    """Return whether a driver died of our signal that had done everything: it had put its signal handlers back."""
    return status == -signal.SIGTERM and job.asked_to_end and job.is_over()


def _ends(job: LiveJob, wait_until: WaitUntil, within_s: float, limit_s: float, sealed: bool) -> bool:
    """Return whether all sources come to their end, or as good as: it is over, or has not read a sealed log yet."""
    calm_since = time.monotonic()

    def is_known() -> bool:
        nonlocal calm_since
        if sealed and job.lag != 0:
            calm_since = time.monotonic()
        return job.reads_no_more() or time.monotonic() - calm_since > within_s

    if not wait_until(is_known, limit_s):
        return True
    return job.reads_no_more()
