"""Measures a master with more and more workers, fits the model of docs/operate/scale.md, and draws its plot.

    PYTHONPATH=tests/shared python tests/bench/scale_plot.py docs/operate/scale.svg

Times are those of the processor; the points are measured, the lines are the fitted model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

import numpy as np
from scale import WORKERS, Cost, cost

EPOCHS = 40
LEFT, TOP, WIDE, HIGH, GAP = 70, 30, 300, 240, 90
Point = tuple[float, float]
COLORS = "#1f77b4", "#d62728", "#2ca02c"


@dataclass(frozen=True)
class Line:
    """One figure against the number of workers, and its model: the sum of a coefficient times each term."""

    name: str
    unit: str
    of: Callable[[Cost], float]
    powers: tuple[int, ...]
    """Of the number of workers, one per term."""

    def fit(self, found: Sequence[Cost]) -> tuple[list[float], float]:
        """Return the coefficients that give the least relative errors, and the largest of these errors."""
        workers, measured = np.array([each.workers for each in found], float), np.array([*map(self.of, found)])
        terms = np.stack([workers**power for power in self.powers], axis=1)
        factors = np.linalg.lstsq(terms / measured[:, None], np.ones(len(found)), rcond=None)[0]
        return factors.tolist(), float(np.abs(terms @ factors / measured - 1).max())

    def at(self, factors: Sequence[float], workers: float) -> float:
        return sum(factor * workers**power for factor, power in zip(factors, self.powers, strict=True))

    def formula(self, factors: Sequence[float]) -> str:
        terms = [
            f"{factor:.3g}" + ("", " W", " W^2")[power] for factor, power in zip(factors, self.powers, strict=True)
        ]
        return " + ".join(terms) + f" {self.unit}"


TIMES = (
    Line("acks of an epoch", "ms", lambda c: c.ack_s * c.workers * 1e3, (1, 2)),
    Line("rest of an epoch", "ms", lambda c: c.epoch_s * 1e3, (0, 1)),
    Line("decision of a recovery", "ms", lambda c: c.recovery_s * 1e3, (0, 1)),
)
SIZES = (
    Line("manifest", "kB", lambda c: c.manifest_bytes / 1e3, (0, 1)),
    Line("requests of an epoch", "", lambda c: c.requests, (0,)),
)


class Panel:
    """One chart with two logarithmic axes.

    Args:
        low: The least value; `high` is the largest.
        sizes: Where the axis of sizes has labels, from its least to its largest value.
        label: What they are sizes of.
    """

    def __init__(
        self, left: int, title: str, low: float, high: float, sizes: Sequence[int] = WORKERS, label: str = "workers"
    ) -> None:
        self.left, self.title, self.low, self.high = left, title, low, high
        self.sizes, self.label = sizes, label

    def place(self, size: float, value: float) -> tuple[float, float]:
        first, last = log10(self.sizes[0]), log10(self.sizes[-1])
        x = (log10(size) - first) / (last - first)
        y = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.left + x * WIDE, TOP + HIGH * (1 - y)

    def frame(self) -> list[str]:
        """Return the axes and their labels."""
        out = [f'<rect x="{self.left}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#888"/>']
        out.append(f'<text x="{self.left}" y="{TOP - 10}" font-weight="bold">{self.title}</text>')
        for size in self.sizes:
            x = self.place(size, self.low)[0]
            out.append(f'<text x="{x:.0f}" y="{TOP + HIGH + 16}" text-anchor="middle">{size:,}</text>')
        value = self.low
        while value <= self.high * 1.001:
            y = self.place(self.sizes[0], value)[1]
            out.append(f'<line x1="{self.left}" x2="{self.left + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            out.append(f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
            value *= 10
        out.append(f'<text x="{self.left + WIDE / 2}" y="{TOP + HIGH + 34}" text-anchor="middle">{self.label}</text>')
        return out

    def draw(self, line: Line, found: Sequence[Cost], color: str, row: int) -> list[str]:
        """Return the points, the line of the model, and the legend."""
        factors, _ = line.fit(found)
        path = [self.place(10 ** (1 + n / 20), line.at(factors, 10 ** (1 + n / 20))) for n in range(41)]
        points = [self.place(each.workers, line.of(each)) for each in found]
        label = f"{line.name}{f', {line.unit}' if line.unit else ''}"
        return self.drawn(path, points, label, color, row)

    def drawn(
        self, path: Iterable[Point], points: Iterable[Point], label: str, color: str, row: int, down: int = 0
    ) -> list[str]:
        """Return a line, points and a row of the legend, `down` pixels below its usual place."""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        out = [f'<polyline points="{line}" fill="none" stroke="{color}"/>']
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
        out.append(f'<text x="{self.left + 10}" y="{TOP + 18 + 16 * row + down}" fill="{color}">{label}</text>')
        return out


def svg(found: Sequence[Cost]) -> str:
    """Return the plot."""
    second = LEFT + WIDE + GAP
    out = []
    for panel, lines in (
        (Panel(LEFT, "Processor time of the driver, ms", 0.1, 1_000), TIMES),
        (Panel(second, "An epoch, stored", 1, 10_000), SIZES),
    ):
        out += panel.frame()
        for row, line in enumerate(lines):
            out += panel.draw(line, found, COLORS[row], row)
    return picture(second + WIDE + 20, TOP + HIGH + 45, out)


def picture(wide: int, high: int, parts: Iterable[str]) -> str:
    """Return a drawing of this size in pixels."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def report(found: Sequence[Cost]) -> str:
    """Return the figures and the fitted model as rows of tables."""
    rows = []
    for each in found:
        rows.append(
            f"| {each.workers:,} | {1 / each.ack_s:,.0f} | {each.ack_s * each.workers * 1e3:.1f} ms "
            f"| {each.epoch_s * 1e3:.1f} ms | {1 / each.heartbeat_s:,.0f} | {each.recovery_s * 1e3:.1f} ms "
            f"| {each.manifest_bytes / 1e3:,.0f} kB | {each.requests:.0f} |"
        )
    for line in (*TIMES, *SIZES):
        factors, error = line.fit(found)
        rows.append(f"| {line.name} | {line.formula(factors)} | {error * 100:.0f} % |")
    return "\n".join(rows)


if __name__ == "__main__":
    measured = [cost(workers, EPOCHS) for workers in WORKERS]
    Path(sys.argv[1]).write_text(svg(measured))
    print(report(measured))
