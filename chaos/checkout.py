"""Which commit of the code runs, where it lies in a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit() -> str | None:
    """Return the commit of the checkout that this package lies in; None outside one, or without git."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short=12", "HEAD"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None
