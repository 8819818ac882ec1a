"""A range of address space in regions: each is in memory, in the swap file, or in a file that the process only reads.

A region is ordinary memory until it is swapped out. The first time, it is written to an unlinked file, and the file is
mapped over it, at the same address. From then on swapping it out means dropping it from the process: the system has it
in the page cache, writes it to the disk, and maps it again when it is reached.

A range may also begin as a private mapping of a file. A region that was not written since is only dropped, as the file
has its content; the system knows which pages were (/proc/self/pagemap).

Invariants
    - An address stays valid and keeps its content until its array is freed.
    - A region is mapped shared only after its file has room for all of it, so no store can fail for lack of room
      (SIGBUS).
    - The file of a private mapping is never changed.

I/O: local files, memory mappings, /proc/self.
Source: docs/decisions/0039-state-larger-than-memory.md, 0049-state-images.md; mmap(2), madvise(2), proc_pid_pagemap(5).
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.state.tables.slab import UNIT_BYTES

REGION_BYTES = UNIT_BYTES
WHOLE_UP_TO = 2 << 30
"""Regions of larger areas stay single pages in the page cache: a batch reaches few rows of each region, and a changed
region is written to the disk as a whole."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_WRITE = 1 | 2
_PRIVATE, _SHARED, _FIXED, _ANONYMOUS, _NO_RESERVE = 0x02, 0x01, 0x10, 0x20, 0x4000
_RANDOM, _WITHOUT, _HUGE, _NO_HUGE, _TO_READ, _TO_WRITE = 1, 4, 14, 15, 22, 23
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_FAILED = ctypes.c_void_p(-1).value
_IN_USE, _OF_FILE = np.uint64(0b11 << 62), np.uint64(1 << 61)
"""Bits of a page in the pagemap: it is in memory or in swap space; it is a page of a file."""


