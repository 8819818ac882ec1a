"""Statuses for tests that read one."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.runtime.job.live import Status, from_json


def status_with(**changed: Any) -> Status:
    """Return the status of a running job about which only this is known, in the form of its JSON."""
    nothing: dict[str, Any] = dict.fromkeys(("reason", "mode", "generation", "timeline"))
    nothing |= {name: [] for name in ("workers", "sources", "sinks", "operators", "restarts", "problems")}
    return from_json(msgspec.to_builtins({"job": "hot", "root": "/data/hot", "state": "running", **nothing, **changed}))
