"""Wrong versions of event time, for chaos/mutants/mutants.py: each takes the right function and returns the wrong one.

Source: PROTOCOL P11; docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from holdfast.model import LAST_US, NEVER_US, SourcePosition, Watermark
from holdfast.runtime.operators.event_clock import EventClock
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.runtime.sources import event_time
from holdfast.runtime.sources.event_time import EventTime
from holdfast.runtime.time import watermark
from holdfast.runtime.worker import subtask

Right = Callable[..., Any]


def starts_without_clock(_: Right) -> Right:
    def read(clock: EventClock) -> Any:
        return np.full(clock.groups.count, NEVER_US)

    return read


def starts_without_watermarks(right: Right) -> Right:
    def begin(time: EventTime, spec: Any, opened: object, positions: list[SourcePosition], *rest: Any) -> None:
        right(time, spec, opened, [msgspec.structs.replace(position, watermark=None) for position in positions], *rest)

    return begin


def tells_time_before_rows(right: Right) -> Right:
    def emit(run: subtask.SubtaskRun, reading: Any, time: EventTime | None, batch: Any, following: int) -> None:
        if time is not None:
            time.emitted(reading.partition, batch, following)
        right(run, reading, time, batch, following)

    return emit


def follows_whoever_comes_back(_: Right) -> Right:
    def reported(state: watermark.Minimum[Any], part: Any, at: Watermark) -> tuple[watermark.Minimum[Any], bool]:
        parts = {**state.parts, part: at}
        active = [each.at_us for each in parts.values() if not each.idle]
        now = Watermark(min(active, default=state.now.at_us), idle=not active)
        return watermark.Minimum(parts, now), now != state.now

    return reported


def waits_for_those_that_rest(_: Right) -> Right:
    def found_nothing(time: EventTime, partition: int, offset: int, ended: bool) -> bool:
        time._ask(partition, offset)
        time._looked_at[partition] = time._clock.monotonic()
        return time._tell(partition, event_time._OVER if ended else event_time._ALIVE)

    return found_nothing


def forgets_earlier_windows(right: Right) -> Right:
    def on_batch(operator: WindowOperator, port: int, batch: Any) -> None:
        operator._due = LAST_US
        right(operator, port, batch)

    return on_batch


def closes_at_the_largest(_: Right) -> Right:
    def reported(state: watermark.Minimum[Any], part: Any, at: Watermark) -> tuple[watermark.Minimum[Any], bool]:
        now = Watermark(max(state.now.at_us, at.at_us), at.idle)
        return watermark.Minimum({**state.parts, part: at}, now), now != state.now

    return reported


VERSIONS = (
    (
        "watermark-goes-back",
        "P11",
        "a minimum goes back with a part that returns lower",
        (watermark, "reported", follows_whoever_comes_back),
        "windowing",
    ),
    (
        "idle-holds-time",
        "P11",
        "an idle partition holds time back until its next record",
        (EventTime, "found_nothing", waits_for_those_that_rest),
        "rests",
    ),
    (
        "earlier-windows-forgotten",
        "P11",
        "the next due window is sought among the rows of the last batch only",
        (WindowOperator, "on_batch", forgets_earlier_windows),
        "windowing",
    ),
)
"""Name, rules, effect, swap, the feature that a scenario needs."""
