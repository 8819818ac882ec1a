"""Objects as files below one local folder.

`create` writes a temporary file beside the target, makes it durable, and hard-links it to the final name.
link(2) fails when the name is taken, so exactly one of several creators wins and no partial object is ever visible.

Invariants
    - An object for which `create` or `put` returned survives a crash of the machine: file and folder are fsynced.
    - A crash in the middle of a write leaves at most a temporary file, which `list` does not show, and folders
      without files. `tidy` and `delete` remove both; a writer whose file or folder they remove writes it again,
      so no clock decides whether an object is stored. `writing` fails then, and its caller repeats all of it.
    - Only the owner may access new files and folders, unless the root folder gives others access.

Source: link(2), rename(2), fsync(2).
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa

from holdfast.errors import AlreadyExists, NotAdmitted, NotFound, TooLarge, Unavailable
from holdfast.storage.paths import TEMPORARY, checked_folder, checked_path

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_SUCH = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


ABANDONED_AFTER_S = 3_600.0
"""A temporary file that was not written to for this long belongs to a killed writer; a live writer rewrites it."""
TIDIED_MAX = 5
"""How often in a row another process may remove the file or folder of one write."""
OWNER_ONLY = 0o700
"""Mode of folders created here; files have the same mode without execution."""


class LocalObjects:
    """Objects as files below one folder. Needs hard links, which every common local file system has."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._root = str(self.root)

    def __repr__(self) -> str:
        return str(self.root)

    def create(self, path: str, data: bytes) -> None:
        assert data, f"{path}: an object is never empty"
        target = self._writable_target(path)
        try:
            if target.exists():
                raise FileExistsError(path)
            _write(target, data, self._mode(), _link)
        except FileExistsError:
            self._settled(target)
            raise AlreadyExists(path) from None
        except OSError as error:
            self._refused(error, f"writing {target}", "the object may or may not exist")

    def _settled(self, target: Path) -> None:
        """Make the existing object durable, since the caller acts on its content."""
        try:
            _sync_folder(target.parent)
        except OSError as error:
            self._refused(error, f"reading {target}", "nothing was changed")

    def put(self, path: str, data: bytes) -> None:
        assert data, f"{path}: an object is never empty"
        target = self._writable_target(path)
        try:
            _write(target, data, self._mode(), os.replace)
        except OSError as error:
            self._refused(error, f"writing {target}", "the object may hold its old or its new bytes")

    def get(self, path: str) -> bytes:
        return self._read(path, -1)

    def get_at_most(self, path: str, bytes_max: int) -> bytes:
        data = self._read(path, bytes_max + 1)
        if len(data) > bytes_max:
            raise TooLarge(f"{self.root / path}", bytes_max)
        return data

    def _read(self, path: str, bytes_max: int) -> bytes:
        """Return the first bytes of a file, -1: all. A pipe is not waited for, and a device never ends."""
        try:
            with open(self._named(path), "rb", opener=_without_waiting) as file:
                self._must_be_a_file(path, os.fstat(file.fileno()))
                return file.read(bytes_max)
        except _NO_SUCH:
            raise NotFound(path) from None
        except OSError as error:
            self._refused(error, f"reading {self.root / path}", "nothing was changed")

    def _must_be_a_file(self, path: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            kind = "a pipe" if stat.S_ISFIFO(found.st_mode) else "a device or a socket"
            raise Unavailable(
                f"{self.root / path} is {kind}, or a link to one, and not a file",
                not_done="nothing was read from it",
                next_step="remove it",
            )

    def mapped(self, path: str) -> pa.Buffer:
        try:
            place = self._named(path)
            self._must_be_a_file(path, os.stat(place))
            with pa.memory_map(place) as file:
                return file.read_buffer()
        except _NO_SUCH:
            raise NotFound(path) from None
        except OSError as error:
            self._refused(error, f"reading {self.root / path}", "nothing was changed")

    def opened(self, path: str) -> pa.NativeFile:
        try:
            self._must_be_a_file(path, os.stat(self._place(path)))
            return pa.OSFile(str(self._place(path)))
        except _NO_SUCH:
            raise NotFound(path) from None
        except OSError as error:
            self._refused(error, f"reading {self.root / path}", "nothing was changed")

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        target = self._writable_target(path)
        refuse = partial(self._refused, doing=f"writing {target}", not_done="the object may or may not exist")
        try:
            temporary, file = _new_temporary(target.parent, self._mode())
        except OSError as error:
            refuse(error)
        try:
            with file:
                yield file
                try:
                    file.flush()
                    os.fsync(file.fileno())
                    _link(temporary, target)
                    _sync_folder(target.parent)
                except FileExistsError:
                    self._settled(target)
                    raise AlreadyExists(path) from None
                except OSError as error:
                    refuse(error)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def delete(self, path: str) -> None:
        target = self._place(path)
        try:
            with suppress(*_NO_SUCH):
                target.unlink()
                _sync_folder(target.parent)
                self._remove_if_empty(target.parent)
        except OSError as error:
            self._refused(error, f"deleting {target}", "the object may or may not exist")

    def _place(self, path: str) -> Path:
        return self.root / checked_path(path)

    def _named(self, path: str) -> str:
        """Return the place of an object as text: paths are many where objects are small."""
        return f"{self._root}/{checked_path(path)}"

    def _mode(self) -> int:
        """Return the mode of new folders: group and others get the access that the root gives them."""
        try:
            return OWNER_ONLY | (self.root.stat().st_mode & 0o077)
        except FileNotFoundError:
            return OWNER_ONLY

    def _writable_target(self, path: str) -> Path:
        target = self._place(path)
        try:
            _ensure_folder(target.parent, self._mode())
        except OSError as error:
            self._refused(error, f"creating the folder {target.parent}", f"{path} was not written")
        return target

    def _remove_if_empty(self, folder: Path) -> None:
        """Remove an empty folder and its empty parents; the folders directly below the root stay."""
        while folder.parent != self.root and self.root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or another process was first
            folder = folder.parent

    def tidy(self, unchanged_s: float = ABANDONED_AFTER_S, *, folders: bool = True) -> int:
        """Remove leftovers of killed writers: temporary files unchanged for `unchanged_s`, and folders without files.

        Args:
            folders: Whether to remove folders without files; those may be of others in a folder that is not ours alone.

        Returns:
            How many files were removed.
        """
        count, before = 0, time.time() - unchanged_s
        try:
            for here, _, names in os.walk(self.root, topdown=False):
                for name in names:
                    if name.startswith(TEMPORARY) and _removed_if_older(Path(here, name), before):
                        count += 1
                if folders:
                    self._remove_if_empty(Path(here))
        except OSError as error:
            self._refused(error, f"tidying {self.root}", "some temporary files may be left")
        return count

    def prove_writable(self) -> None:
        """Create a missing root and try the operations that `create` needs: a write, a hard link, a removal."""
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

    def _collect(self, folder: str, prefix: str, found: list[str]) -> None:
        try:
            entries = list(os.scandir(folder))
        except _NO_SUCH:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self._collect(entry.path, f"{prefix}{entry.name}/", found)
            elif not entry.name.startswith(TEMPORARY):
                found.append(prefix + entry.name)

    def list(self, prefix: str) -> list[str]:
        name = checked_folder(prefix)
        folder = self.root / name
        paths: list[str] = []
        try:
            self._collect(str(folder), f"{name}/" if name else "", paths)
        except OSError as error:
            self._refused(error, f"listing {folder}", "nothing was changed")
        return sorted(paths)

    def _refused(self, error: OSError, doing: str, not_done: str) -> NoReturn:
        if error.filename2 is not None and error.errno in _NO_LINKS:
            advice = f"put {self.root} on a file system where this user may create hard links; or use s3://"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"free space on the disk of {self.root}, then try again"
        elif error.errno in _NO_ACCESS:
            advice = f"give this user (id {os.geteuid()}) access to {self.root}, then try again"
        elif error.errno == errno.EFBIG:
            advice = "raise the limit on the size of files for this user (ulimit -f), then start again"
        elif error.errno == errno.EIO:
            advice = f"check the disk of {self.root} (the system log describes the error), then try again"
        else:
            advice = f"check that {self.root} is reachable, then try again"
        full = f"the disk of {self.root} is full: " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        what = f"{full}{doing} failed: {error.strerror or error}"
        kind = NotAdmitted if error.errno in _NO_ACCESS else Unavailable
        raise kind(what, not_done=not_done, next_step=advice) from error


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe would be waited for until another process opens its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _write(target: Path, data: bytes, mode: int, place: Callable[[Path, Path], None]) -> None:
    """Write a temporary file beside the target and put it in place; retry if another process tidies meanwhile."""
    for left in reversed(range(TIDIED_MAX)):
        try:
            temporary = _write_temporary(target.parent, data, mode)
            try:
                place(temporary, target)
                break
            except OSError:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        except FileNotFoundError:  # nothing was put in place
            if not left:
                raise
            _ensure_folder(target.parent, mode)
    _sync_folder(target.parent)


def _link(temporary: Path, target: Path) -> None:
    os.link(temporary, target)
    with suppress(FileNotFoundError):
        os.unlink(temporary)


def _removed_if_older(path: Path, before: float) -> bool:
    try:
        if path.stat().st_mtime > before:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _write_temporary(folder: Path, data: bytes, mode: int) -> Path:
    """Write the bytes under a unique name and make them durable; leave nothing behind on failure."""
    temporary, file = _new_temporary(folder, mode)
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def _new_temporary(folder: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a file under a unique name."""
    temporary = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    return temporary, open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, mode & 0o666))


def _ensure_folder(folder: Path, mode: int) -> None:
    """Create the folder and its parents, each durable before anything is written into it."""
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
