"""How much of what is too long for `make test` a soak of HOURS hours takes: all of it needs four times two hours.

Two cores are busy for all of that time with HOURS=2; the samples are spread over everything there is.
"""

from __future__ import annotations

import os

HOURS = float(os.environ.get("HOURS") or 2)
SHARE = min(1.0, HOURS / 8)
