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
    output = ""
    for words in (("ls-files", "--error-unmatch", path.name), ("rev-parse", "--short=12", "HEAD")):
        try:
            process = subprocess.run((*git, *words), capture_output=True, text=True, check=False, env=environment)
        except FileNotFoundError:
            return None
        if process.returncode != 0:
            return None
        output = process.stdout.strip()
    return output or None
