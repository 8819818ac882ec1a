"""How many of something there are, as text.

Pure.
"""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """Return "1 row", "1,234 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
