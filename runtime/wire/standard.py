"""Standard streams of a process that was started without some of them, as `2>&-` and some daemons do.

Otherwise the next file or socket has the number of the missing stream: what is printed would get into it, and a child
process would lose it.

Source: open(2): the lowest number that is free; sys.stdout in the manual of Python, which is None without a stream.
"""

from __future__ import annotations

import os
import sys

NAMES = ("stdin", "stdout", "stderr")


def fill_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed."""
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for the process
