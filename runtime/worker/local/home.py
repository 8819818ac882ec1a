"""Where a machine keeps local state: below its identity and its boot id.

Unsynced writes are lost with the machine, not with the process, and several machines may share the parent folder:
`<root>/<machine>/<boot id>/<job UUID>/...`.

Invariants
    - Folders of another machine are never opened or removed. The same holds for all folders if the boot is unknown.

I/O: local files. Source: PROTOCOL P14, P15.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.runtime.wire.presence import boot_id, machine_id


def local_root() -> Path:
    """Return the parent of all local folders of this user."""
    return Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"


@dataclass(frozen=True)
class Home:
    """Where a machine keeps local state: below `<root>/<machine>/<boot>`."""

    root: Path = field(default_factory=local_root)
    machine: str = field(default_factory=machine_id)
    """The identity of this machine."""
    boot: str = field(default_factory=boot_id)
    """Its boot id, empty if there is none."""

    def folder(self, *below: str) -> Path:
        """Return the folder below that of this boot; it may not exist."""
        return Path(self.root, self.machine, self.boot or "unknown-boot", *below)

    def make(self, *below: str) -> Path:
        """Create this folder; folders of earlier boots are removed.

        Raises:
            OSError: it cannot be created.
            ConfigError: others can write into the root.
        """
        self.root.mkdir(exist_ok=True, mode=0o700)
        _check_owner(self.root)
        _remove_earlier_boots(self.root / self.machine, self.boot)
        made = self.folder(*below)
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
        return made


def _remove_earlier_boots(boots: Path, boot: str) -> None:
    """Remove the folders of this machine's earlier boots: they are not a usable base."""
    for other in boots.iterdir() if boot and boots.is_dir() else ():
        if other.name != boot:
            shutil.rmtree(other, ignore_errors=True)


def _check_owner(root: Path) -> None:
    """Never load state from a folder that others can write."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"{root} is not a folder that only this user owns and can write",
            not_done="no state was read from it or written to it",
            next_step="remove it, or set TMPDIR on the executors to another folder",
        )
