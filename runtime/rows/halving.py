"""Decodes lines together, and finds those at fault by halving, so that a line is refused for itself alone.

Pure. Source: docs/design/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

Together = Callable[[Sequence[bytes], Sequence[int], dict[int, str]], pa.RecordBatch]


class Unfit(Exception):
    """The lines cannot be decoded together; the text says why, for a single line."""


def by_halves(
    lines: Sequence[bytes], places: Sequence[int], why: dict[int, str], together: Together
) -> Iterator[pa.RecordBatch]:
    """Decode lines together, or else the two halves of them.

    Args:
        places: The index of each line, for `why`.
        why: Gets the lines that are refused.
        together: Decodes lines, and may refuse some on its own. Raises Unfit.
    """
    if not lines:
        return
    try:
        yield together(lines, places, why)
    except Unfit as wrong:
        if len(lines) == 1:
            why[places[0]] = str(wrong)
            return
        half = len(lines) // 2
        yield from by_halves(lines[:half], places[:half], why, together)
        yield from by_halves(lines[half:], places[half:], why, together)
