"""Decodes lines together, and finds those at fault by halving, so that a line is refused for itself alone.

Refuses rows with a null where there may be none in the same way, whatever the lines are written in.

Pure. Source: docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

Together = Callable[[Sequence[bytes], Sequence[int], dict[int, str]], pa.RecordBatch]


class UndecodableLines(Exception):
    """The lines cannot be decoded together; the text is the reason for a single line."""


def by_halves(
    lines: Sequence[bytes], places: Sequence[int], why: dict[int, str], together: Together
) -> Iterator[pa.RecordBatch]:
    """Decode lines together, or else the two halves of them.

    Args:
        places: The index of each line, for `why`.
        why: Gets the lines that are refused.
        together: Decodes lines, and may refuse some on its own. Raises UndecodableLines.
    """
    if not lines:
        return
    try:
        yield together(lines, places, why)
    except UndecodableLines as wrong:
        if len(lines) == 1:
            why[places[0]] = str(wrong)
            return
        half = len(lines) // 2
        yield from by_halves(lines[:half], places[:half], why, together)
        yield from by_halves(lines[half:], places[half:], why, together)


def without_nulls(
    columns: list[pa.Array],
    schema: pa.Schema,
    places: Sequence[int],
    why: dict[int, str],
    state: Callable[[int, str], str] = lambda _row, _name: "null",
) -> pa.RecordBatch:
    """Return the rows without those that have a null where the schema allows none; these are refused.

    Args:
        places: The places of the rows in `why`.
        state: Returns the word for the value of a row and a column that has a null.
    """
    nulls: dict[int, str] = {}
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
            nulls = {**dict.fromkeys(rows, field.name), **nulls}
    if not nulls:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    for row, name in nulls.items():
        why[places[row]] = f"column {name!r} is {state(row, name)}, which the job's schema does not allow"
    kept = pa.array([row for row in range(len(places)) if row not in nulls], pa.int64())
    return pa.RecordBatch.from_arrays([column.take(kept) for column in columns], schema=schema)
