"""The swap area of one worker: memory for tables that leaves the process when the budget is reached.

Every slab is a range of address space, in regions of 2 MiB. All of it is ordinary memory until the tables are larger
than their budget; then regions are swapped out (area.py), those that were needed longest ago first. Their addresses
stay, so no kernel depends on the resident regions.

Tables ask for the regions that they are about to reach (`bring`). Where the page cache has a region as one unit, it is
mapped by one fault then; otherwise, and without asking, the system maps page by page.

Once tables are well below their budget, regions that were mapped from files become ordinary memory again, some at a
time. Kernels then work on whole batches as before.

Invariants
    - Where the disk is full, regions stay in memory, and `refused` makes the worker stop reading.
    - The work of one settle() is bounded by one round over the regions.
    - Nothing here is durable, and nothing is ever read by another process.

I/O: /proc/self; see area.py.
Source: docs/decisions/0039-state-larger-than-memory.md.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.paging.area import REGION_BYTES, Area
from holdfast.state.tables.slab import PLAIN, UNLIMITED

AREA_BYTES_MIN = 1 << 20
"""Smaller arrays stay in ordinary memory."""
SLACK_SHARE, SLACK_REGIONS = 8, 3
"""1/SLACK_SHARE of the budget may become resident between two calls of settle(), or this many regions, if they are at
most half of it. A part that needs more replaces regions of earlier parts."""
FLOOR_SHARE = 4
"""If other memory of the process takes the budget, tables still get 1/FLOOR_SHARE of it, else they would thrash."""
FITS_SHARE = 4
"""Tables that were larger than their budget fit it again once they are 1/FITS_SHARE below it, so that the two do not
alternate."""
RETURNED_AT_ONCE = 4
"""Regions that one call of settle() makes ordinary memory again."""
MEASURED_EVERY = 64
"""After this many calls, the size of other memory is measured again, since it may have shrunk."""
_CHECKED_EVERY = 8
"""Regions that are dropped between two readings of the resident memory, if their content is unknown."""
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
"""File systems whose files are memory."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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


class SwapMemory:
    """The memory of one worker's tables.

    Args:
        folder: Where the files are; they are removed as soon as they are open.
        resident_max: The resident memory of the process that tables keep to.
        tables_max: Bytes of tables that fit it; while there are fewer, nothing is read, written or measured.
    """

    def __init__(self, folder: Path, resident_max: int, tables_max: int) -> None:
        self._folder, self._resident_max, self._tables_max = folder, resident_max, tables_max
        self._slack = max(tables_max // SLACK_SHARE, min(SLACK_REGIONS * REGION_BYTES, tables_max // 2))
        self._areas: weakref.WeakValueDictionary[int, Area] = weakref.WeakValueDictionary()
        self._hand = self._used = 0
        self._over = False
        self._others = self._calls = 0
        """Bytes that stayed resident after all regions were dropped, if that is more than the budget allows; else 0."""
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
        area = Area(size * dtype.itemsize, self._freed)
        self._areas[area.address] = area
        return np.asarray(area).view(dtype)[:size]

    def over(self, path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a room with the content of a file, which keeps it whatever is written here; call use() first.

        Raises:
            OSError: the file cannot be read.
            MemoryError: there is not so much address space.
        """
        file = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(file).st_size
            area = Area(size, self._freed, file)
        finally:
            os.close(file)
        self._areas[area.address] = area
        return np.asarray(area)[: size - size % dtype.itemsize].view(dtype)

    def zeros(self, size: int) -> NDArray[np.int64]:
        """Return an array of zero words."""
        if size * 8 < AREA_BYTES_MIN:
            return PLAIN.zeros(size)
        return self.use(self.room(np.dtype(np.int64), size), size)

    def use(self, room: NDArray[Any], size: int) -> NDArray[Any]:
        """Return the part of a room to use from now on, in whole regions; it has at least `size` elements.

        Elements after it lose their content.
        """
        area = self._areas.get(room.ctypes.data)
        if area is None:
            return room
        target_bytes = min(area.size, -(-size * room.itemsize // REGION_BYTES) * REGION_BYTES)
        before = area.used
        if target_bytes < before:
            area.give_back(target_bytes)
        area.used = target_bytes
        for number in range(before // REGION_BYTES, target_bytes // REGION_BYTES):
            if not area.is_given(number):
                area.note_new(number, whole=not self.swapping)
                self._note_recent(area, number, grown=True)
        self._changed(target_bytes - before)
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

    def _note_recent(self, area: Area, number: int, grown: bool) -> None:
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

    def _swap_out(self, area: Area, number: int) -> None:
        if self._full and area.needs_room(number):
            return  # the disk is asked once in a round
        try:
            area.swap_out(number, self._folder)
            self.dropped_regions += 1
        except MemoryError as error:  # no more mappings
            self._full = str(error)
        except OSError as error:
            self._full = f"{self._folder}: {error.strerror or error}"
