"""Wrong versions of alignment in event time, for mutants.py: each takes the right function and returns the wrong one.

Source: docs/decisions/0048-event-time-alignment.md; PROTOCOL P11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replaced

from holdfast.runtime.driver import master, partitions
from holdfast.runtime.driver.events import Send
from holdfast.runtime.driver.state import Master
from holdfast.runtime.sources.reading import Reading
from holdfast.runtime.time import time_alignment
from holdfast.runtime.time.time_alignment import Aligned, Look
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker.subtask import SubtaskRun

Right = Callable[..., Any]


def limits_below_the_slowest(right: Right) -> Right:
    """A limit is just below the watermark of the partition that is furthest behind."""

    def looked(state: Aligned, look: Look, groups: Any) -> Aligned:
        after: Aligned = right(state, look, groups)
        lowest = {group: look.partitions[limit.slowest].watermark for group, limit in after.limits.items()}
        limits = {g: each._replace(at_us=at - 1) for g, each in after.limits.items() if (at := lowest[g]) is not None}
        return replace(after, limits=limits)

    return looked


def sends_limits_to_all(right: Right) -> Right:
    """The subtask that reads the slowest partition gets the limits of the others."""

    def hold_back(state: Master, now: float, every: float) -> Any:
        after, effects = right(state, now, every)
        messages = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, m.HoldBack)]
        later_than = {source: at for message in messages for source, at in message.later_than.items()}
        return after, [Send(each.worker, replaced(each.message, later_than=later_than)) for each in effects]

    return hold_back


def holds_the_silent(_: Right) -> Right:
    """A partition that counts as quiet or idle is held back as any other."""

    def is_held_back(run: SubtaskRun, reading: Reading) -> bool:
        time = run._times.get(reading.fragment)
        return time is not None and run.held_back.holds(reading.source, time.known(reading.partition))

    return is_held_back


def takes_the_live_for_behind(_: Right) -> Right:
    """A partition that is read to its end, or is about to be, limits the others."""
    return lambda place, look, before: place in before


VERSIONS = (
    ("slowest-held-as-well", "decisions/0048", "the partition that is furthest behind in event time is held back too",
     ((partitions, "looked", limits_below_the_slowest), (master, "hold_back", sends_limits_to_all))),
    ("silent-partition-held", "P11, decisions/0048", "a partition that counts as idle is held back when it has records",
     ((SubtaskRun, "_is_held_back", holds_the_silent),)),
    ("live-partition-limits", "decisions/0048", "a partition that is read to its end holds the others back",
     ((time_alignment, "_is_behind", takes_the_live_for_behind),)),
)  # fmt: skip
"""Name, rules, wrong behaviour, replaced code."""
