"""The meaning of a missing data file for a delivery: a merge has to read the files that may hold its keys.

Pure. Source: docs/decisions/0084-delta-sink.md, 0099-iceberg-sink.md.
"""

from __future__ import annotations

import re

from holdfast.errors import Unavailable
from holdfast.sinks.contract.phrases import WAITS

_GONE = re.compile(r"not found|no such file|NoSuchKey|does not exist", re.IGNORECASE)
_DATA = ".parquet"
_LOG = "_delta_log/"
"""Checkpoints of a log are Parquet too, and their loss is another matter."""


def is_data_file_gone(said: str) -> bool:
    """Return whether the words of an error are those about a data file that is missing."""
    return _DATA in said and _LOG not in said and bool(_GONE.search(said))


def data_file_gone(where: str, said: str) -> Unavailable:
    """Return the error for a data file that is missing: another commit may have replaced it, so delivery retries."""
    return Unavailable(
        f"{where}: a data file that the table lists is missing: {said}",
        not_done=WAITS,
        next_step="restore the file from a backup: delivery retries. If there is none, remove it from the table's "
        "list of files (for Delta, FSCK REPAIR TABLE), which gives up its rows. Let VACUUM, expiry of snapshots and "
        "removal of orphan files keep files for longer",
    )
