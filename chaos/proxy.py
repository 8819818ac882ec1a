"""Toxiproxy: finds its server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

VARIABLE = "HOLDFAST_TOXIPROXY"


def find_server() -> Path | None:
    """Return the server's program: as HOLDFAST_TOXIPROXY says, on the PATH, or where tools/bootstrap.sh puts it."""
    if given := os.environ.get(VARIABLE):
        return Path(given) if os.access(given, os.X_OK) else None
    if found := shutil.which("toxiproxy-server"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = cache / "holdfast" / "bin" / "toxiproxy-server"
    return made if os.access(made, os.X_OK) else None
