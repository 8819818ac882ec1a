"""Store the fold of the job log from time to time, on a lane of the driver, so that the next start reads little.

A fold that could not be stored is stored with the next record. Nothing waits for it.

Source: docs/decisions/0053-control-plane-at-scale.md; checkpoint/folds.py says when it is used.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint import folds
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import HoldfastError
from holdfast.ports import Lane


class Folds:
    """The folds that one run stores, one at a time."""

    def __init__(self, repository: Repository, lane: Callable[[], Lane]) -> None:
        self._repository, self._lane = repository, lane
        self._stored = 0
        self._busy = False

    def seen(self, job: Job) -> None:
        """Take the fold after a new record; store it if it is time to."""
        if self._busy or not folds.due(job, self._stored):
            return
        self._busy = True
        self._lane().submit(lambda: self._repository.store_fold(job), lambda result: self._ended(job, result))

    def _ended(self, job: Job, result: object) -> None:
        self._busy = False
        if isinstance(result, BaseException) and not isinstance(result, HoldfastError):
            raise result
        if not isinstance(result, HoldfastError):
            self._stored = folds.last_of(job)
