"""Memory of tables in files of one folder, which receive all writes.

Arrays get separate files, which are named by numbers and reserved as sparse files; small arrays stay in the memory
of the process.

Invariants
    - A file is written only where it has room on the disk, so no store fails for lack of room (SIGBUS). On file systems
      that copy on write (btrfs, ZFS) that holds for new pages only.

I/O: local files, memory mappings.
Source: docs/decisions/0049-state-images.md; mmap(2).
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from holdfast.state.paging.swap import resident_bytes
from holdfast.state.tables.slab import PLAIN, UNIT_BYTES, UNLIMITED

FILE_BYTES_MIN = 1 << 20
"""Smaller arrays get no file."""
_STEP_BYTES = 1 << 16
"""Room on the disk is taken in steps of this size, for larger arrays in whole units."""


@dataclass
class _MappedFile:
    name: str
    descriptor: int
    size: int
    allocated: int
    mapping: weakref.ref[mmap.mmap]
    """Arrays keep it alive."""


class MappedFiles:
    """The memory of the tables of one image that is being changed.

    Args:
        folder: Where the files are.
        resident_max: The resident memory of the process above which pages of files leave it.
    """

    bytes_max, refused = UNLIMITED, ""

    def __init__(self, folder: Path, resident_max: int = UNLIMITED) -> None:
        self._folder, self._resident_max = folder, resident_max
        self._files: dict[int, _MappedFile] = {}
        """By address."""
        taken = (int(path.name) for path in folder.iterdir() if path.name.isdigit())
        self._numbers = itertools.count(1 + max(taken, default=0))

    def room(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        """Reserve address space for `size` elements, in a new file if it is large.

        Raises:
            OSError: the file cannot be created.
            MemoryError: there is not so much address space.
        """
        if size * dtype.itemsize < FILE_BYTES_MIN:
            return PLAIN.room(dtype, size)
        name = str(next(self._numbers))
        file = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(file, -(-size * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE)
            return self._mapped(name, file, dtype)[:size]
        except OSError as error:
            os.close(file)
            os.unlink(self._folder / name)
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"{size * dtype.itemsize:,} bytes of address space: {error}") from error

    def zeros(self, size: int) -> NDArray[np.int64]:
        """Return an array of zero words."""
        if size * 8 < FILE_BYTES_MIN:
            return PLAIN.zeros(size)
        return self.use(self.room(np.dtype(np.int64), size), size)[:size]

    def use(self, room: NDArray[Any], size: int) -> NDArray[Any]:
        """Return the part of a room to use from now on, at least `size` elements, for which the disk has room.

        Raises:
            OSError: it has not.
        """
        file = self._files.get(room.ctypes.data)
        if file is None:
            return room
        needed = size * room.itemsize
        step = _STEP_BYTES if needed < UNIT_BYTES else UNIT_BYTES
        target_bytes = min(file.size, -(-needed // step) * step)
        if target_bytes > file.allocated:
            os.posix_fallocate(file.descriptor, file.allocated, target_bytes - file.allocated)
        elif target_bytes < file.allocated:  # bytes after it are dropped, and read as zeros
            os.ftruncate(file.descriptor, target_bytes)
            os.ftruncate(file.descriptor, file.size)
        file.allocated = target_bytes
        return room[: target_bytes // room.itemsize]

    def bring(self, address: int, units: Iterable[int], write: bool) -> None:
        """Do nothing; the system maps pages when they are reached."""

    def settle(self) -> None:
        """Take the files out of this process if it is too large: the page cache has them, and writes them back."""
        if self._resident_max == UNLIMITED or resident_bytes() <= self._resident_max:
            return
        for file in self._files.values():
            if (mapping := file.mapping()) is not None:
                mapping.madvise(mmap.MADV_DONTNEED)

    def mapped(self, name: str, dtype: DTypeLike, size: int = 0) -> NDArray[Any]:
        """Map a file, all of it; call use() before it is written."""
        file = os.open(self._folder / name, os.O_RDWR)
        try:
            return self._mapped(name, file, np.dtype(dtype))
        except OSError:
            os.close(file)
            raise

    def file_of(self, array: NDArray[Any]) -> str:
        """Return the name of the file that an array begins in; empty if it is in memory."""
        file = self._files.get(array.ctypes.data)
        return "" if file is None else file.name

    def close(self) -> None:
        """Release the files; arrays stay valid."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files = {}

    def _mapped(self, name: str, file: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        size = os.fstat(file).st_size
        mapping = mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        array = np.frombuffer(mapping, dtype)
        if (gone := self._files.get(array.ctypes.data)) is not None:  # its array was freed
            os.close(gone.descriptor)
        self._files[array.ctypes.data] = _MappedFile(name, file, size, 0, weakref.ref(mapping))
        return array
