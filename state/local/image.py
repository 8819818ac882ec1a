"""Images: the tables of a store as files on this machine, for the next process that needs them.

Below a folder, every image is a folder: a `lock`, a `head` that describes the image, and the arrays, large ones in
separate files, small ones in one file. Several processes may map an image at a time; one that changes it is alone.

Invariants
    - A head describes its image: it is removed before the first change, and written, by rename, after the last.
    - An image with a head is as of one completed epoch, by the hash of its manifest or of the base object that holds
      the same rows (P14).
    - A process that maps or changes an image holds its lock; locks end with the process.

I/O: local files, locks.
Source: docs/decisions/0049-state-images.md, 0122-local-images.md; flock(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from holdfast import children
from holdfast.errors import LocalDamaged
from holdfast.model import Cut, Epoch, JobUuid
from holdfast.state.compiled.digest import sources_digest
from holdfast.state.paging.mapped import MappedFiles
from holdfast.state.paging.private import PrivateFiles
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import UNLIMITED, Memory, TableContents

Lineage = Mapping[Epoch, str]
"""Completed epochs on which the target builds, each with the SHA-256 of its manifest."""
Declared = Mapping[int, str]
"""The hash of the declaration of every operator of the plan, by number."""
OLD_S = 7 * 86_400.0
"""Images that were not used for so long are removed."""
BROKEN_S = 600.0
_READ_BYTES = 8 << 20
_VERSION = 1
_HEAD, _LOCK, _SMALL = "head", "lock", "small"
_NEW, _REMOVED = ".new-", ".removed-"


class StoredArray(msgspec.Struct, frozen=True):
    """Where an array is: in a separate file, or from an offset on in the file of small arrays."""

    dtype: str
    size: int
    """Elements."""
    file: str = ""
    offset: int = 0
    hash: str = ""
    """xxh3-64 of its bytes; empty if it was not asked for."""


class StoredTable(msgspec.Struct, frozen=True):
    """One table: its arrays and its other numbers."""

    arrays: dict[str, StoredArray]
    numbers: dict[str, int]


class Head(msgspec.Struct, frozen=True):
    """Description of an image.

    Args:
        layout: Hash of the code that decides how records lie in memory.
        small: The file of small arrays.
    """

    job_uuid: JobUuid
    cut: Cut
    key_groups: tuple[int, int]
    declared: dict[int, str]
    layout: str
    small: str
    tables: dict[int, StoredTable]
    version: int = _VERSION
    content: str = ""
    """SHA-256 of the base object with the same rows; empty if there is none."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.size * np.dtype(a.dtype).itemsize for t in self.tables.values() for a in t.arrays.values())

    @property
    def files(self) -> set[str]:
        """The names of the files of its arrays."""
        arrays = (array for table in self.tables.values() for array in table.arrays.values())
        return {self.small, *(array.file for array in arrays if array.file)}


_DECODER = msgspec.json.Decoder(Head)


@dataclass(frozen=True)
class Wanted:
    """The state that is needed: of these operators and key groups, as of the last epoch of a lineage."""

    job_uuid: JobUuid
    key_groups: tuple[int, int]
    declared: Declared
    base: Cut
    lineage: Lineage
    content: str = ""
    """SHA-256 of the base object on which the last epoch builds; empty if there is none, or several."""

    @property
    def prefix(self) -> str:
        """The beginning of the name of every folder that may have such an image."""
        first, end = self.key_groups
        operators = xxhash.xxh3_64_hexdigest(repr(sorted(self.declared)).encode())
        return f"{first}-{end}-{operators}-"

    def usable(self, head: Head | None) -> bool:
        """Return whether an image has these operators and key groups, as of something on which this state builds."""
        if head is None or head.job_uuid != self.job_uuid:
            return False
        if head.layout != sources_digest():  # another version of this package has written it
            return False
        return self.has_columns(head) and self.has_key_groups(head) and self.continues(head)

    def has_columns(self, head: Head) -> bool:
        """Return whether the rows of an image have the present columns."""
        return head.declared == self.declared

    def has_key_groups(self, head: Head) -> bool:
        """Return whether an image has these key groups and no others."""
        return head.key_groups == self.key_groups

    def continues(self, head: Head) -> bool:
        """Return whether this state builds on that of an image: on its epoch, or on the base object with its rows."""
        cut = head.cut
        past = cut.epoch < self.base.epoch and self.lineage.get(cut.epoch) == cut.manifest
        known = (cut == self.base or past) and cut.manifest != ""
        return known or (head.content != "" and head.content == self.content)

    def replaces(self, head: Head) -> bool:
        """Return whether this state makes an image useless."""
        shares = not self.declared.keys().isdisjoint(head.declared)
        return shares and max(head.key_groups[0], self.key_groups[0]) < min(head.key_groups[1], self.key_groups[1])


