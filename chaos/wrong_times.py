"""Wrong versions of event time, for chaos/mutants.py: each takes the right function and returns the wrong one.

Source: PROTOCOL P11; docs/design/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from holdfast.model import NEVER_US, SourcePosition, Watermark
from holdfast.runtime import subtask, watermark
from holdfast.runtime.event_time import EventTime
from holdfast.runtime.operators.window import WindowOperator

Right = Callable[..., Any]


def starts_without_clock(_: Right) -> Right:
    def read_clock(operator: WindowOperator) -> Any:
        return np.full(operator._key_groups.count, NEVER_US)

    return read_clock


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


def closes_at_the_largest(_: Right) -> Right:
    def told(state: watermark.Minimum[Any], part: Any, at: Watermark) -> tuple[watermark.Minimum[Any], bool]:
        now = Watermark(max(state.now.at_us, at.at_us), at.idle)
        return watermark.Minimum({**state.parts, part: at}, now), now != state.now

    return told
