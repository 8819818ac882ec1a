"""Messages of all targets about a delivery that did not complete: its meaning, its outcome, and the next step.

Each kind of target recognises the errors of its library. Each error has one of the meanings here, so every target
reports the same outcome in the same words, and with the same exit status.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import ConfigError, Damaged, HoldfastError, NotAdmitted, Unavailable

UNKNOWN = "the outcome of this delivery is unknown"
NOTHING = "nothing was delivered"
WAITS = "nothing was delivered; no epoch is skipped"
NO_ROW = "no rows of this or a later epoch were written"
RETRIES = "no action needed: delivery retries"
READS_TAG = "no action needed: delivery reads the tag and retries"
LAST_DELIVERED = (
    "holdfast rewind JOB.py --to-epoch N --apply, where N is the epoch that was last delivered (holdfast status JOB)"
)
Meaning = Callable[[str, str], HoldfastError]
"""Makes the error from the name of the target and the message of its system."""


def persists(action: str, then: str) -> str:
    """Return the next step: the automatic action, and the user's action if that does not help."""
    return f"{action}; if this persists, {then}"


def never_takes(target: str) -> str:
    """Return the next step for rows that block a target."""
    return (
        f"Rows that the {target} can never take stay first in line: correct the job, and leave them behind with "
        f"{LAST_DELIVERED}"
    )


def unknown(check: str) -> Meaning:
    """The target is unreachable or busy, and may have taken the delivery."""
    return lambda where, said: Unavailable(f"{where}: {said}", not_done=UNKNOWN, next_step=persists(READS_TAG, check))


def unavailable(what: str, next_step: str) -> Meaning:
    """The target takes no deliveries now."""
    return lambda where, said: Unavailable(f"{where}: {what}: {said}", not_done=NOTHING, next_step=next_step)


def full(what: str, action: str, not_done: str = UNKNOWN) -> Meaning:
    """The target has no room."""
    return lambda where, said: Unavailable(
        f"{where}: {what} is full ({said})",
        not_done=not_done,
        next_step=f"{action}; delivery retries automatically; no epoch is skipped",
    )


def not_admitted(what: str, next_step: str) -> Meaning:
    """An administrator of the target can allow it while the job runs."""
    return lambda where, said: NotAdmitted(f"{where}: {what}: {said}", not_done=WAITS, next_step=next_step)


def refused(what: str, next_step: str, not_done: str = NOTHING) -> Meaning:
    """Only another configuration of the target or the job, or other rows, can remove the cause."""
    return lambda where, said: ConfigError(f"{where}: {what}: {said}", not_done=not_done, next_step=next_step)


def broken(next_step: str) -> Meaning:
    """The target's own bytes are broken."""
    return lambda where, said: Damaged(f"{where}: {said}", not_done=NOTHING, next_step=next_step)
