"""Which faults have struck at which points of the protocol, and which of these cells must not be empty.

Rows are the faults F1 to F24 of the fault matrix, columns the protocol points. A cell counts strikes; a strike at
another point proves nothing about this one. The cells in which comparable systems had bugs must be hit in every larger
series of runs, as soon as the feature exists: that is looked up in the package, not kept in a list.

Source: research section 2b, fault matrix and priority cells; I13, non-vacuity; docs/decisions/0019-coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from inspect import signature

import holdfast as hf
from holdfast.chaos.sim.faults.points import MEANS, Point
from holdfast.runtime.config.settings import SETTINGS

ROWS: Mapping[str, str] = {
    "F1": "worker killed", "F2": "daemon killed: all its workers", "F3": "executor killed",
    "F4": "driver killed", "F5": "stopped, resumes as a zombie", "F6": "function or restore fails",
    "F7": "call refused", "F8": "done, reply lost", "F9": "lands after a later attempt", "F10": "object damaged",
    "F11": "store answers 409, 503, or taken", "F12": "disk full", "F13": "disk error", "F14": "power lost",
    "F15": "connection breaks or is late", "F16": "message lost, repeated, late", "F17": "Kafka transaction times out",
    "F18": "fate of a delivery unknown", "F19": "Kafka producer fenced", "F20": "offset fell off the log",
    "F21": "wall clock jumps", "F22": "background slow", "F23": "rescaled", "F24": "fails again in recovery",
}  # fmt: skip
Cell = tuple[str, Point]


def kafka_sink() -> bool:
    """Return whether there is a Kafka sink."""
    return find_spec("holdfast.sinks.kafka") is not None


def unaligned() -> bool:
    """Return whether barriers may overtake batches."""
    return any("unaligned" in setting.name for setting in SETTINGS)


def retained_source() -> bool:
    """Return whether a log may drop its oldest records."""
    return any(name.startswith("retain") for name in signature(hf.Log).parameters)


def _always() -> bool:
    return True


NEEDS: Mapping[str, tuple[Callable[[], bool], str]] = {
    "F17": (kafka_sink, "Kafka sink"),
    "F19": (kafka_sink, "Kafka sink"),
    "F20": (retained_source, "retention of source logs"),
}
"""The feature that a row needs, for features that may not exist yet."""
BESIDES: Mapping[str, Callable[[], bool]] = {
    "a declined unaligned checkpoint, then the next one": unaligned,
}
"""The rest of the fault matrix. Each needs cells here as soon as it is built."""
_PRIORITY: Mapping[str, tuple[Point, ...]] = {
    "F1": (Point.ALIGN, Point.APPLY, Point.PARTITIONS, Point.BATCH, Point.STANDBY), "F3": (Point.BATCH,),
    "F4": (Point.COMMIT, Point.DELIVER, Point.SWEEP, Point.PARTITIONS, Point.BATCH),
    "F5": (Point.UPLOAD, Point.ACK, Point.DELIVER, Point.CONFIRM, Point.BATCH),
    "F6": (Point.ALIGN, Point.BATCH), "F7": (Point.PARTITIONS,),
    "F10": (Point.RESTORE,), "F12": (Point.APPLY, Point.UPLOAD, Point.BETWEEN),
    "F8": (Point.COMMIT, Point.DELIVER), "F9": (Point.UPLOAD, Point.COMMIT, Point.SWEEP, Point.BATCH),
    "F15": (Point.ALIGN,), "F16": (Point.ACK, Point.DELIVER, Point.PARTITIONS, Point.STANDBY), "F17": (Point.DELIVER,),
    "F18": (Point.DELIVER,),
    "F20": (Point.REPLAY,), "F24": (Point.RECOVER,),
}  # fmt: skip
MUST_BE_HIT: tuple[Cell, ...] = tuple((code, point) for code, points in _PRIORITY.items() for point in points)
ANYWHERE: tuple[str, ...] = ("F2", "F11", "F13", "F14", "F23")
"""Rows that must be hit at any one point."""


def built(code: str) -> bool:
    """Return whether the feature that the row needs exists."""
    return NEEDS.get(code, (_always, ""))[0]()


def empty_cells(hits: Mapping[Cell, int]) -> list[str]:
    """Return the cells that must be hit and were not."""
    cells = [f"{code} x {point}" for code, point in MUST_BE_HIT if built(code) and not hits.get((code, point))]
    rows = {code for (code, _), count in hits.items() if count}
    cells += [f"{code} x any" for code in ANYWHERE if built(code) and code not in rows]
    return cells + [what for what, exists in BESIDES.items() if exists()]


def table_lines(hits: Mapping[Cell, int]) -> list[str]:
    """Return the table as text, with marks for missing cells and for features that are not built."""
    lines = ["  " + " " * 34 + "".join(f"{point:>6}" for point in Point)]
    for code, name in ROWS.items():
        row = f"  {code + ' ' + name:<34.34}"
        if not built(code):
            lines.append(f"{row}  not built: {NEEDS[code][1]}")
            continue
        lines.append(row + "".join(_shown(code, point, hits.get((code, point), 0)) for point in Point))
    lines += [f"  {what}: {'built, and not covered' if exists() else 'not built'}" for what, exists in BESIDES.items()]
    names = ", ".join(f"{point} {MEANS[point]}" for point in Point)
    return [*lines, *_wrapped(f"  columns: {names}; ! marks a cell that must be hit and was not")]


def as_json(hits: Mapping[Cell, int]) -> dict[str, dict[str, int] | str]:
    """Return the table as JSON-able values."""
    return {
        code: {point.value: hits.get((code, point), 0) for point in Point} if built(code) else "not built"
        for code in ROWS
    } | {what: "built, and not covered" if exists() else "not built" for what, exists in BESIDES.items()}


def _shown(code: str, point: Point, count: int) -> str:
    missing = not count and (code, point) in MUST_BE_HIT
    return f"{'!' if missing else count or '.':>6}"


def _wrapped(text: str) -> list[str]:
    lines, line = [], ""
    for word in text.split(", "):
        if len(line) + len(word) > 118:
            lines.append(line + ",")
            line = "    " + word
        else:
            line = f"{line}, {word}" if line else word
    return [*lines, line]
