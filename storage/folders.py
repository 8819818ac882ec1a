"""Files that other programs write, below a folder or a prefix of S3: listed, and read by ranges.

Unlike the objects of `objects.py` they may be replaced, changed or deleted at any time. So a file is named together
with its version: the ETag in S3, the time of its last change on a disk.

Invariants
    - A file from `opened` is read in the requested version; `verify` confirms that for all bytes read before it.
    - A folder that cannot be listed completely is `Unavailable`; it never looks as if it had fewer files.

Source: docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, Unavailable
from holdfast.extras import install
from holdfast.storage.paths import local_path, refuse_password
from holdfast.storage.remote import reached, require_s3fs, unreachable

NOTHING_READ = "no record was read"
_BLOCK_BYTES = 1 << 20
"""Minimum size of a read from S3."""
_NO_SUCH = (FileNotFoundError, NotADirectoryError)


class FolderFile(NamedTuple):
    """A file as it is now.

    Args:
        name: Its path below the folder, with slashes.
        size: Bytes.
        version: Differs for two contents under one name.
    """

    name: str
    size: int
    version: str


class Folder(Protocol):
    """A folder or a prefix. Safe to use by one thread at a time."""

    def check(self) -> None:
        """Raise ConfigError if there is no such folder; a prefix of S3 always exists."""

    def files(self) -> list[FolderFile]:
        """Return all files below it, in no order. Raises Unavailable."""

    def look(self, name: str) -> FolderFile | None:
        """Return a file as it is now; None if it does not exist. Raises Unavailable."""

    def opened(self, file: FolderFile) -> ReadFile | None:
        """Open a file; None if it was removed or has another version. Raises Unavailable."""

    def verify(self, file: FolderFile) -> bool:
        """Return whether all that was read of the open file since `opened` is of this version. Raises Unavailable."""


class ReadFile:
    """An open file, for pyarrow too. Every failure to read is `Unavailable`, so another error is one of the contents.

    Args:
        handle: The file that is open.
        where: The folder, for messages.
        failures: Errors that the handle raises if it cannot be read.
    """

    mode = "rb"

    def __init__(self, handle: Any, name: str, where: str, failures: tuple[type[BaseException], ...]) -> None:
        self._handle, self._name, self._where, self._failures = handle, name, where, failures

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return bool(self._handle.closed)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, fewer only at the end. Raises Unavailable."""
        try:
            return bytes(self._handle.read(size))
        except self._failures as error:
            raise unreachable(self._where, error, f"reading {self._name}", NOTHING_READ) from error

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a byte."""
        return int(self._handle.seek(offset, whence))

    def tell(self) -> int:
        """Return the next byte that is read."""
        return int(self._handle.tell())

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def writable(self) -> bool:
        """Return false."""
        return False

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Close it."""
        self._handle.close()


def open_folder(path: str) -> Folder:
    """Return a folder, or the files below a URL (`s3://bucket/prefix`, `file:///folder`, `memory://name`).

    Raises:
        ConfigError: the scheme is unknown, or s3fs is not installed.
    """
    refuse_password(path, "the path of the files")
    if (local := local_path(path)) is not None:
        return LocalFolder(local)
    scheme = urlsplit(path).scheme
    if scheme not in ("s3", "memory"):
        raise ConfigError(
            f"{path!r} has the unknown scheme {scheme!r}",
            not_done="the files were not listed",
            next_step=f"use a folder, or s3://bucket/prefix with the extra s3: {install('s3')}",
        )
    if scheme == "s3":
        require_s3fs(path)
    return RemoteFolder(path)


