"""The folder that a run or a soak writes to."""

from __future__ import annotations

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
