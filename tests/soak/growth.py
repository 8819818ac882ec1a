"""The resources of a long run: samples, whether they grow, and a plot of them.

A quantity is bounded if its median over the last quarter of the run exceeds that of the second quarter by at most
a factor and a slack. The first quarter is the warm-up, in which retention expires for the first time.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

FACTOR = 1.25
"""How far the last quarter may exceed the second: folders follow a sawtooth between two sweeps."""
WIDTH, HEIGHT, MARGIN = 900, 120, 40


@dataclass(frozen=True)
class Sample:
    """The resources at one moment of the run."""

    at_s: float
    records: int
    """Records read by the job so far: not bounded; the axis for everything else."""
    root_bytes: int
    """The job's folder under the root, without input and output."""
    root_objects: int
    log_records: int
    """Records of the job log."""
    local_bytes: int
    """Local state of both workers."""
    undo_rows: int
    """Before-images in the target."""
    python_bytes: int
    """Resident memory of driver, workers and other Python processes."""
    jvm_bytes: int


SLACK = {
    "root_bytes": 1 << 20,
    "root_objects": 50,
    "log_records": 50,
    "local_bytes": 8 << 20,
    "undo_rows": 2_000,
    "python_bytes": 32 << 20,
    "jvm_bytes": 128 << 20,
}
"""Slack per quantity: the normal variation of a small job. A heap grows until it is collected."""


def growing(samples: list[Sample]) -> list[str]:
    """Return the quantities that are not bounded, one sentence each."""
    assert len(samples) >= 8, "too few samples to compare quarters of"
    quarter = len(samples) // 4
    problems = []
    for name, slack in SLACK.items():
        before = median(getattr(sample, name) for sample in samples[quarter : 2 * quarter])
        after = median(getattr(sample, name) for sample in samples[-quarter:])
        if after > FACTOR * before + slack:
            problems.append(f"{name} grew from {before:,.0f} in the second quarter to {after:,.0f} in the last")
    return problems


def table(samples: list[Sample]) -> str:
    """Return the median of every quantity by quarter of the run, as lines of text."""
    quarter = len(samples) // 4
    lines = [f"{'':14}" + "".join(f"{f'quarter {i + 1}':>16}" for i in range(4))]
    for name in ("records", *SLACK):
        parts = [samples[i * quarter : (i + 1) * quarter] for i in range(4)]
        lines.append(f"{name:14}" + "".join(f"{median(getattr(s, name) for s in part):16,.0f}" for part in parts))
    return "\n".join(lines)


def write_csv(samples: list[Sample], path: Path) -> None:
    """Write one line per sample."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        writer.writeheader()
        writer.writerows(asdict(sample) for sample in samples)


def write_plot(samples: list[Sample], path: Path) -> None:
    """Write an SVG with one strip per quantity, over the time of the run."""
    names = ["records", *SLACK]
    end = max(sample.at_s for sample in samples) or 1.0
    strips = []
    for number, name in enumerate(names):
        top = max(getattr(sample, name) for sample in samples) or 1
        base = MARGIN + (number + 1) * HEIGHT - 20
        points = " ".join(
            f"{MARGIN + s.at_s / end * (WIDTH - 2 * MARGIN):.1f},{base - getattr(s, name) / top * (HEIGHT - 45):.1f}"
            for s in samples
        )
        strips.append(
            f'<text x="{MARGIN}" y="{base - HEIGHT + 35}">{name}, at most {top:,}</text>'
            f'<path d="M{MARGIN},{base}H{WIDTH - MARGIN}" stroke="#bbb"/>'
            f'<polyline points="{points}" fill="none" stroke="#05a"/>'
        )
    height = 2 * MARGIN + len(names) * HEIGHT
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{MARGIN}" y="24">{end / 60:.0f} minutes</text>{"".join(strips)}</svg>',
        encoding="utf-8",
    )
