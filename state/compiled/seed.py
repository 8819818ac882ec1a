"""The seed of the indexes' hash: random, so that a sender of keys cannot make them collide.

It is drawn once per process. No durable order depends on it, and neither do the numbers of slots.
"""

from __future__ import annotations

import secrets
from functools import cache


@cache
def of_process() -> int:
    """Return the seed of this process, a signed 64-bit integer."""
    return secrets.randbits(64) - (1 << 63)
