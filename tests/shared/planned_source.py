"""A source for tests of plans, and of their effect on batches that a test pushes itself."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.runtime.plan.source import OpenSource, Source
from holdfast.traits import SourceTraits


@dataclass(frozen=True)
class PlannedSource(Source):
    """A source for planning only."""

    schema: pa.Schema
    row_type: type | None = None
    where = "planned source"
    traits = SourceTraits(kind="PlannedSource", local_paths=())

    def open(self) -> OpenSource:
        raise AssertionError("a source for planning only is never read")
