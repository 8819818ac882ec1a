"""Wrong versions of abandoning epochs and of restarting; chaos/mutants/mutants.py names the rule that each negates.

Source: PROTOCOL P8, P14, P20, list of mutants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.checkpoint import coordinator

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def counts_what_it_gave_up(right: Right) -> Right:
    """The outcome of the previous epoch is unknown; the next barrier reports it as completed."""

    def deadline_passed(state: coordinator.Coordinator) -> tuple[coordinator.Coordinator, list[coordinator.Effect]]:
        after, effects = right(state)
        if isinstance(state, coordinator.Collecting):
            after = replace(after, committed_through=state.barrier.epoch)
        return after, effects

    return deadline_passed


def waits_for_no_older_writer(_: Right) -> Right:
    return lambda state, base: False


def leaves_a_segment_out(right: Right) -> Right:
    def renew(kept: Any, target: Any, content: str) -> None:
        handle = replace(target.handle, segments=target.handle.segments[:-1])
        right(kept, msgspec.structs.replace(target, handle=handle), content)

    return renew
