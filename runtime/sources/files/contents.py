"""The result of reading a file, whatever its format.

Pure. Source: docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class WrongFile(Exception):
    """The file is damaged, or has other columns than the job reads; the text says why."""


class FilePiece(NamedTuple):
    """Records of a file, with positions that count from its beginning.

    Args:
        rows: The records, as `OpenSource.read` describes them; None: there are none before `following`.
        offsets: The position of each; None: they are contiguous, and the last one is right before `following`.
        following: Where to read next.
    """

    rows: pa.RecordBatch | None
    offsets: NDArray[np.int64] | None
    following: int


class Contents(Protocol):
    """An open file, which is read forward; reading elsewhere costs more."""

    def read(self, at: int, bytes_max: int) -> FilePiece:
        """Return the records from a position on, before the end of the file. Raises WrongFile, Unavailable."""
