"""Counts what work costs in numbers that do not depend on the machine: instructions, and requests to a store."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from holdfast.storage.bulk import Page
from holdfast.storage.objects import MemoryObjects

PAGE = 1_000
"""How many names a listing returns, and a deletion takes, per request."""


def instructions(work: Callable[[], object]) -> int:
    """Return how many bytecode instructions Python carries out for this work; calls into C count as one."""
    count = 0

    def each(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class CountingObjects(MemoryObjects):
    """Objects in memory that count requests as S3 does."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = Counter[str]()

    def create(self, path: str, data: bytes) -> None:
        self.requests["create"] += 1
        super().create(path, data)

    def put(self, path: str, data: bytes) -> None:
        self.requests["put"] += 1
        super().put(path, data)

    def get(self, path: str) -> bytes:
        self.requests["get"] += 1
        return super().get(path)

    def list(self, prefix: str) -> list[str]:
        found = super().list(prefix)
        self.requests["list"] += max(1, -(-len(found) // PAGE))
        return found

    def delete(self, path: str) -> None:
        self.requests["delete"] += 1
        super().delete(path)


class BulkObjects(CountingObjects):
    """The same, with bulk reads and deletions, and listings from a name on."""

    def list_after(self, folder: str, path: str) -> Page:
        self.requests["list after"] += 1
        found = [each for each in MemoryObjects.list(self, folder) if each > path]
        return Page(found[:PAGE], len(found) > PAGE)

    def get_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        self.requests["get"] += len(paths)
        self.requests["get together"] += 1
        with self._lock:
            return {path: self._objects[path] for path in paths if path in self._objects}

    def create_many(self, objects: Mapping[str, bytes]) -> list[str]:
        for path, data in objects.items():
            self.create(path, data)
        return []

    def delete_many(self, paths: Sequence[str]) -> None:
        assert 0 < len(paths) <= PAGE
        self.requests["delete together"] += 1
        for path in paths:
            super(CountingObjects, self).delete(path)
