"""A memory in which tables are always larger than their budget, and a part of a batch reaches one small unit.

Nothing leaves the process: what is played is the order in which rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import strategies as st

from holdfast.state.tables import placing
from holdfast.state.tables.slab import PLAIN, Memory, PlainMemory

UNIT_BITS = 8
"""A few records."""


class Cramped(PlainMemory):
    """Memory for the tables of one worker."""

    bytes_max = 1

    def __init__(self) -> None:
        self.brought = 0

    def bring(self, address: int, units: Iterable[int], write: bool) -> None:
        """Count the units."""
        self.brought += len(list(units))


MEMORIES: st.SearchStrategy[Memory] = st.builds(lambda cramped: Cramped() if cramped else PLAIN, st.booleans())


class CrampedState:
    """Mixed into a machine that plays a worker: its tables are cramped."""

    tables_memory: Memory

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tables_memory, self.smaller = Cramped(), pytest.MonkeyPatch()
        self.smaller.setattr(placing, "UNIT_BITS", UNIT_BITS)

    def teardown(self) -> None:
        super().teardown()  # type: ignore[misc]
        self.smaller.undo()
