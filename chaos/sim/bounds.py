"""Small bounds, in some seeds, where a run of seconds would never reach the protocol's own.

A generation may abandon a hundred epochs in a row and a writer may queue 128 before anything special happens; a
simulated job ends long before. With bounds of two and one both happen all the time, and must change no output.

Invariants
    - Every bound has its old value again after the run, also after a run that raised.

Source: PROTOCOL P2, P18; docs/decisions/0019-coverage.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.checkpoint import coordinator, joblog
from holdfast.sinks.protocol import delivery

GIVEN_UP_MAX = 2
"""Epochs in a row; used both to count them and to compute the next first epoch."""
BACKLOG_EPOCHS_MAX = 1


@contextmanager
def small(wanted: bool) -> Iterator[None]:
    """Run, with small bounds if asked for."""
    if not wanted:
        yield
        return
    too_much, small_backlog = delivery.too_much, {"epochs_max": BACKLOG_EPOCHS_MAX}
    replacements: tuple[tuple[Any, str, object], ...] = (
        (coordinator, "EPOCHS_GIVEN_UP_MAX", GIVEN_UP_MAX),
        (joblog, "EPOCHS_GIVEN_UP_MAX", GIVEN_UP_MAX),
        (delivery, "too_much", lambda epochs, size, **limits: too_much(epochs, size, **limits | small_backlog)),
    )
    rights = [getattr(owner, name) for owner, name, _ in replacements]
    for owner, name, value in replacements:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), right in zip(replacements, rights, strict=True):
            setattr(owner, name, right)
