"""Finds the commit of the running code, if it is in a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit(file: Path = Path(__file__)) -> str | None:
    """Return the commit of the checkout that this package is part of; None outside one, or without git.

    A package that is merely installed in a project's environment is not tracked by that project's git.
    """
    path = file.resolve()
    git = ("git", "-C", str(path.parent))
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    said = ""
    for words in (("ls-files", "--error-unmatch", path.name), ("rev-parse", "--short=12", "HEAD")):
        try:
            asked = subprocess.run((*git, *words), capture_output=True, text=True, check=False, env=environment)
        except FileNotFoundError:
            return None
        if asked.returncode != 0:
            return None
        said = asked.stdout.strip()
    return said or None
