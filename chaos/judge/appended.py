"""Append-only files with one JSON object per line.

The writer may be killed, so a file may end in the middle of a line. That line is left out. An unreadable line
anywhere else means damage.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.errors import Damaged

Line = TypeVar("Line")


def read_lines(
    data: bytes, called: str, decode: Callable[[bytes], Line], *, not_done: str, next_step: str
) -> tuple[list[Line], int]:
    """Read the complete lines of a file.

    Args:
        called: How errors name the file.
        decode: Reads one line.

    Returns:
        The decoded lines, and how many bytes of the file they take.

    Raises:
        Damaged: a complete line cannot be read.
    """
    end = data.rfind(b"\n") + 1
    lines: list[Line] = []
    for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
        try:
            lines.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(
                f"line {number} of {called} cannot be read: {error}", not_done=not_done, next_step=next_step
            ) from error
    return lines, end
