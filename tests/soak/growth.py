"""The resources of a long run: samples, whether they grow, and a plot of them.

A quantity is bounded if the line through the second half of the run (Theil-Sen: the median of the slopes of all pairs)
rises by at most a share of the quantity and a slack. The first half is the warm-up: retention expires for the first
time, tables reach their size, allocators their high-water mark.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np

RISE_MAX = 0.1
"""By how much of its median a quantity may rise in the second half."""
SAMPLES_LEAST = 60
"""With fewer, the line says nothing; PAIRED_MAX of them are compared with each other."""
PAIRED_MAX = 600
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
    state_bytes: int
    """As the job reports it, of all operators."""
    worker_bytes: int
    """Resident memory of the Python processes below Spark's."""
    driver_bytes: int
    """Resident memory of the driver's Python process."""
    jvm_bytes: int


SLACK = {
    "root_bytes": 1 << 20,
    "root_objects": 50,
    "log_records": 50,
    "local_bytes": 8 << 20,
    "undo_rows": 2_000,
    "state_bytes": 1 << 20,
    "worker_bytes": 16 << 20,
    "driver_bytes": 8 << 20,
    "jvm_bytes": 128 << 20,
}
"""Slack per quantity: the normal variation of a small job. A heap grows until it is collected."""


def rise(samples: list[Sample], name: str) -> float:
    """Return by how much the line through the second half of a quantity rises from its beginning to its end."""
    second = samples[len(samples) // 2 :]
    at = np.linspace(0, len(second) - 1, min(len(second), PAIRED_MAX)).astype(int)
    times, values = (np.array([float(getattr(second[i], each)) for i in at]) for each in ("at_s", name))
    first, then = np.triu_indices(len(at), 1)
    slope = np.median((values[then] - values[first]) / (times[then] - times[first]))
    return float(slope * (times[-1] - times[0]))


def growing(samples: list[Sample]) -> list[str]:
    """Return the quantities that are not bounded, one sentence each."""
    assert len(samples) >= SAMPLES_LEAST, "too few samples for a line through them"
    problems = []
    for name, slack in SLACK.items():
        middle, rose = median(getattr(sample, name) for sample in samples[len(samples) // 2 :]), rise(samples, name)
        if rose > RISE_MAX * middle + slack:
            problems.append(f"{name} rose by {rose:,.0f} in the second half, in which its median is {middle:,.0f}")
    return problems


def table(samples: list[Sample]) -> str:
    """Return the median of every quantity by quarter of the run, and its rise, as lines of text."""
    quarter = len(samples) // 4
    heads = [*(f"quarter {i + 1}" for i in range(4)), "rise, 2nd half"]
    lines = [f"{'':14}" + "".join(f"{head:>16}" for head in heads)]
    for name in ("records", *SLACK):
        parts = [samples[i * quarter : (i + 1) * quarter] for i in range(4)]
        lines.append(f"{name:14}" + "".join(f"{median(getattr(s, name) for s in part):16,.0f}" for part in parts))
        lines[-1] += f"{rise(samples, name):16,.0f}"
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
