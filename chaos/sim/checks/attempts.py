"""Which attempts of tasks an epoch in microbatch mode consists of, by the names of its objects.

    P26  an epoch has objects of one attempt of each task at most, and of one job
         attempts whose objects are in one epoch have read what the same attempts sent

Source: PROTOCOL P26; docs/design/0047-microbatch.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from holdfast.runtime.microbatch.blocks import Attempt, Result

_NAME = re.compile(r"(?:segments|staged)/(\d+)/(\d+)/(\d+)-(\d+)-([0-9a-f]{12})\b")
Place = tuple[int, int]
"""Layer and subtask."""


class Attempts:
    """The attempts of one run of a seed."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._read_from: dict[str, tuple[Attempt, ...]] = {}
        self.accepted = 0
        """Attempts whose objects are in completed epochs."""

    def made(self, result: Result) -> None:
        """An attempt has ended."""
        self._read_from[result.attempt.id] = result.read_from

    def completed(self, epoch: int, paths: Iterable[str]) -> None:
        """An epoch was completed; its manifest names these objects, among them those of earlier epochs."""
        found = (match for path in sorted(paths) if (match := _NAME.match(path)) and int(match[2]) == epoch)
        counts: dict[Place, str] = {}
        for name in found:
            self._counts(epoch, counts, (int(name[3]), int(name[4])), name[5])
        self.accepted += len(counts)
        for attempt in list(counts.values()):
            for read in self._read_from[attempt]:
                self._counts(epoch, counts, (read.layer, read.subtask), read.id)

    def _counts(self, epoch: int, counts: dict[Place, str], place: Place, attempt: str) -> None:
        if counts.setdefault(place, attempt) != attempt:
            self._fail("P26", f"epoch {epoch} rests on attempts {counts[place]} and {attempt} of task {place}")
