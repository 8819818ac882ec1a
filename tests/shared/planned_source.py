"""A source for tests of plans, and of what a plan does to batches that a test pushes itself."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.runtime.sources.source import OpenSource


@dataclass(frozen=True)
class PlannedSource:
    """A source that is only planned with."""

    schema: pa.Schema
    row_type: type | None = None

    def check(self) -> None:
        """Nothing to look at."""

    def open(self) -> OpenSource:
        raise AssertionError("nobody reads from a source that is only planned with")
