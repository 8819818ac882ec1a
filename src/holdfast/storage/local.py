"""Objects as files below one local folder.

`create` writes a temporary file beside the target, makes it durable, and hard-links it to the final name:
link(2) fails when the name is taken, so exactly one of several creators wins and no half object is ever visible.

Invariants
    - What `create` or `put` reported as done survives a crash of the machine: file and folder are fsynced.
    - A crash in the middle of a write leaves at most a temporary file, which `list` does not show.
    - What is created is for its owner alone, unless the root folder gives others more.

Source: link(2), rename(2), fsync(2).
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from holdfast.errors import AlreadyExists, NotFound, Unavailable
from holdfast.storage.paths import TEMPORARY, checked_folder, checked_path

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_SUCH = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


OWNER_ONLY = 0o700
"""Mode of folders created here; files have the same without execution."""


class LocalObjects:
    """Objects as files below one folder. Needs hard links, which every common local file system has."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return str(self.root)

    def create(self, path: str, data: bytes) -> None:
        target = self._writable_target(path, data)
        try:
            if target.exists():
                raise FileExistsError(path)
            temporary = _write_temporary(target.parent, data, self._mode())
            try:
                os.link(temporary, target)
            finally:
                os.unlink(temporary)
            _sync_folder(target.parent)
        except FileExistsError:
            self._settled(target)
            raise AlreadyExists(path) from None
        except OSError as error:
            self._refused(error, f"writing {target}", "the object may or may not be there")

    def _settled(self, target: Path) -> None:
        """The caller acts on what it finds there, so that has to survive as well."""
        try:
            _sync_folder(target.parent)
        except OSError as error:
            self._refused(error, f"reading {target}", "nothing was changed")

    def put(self, path: str, data: bytes) -> None:
        target = self._writable_target(path, data)
        try:
            temporary = _write_temporary(target.parent, data, self._mode())
            try:
                os.replace(temporary, target)
            except OSError:
                os.unlink(temporary)
                raise
            _sync_folder(target.parent)
        except OSError as error:
            self._refused(error, f"writing {target}", "the object may hold its old or its new bytes")

    def get(self, path: str) -> bytes:
        try:
            return self._place(path).read_bytes()
        except _NO_SUCH:
            raise NotFound(path) from None
        except OSError as error:
            self._refused(error, f"reading {self.root / path}", "nothing was changed")

    def mapped(self, path: str) -> pa.Buffer:
        try:
            with pa.memory_map(str(self._place(path))) as file:
                return file.read_buffer()
        except _NO_SUCH:
            raise NotFound(path) from None
        except OSError as error:
            self._refused(error, f"reading {self.root / path}", "nothing was changed")

    def delete(self, path: str) -> None:
        target = self._place(path)
        try:
            with suppress(*_NO_SUCH):
                target.unlink()
                _sync_folder(target.parent)
        except OSError as error:
            self._refused(error, f"deleting {target}", "the object may or may not be there")

    def _place(self, path: str) -> Path:
        return self.root / checked_path(path)

    def _mode(self) -> int:
        """Return the mode of new folders: they give group and others what the root gives them."""
        try:
            return OWNER_ONLY | (self.root.stat().st_mode & 0o077)
        except FileNotFoundError:
            return OWNER_ONLY

    def _writable_target(self, path: str, data: bytes) -> Path:
        assert data, f"{path}: an object is never empty"
        target = self._place(path)
        try:
            _ensure_folder(target.parent, self._mode())
        except OSError as error:
            self._refused(error, f"creating the folder {target.parent}", f"{path} was not written")
        return target

    def prove_writable(self) -> None:
        """Create a missing root and try what `create` needs: a write, a hard link, a removal."""
        try:
            _ensure_folder(self.root, OWNER_ONLY)
            temporary = _write_temporary(self.root, b"?", OWNER_ONLY)
            linked = temporary.with_name(f"{temporary.name}-linked")
            try:
                os.link(temporary, linked)
                os.unlink(linked)
            finally:
                os.unlink(temporary)
        except OSError as error:
            self._refused(error, f"writing below {self.root}", "nothing was changed")

    def _collect(self, folder: Path, found: list[str]) -> None:
        try:
            entries = list(os.scandir(folder))
        except _NO_SUCH:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self._collect(Path(entry.path), found)
            elif not entry.name.startswith(TEMPORARY):
                found.append(Path(entry.path).relative_to(self.root).as_posix())

    def list(self, prefix: str) -> list[str]:
        folder = self.root / checked_folder(prefix)
        found: list[str] = []
        try:
            self._collect(folder, found)
        except OSError as error:
            self._refused(error, f"listing {folder}", "nothing was changed")
        return sorted(found)

    def _refused(self, error: OSError, doing: str, not_done: str) -> NoReturn:
        if error.filename2 is not None and error.errno in _NO_LINKS:
            advice = f"{self.root} needs a file system with hard links that this user may make; or use s3://"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"free space on the disk of {self.root}, then try again"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = f"give this user (id {os.geteuid()}) access to {self.root}, then try again"
        elif error.errno == errno.EFBIG:
            advice = "raise the limit on the size of files for this user (ulimit -f), then start again"
        elif error.errno == errno.EIO:
            advice = f"check the disk of {self.root} (the system log names it), then try again"
        else:
            advice = f"check that {self.root} is reachable, then try again"
        raise Unavailable(f"{doing} failed: {error.strerror or error}", not_done=not_done, next_step=advice) from error


def _write_temporary(folder: Path, data: bytes, mode: int) -> Path:
    """Write the bytes under a name of their own and make them durable; leave nothing behind on failure."""
    temporary = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, mode & 0o666)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def _ensure_folder(folder: Path, mode: int) -> None:
    """Create the folder and its parents, each durable before anything is put into it."""
    if folder.is_dir():
        return
    _ensure_folder(folder.parent, mode)
    with suppress(FileExistsError):
        folder.mkdir(mode)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
