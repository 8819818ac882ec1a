"""Hides objects that live as long as a run from Python's garbage collector, so that it does not stop the driver's loop.

A full collection looks at every object that may be part of a cycle. Imported modules, the plan and the libraries of a
job are hundreds of thousands of them, none of which goes before the run ends. With an hour of retained checkpoints
besides, a collection held the loop for 50 to 170 ms.

Source: docs.python.org/3/library/gc.html, `gc.freeze`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spared() -> Iterator[None]:
    """Exclude the present objects from every collection, until the block ends.

    A program that has frozen objects itself keeps them frozen, and those of this block with them.
    """
    gc.collect()
    frozen_before = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()
