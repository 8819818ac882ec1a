"""The swap area of one worker: memory for tables that leaves the process when the budget is reached.

Every slab is a range of address space, in regions of 2 MiB. All of it is ordinary memory until the tables are larger
than their budget; then regions are swapped out, those that were needed longest ago first. The first time, a region is
written to an unlinked file in the worker's local folder, and the file is mapped over it, at the same address. From then
on swapping it out means dropping it from the process: the system has it in the page cache, writes it to the disk, and
maps it again when a kernel reads or writes it. So no kernel depends on what is resident.

Tables ask for the regions that they are about to reach (`bring`). Where the page cache has a region as one unit, it is
mapped by one fault then; otherwise, and without asking, the system maps page by page.

Once tables have given back so much room that they are well below their budget, what was mapped from files becomes
ordinary memory again, some regions at a time, and kernels work on whole batches as before.

Invariants
    - An address stays valid and keeps its content until its array is gone.
    - A region is mapped from a file only after the file has room for all of it, so no store can fail for want of room
      (SIGBUS). Where the disk is full, regions stay in memory, and `refused` tells the worker to stop reading.
    - What settle() does is bounded by one round over the regions.
    - Nothing here is durable, and nothing is ever read by another process.

I/O: local files, memory mappings, /proc/self.
Source: docs/design/0039-state-larger-than-memory.md; mmap(2), madvise(2).
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.tables.slab import PLAIN, UNIT_BYTES, UNLIMITED

REGION_BYTES = UNIT_BYTES
WHOLE_UP_TO = 2 << 30
"""Regions of larger areas stay single pages in the page cache: a batch reaches few rows of each region, and a changed
region is written to the disk as a whole."""
AREA_BYTES_MIN = 1 << 20
"""Smaller arrays stay in ordinary memory."""
SLACK_SHARE, SLACK_REGIONS = 8, 3
"""1/SLACK_SHARE of the budget may become resident between two calls of settle(), or so many regions, if they are at
most half of it. What a part needs beyond that replaces what earlier parts needed."""
FLOOR_SHARE = 4
"""If other memory of the process takes the budget, tables still get 1/FLOOR_SHARE of it, else they would thrash."""
FITS_SHARE = 4
"""Tables that were larger than their budget fit it again once they are 1/FITS_SHARE below it, so that the two do not
alternate."""
RETURNED_AT_ONCE = 4
"""Regions that one call of settle() makes ordinary memory again."""
MEASURED_EVERY = 64
"""After so many calls, what other memory takes is measured again, since it may have shrunk."""
_CHECKED_EVERY = 8
"""Regions that are dropped between two readings of the resident memory, if it is unknown what is in them."""
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
"""File systems whose files are memory."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_WRITE = 1 | 2
_PRIVATE, _SHARED, _FIXED, _ANONYMOUS, _NO_RESERVE = 0x02, 0x01, 0x10, 0x20, 0x4000
_RANDOM, _WITHOUT, _HUGE, _NO_HUGE, _TO_READ, _TO_WRITE = 1, 4, 14, 15, 22, 23
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_FAILED = ctypes.c_void_p(-1).value


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 if the system does not report it."""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 256).split()[1]) * _PAGE_BYTES
    finally:
        os.close(statm)


def unfit(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return why files of a folder cannot take state out of memory; empty if they can."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "this system does not report its file systems"
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == number:
            name = kind.split()[0]
            return f"{folder} is on {name}, whose files are memory" if name in IN_MEMORY else ""
    return ""


class Swap:
    """The memory of one worker's tables.

    Args:
        folder: Where the files are; they are removed as soon as they are open.
        resident_max: The resident memory of the process that tables keep to.
        tables_max: Bytes of tables that fit it; while there are fewer, nothing is read, written or measured.
    """

    def __init__(self, folder: Path, resident_max: int, tables_max: int) -> None:
        self._folder, self._resident_max, self._tables_max = folder, resident_max, tables_max
        self._slack = max(tables_max // SLACK_SHARE, min(SLACK_REGIONS * REGION_BYTES, tables_max // 2))
        self._areas: weakref.WeakValueDictionary[int, _Area] = weakref.WeakValueDictionary()
        self._hand = self._used = 0
        self._over = False
        self._others = self._calls = 0
        """What stayed resident when all regions were dropped, if that is more than the budget."""
        self._full = ""
        """Why the last region could not be written to a file; empty if it could."""
        self._recent: dict[tuple[int, int], int] = {}
        """Regions that are resident because they are new or were asked for, by address of their area, and the part for
        which they were asked for last; that of the longest ago first."""
        self._part = self._grown = 0
        """The number of this part of a batch, and how many regions it has made resident."""
        self.dropped_regions = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all tables, resident or not."""
        return self._used

    @property
    def swapping(self) -> bool:
        """Return whether the tables are larger than their budget, or were and are not well below it."""
        return self._over

    @property
    def refused(self) -> str:
        """Why tables cannot leave memory although they are larger than their budget; empty if they can."""
        return self._full if self.swapping else ""

    @property
    def bytes_max(self) -> int:
        """Bytes of memory that may become resident between two calls of settle()."""
        return self._slack if self.swapping else UNLIMITED

    def room(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        """Reserve address space for `size` elements, beginning at a cache line.

        Raises:
            MemoryError: there is not so much address space.
        """
        if size * dtype.itemsize < AREA_BYTES_MIN:
            return PLAIN.room(dtype, size)
        area = _Area(size * dtype.itemsize, self._freed)
        self._areas[area.address] = area
        return np.asarray(area).view(dtype)[:size]

    def zeros(self, size: int) -> NDArray[np.int64]:
        """Return an array of zero words."""
        if size * 8 < AREA_BYTES_MIN:
            return PLAIN.zeros(size)
        return self.use(self.room(np.dtype(np.int64), size), size)

    def use(self, room: NDArray[Any], size: int) -> NDArray[Any]:
        """Return the part of a room to use from now on, in whole regions; it has at least `size` elements.

        What lies behind it loses its content.
        """
        area = self._areas.get(room.ctypes.data)
        if area is None:
            return room
        wanted = min(area.size, -(-size * room.itemsize // REGION_BYTES) * REGION_BYTES)
        before = area.used
        if wanted < before:
            area.give_back(wanted)
        area.used = wanted
        for number in range(before // REGION_BYTES, wanted // REGION_BYTES):
            area.note_new(number, whole=not self.swapping)
            self._note_recent(area, number, grown=True)
        self._changed(wanted - before)
        return room[: area.used // room.itemsize]

    def _freed(self, address: int, size: int) -> None:
        for number in range(size // REGION_BYTES):
            self._recent.pop((address, number), None)
        self._changed(-size)

    def _changed(self, size: int) -> None:
        self._used += size
        if self._used > self._tables_max:
            self._over = True
        elif self._used <= self._tables_max - self._tables_max // FITS_SHARE:
            self._over = False

    def bring(self, address: int, units: Iterable[int], write: bool) -> None:
        """Make regions of an area resident."""
        area = self._areas.get(address)
        if area is None or not self.swapping:
            return
        for number in units:
            grown = area.bring(number, write)
            if grown or (address, number) in self._recent:
                self._note_recent(area, number, grown)

    def _note_recent(self, area: _Area, number: int, grown: bool) -> None:
        """Note that this part needs a region; if it adds more than it may, drop one that only earlier parts needed."""
        self._recent.pop((area.address, number), None)
        self._recent[area.address, number] = self._part
        self._grown += grown
        if grown and self.swapping and self._grown * REGION_BYTES > self._slack:
            oldest, part = next(iter(self._recent.items()))
            if part != self._part:
                self._drop(oldest)

    def _drop(self, region: tuple[int, int]) -> None:
        del self._recent[region]
        area = self._areas.get(region[0])
        if area is not None and area.is_brought(region[1]):
            self._swap_out(area, region[1])

    def settle(self) -> None:
        """Swap regions out until the process is inside its budget; bring some back if the tables fit it again."""
        self._part, self._grown = self._part + 1, 0
        if not self.swapping:
            self._bring_back()
            return
        self._calls += 1
        others, below = self._others if self._calls % MEASURED_EVERY else 0, self._tables_max // SLACK_SHARE
        limit = max(
            self._resident_max, others + max(self._tables_max // FLOOR_SHARE, self._slack + below + REGION_BYTES)
        )
        low = limit - self._slack - below
        if resident_bytes() <= limit - self._slack:
            self._full = ""
            return
        self._full = ""
        if self._drop_brought(low):
            return
        regions = [(area, number) for area in self._areas.values() for number in range(area.used // REGION_BYTES)]
        for turn in range(len(regions)):
            area, number = regions[(self._hand + turn) % len(regions)]
            self._swap_out(area, number)
            if turn % _CHECKED_EVERY == _CHECKED_EVERY - 1 and resident_bytes() <= low:
                self._hand = (self._hand + turn + 1) % len(regions)
                return
        left = resident_bytes()
        self._others = left if left > low and not self._full else 0

    def _drop_brought(self, limit: int) -> bool:
        """Drop the regions that were needed longest ago; return whether that was enough."""
        while (above := resident_bytes() - limit) > 0:
            if not self._recent:
                return False
            for region in list(islice(self._recent, -(-above // REGION_BYTES))):
                self._drop(region)
        return True

    def _bring_back(self) -> None:
        left = RETURNED_AT_ONCE
        for area in list(self._areas.values()):
            left -= area.bring_back(left)
            if not left:
                return

    def _swap_out(self, area: _Area, number: int) -> None:
        if self._full and not area.is_in_file(number):
            return  # the disk is asked once in a round
        try:
            area.swap_out(number, self._folder)
            self.dropped_regions += 1
        except OSError as error:
            self._full = f"{self._folder}: {error.strerror or error}"


class _Area:
    """A range of address space, unmapped when no array refers to it any more.

    Args:
        size: Bytes; rounded up to whole regions.
        freed: Receives address and bytes that were used when the range is unmapped.

    Raises:
        MemoryError: there is not so much address space.
    """

    def __init__(self, size: int, freed: Callable[[int, int], None]) -> None:
        self._freed = freed
        self.size, self.used = -(-size // REGION_BYTES) * REGION_BYTES, 0
        found = _map(None, self.size + REGION_BYTES, _PRIVATE | _ANONYMOUS | _NO_RESERVE, -1, 0)
        self.address = -(-found // REGION_BYTES) * REGION_BYTES
        if self.address > found:
            _LIBC.munmap(found, self.address - found)
        if found + REGION_BYTES > self.address:
            _LIBC.munmap(self.address + self.size, found + REGION_BYTES - self.address)
        _LIBC.madvise(self.address, self.size, _HUGE)
        self._file: int | None = None
        self._swapped: set[int] = set()
        """Regions that are mapped from the file."""
        self._brought: dict[int, bool] = {}
        """Those that were made resident since they were last dropped, and whether to be written."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self.address, False), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def is_in_file(self, number: int) -> bool:
        """Return whether a region was swapped out before, so that its file has room for it."""
        return number in self._swapped

    def note_new(self, number: int, *, whole: bool) -> None:
        """Note that a region has come into use, ordinary memory; it becomes resident as a whole, or page by page."""
        _LIBC.madvise(self.address + number * REGION_BYTES, REGION_BYTES, _HUGE if whole else _NO_HUGE)
        self._brought[number] = True

    def is_brought(self, number: int) -> bool:
        """Return whether a region is new, or was made resident since it was last dropped."""
        return number in self._brought

    def bring(self, number: int, write: bool) -> bool:
        """Map all of a region that the page cache has as one unit; return whether it was not brought already.

        Nothing depends on it: what the system does not map here it maps when it is read or written, a page at a time.
        """
        before = self._brought.get(number)
        if number not in self._swapped or before or before is write:
            return False
        at = self.address + number * REGION_BYTES
        if before is None:
            _LIBC.madvise(at, REGION_BYTES, _WITHOUT)  # a region with single pages is not mapped as a whole
        # Otherwise single pages are mapped, so that rows in no order do not bring a region each.
        _LIBC.madvise(at, REGION_BYTES, _HUGE)
        _LIBC.madvise(at, _PAGE_BYTES, _TO_WRITE if write else _TO_READ)
        _LIBC.madvise(at, REGION_BYTES, _NO_HUGE)
        self._brought[number] = write
        return before is None

    def swap_out(self, number: int, folder: Path) -> None:
        """Drop one region from memory; its content stays, in the file.

        Raises:
            OSError: the file takes no more; the region stays in memory.
        """
        at, offset = self.address + number * REGION_BYTES, number * REGION_BYTES
        if number in self._swapped:
            _LIBC.madvise(at, REGION_BYTES, _WITHOUT)
            self._brought.pop(number, None)
            return
        if self._file is None:
            self._file = _unlinked(folder, self.size)
        os.posix_fallocate(self._file, offset, REGION_BYTES)
        content = memoryview((ctypes.c_char * REGION_BYTES).from_address(at)).cast("B")
        done = 0
        # The page cache keeps a region that is written whole as one unit: bring() maps it with one fault, and it is
        # written back as a whole.
        piece = REGION_BYTES if self.used <= WHOLE_UP_TO else _PAGE_BYTES
        while done < REGION_BYTES:
            done += os.pwrite(self._file, content[done : done + piece], offset + done)
        content.release()
        _map(at, REGION_BYTES, _SHARED | _FIXED, self._file, offset)
        _LIBC.madvise(at, REGION_BYTES, _RANDOM)
        _LIBC.madvise(at, REGION_BYTES, _NO_HUGE)
        self._swapped.add(number)
        self._brought.pop(number, None)

    def bring_back(self, regions_max: int) -> int:
        """Make so many regions ordinary memory again, with their content; return how many that were."""
        done = 0
        while self._swapped and done < regions_max:
            number = self._swapped.pop()
            at = self.address + number * REGION_BYTES
            content = ctypes.string_at(at, REGION_BYTES)
            _map(at, REGION_BYTES, _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE, -1, 0)
            _LIBC.madvise(at, REGION_BYTES, _HUGE)
            ctypes.memmove(at, content, REGION_BYTES)
            done += 1
        if done:
            self._close_file()
        return done

    def give_back(self, size: int) -> None:
        """Drop everything from this byte on; it reads as zeros."""
        for number in range(size // REGION_BYTES, self.used // REGION_BYTES):
            at = self.address + number * REGION_BYTES
            self._brought.pop(number, None)
            if number in self._swapped:
                self._swapped.remove(number)
                _map(at, REGION_BYTES, _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE, -1, 0)
                _LIBC.madvise(at, REGION_BYTES, _HUGE)
                _LIBC.fallocate(self._file, _PUNCH_HOLE | _KEEP_SIZE, number * REGION_BYTES, REGION_BYTES)
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


def _unlinked(folder: Path, size: int) -> int:
    """Create a file of this size without a name, and without room yet."""
    file, name = tempfile.mkstemp(prefix="swap-", dir=folder)
    os.unlink(name)
    os.ftruncate(file, size)
    return file


def _map(address: int | None, size: int, flags: int, file: int, offset: int) -> int:
    found: int | None = _LIBC.mmap(address, size, _READ_WRITE, flags, file, offset)
    if found is None or found == _FAILED:
        raise MemoryError(f"{size:,} bytes of address space: {os.strerror(ctypes.get_errno())}")
    return found


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
