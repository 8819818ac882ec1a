"""Files that this process holds open below a folder: clients of other tests open and close others at any moment."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> int:
    """Return how many descriptors of this process refer to files below a folder, also to files without a name."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/")
    return found
