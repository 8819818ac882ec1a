"""Bounds of the protocol that no run of some seconds comes near are small in some seeds.

A generation may give up a hundred epochs in a row and a writer may queue 128 before anything special happens; a
simulated job ends long before. With two and one both happen all the time, and must change nothing that anybody sees.

Invariants
    - A bound is what it was as soon as the run is over, also of one that raised.

Source: PROTOCOL P2, P18; docs/design/0019-coverage.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.checkpoint import coordinator, joblog
from holdfast.sinks import delivery

GIVEN_UP_MAX = 2
"""Epochs in a row; both who counts them and who computes the next first epoch go by it."""
BACKLOG_EPOCHS_MAX = 1


@contextmanager
def small(wanted: bool) -> Iterator[None]:
    """Run with small bounds if they are wanted."""
    if not wanted:
        yield
        return
    is_full = delivery.is_full
    swapped: tuple[tuple[Any, str, object], ...] = (
        (coordinator, "EPOCHS_GIVEN_UP_MAX", GIVEN_UP_MAX),
        (joblog, "EPOCHS_GIVEN_UP_MAX", GIVEN_UP_MAX),
        (delivery, "is_full", lambda state, **limits: is_full(state, BACKLOG_EPOCHS_MAX, **limits)),
    )
    rights = [getattr(owner, name) for owner, name, _ in swapped]
    for owner, name, value in swapped:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), right in zip(swapped, rights, strict=True):
            setattr(owner, name, right)