class ImageFiles(Protocol):
    """How the files of an image become arrays."""

    def mapped(self, name: str, dtype: DTypeLike, size: int) -> NDArray[Any]:
        """Return a file, all of it; the first `size` elements are used."""


class Image:
    """An image that this process holds: alone, or with others that map it."""

    limits = UNLIMITED, UNLIMITED
    """The resident memory of a process that uses it, and the bytes of tables that fit it; see Swap."""

    def __init__(self, path: Path, lock: int, head: Head | None, *, alone: bool) -> None:
        self.path, self._lock, self.head, self.alone = path, lock, head, alone
        self._whole = head is not None
        children.keep(self)

    def fileno(self) -> int:
        """Return the descriptor of the lock; negative once it is released."""
        return self._lock

    def begin(self) -> MappedFiles:
        """Begin to change it; return the memory of the tables, which are in its files."""
        assert self.alone
        self._whole = False
        (self.path / _HEAD).unlink(missing_ok=True)
        return MappedFiles(self.path, self.limits[0])

    def private(self) -> PrivateFiles:
        """Return the memory of tables that map it: writes there reach no file of the image."""
        return PrivateFiles(self.path, *self.limits)

    def copy(self, other: Image) -> None:
        """Take the content of another image, which this process holds and nothing changes."""
        assert self.alone and other.head is not None
        for name in other.head.files:
            _copy(other.path / name, self.path / name)
        self.head = other.head

    def read(self, store: StateStore, memory: Memory) -> None:
        """Give a store, whose tables have this memory, the tables of the image, all read and verified.

        Raises:
            LocalDamaged: they differ from what was written.
        """
        self.verify()
        self.load(store, _ImageReader(self.path, memory))

    def verify(self) -> None:
        """Compare the files with their hashes.

        Raises:
            LocalDamaged: they differ.
        """
        assert self.head is not None
        for table in self.head.tables.values():
            for array in table.arrays.values():
                if array.hash and _hash_of(self.path, array, self.head.small) != array.hash:
                    raise _damaged(self.path)

    def finish(self, store: StateStore, memory: MappedFiles, wanted: Wanted, *, hashed: bool = False) -> None:
        """Write the head of the image; files that it no longer needs are removed.

        Args:
            hashed: Note hashes of its arrays, by which a later process verifies them.
        """
        small, offset, tables = f"{_SMALL}-{uuid.uuid4().hex}", 0, dict[int, StoredTable]()
        with open(self.path / small, "wb") as file:
            for operator, contents in store.stored().items():
                arrays = dict[str, StoredArray]()
                for name, array in contents.arrays.items():
                    digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).data) if hashed else ""
                    if mapped := memory.file_of(array):
                        arrays[name] = StoredArray(array.dtype.str, array.size, mapped, 0, digest)
                    else:
                        arrays[name] = StoredArray(array.dtype.str, array.size, "", offset, digest)
                        offset += file.write(np.ascontiguousarray(array).data)
                        offset += file.write(bytes(-offset % 64))
                tables[operator] = StoredTable(arrays, contents.numbers)
        given = wanted.job_uuid, wanted.base, wanted.key_groups, dict(wanted.declared)
        self.head = Head(*given, sources_digest(), small, tables, content=wanted.content)
        (self.path / (_NEW + _HEAD)).write_bytes(msgspec.json.encode(self.head))
        os.replace(self.path / (_NEW + _HEAD), self.path / _HEAD)
        self._whole = True
        os.utime(self._lock)  # for programs that remove old temporary files
        memory.close()
        needed = {_HEAD, _LOCK, *self.head.files}
        for path in self.path.iterdir():
            if path.name not in needed:
                path.unlink()

    def load(self, store: StateStore, files: ImageFiles) -> None:
        """Give a store, into whose memory the files come, the tables of the image.

        Raises:
            LocalDamaged: a file is shorter than it was.
        """
        assert self.head is not None
        data = np.fromfile(self.path / self.head.small, np.uint8)
        contents, rooms = dict[int, TableContents](), dict[int, dict[str, NDArray[Any]]]()
        for operator, table in self.head.tables.items():
            rooms[operator] = {n: files.mapped(a.file, a.dtype, a.size) for n, a in table.arrays.items() if a.file}
            arrays = {
                name: rooms[operator][name][: array.size] if array.file else _small(data, array)
                for name, array in table.arrays.items()
            }
            if any(arrays[name].size < array.size for name, array in table.arrays.items()):
                raise _damaged(self.path)
            contents[operator] = TableContents(arrays, table.numbers)
        store.adopt(contents, rooms, self.head.cut.epoch)

    def share(self) -> bool:
        """Let others map it too; return whether it is still unchanged."""
        if self.alone:
            if not _locked(self._lock, fcntl.LOCK_SH):
                return False
            self.alone = False
        return _read_head(self.path) == self.head

    def remove(self) -> None:
        """Remove the image, unless another process holds it too, and release it."""
        if self.alone or _locked(self._lock, fcntl.LOCK_EX):
            _remove(self.path)
        self.release()

    def release(self) -> None:
        """Let others change it; one that is not finished is removed."""
        if self.alone and not self._whole and self._lock >= 0:
            _remove(self.path)
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # processes that were forked meanwhile have the lock too
            os.close(self._lock)
            self._lock = -1


