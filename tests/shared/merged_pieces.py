"""The merge of stored pieces as bytes, for tests."""

from __future__ import annotations

import io
from collections.abc import Iterable

from holdfast.state import compact as streamed
from holdfast.state.changelog import Data, SegmentHeader
from holdfast.state.tables.spec import TableSpec


def compact(header: SegmentHeader, pieces: Iterable[tuple[Data, tuple[int, int]]], specs: Iterable[TableSpec]) -> bytes:
    """Return one segment with the effect of these pieces."""
    into = io.BytesIO()
    streamed.compact(header, pieces, specs, into)
    return into.getvalue()
