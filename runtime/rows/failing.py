"""Errors of users' functions: whose fault they are, and how they are reported.

Pure.
"""

from __future__ import annotations

import traceback
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.rows.forms import file_of

NOT_THE_ROWS_FAULT = (HoldfastError, MemoryError)
"""All other errors for which `is_failure` holds are the row's fault, even those that are not an Exception: sys.exit,
KeyboardInterrupt, and panics of native code (Polars, RocksDB)."""


def raised(error: BaseException, function: Any, caller: str) -> str:
    """Describe an error of a function, with the line of the user's code that raised it.

    Args:
        caller: The file of the code that called the function.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != caller]
    own = file_of(function)
    frame = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    where = "" if frame is None else f" at {frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    where += f" `{frame.line}`" if frame is not None and frame.line else ""
    shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"raised {shown:.300}{where}"
