"""Files that are only ever appended to, one JSON object per line.

Whoever writes one may be killed, so it may end in the middle of a line. That line is left out. A line in the middle
that cannot be read means damage.

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
    """Read the whole lines of a file.

    Args:
        called: How errors name the file.
        decode: Reads one line.

    Returns:
        What the lines say, and how many bytes of the file are whole lines.

    Raises:
        Damaged: a whole line cannot be read.
    """
    end = data.rfind(b"\n") + 1
    found: list[Line] = []
    for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
        try:
            found.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(
                f"line {number} of {called} cannot be read: {error}", not_done=not_done, next_step=next_step
            ) from error
    return found, end