class LocalFolder(Folder):
    """A folder of this machine. Links to files are followed, links to folders are not."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    def check(self) -> None:
        if not os.path.isdir(self._root):
            kind = "is a file" if os.path.exists(self._root) else "does not exist"
            raise ConfigError(
                f"{self._root} {kind}, and the folder that holds the files is needed",
                not_done="the files were not listed",
                next_step="correct the path, or create the folder",
            )

    def files(self) -> list[FolderFile]:
        try:
            return list(self._walk())
        except OSError as error:
            if isinstance(error, _NO_SUCH) and not os.path.isdir(self._root):
                raise self._gone() from None
            raise unreachable(self._root, error, "listing the files", NOTHING_READ) from error

    def look(self, name: str) -> FolderFile | None:
        try:
            return _found(name, os.stat(self._place(name)))
        except _NO_SUCH:
            if not os.path.isdir(self._root):
                raise self._gone() from None
            return None
        except OSError as error:
            raise unreachable(self._root, error, f"looking at {name}", NOTHING_READ) from error

    def opened(self, file: FolderFile) -> ReadFile | None:
        try:
            handle = open(self._place(file.name), "rb")  # noqa: SIM115 - closed by the caller
        except _NO_SUCH:
            return None if self.look(file.name) is None else self.opened(file)
        except OSError as error:
            raise unreachable(self._root, error, f"opening {file.name}", NOTHING_READ) from error
        if _found(file.name, os.fstat(handle.fileno())) == file:
            return ReadFile(handle, file.name, self._root, (OSError,))
        handle.close()
        return None

    def verify(self, file: FolderFile) -> bool:
        """Files of a disk can be changed in place."""
        return self.look(file.name) == file

    def _walk(self) -> Iterator[FolderFile]:
        def failed(error: OSError) -> None:
            raise error

        for folder, _, names in os.walk(self._root, onerror=failed):
            below = os.path.relpath(folder, self._root).replace(os.sep, "/")
            for name in names:
                path = name if below == "." else f"{below}/{name}"
                if (found := self._regular(path)) is not None:
                    yield found

    def _regular(self, name: str) -> FolderFile | None:
        """Return a file; None if it was removed after it was listed, or is a pipe or a device."""
        try:
            about = os.stat(self._place(name))
        except _NO_SUCH:
            return None
        return _found(name, about) if stat.S_ISREG(about.st_mode) else None

    def _place(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _gone(self) -> Unavailable:
        return Unavailable(
            f"the folder {self._root} does not exist",
            not_done=NOTHING_READ,
            next_step="mount it, or restore it; the job continues then",
        )


class RemoteFolder(Folder):
    """The files below a URL of fsspec."""

    def __init__(self, url: str) -> None:
        self._url, self._s3 = url.rstrip("/"), url.startswith("s3://")
        self._files, self._root, self._failures = reached(self._url)

    def check(self) -> None:
        """Listing shows whether the bucket exists."""

    def files(self) -> list[FolderFile]:
        begin = len(self._root) + 1
        try:
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
        except self._failures as error:
            raise unreachable(self._url, error, "listing the files", NOTHING_READ) from error
        return [_described(path[begin:], info) for path, info in found.items() if len(path) > begin]

    def look(self, name: str) -> FolderFile | None:
        try:
            self._files.invalidate_cache()
            return _described(name, self._files.info(self._place(name)))
        except _NO_SUCH:
            return None
        except self._failures as error:
            raise unreachable(self._url, error, f"looking at {name}", NOTHING_READ) from error

    def opened(self, file: FolderFile) -> ReadFile | None:
        """A file of s3fs keeps to the ETag that it had when it was opened."""
        options: dict[str, Any] = {"block_size": _BLOCK_BYTES, "cache_type": "readahead"} if self._s3 else {}
        try:
            handle = self._files.open(self._place(file.name), "rb", **options)
        except _NO_SUCH:
            return None
        except self._failures as error:
            raise unreachable(self._url, error, f"opening {file.name}", NOTHING_READ) from error
        now = _described(file.name, handle.details) if self._s3 else self.look(file.name)
        if now == file:
            return ReadFile(handle, file.name, self._url, self._failures)
        handle.close()
        return None

    def verify(self, file: FolderFile) -> bool:
        return self._s3 or self.look(file.name) == file

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"


def _found(name: str, about: os.stat_result) -> FolderFile:
    return FolderFile(name, about.st_size, str(about.st_mtime_ns))


def _described(name: str, info: dict[str, Any]) -> FolderFile:
    version = info["ETag"] if "ETag" in info else info["created"]
    if isinstance(version, datetime):  # in memory:// it is one or a number, depending on the question
        version = version.timestamp()
    return FolderFile(name, int(info["size"] or 0), str(version).strip('"'))
