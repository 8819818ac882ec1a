"""What messages of all targets say of a delivery that did not complete: its outcome, and the next step.

Pure.
"""

from __future__ import annotations

UNKNOWN = "the outcome of this delivery is unknown"
NOTHING = "nothing was delivered"
RETRIES = "no action needed: delivery retries"
READS_TAG = "no action needed: delivery reads the tag and retries"


def persists(action: str, then: str) -> str:
    """Return the next step: what happens automatically, and what to do if that does not help."""
    return f"{action}; if this persists, {then}"
