"""Draws docs/benchmarks.svg from the table of docs/comparison.md: processor time per record, on a logarithmic scale.

tools/docs.py writes it with the other generated parts of the pages.
"""

from __future__ import annotations

import re
from math import log10

ROW = re.compile(r"^\| (q_\w+) \| ([^|]+?) \| [\d,]+ \| [\d,]+ \| ([\d,.]+) \|", re.MULTILINE)
COLOURS = {"Holdfast": "#2f6fde", "Flink": "#e0803a", "PyFlink": "#e0803a", "Spark": "#c2504f", "Bytewax": "#7a9a4f"}
OTHERS = "#9a6fb0"
WIDE, LEFT, RIGHT, TOP, BAR, GAP = 860, 190, 700, 46, 17, 16
TITLE = "Processor time per record, microseconds (logarithmic; less is better)"
LEAST_US, MOST_US = 1.0, 1_000.0
SVG = '<svg xmlns="http://www.w3.org/2000/svg" font-family="system-ui,sans-serif" font-size="13"'
MEANING = {
    "q_count": "count and sum per bidder",
    "q_hop": "windows of 10 s, every 2 s",
    "q_join": "join within 10 s",
    "q_pass": "filter, topic to topic",
    "q_python": "Python function per record",
}


def rows(page: str) -> dict[str, list[tuple[str, float]]]:
    """Return, per query, the engines with their microseconds per record, in the order of the page's table."""
    found: dict[str, list[tuple[str, float]]] = {}
    for query, engine, us in ROW.findall(page):
        found.setdefault(query, []).append((engine, float(us.replace(",", ""))))
    return found


def chart(page: str) -> str:
    """Return the drawing of the figures of a page."""
    y, parts = TOP, list[str]()
    for query, engines in rows(page).items():
        parts.append(f'<text x="14" y="{y + 13}" font-weight="600">{query}</text>')
        parts.append(f'<text x="14" y="{y + 30}" fill="#666" font-size="11.5">{MEANING[query]}</text>')
        for engine, us in engines:
            wide = _x(us) - LEFT
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR - 3}" fill="{_colour(engine)}"/>')
            parts.append(f'<text x="{_x(us) + 6:.1f}" y="{y + 11}" font-size="12">{engine}, {us:,.4g}</text>')
            y += BAR
        y += max(0, 2 - len(engines)) * BAR + GAP
    head = [
        f'{SVG} viewBox="0 0 {WIDE} {y + 18}">',
        f'<rect width="{WIDE}" height="{y + 18}" rx="8" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-weight="600">{TITLE}</text>',
    ]
    for us in (1, 10, 100, 1_000):
        head.append(f'<line x1="{_x(us):.1f}" x2="{_x(us):.1f}" y1="34" y2="{y}" stroke="#ddd"/>')
        head.append(f'<text x="{_x(us) - 8:.1f}" y="{y + 12}" fill="#666" font-size="11">{us:,}</text>')
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _x(us: float) -> float:
    return LEFT + (RIGHT - LEFT) * (log10(us) - log10(LEAST_US)) / (log10(MOST_US) - log10(LEAST_US))


def _colour(engine: str) -> str:
    return COLOURS.get(engine.partition(" ")[0], OTHERS)
