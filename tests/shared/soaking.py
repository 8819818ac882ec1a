"""Scales the longest slow tests to HOURS; with HOURS=8 they take everything."""

from __future__ import annotations

import os

HOURS = float(os.environ.get("HOURS") or 2)
SHARE = min(1.0, HOURS / 8)
