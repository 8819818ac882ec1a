"""Which paths an object may have: relative, with slashes, never leaving the root.

Names that start with `.tmp-` belong to the local store: a write in progress lives under one.
"""

from __future__ import annotations

import os

TEMPORARY = ".tmp-"


def checked_path(path: str) -> str:
    """Return the path without a final slash; a path that could leave the root is a broken invariant."""
    assert not path.startswith("/"), f"{path!r}: paths are relative"
    parts = path.rstrip("/").split("/")
    assert all(part not in ("", ".", "..") and not part.startswith(TEMPORARY) for part in parts), path
    return "/".join(parts)


def checked_folder(prefix: str) -> str:
    """Return the folder without a final slash; the root is the empty string."""
    return checked_path(prefix) if prefix.strip("/") else ""


def join(root: str, name: str) -> str:
    """Return the folder of this name below a root, which is a path or a URL; a path becomes absolute."""
    return f"{root.rstrip('/')}/{name}" if "://" in root else os.path.join(os.path.abspath(root), name)
