"""Memory of tables that begin with the content of an image: writes stay in this process.

While the tables fit their budget, written pages are ordinary memory. Above it, regions are swapped out to unlinked
files in the same folder. Regions that were not written are dropped, since the image has their content.

Invariants
    - No file of the image changes, whatever is written.

I/O: see swap.py.
Source: docs/decisions/0039-state-larger-than-memory.md, 0049-state-images.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from holdfast.state.paging.swap import SwapMemory
from holdfast.state.tables.slab import UNLIMITED


class PrivateFiles(SwapMemory):
    """The memory of the tables of one image that is used.

    Args:
        image: The folder of the image.
        resident_max, tables_max: See SwapMemory.
    """

    def __init__(self, image: Path, resident_max: int = UNLIMITED, tables_max: int = UNLIMITED) -> None:
        super().__init__(image, resident_max, tables_max)
        self._image = image

    def mapped(self, name: str, dtype: DTypeLike, size: int = 0) -> NDArray[Any]:
        """Map a file of the image, all of it."""
        return self.over(self._image / name, np.dtype(dtype))

    def close(self) -> None:
        """Do nothing; no file is open but those of regions, which close with their arrays."""
