"""Which attempts of tasks an epoch in microbatch mode consists of, by the names of its objects.

An attempt without objects counts too if another attempt of the epoch read its output, directly or through others.

    P26  an epoch consists of one attempt of each task at most, and all of them belong to one job
         an object of an earlier epoch was made by an attempt that counted there

Source: PROTOCOL P26; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from holdfast.runtime.microbatch.blocks import Attempt, Result

_NAME = re.compile(r"(?:segments|staged)/(\d+)/(\d+)/(\d+)-(\d+)-([0-9a-f]{12})\b")
Place = tuple[int, int]
"""Layer and subtask."""
Job = tuple[str, int]
"""A driver, and the number of the job among those that it started."""


class Attempts:
    """The attempts of one run of a seed."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._jobs: dict[str, Job] = {}
        self._read_from: dict[str, tuple[Attempt, ...]] = {}
        self._counted: set[tuple[int, str]] = set()
        """Epochs, and attempts whose objects are in them."""

    @property
    def accepted(self) -> int:
        """Return how many attempts have objects in completed epochs."""
        return len(self._counted)

    def made(self, job: Job, result: Result) -> None:
        """An attempt of this job has ended."""
        self._jobs[result.attempt.id] = job
        self._read_from[result.attempt.id] = result.read_from

    def completed(self, epoch: int, paths: Iterable[str]) -> None:
        """An epoch was completed; its manifest names these objects, among them those of earlier epochs."""
        counts: dict[Place, str] = {}
        for name in (match for path in sorted(paths) if (match := _NAME.match(path))):
            of, attempt = int(name[2]), name[5]
            if of == epoch:
                self._counts(epoch, counts, (int(name[3]), int(name[4])), attempt)
                self._counted.add((epoch, attempt))
            elif (of, attempt) not in self._counted:
                self._fail("P26", f"epoch {epoch} names an object of epoch {of} whose attempt {attempt} never counted")
        waiting = list(counts.values())
        while waiting:
            for read in self._read_from[waiting.pop()]:
                if self._counts(epoch, counts, (read.layer, read.subtask), read.id):
                    waiting.append(read.id)
        if len(jobs := {self._jobs[attempt] for attempt in counts.values()}) > 1:
            self._fail("P26", f"epoch {epoch} has objects of several jobs: {sorted(jobs)}")

    def _counts(self, epoch: int, counts: dict[Place, str], place: Place, attempt: str) -> bool:
        """Count an attempt; return whether it is the first of its task."""
        if place not in counts:
            counts[place] = attempt
            return True
        if counts[place] != attempt:
            self._fail("P26", f"epoch {epoch} rests on attempts {counts[place]} and {attempt} of task {place}")
        return False
