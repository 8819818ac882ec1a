"""Objects whose requests take virtual time, as those of S3 take time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from counted import PAGE
from virtual_time import VirtualTime

from holdfast.storage.bulk import Page, parts
from holdfast.storage.objects import MemoryObjects

REQUEST_S = 0.015
SIDE_BY_SIDE = 32
"""How many reads take as long as one."""


class SlowObjects(MemoryObjects):
    """Objects whose requests take time: half of it before they take effect, half after."""

    def __init__(self, virtual: VirtualTime) -> None:
        super().__init__()
        self.virtual, self.slow = virtual, False
        self.requests = Counter[str]()

    def asked(self, what: str, answer: Callable[[], Any]) -> Any:
        self.requests[what] += 1
        if not self.slow:
            return answer()
        self.virtual.pass_by(REQUEST_S / 2)
        try:
            return answer()
        finally:
            self.virtual.pass_by(REQUEST_S / 2)

    def create(self, path: str, data: bytes) -> None:
        self.asked("create", lambda: super(SlowObjects, self).create(path, data))

    def put(self, path: str, data: bytes) -> None:
        self.asked("put", lambda: super(SlowObjects, self).put(path, data))

    def get(self, path: str) -> bytes:
        return bytes(self.asked("get", lambda: super(SlowObjects, self).get(path)))

    def get_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        found = dict[str, bytes]()
        for part in parts(paths, SIDE_BY_SIDE):
            self.requests["get"] += len(part) - 1  # the last one is counted when it is asked

            def each(part: Sequence[str] = part) -> dict[str, bytes]:
                return {path: MemoryObjects.get(self, path) for path in part}

            found |= self.asked("get", each)
        return found

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def list(self, prefix: str) -> list[str]:
        return list(self.asked("list", lambda: super(SlowObjects, self).list(prefix)))

    def list_after(self, folder: str, path: str) -> Page:
        def page() -> Page:
            found = [each for each in MemoryObjects.list(self, folder) if each > path]
            return Page(found[:PAGE], len(found) > PAGE)

        answer = self.asked("page", page)
        assert isinstance(answer, Page)
        return answer
