"""Objects of a process that dies at one of its operations."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import Unavailable
from holdfast.storage.objects import MemoryObjects


class Dying(MemoryObjects):
    """The objects of another store, until the process dies at the n-th operation; `after` it, or before it."""

    def __init__(self, real: MemoryObjects, left: int, *, after: bool) -> None:
        super().__init__()
        self.real, self.left, self.after = real, left, after

    @property
    def dead(self) -> bool:
        """Whether the process has died."""
        return self.left <= 0

    def _dies(self, effect: Callable[[], object]) -> None:
        self.left -= 1
        if self.left > 0 or (self.left == 0 and self.after):
            effect()
        if self.left <= 0:
            raise Unavailable("the process is dead", next_step="none")

    def create(self, path: str, data: bytes) -> None:
        self._dies(lambda: self.real.create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._dies(lambda: self.real.put(path, data))

    def delete(self, path: str) -> None:
        self._dies(lambda: self.real.delete(path))

    def get(self, path: str) -> bytes:
        self._dies(lambda: None)
        return self.real.get(path)

    def list(self, prefix: str) -> list[str]:
        self._dies(lambda: None)
        return self.real.list(prefix)
