"""Decides which checkpoints to keep, and which objects are no longer needed.

The sweep knows the objects that every retained manifest names. It deletes an object that none of them names if the
object's epoch is decided: then no later manifest can name it either.

Invariants
    - An object that a retained manifest names is never garbage.
    - An upload in flight is never garbage: it belongs to an epoch of this generation that is not
      decided, or it is a merge, whose epoch is that of its input.
    - The newest checkpoint and savepoints never expire.

Pure: no clock, thread or I/O. The deleting is done by runtime/driver/background/sweep.py.
Source: PROTOCOL P16, P18; docs/decisions/0007.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Named
from holdfast.model import NO_EPOCH, Epoch

FOLDERS = ("manifests", "segments", "base", "merged", "staged", "orders")
_MERGES = ("base", "merged")
_NAME = re.compile(r"(\w+)/(\d{8})/(\d{12})[-/].+")
_SLACK = 10
"""A tenth of the retained checkpoints may be overdue, so that not every checkpoint costs a record and a sweep."""
_AT_ONCE = 1_000
"""But not more than this many: to free those of an hour of short epochs takes some milliseconds of a driver's turn."""


@dataclass(frozen=True)
class Retention:
    """Keeps the newest `checkpoints`, all checkpoints younger than `age_us`, and all savepoints."""

    checkpoints: int = 10
    age_us: int = 3_600_000_000
    log_records: int = 200
    """Minimum of records before the log starts over; with many retained checkpoints, twice their number."""


def expirable(job: Job, rule: Retention, now_us: int) -> Epoch:
    """Return the last epoch whose checkpoint may expire, 0 if there are too few to be worth a record.

    Savepoints neither expire nor count towards the newest `checkpoints`. Every turn of the driver asks, so few
    checkpoints are looked at: a checkpoint before an old one is old too, even if a changed clock gave it a later time.
    """
    assert rule.checkpoints >= 1
    nameless = len(job.completed) - len(job.before_savepoints)
    least = min(_AT_ONCE, max(1, -(-(nameless - _SLACK + 1) // (_SLACK + 1))))  # this many are worth it, see _SLACK
    most = nameless - rule.checkpoints
    if least > most or not _is_old(_nameless(job, least - 1), rule, now_us):
        return NO_EPOCH
    count = bisect_left(range(most), True, least, key=lambda number: not _is_old(_nameless(job, number), rule, now_us))
    return _nameless(job, count - 1).body.epoch


def _nameless(job: Job, number: int) -> Completed:
    """Return a checkpoint by its number among those that are not savepoints."""
    return job.completed[number + bisect_right(job.before_savepoints, number)]


def _is_old(completed: Completed, rule: Retention, now_us: int) -> bool:
    return now_us - completed.at >= rule.age_us


def log_is_long(job: Job, rule: Retention) -> bool:
    """Return whether the log should start over: enough records precede to justify the cost."""
    since = job.next_seq - job.log_start - 1
    return since >= max(rule.log_records, 2 * len(job.completed)) and job.expired_through > NO_EPOCH


class ObjectCatalogue:
    """The objects that the manifests read so far name: per object, the first and the last epoch that names it.

    An hour of short epochs has hundreds of thousands. So they are in dicts of text and numbers alone, which the garbage
    collector does not examine.
    """

    def __init__(self) -> None:
        self._first, self._last = dict[str, Epoch](), dict[str, Epoch]()
        self._read = dict[Epoch, None]()

    def unread(self, job: Job) -> list[Completed]:
        """Return the retained checkpoints whose manifests are not known yet."""
        return [each for each in job.retained if each.body.epoch not in self._read]

    def add(self, found: Named) -> None:
        """Add all objects that a manifest names, and the manifest itself."""
        epoch = found.epoch
        self._read[epoch] = None
        for path in found.paths:
            self._first[path] = min(self._first.get(path, epoch), epoch)
            self._last[path] = max(self._last.get(path, epoch), epoch)

    def expire(self, job: Job) -> list[str]:
        """Forget the objects that no retained manifest names, and return them."""
        assert not self.unread(job), "an unread manifest may name anything"
        epochs = [each.body.epoch for each in job.retained]
        paths = sorted(p for p, first in self._first.items() if not _is_any_within(epochs, first, self._last[p]))
        for path in paths:
            del self._first[path], self._last[path]
        self._read = dict.fromkeys(epoch for epoch in epochs if epoch in self._read)
        return paths

    def garbage(self, job: Job, listed: Iterable[str]) -> list[str]:
        """Return the listed objects that no manifest names and no later manifest can name."""
        return [path for path in listed if path not in self._first and _is_decided(job, path)]

    def orphans(self, listed: Iterable[str]) -> list[str]:
        """Return the listed objects that no manifest names, including uploads in flight."""
        return [path for path in listed if path not in self._first]


def _is_any_within(retained: list[Epoch], first: Epoch, last: Epoch) -> bool:
    """Return whether one of these epochs, in their order, is between the first and the last one."""
    at = bisect_left(retained, first)
    return at < len(retained) and retained[at] <= last


def _is_decided(job: Job, path: str) -> bool:
    match = _NAME.fullmatch(path)
    if match is None:
        return False  # Holdfast did not name this object
    folder, generation, epoch = match[1], int(match[2]), int(match[3])
    if generation == job.generation:
        # A merge as of an epoch is stored after that epoch is decided; a later, undecided epoch names it.
        return folder not in _MERGES and epoch <= job.base_epoch
    return generation < job.generation
