"""Wrong versions of writing to targets and local folders; chaos/mutants.py says which rule each negates.

Source: PROTOCOL P1, P14, P22, list of mutants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.chaos.at_once import ProcessWrites
from holdfast.sinks.immediate import Origin

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def looks_before_it_writes(right: Right) -> Right:
    def write(target: ProcessWrites, origin: Origin, offset: int, batches: Any) -> int:
        target.table.check_fence(target.owner, origin)
        deleted: int = right(target, origin, offset, batches)
        return deleted

    return write


def trusts(_: Right) -> Right:
    return lambda table, owner, origin: None


def applies_anything(_: Right) -> Right:
    return lambda table, key, tag: True


def waits_for_nothing(_: Right) -> Right:
    return lambda writes, then: then()


def without_uuid(right: Right) -> Right:
    return lambda table, job_uuid, writer, *rest: right(table, "", writer, *rest)


def takes_any_range(_: Right) -> Right:
    return lambda found, owned: owned
