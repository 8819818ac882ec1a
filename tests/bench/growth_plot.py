"""Draws the costs of bench_growth.py against epochs, partitions, operators and files, for docs/operate/scale.md.

    PYTHONPATH=tests/shared:tests/bench python tests/bench/growth_plot.py docs/operate/growth.svg

A cost is the number of Python's instructions in one call, which does not depend on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench_growth import FILE_LINES, LINES
from scale_plot import GAP, HIGH, LEFT, TOP, WIDE, Panel, picture

SIZES = {
    "epochs": (100, 1_000, 10_000, 100_000),
    "partitions": (10, 100, 1_000),
    "operators": (3, 10, 30),
    "files": (100, 1_000, 10_000, 100_000),
}
DRAWN = LINES + FILE_LINES
COLORS = "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#ff7f0e"
LEGEND = 38
"""Pixels from the axis of sizes to the legend, which stands below it."""


def drawn(left: int, against: str) -> list[str]:
    """Measure, print and draw the lines of one panel."""
    sizes = SIZES[against]
    panel = Panel(left, f"Instructions of a call, against {against}", 10, 100_000_000, sizes, f"retained {against}")
    if against != "epochs":
        panel.label = against
    out = panel.frame()
    for row, line in enumerate(each for each in DRAWN if each.against == against):
        steps = [line.at(size)[0] for size in sizes]
        print(f"{line.name} against {against}: {steps}", flush=True)
        points = [panel.place(size, each) for size, each in zip(sizes, steps, strict=True)]
        out += panel.drawn(points, points, line.name, COLORS[row], row, down=HIGH + LEGEND)
    return out


if __name__ == "__main__":
    parts = [part for n, against in enumerate(SIZES) for part in drawn(LEFT + n * (WIDE + GAP), against)]
    rows = max(sum(line.against == against for line in DRAWN) for against in SIZES)
    high = TOP + HIGH + LEGEND + 16 * rows + 30
    Path(sys.argv[1]).write_text(picture(LEFT + len(SIZES) * (WIDE + GAP), high, parts))
