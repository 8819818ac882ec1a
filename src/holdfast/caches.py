"""Folders in which compiled code of this user outlives a process.

Code that is loaded from a folder runs with the rights of the process, so the folder has to belong to this user alone.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def user_caches() -> Path:
    """Return the folder of this user's caches, which may not exist: XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def is_private(folder: Path) -> bool:
    """Create a folder that only this user can read and write; return whether it is one, and can be written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
