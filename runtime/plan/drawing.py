"""A dataflow as a drawing for notebooks: HTML with an SVG in it, without scripts and without anything from elsewhere.

Steps are boxes, below those that they read. Names of users are escaped, and shortened where a box would be too wide;
the whole text is shown when the pointer rests on a box.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from holdfast.runtime.operators.contract import Step

_LETTER, _LINE = 7.3, 16
"""The width of a letter and the height of a line, in pixels."""
_PAD, _GAP_X, _GAP_Y = 10, 24, 34
LETTERS_MAX = 44
BOXES_MAX = 400
"""More steps than a reader sees at once; a larger dataflow is listed instead."""
_FILL = {"source": "#dbeafe", "sink": "#dcfce7", "state": "#fef3c7", "step": "#f3f4f6"}
_STROKE = {"source": "#2563eb", "sink": "#16a34a", "state": "#d97706", "step": "#6b7280"}
_FONT = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"


@dataclass(frozen=True)
class Box:
    """One step of a dataflow.

    Args:
        lines: Text in the box.
        kind: "source", "sink", "state" for a step that keeps state, or "step".
        detail: Text that appears when the pointer rests on the box.
        inputs: The numbers of the boxes that it reads, which come before it, with a text for the arrow.
    """

    number: int
    lines: tuple[str, ...]
    kind: str
    detail: str
    inputs: tuple[tuple[int, str], ...] = ()


def drawn(title: str, boxes: Sequence[Box]) -> str:
    """Return a dataflow as HTML that needs nothing else."""
    head = f'<div style="{_FONT};font-weight:bold;margin-bottom:6px">{escape(title)}</div>'
    if not boxes:
        return f'<div>{head}<div style="{_FONT}">nothing is built yet</div></div>'
    if len(boxes) > BOXES_MAX:
        items = "".join(f"<li>{escape(' '.join(box.lines))}</li>" for box in boxes)
        return f'<div>{head}<ol style="{_FONT}">{items}</ol></div>'
    return f"<div>{head}{_svg(boxes)}</div>"


def box_of(
    number: int,
    step: Step,
    schema: pa.Schema,
    upsert_key: tuple[str, ...] | None,
    inputs: tuple[tuple[int, str], ...],
) -> Box:
    """Return the box of a step with these columns after it."""
    kind = "sink" if step.writes_to is not None else "state" if step.stateful else "step"
    upsert = f"\nupsert by {', '.join(upsert_key)}" if upsert_key else ""
    return Box(number, (step.text(),), kind, f"{step.text()}\n{columns_text(schema)}{upsert}", inputs)


def columns_text(schema: pa.Schema) -> str:
    """Return the columns as `holdfast plan` shows them: "user: int64, name: string?"."""
    return ", ".join(f"{field.name}: {field.type}{'?' if field.nullable else ''}" for field in schema)


def upstream(boxes: Sequence[Box], of: int) -> list[Box]:
    """Return a box and all that it reads, directly or through others, in their order."""
    box_numbers = {of}
    for box in reversed(boxes):
        if box.number in box_numbers:
            box_numbers |= {number for number, _ in box.inputs}
    return [box for box in boxes if box.number in box_numbers]


@dataclass(frozen=True)
class _Placed:
    box: Box
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


def _svg(boxes: Sequence[Box]) -> str:
    layout = _placed(boxes)
    width = max(each.x + each.width for each in layout.values()) + 1
    height = max(each.y + each.height for each in layout.values()) + 1
    arrows = "".join(_arrow(layout[number], each, text) for each in layout.values() for number, text in each.box.inputs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="-1 -1 {width + 1:.0f} {height + 1:.0f}" role="img" style="{_FONT};background:#fff;max-width:100%">'
        f"{arrows}{''.join(map(_rectangle, layout.values()))}</svg>"
    )


def _placed(boxes: Sequence[Box]) -> dict[int, _Placed]:
    """Return where each box is: in the row below the lowest of its inputs, beside those that came before it."""
    there: dict[int, int] = {}
    for box in boxes:
        there[box.number] = 1 + max((there[number] for number, _ in box.inputs), default=-1)
    layout: dict[int, _Placed] = {}
    y = 0.0
    for row in range(max(there.values()) + 1):
        x, tallest = 0.0, 0.0
        for box in _in_order([each for each in boxes if there[each.number] == row], layout):
            lines = tuple(map(_short, box.lines))
            size = 2 * _PAD + _LETTER * max(map(len, lines)), _PAD + _LINE * len(lines)
            above = [layout[number].x for number, _ in box.inputs]
            x = max(x, min(above, default=x))
            layout[box.number] = _Placed(box, lines, x, y, *size)
            x, tallest = x + size[0] + _GAP_X, max(tallest, size[1])
        y += tallest + _GAP_Y
    return layout


def _in_order(row: Sequence[Box], found: dict[int, _Placed]) -> list[Box]:
    """Return the boxes of a row from left to right, as their inputs are."""
    return sorted(row, key=lambda box: (min((found[number].x for number, _ in box.inputs), default=0.0), box.number))


def _rectangle(each: _Placed) -> str:
    kind = each.box.kind
    texts = "".join(
        f'<text x="{each.x + _PAD:.0f}" y="{each.y + _PAD / 2 + _LINE * (at + 0.75):.0f}" fill="#111827"'
        f"{_BOLD if at == 0 else ''}>{escape(line)}</text>"
        for at, line in enumerate(each.lines)
    )
    return (
        f"<g><title>{escape(each.box.detail)}</title>"
        f'<rect x="{each.x:.0f}" y="{each.y:.0f}" width="{each.width:.0f}" height="{each.height:.0f}" rx="5" '
        f'fill="{_FILL[kind]}" stroke="{_STROKE[kind]}"/>{texts}</g>'
    )


_BOLD = ' font-weight="bold"'


def _arrow(start: _Placed, end: _Placed, text: str) -> str:
    x1, y1 = start.x + min(start.width, end.width) / 2, start.y + start.height
    x2, y2 = end.x + min(start.width, end.width) / 2, end.y
    bend = (y2 - y1) / 2
    line = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2 - 5:.0f}"
    tip = f"M{x2 - 4:.0f},{y2 - 6:.0f} L{x2 + 4:.0f},{y2 - 6:.0f} L{x2:.0f},{y2:.0f} Z"
    label = (
        f'<text x="{x2 + 8:.0f}" y="{y2 - 10:.0f}" fill="#4b5563" font-size="11">{escape(_short(text))}</text>'
        if text
        else ""
    )
    return f'<path d="{line}" fill="none" stroke="#9ca3af"/><path d="{tip}" fill="#9ca3af"/>{label}'


def _short(text: str) -> str:
    return text if len(text) <= LETTERS_MAX else f"{text[: LETTERS_MAX - 1]}…"


def joined(names: Collection[str]) -> str:
    """Return the text of an arrow on which rows are shuffled by a key."""
    return f"by {', '.join(names)}" if names else ""
