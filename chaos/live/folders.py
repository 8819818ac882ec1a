"""The folder of a run or a soak, and how to keep all files of the run's processes below it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.errors import ConfigError


def make_folder(path: Path) -> None:
    """Make the folder and its parents, unless it exists.

    Raises:
        ConfigError: the folder cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {path} cannot be made: {error.strerror or error}",
            not_done="nothing was started",
            next_step="name a folder that you may create",
        ) from error


def filled(text: str, out: str) -> str:
    """Fill the run's folder, this interpreter and $VARIABLES of the environment into a scenario's text."""
    return os.path.expandvars(text.replace("{out}", out).replace("{python}", sys.executable))


def temporary(out: Path) -> Path:
    """Return the folder for a run's temporary files."""
    return out / "tmp"


def java_options(folder: Path) -> str:
    """Return the options that keep a JVM's temporary files in the folder; a killed JVM does not remove them."""
    return f'-Djava.io.tmpdir="{folder}" -XX:-UsePerfData'


def keeps_temporary_below(out: Path) -> dict[str, str]:
    """Return the environment that keeps the temporary files of the driver and of all Python below the run's folder."""
    folder = temporary(out)
    folder.mkdir(exist_ok=True)
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java_options(folder)}".strip()
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "SPARK_SUBMIT_OPTS": java}
