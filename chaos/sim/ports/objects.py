"""The objects of a simulated job: one store, and the checkers that see every write."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import NotFound
from holdfast.storage.objects import MemoryObjects


class WatchedObjects(MemoryObjects):
    """The objects themselves; the checkers see every write that lands."""

    def __init__(self, landed: Callable[[str, bytes], None], deleted: Callable[[str], None]) -> None:
        super().__init__()
        self._landed, self._deleted = landed, deleted

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._landed(path, data)

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._landed(path, data)

    def delete(self, path: str) -> None:
        super().delete(path)
        self._deleted(path)

    def holds(self, path: str) -> bool:
        """Return whether there is such an object."""
        try:
            self.get(path)
        except NotFound:
            return False
        return True
