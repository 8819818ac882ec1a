"""The tables to which simulated jobs write; all workers share them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import Generation, Writer
from holdfast.sinks.memory.sink import MemorySink


class SharedTable(MemorySink):
    """A table to which all workers deliver. `generation` is that of the present delivery, for mutants' guards."""

    def __init__(self, key: Iterable[str] | None) -> None:
        super().__init__(key)
        self.generation = Generation(0)
        self.newest: dict[Writer, Generation] = {}
