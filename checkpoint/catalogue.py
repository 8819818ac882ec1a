"""Which checkpoints are kept, and which objects nothing needs any more.

The sweep knows what every retained manifest names. It deletes what none of them names, if the
object is of an epoch that is decided: then no later manifest can name it either.

Invariants
    - An object that a retained manifest names is never garbage.
    - An upload in flight is never garbage: it belongs to an epoch of this generation that is not
      decided, or it is a merge, whose epoch is that of its input.
    - The newest checkpoint never expires, nor does a savepoint.

Pure: no clock, thread or I/O. The deleting is done by runtime/sweep.py.
Source: PROTOCOL P16, P18; docs/design/0007.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint import manifest
from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH, Epoch, ObjectRef

FOLDERS = ("manifests", "segments", "base", "merged", "staged")
_MERGES = ("base", "merged")
_NAME = re.compile(r"(\w+)/(\d{8})/(\d{12})[-/].+")
_SLACK = 10
"""A tenth of what is kept may be overdue, so that not every checkpoint costs a record and a sweep."""


@dataclass(frozen=True)
class Retention:
    """Kept are the newest `checkpoints`, all that are younger than `age_us`, and savepoints."""

    checkpoints: int = 10
    age_us: int = 3_600_000_000
    log_records: int = 1_000
    """Records after which the log begins anew, at least; with more checkpoints retained, as many."""


def expirable(job: Job, rule: Retention, now_us: int) -> Epoch:
    """Return through which epoch checkpoints may expire, 0 if none or too few to be worth a record.

    Savepoints neither expire nor count: the newest `checkpoints` are those of the others.
    """
    assert rule.checkpoints >= 1
    named = {each.epoch for each in job.savepoints}
    nameless = [each for each in job.completed if each.body.epoch not in named]
    old = nameless[: -rule.checkpoints]
    count = next((i for i, each in enumerate(old) if now_us - each.at < rule.age_us), len(old))
    worth = max(1, (len(nameless) - count) // _SLACK)
    return nameless[count - 1].body.epoch if count >= worth else NO_EPOCH


def log_is_long(job: Job, rule: Retention) -> bool:
    """Return whether the log should begin anew: what that costs is then paid for by the records before."""
    since = job.next_seq - job.log_start - 1
    return since >= max(rule.log_records, 2 * len(job.completed)) and job.expired_through > NO_EPOCH


class Catalogue:
    """What the manifests that were read name: per object, the first and the last epoch that does."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[Epoch, Epoch]] = {}
        self._read: set[Epoch] = set()

    def unread(self, job: Job) -> list[Completed]:
        """Return the retained checkpoints whose manifests are not known yet."""
        return [each for each in job.retained if each.body.epoch not in self._read]

    def add(self, ref: ObjectRef, found: Manifest) -> None:
        """Take note of all that a manifest names, itself included."""
        self._read.add(found.epoch)
        for path in (ref.path, *(each.path for each in manifest.objects(found))):
            first, last = self._spans.get(path, (found.epoch, found.epoch))
            self._spans[path] = min(first, found.epoch), max(last, found.epoch)

    def expire(self, job: Job) -> list[str]:
        """Forget what no retained manifest names, and return it."""
        assert not self.unread(job), "an unread manifest may name anything"
        retained = [each.body.epoch for each in job.retained]
        gone = sorted(path for path, span in self._spans.items() if not _any_within(retained, span))
        for path in gone:
            del self._spans[path]
        self._read &= set(retained)
        return gone

    def garbage(self, job: Job, listed: Iterable[str]) -> list[str]:
        """Return those of the listed objects that nothing names and nothing can name any more."""
        return [path for path in listed if path not in self._spans and _is_decided(job, path)]

    def orphans(self, listed: Iterable[str]) -> list[str]:
        """Return those of the listed objects that nothing names, uploads in flight included."""
        return [path for path in listed if path not in self._spans]


def _any_within(retained: list[Epoch], span: tuple[Epoch, Epoch]) -> bool:
    return any(span[0] <= epoch <= span[1] for epoch in retained)


def _is_decided(job: Job, path: str) -> bool:
    match = _NAME.fullmatch(path)
    if match is None:
        return False  # not one of ours
    folder, generation, epoch = match[1], int(match[2]), int(match[3])
    if generation == job.generation:
        # A merge as of an epoch is stored after the epoch is decided, and named by one that is not.
        return folder not in _MERGES and epoch <= job.base_epoch
    return generation < job.generation
