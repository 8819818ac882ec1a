"""Compact the changelog's topic, on a lane of the driver.

Checkpoints that have expired need nothing of the topic any longer. Once some have, the topic is asked whether a
compaction up to the oldest checkpoint that is left is worth it.

Invariants
    - Records that any retained checkpoint needs stay.
    - Nothing is compacted between a rewind and the repair of the topic, or while another driver owns it.

Source: docs/decisions/0055-changelog-topic.md; PROTOCOL P16.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.timeline import lineage_of
from holdfast.errors import HoldfastError
from holdfast.ports import Lane
from holdfast.sinks.contract.changelogs import Changelog, ChangelogCompaction


class Compactions:
    """The compactions of one run, one at a time; a request while one is in progress is left to the next one."""

    def __init__(self, changelog: Changelog, lane: Callable[[], Lane]) -> None:
        self._changelog, self._lane = changelog, lane
        self._compaction: ChangelogCompaction | None = None
        self._busy = False
        self.problem: HoldfastError | None = None
        """Why the last compaction did not complete; the next one retries."""

    def request(self, job: Job) -> None:
        """Compact as of this fold of the log, if that is worth it."""
        if self._busy or job.repair_due or (oldest := job.oldest) is None:
            return
        self._busy = True
        horizon, history = oldest.body.epoch, lineage_of(job.rewinds)
        if self._compaction is None:
            self._compaction = self._changelog.compaction(job.uuid)
        compaction = self._compaction
        self._lane().submit(lambda: compaction.compact(job.owner, history, horizon), self._ended)

    def _ended(self, result: object) -> None:
        self._busy = False
        if isinstance(result, BaseException) and not isinstance(result, HoldfastError):
            raise result
        self.problem = result if isinstance(result, HoldfastError) else None
