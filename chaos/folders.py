"""The folder that a run or a soak writes to, and how to let everything that a run starts stay below it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.errors import ConfigError


def make_folder(path: Path) -> None:
    """Make the folder, with those above it, unless it is there.

    Raises:
        ConfigError: nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {path} cannot be made: {error.strerror or error}",
            not_done="nothing was started",
            next_step="name a folder that this user can make",
        ) from error


def filled(text: str, out: str) -> str:
    """Return a text of a scenario with the run's folder, this interpreter, and $VARIABLES of the environment in it."""
    return os.path.expandvars(text.replace("{out}", out).replace("{python}", sys.executable))


def temporary(out: Path) -> Path:
    """Return the folder for temporary files of a run."""
    return out / "tmp"


def java_options(folder: Path) -> str:
    """Return what keeps a JVM's temporary files in the folder; those that are killed leave them behind."""
    return f'-Djava.io.tmpdir="{folder}" -XX:-UsePerfData'


def keeps_temporary_below(out: Path) -> dict[str, str]:
    """Return the environment in which a driver, and Python everywhere, keep temporary files below the run's folder."""
    folder = temporary(out)
    folder.mkdir(exist_ok=True)
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java_options(folder)}".strip()
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "SPARK_SUBMIT_OPTS": java}
