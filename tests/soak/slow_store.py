"""An object store as a job finds it in a cloud: an S3 server on this machine, whose answers Toxiproxy delays.

HOLDFAST_S3_SERVER names the program; without it, the root is a folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from s3_store import VARIABLE, s3_store

DELAY_MS, JITTER_MS = 20, 10


@dataclass(frozen=True)
class Root:
    """Where a job's root is.

    Args:
        url: For the job.
        files: The folder with its objects as files.
        environment: For the job's processes.
    """

    url: str
    files: Path
    environment: dict[str, str]


@contextlib.contextmanager
def root_of(folder: Path) -> Iterator[Root]:
    """Return a root in the slow store if its server is named, else in a folder."""
    if not os.environ.get(VARIABLE):
        yield Root(str(folder / "root"), folder / "root", {})
        return
    with s3_store(folder / "s3") as store:
        store.toxic("latency", latency=DELAY_MS, jitter=JITTER_MS)
        yield Root(store.url("root"), store.files / "root", store.environment())
