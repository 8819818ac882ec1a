"""Frames for expressions: a row has the same values whether it is alone or one of many.

Polars takes an operand of one row for a constant, which it may compute another way: of many rows, `f // 0.1` is the
whole part of `f * (1 / 0.1)`, but of a single one that of `f / 0.1`, which are 3 and 2 for 0.3. So no expression is
computed for a single row: that row is then there twice.

Pure.
"""

from __future__ import annotations

import polars as pl


def twice(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, and all of them once more."""
    # As frames, a single row would stay a constant; in chunks of their own, each of both would be one again.
    return pl.DataFrame([pl.concat([column, column], rechunk=True) for column in frame.get_columns()])


def never_single(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, a single one twice; what is computed of them is cut back with `head`."""
    return twice(frame) if frame.height == 1 else frame
