"""Draws the plot of docs/operate/standbys.md, and prints its table, from what bench_takeover.py has printed.

pytest -s --timeout=0 --bench=full tests/bench/bench_takeover.py | tee takeover.txt
python tests/bench/takeover_plot.py takeover.txt docs/operate/takeover.svg
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

LEFT, TOP, WIDE, HIGH = 60, 34, 420, 260
SLOWEST_MS, FASTEST_MS = 100_000.0, 10.0
SIZES = "0.16 GiB", "1.5 GiB", "4.4 GiB"
WAYS = {
    "peer": ("survivor, rolled back in place", "#2ca02c"),
    "standby": ("taken over by a standby", "#1f77b4"),
    "local folder": ("restored from the local folder", "#ff7f0e"),
    "download": ("downloaded from S3", "#d62728"),
}
HEADING = re.compile(r"^bench_(?:takeover\[(?P<way>[a-z ]+)-|download\[)(?P<size>[\d.]+ GiB)\]: .*kills (?P<kills>\d+)")
TIMES = re.compile(r"of (?P<whose>the lost subtask|its peer): median (?P<median>\d+) ms.*percentile (?P<p99>\d+) ms")


@dataclass(frozen=True)
class Figure:
    """Times from SIGKILL to the first record, in milliseconds."""

    way: str
    size: str
    kills: int
    median: int
    p99: int


def figures(printed: str) -> list[Figure]:
    """Return the figures of a run; survivors are those of the runs with standbys."""
    found, heading = list[Figure](), None
    for line in printed.splitlines():
        heading = HEADING.match(line) or heading
        times = TIMES.search(line)
        if heading is None or times is None:
            continue
        way = heading["way"] or "download"
        if times["whose"] == "the lost subtask" or way == "standby":
            way = way if times["whose"] == "the lost subtask" else "peer"
            found.append(Figure(way, heading["size"], int(heading["kills"]), int(times["median"]), int(times["p99"])))
    return found


def table(found: Sequence[Figure]) -> str:
    """Return the rows of the table: median and 99th percentile per way and size."""
    rows = []
    for way, (name, _) in WAYS.items():
        cells = []
        for size in SIZES:
            at = next((each for each in found if (each.way, each.size) == (way, size)), None)
            cells.append("not measured" if at is None else f"{at.median:,} / {at.p99:,} ({at.kills} kills)")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def place(size: str, ms: float) -> tuple[float, float]:
    x = (log10(float(size.split()[0])) + 1.1) / 1.9
    y = (log10(ms) - log10(FASTEST_MS)) / (log10(SLOWEST_MS) - log10(FASTEST_MS))
    return LEFT + x * WIDE, TOP + HIGH * (1 - y)


def svg(found: Sequence[Figure]) -> str:
    """Return the plot: medians as points, with lines up to the 99th percentile; both axes are logarithmic."""
    box = f"0 0 {LEFT + WIDE + 20} {TOP + HIGH + 45}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="{TOP - 14}" font-weight="bold">From the loss of a worker to the first record, ms</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#888"/>',
    ]
    value = FASTEST_MS
    while value <= SLOWEST_MS:
        y = place(SIZES[0], value)[1]
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
        value *= 10
    for size in SIZES:
        x = place(size, FASTEST_MS)[0]
        out.append(f'<text x="{x:.0f}" y="{TOP + HIGH + 18}" text-anchor="middle">{size} of state</text>')
    for row, (way, (name, color)) in enumerate(WAYS.items()):
        of_way = sorted((each for each in found if each.way == way), key=lambda each: SIZES.index(each.size))
        points = " ".join("{:.1f},{:.1f}".format(*place(each.size, each.median)) for each in of_way)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
        for each in of_way:
            (x, y), (_, high) = place(each.size, each.median), place(each.size, each.p99)
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>')
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{high:.1f}" stroke="{color}"/>')
        out.append(f'<text x="{LEFT + 10}" y="{TOP + 18 + 16 * row}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    measured = figures(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(svg(measured))
    print(table(measured))
