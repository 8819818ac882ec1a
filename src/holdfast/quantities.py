"""How many of something there are, as text.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

BYTES = "bytes"
"""Unit of positions and of lag in files of text; everything else counts records."""


def plural(number: int, noun: str) -> str:
    """Return "1 row", "1,234 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def of_sources(amounts: Iterable[tuple[int, str | None]]) -> str:
    """Return the amounts of sources, by their units: "7 records and 1,234 bytes of text".

    Args:
        amounts: Each with its unit; None: not known to be another than records.
    """
    each = list(amounts)
    in_bytes = sum(number for number, unit in each if unit == BYTES)
    records = sum(number for number, unit in each if unit != BYTES)
    said = [plural(records, "record")] if records or not in_bytes else []
    return " and ".join([*said, *([f"{plural(in_bytes, 'byte')} of text"] if in_bytes else [])])
