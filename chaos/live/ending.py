"""Ends a job under faults: if its sources end, it finishes; otherwise it is stopped once it has read them.

A check that compares results with the whole source needs a job that has read all of it: a job that is stopped earlier
proves nothing. An audit compares the records that were read, however many they are.

Invariants
    - A job whose sources have all ended is not stopped: only that end closes its last windows.
    - If a job is stopped before it has read its whole source, that is reported.

Source: docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.testbed import Testbed

CAUGHT_UP_WITHIN_S = 60.0
"""For a command that writes the source, and for reading that an audit can do without."""
END_SEEN_WITHIN_S = 3.0
SEAL_SEEN_WITHIN_S = 30.0
"""A sealed source may go unnoticed for this long after it was read; after that another source must be endless."""
WaitUntil = Callable[[Callable[[], bool], float], bool]


def let_end(
    job: LiveJob, testbed: Testbed, wait_until: WaitUntil, limit_s: float, *, sealed: bool, whole: bool
) -> str | None:
    """Let the job read its sources, and stop it unless it finishes; return the reason if the result proves nothing.

    Args:
        wait_until: True once the condition holds or the job is over, False if that took too long.
        sealed: This process seals a log that the job reads, so lag means nothing until the job has noticed.
        whole: Results will be compared with everything that the sources hold.
    """
    wait_until(lambda: testbed.driven, CAUGHT_UP_WITHIN_S)
    testbed.end_command()
    within_s = limit_s if whole else 0 if sealed else min(limit_s, CAUGHT_UP_WITHIN_S)
    if not wait_until(lambda: job.lag == 0, within_s) and whole:
        lag = "an unknown number of" if job.lag is None else f"{job.lag:,}"
        return f"the job was still {lag} records behind its source {limit_s:.0f} s after the faults (wait.end)"
    if not _ends(job, wait_until, SEAL_SEEN_WITHIN_S if sealed else END_SEEN_WITHIN_S, limit_s, sealed):
        job.terminate()
    return None


def was_done(status: int | None, job: LiveJob) -> bool:
    """Return whether a driver that had finished its work died of our signal: it had restored its signal handlers."""
    return status == -signal.SIGTERM and job.asked_to_end and job.is_over()


def _ends(job: LiveJob, wait_until: WaitUntil, within_s: float, limit_s: float, sealed: bool) -> bool:
    """Return whether all sources end, as far as can be known: the job is over, or has not read a sealed log yet."""
    calm_since = time.monotonic()

    def is_known() -> bool:
        nonlocal calm_since
        if sealed and job.lag != 0:
            calm_since = time.monotonic()
        return job.reads_no_more() or time.monotonic() - calm_since > within_s

    if not wait_until(is_known, limit_s):
        return True
    return job.reads_no_more()