class Area:
    """A range of address space, unmapped when no array refers to it any longer.

    Args:
        size: Bytes; rounded up to whole regions.
        freed: Receives address and bytes that were used when the range is unmapped.
        file: An open file of `size` bytes, which gives the regions their content.

    Raises:
        MemoryError: there is not so much address space.
    """

    def __init__(self, size: int, freed: Callable[[int, int], None], file: int | None = None) -> None:
        self._freed = freed
        self.size, self.used = -(-size // REGION_BYTES) * REGION_BYTES, 0
        mapping = _map(None, self.size + REGION_BYTES, _PRIVATE | _ANONYMOUS | _NO_RESERVE, -1, 0)
        self.address = -(-mapping // REGION_BYTES) * REGION_BYTES
        if self.address > mapping:
            _LIBC.munmap(mapping, self.address - mapping)
        if mapping + REGION_BYTES > self.address:
            _LIBC.munmap(self.address + self.size, mapping + REGION_BYTES - self.address)
        _LIBC.madvise(self.address, self.size, _HUGE)
        self._file: int | None = None
        """The file that regions are swapped out to."""
        self._swapped: set[int] = set()
        """Regions that are mapped from it."""
        self._given: set[int] = set()
        """Regions that are mapped privately from the file that was given."""
        if file is not None:
            _map(self.address, size, _PRIVATE | _FIXED | _NO_RESERVE, file, 0)  # not after its end, where stores fail
            self._given = set(range(self.size // REGION_BYTES))
        self._brought: dict[int, bool] = {}
        """Those that were made resident since they were last dropped, and whether to be written."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self.address, False), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def needs_room(self, number: int) -> bool:
        """Return whether a region leaves memory only if the disk has room for it."""
        unwritten = number in self._given and not _written(self.address + number * REGION_BYTES)
        return not unwritten and number not in self._swapped

    def is_given(self, number: int) -> bool:
        """Return whether a region has the content of the given file, with later writes."""
        return number in self._given

    def note_new(self, number: int, *, whole: bool) -> None:
        """Note that a region has come into use, ordinary memory; it becomes resident as a whole, or page by page."""
        _LIBC.madvise(self.address + number * REGION_BYTES, REGION_BYTES, _HUGE if whole else _NO_HUGE)
        self._brought[number] = True

    def is_brought(self, number: int) -> bool:
        """Return whether a region is new, or was made resident since it was last dropped."""
        return number in self._brought

    def bring(self, number: int, write: bool) -> bool:
        """Map all of a region that the page cache has as one unit; return whether it was not brought already.

        Nothing depends on it: the system maps other pages when they are read or written, one at a time.
        """
        before = self._brought.get(number)
        if before or before is write or not (number in self._swapped or number in self._given):
            return False
        if number in self._swapped:
            self._bring_whole(number, before, write)
        self._brought[number] = write
        return before is None

    def _bring_whole(self, number: int, before: bool | None, write: bool) -> None:
        at = self.address + number * REGION_BYTES
        if before is None:
            _LIBC.madvise(at, REGION_BYTES, _WITHOUT)  # a region with single pages is not mapped as a whole
        # Otherwise single pages are mapped, so that rows in no order do not bring a region each.
        _LIBC.madvise(at, REGION_BYTES, _HUGE)
        _LIBC.madvise(at, _PAGE_BYTES, _TO_WRITE if write else _TO_READ)
        _LIBC.madvise(at, REGION_BYTES, _NO_HUGE)

    def swap_out(self, number: int, folder: Path) -> None:
        """Drop one region from memory; its content stays, in the file.

        Raises:
            OSError: the file takes no more; the region stays in memory.
        """
        at, offset = self.address + number * REGION_BYTES, number * REGION_BYTES
        if number in self._swapped or (number in self._given and not _written(at)):
            _LIBC.madvise(at, REGION_BYTES, _WITHOUT)
            self._brought.pop(number, None)
            return
        if self._file is None:
            self._file = _unlinked(folder, self.size)
        os.posix_fallocate(self._file, offset, REGION_BYTES)
        content = memoryview((ctypes.c_char * REGION_BYTES).from_address(at)).cast("B")
        position = 0
        # The page cache keeps a region that is written whole as one unit: bring() maps it with one fault, and it is
        # written back as a whole.
        piece = REGION_BYTES if self.used <= WHOLE_UP_TO else _PAGE_BYTES
        while position < REGION_BYTES:
            position += os.pwrite(self._file, content[position : position + piece], offset + position)
        content.release()
        _map(at, REGION_BYTES, _SHARED | _FIXED, self._file, offset)
        _LIBC.madvise(at, REGION_BYTES, _RANDOM)
        _LIBC.madvise(at, REGION_BYTES, _NO_HUGE)
        self._swapped.add(number)
        self._given.discard(number)
        self._brought.pop(number, None)

    def bring_back(self, regions_max: int) -> int:
        """Make this many regions ordinary memory again, with their content; return how many that were."""
        count = 0
        while self._swapped and count < regions_max:
            number = self._swapped.pop()
            at = self.address + number * REGION_BYTES
            content = ctypes.string_at(at, REGION_BYTES)
            _map(at, REGION_BYTES, _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE, -1, 0)
            _LIBC.madvise(at, REGION_BYTES, _HUGE)
            ctypes.memmove(at, content, REGION_BYTES)
            count += 1
        if count:
            self._close_file()
        return count

    def give_back(self, size: int) -> None:
        """Drop everything from this byte on; it reads as zeros."""
        for number in range(size // REGION_BYTES, self.used // REGION_BYTES):
            at = self.address + number * REGION_BYTES
            self._brought.pop(number, None)
            if number in self._swapped:
                _map(at, REGION_BYTES, _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE, -1, 0)
                _LIBC.madvise(at, REGION_BYTES, _HUGE)
                self._swapped.remove(number)
                _LIBC.fallocate(self._file, _PUNCH_HOLE | _KEEP_SIZE, number * REGION_BYTES, REGION_BYTES)
            elif number in self._given:
                _map(at, REGION_BYTES, _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE, -1, 0)
                _LIBC.madvise(at, REGION_BYTES, _HUGE)
                self._given.remove(number)
            else:
                _LIBC.madvise(at, REGION_BYTES, _WITHOUT)
        self._close_file()

    def _close_file(self) -> None:
        """Give the disk its room back, if no region is in the file."""
        if self._file is not None and not self._swapped:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            _LIBC.munmap(self.address, self.size)
            self._freed(self.address, self.used)
            if self._file is not None:
                os.close(self._file)


def _written(at: int) -> bool:
    """Return whether pages of a private mapping of a file were written; True if the system does not report it."""
    size = REGION_BYTES // _PAGE_BYTES * 8
    try:
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    except OSError:
        return True
    try:
        entries = os.pread(pagemap, size, at // _PAGE_BYTES * 8)
    except OSError:
        return True
    finally:
        os.close(pagemap)
    pages = np.frombuffer(entries, np.uint64)
    return len(entries) < size or bool(np.any((pages & _IN_USE != 0) & (pages & _OF_FILE == 0)))


def _unlinked(folder: Path, size: int) -> int:
    """Create a file of this size without a name, and without room yet."""
    file, name = tempfile.mkstemp(prefix="swap-", dir=folder)
    os.unlink(name)
    try:
        os.ftruncate(file, size)
    except OSError:
        os.close(file)
        raise
    return file


def _map(address: int | None, size: int, flags: int, file: int, offset: int) -> int:
    mapping: int | None = _LIBC.mmap(address, size, _READ_WRITE, flags, file, offset)
    if mapping is None or mapping == _FAILED:
        number = ctypes.get_errno()
        if number != errno.ENOMEM:
            raise OSError(number, os.strerror(number))
        raise MemoryError(f"{size:,} bytes of address space: {os.strerror(number)}")
    return mapping


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
