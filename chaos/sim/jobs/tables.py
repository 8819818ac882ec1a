"""The tables that simulated jobs write to, as they stand behind every worker's own way to them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import Generation, Writer
from holdfast.sinks.memory import MemorySink


class SharedTable(MemorySink):
    """A table that all workers deliver to. `generation` is that of the present delivery, for mutants' guards."""

    def __init__(self, key: Iterable[str] | None) -> None:
        super().__init__(key)
        self.generation = Generation(0)
        self.newest: dict[Writer, Generation] = {}