class _ImageReader:
    """Reads the files of an image into a memory that is not the image's."""

    def __init__(self, folder: Path, memory: Memory) -> None:
        self._folder, self._memory = folder, memory

    def mapped(self, name: str, dtype: DTypeLike, size: int) -> NDArray[Any]:
        """Return a room, as large as the file, of which the first `size` elements have the file's content."""
        kind, path = np.dtype(dtype), self._folder / name
        room = self._memory.room(kind, max(size, path.stat().st_size // kind.itemsize))
        used = self._memory.use(room, size)
        with open(path, "rb", buffering=0) as file:
            for first in range(0, size, _READ_BYTES // kind.itemsize):
                part = used[first : min(size, first + _READ_BYTES // kind.itemsize)]
                if file.readinto(part.view(np.uint8).data) != part.nbytes:
                    raise _damaged(self._folder)
                self._memory.settle()
        return room


class ImageHolders(IntEnum):
    """Whether other processes hold images that may be usable."""

    NO = 0
    MAPPED = 1
    """One is mapped as of an older epoch."""
    CHANGED = 2
    """One is being changed."""


def find(parent: Path, wanted: Wanted) -> tuple[Image | None, ImageHolders]:
    """Return the image that leaves the least to restore, held, and whether other processes hold one.

    An image that is as of the base is shared, any other is held alone. Those that are of no use are removed.
    """
    best: Image | None = None
    holders = ImageHolders.NO
    for path in sorted(parent.iterdir()):
        if not path.name.startswith(wanted.prefix):
            _tidy(path, wanted)
            continue
        image = _hold(path)
        if image is None:
            holders = ImageHolders.NO if _remove_broken(path) else ImageHolders.CHANGED
        elif not image.alone and (image.head is None or image.head.cut != wanted.base):
            holders = max(holders, ImageHolders.MAPPED)
        elif wanted.usable(image.head) and (best is None or _epoch(image) > _epoch(best)):
            image, best = best, image
        if image is not None and image.alone:
            image.remove()
        elif image is not None:
            image.release()
    if best is not None and best.head is not None and best.head.cut == wanted.base and not best.share():
        best.release()
        return None, ImageHolders.CHANGED
    return best, holders


def create(parent: Path, wanted: Wanted) -> Image:
    """Create an image without content, held alone."""
    name = wanted.prefix + uuid.uuid4().hex[:12]
    new, path = parent / (_NEW + name), parent / name
    new.mkdir(mode=0o700)
    lock = os.open(new / (_NEW + _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(new / (_NEW + _LOCK), new / _LOCK)  # it is not found before it is locked
    new.rename(path)
    return Image(path, lock, None, alone=True)


def _hold(path: Path) -> Image | None:
    """Lock an image, alone if no process holds it; None if it is being changed, or gone."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return None
    alone = _locked(lock, fcntl.LOCK_EX)
    if (alone or _locked(lock, fcntl.LOCK_SH)) and _is_there(path, lock):
        return Image(path, lock, _read_head(path), alone=alone)
    os.close(lock)
    return None


def _tidy(path: Path, wanted: Wanted) -> None:
    """Remove a folder if the state that is wanted makes it useless, or if a killed process left it unfinished."""
    if path.name.startswith(_REMOVED):
        shutil.rmtree(path, ignore_errors=True)
        return
    head = _read_head(path)
    if head is not None and not wanted.replaces(head):
        return
    image = _hold(path)
    if image is None:
        _remove_broken(path)
        return
    if image.alone and (image.head is None or wanted.replaces(image.head)):
        image.remove()
    image.release()


def remove_old(jobs: Path, folder: str, now: float) -> None:
    """Remove the images of all jobs on this machine that no process has used for a long time."""
    for path in jobs.glob(f"*/{folder}/*"):
        try:
            old = now - os.stat(path / _LOCK).st_mtime > OLD_S
        except OSError:
            continue
        if old and (image := _hold(path)) is not None:
            if image.alone:
                image.remove()
            image.release()


def _remove_broken(path: Path) -> bool:
    """Remove a folder without a lock, unless a process is just creating it; return whether it has none."""
    try:
        if (path / _LOCK).exists():
            return False
        age = time.time() - os.stat(path).st_mtime
    except OSError:
        return True
    if age > BROKEN_S:
        _remove(path)
    return True


def _remove(path: Path) -> None:
    removed = path.with_name(_REMOVED + uuid.uuid4().hex)
    with suppress(FileNotFoundError):
        path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _read_head(path: Path) -> Head | None:
    try:
        head = _DECODER.decode((path / _HEAD).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    return head if head.version == _VERSION else None


def _locked(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(path: Path, lock: int) -> bool:
    """Return whether the lock is that of the folder; it may have been removed since it was opened."""
    try:
        status = os.stat(path / _LOCK)
    except OSError:
        return False
    mine = os.fstat(lock)
    return (status.st_dev, status.st_ino) == (mine.st_dev, mine.st_ino)


def _small(data: NDArray[np.uint8], array: StoredArray) -> NDArray[Any]:
    dtype = np.dtype(array.dtype)
    part = data[array.offset : array.offset + array.size * dtype.itemsize]
    return part[: part.size - part.size % dtype.itemsize].view(dtype)


def _hash_of(folder: Path, array: StoredArray, small: str) -> str:
    """Return the hash of the bytes of an array, as far as they are there."""
    digest, left = xxhash.xxh3_64(), array.size * np.dtype(array.dtype).itemsize
    try:
        with open(folder / (array.file or small), "rb", buffering=0) as file:
            file.seek(array.offset)
            while left and (part := file.read(min(left, _READ_BYTES))):
                digest.update(part)
                left -= len(part)
    except OSError as error:
        raise _damaged(folder) from error
    return digest.hexdigest()


def _copy(file: Path, to: Path) -> None:
    """Copy a file, without room for its holes."""
    with open(file, "rb", buffering=0) as source, open(to, "xb", buffering=0) as target:
        size, at = os.fstat(source.fileno()).st_size, 0
        os.truncate(target.fileno(), size)
        while (at := _data_from(source.fileno(), at)) < size:
            end = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            while at < end:
                copied = os.copy_file_range(source.fileno(), target.fileno(), min(end - at, _READ_BYTES), at, at)
                if not copied:
                    raise OSError(errno.EIO, f"{file} ended while it was copied")
                at += copied


def _data_from(file: int, at: int) -> int:
    """Return where data begins, from an offset on; the size of the file if there is none."""
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(file).st_size


def _damaged(folder: Path) -> LocalDamaged:
    return LocalDamaged(
        f"the image of the state in {folder} is not what was written",
        not_done="it is not used",
        next_step="no action needed: the state is restored from the checkpoint",
    )


def _epoch(image: Image) -> int:
    return 0 if image.head is None else image.head.cut.epoch
