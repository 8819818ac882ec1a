"""Measurements that a process takes of itself."""

from __future__ import annotations

import os

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    """Return the resident memory of this process, 0 if the system does not report it."""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 256).split()[1]) * _PAGE_BYTES
    finally:
        os.close(statm)
