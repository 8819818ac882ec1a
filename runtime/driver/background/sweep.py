"""Delete objects that are no longer needed, on a lane of the driver.

Only the driver deletes, only after `Expired` is in the job log, and only while every retained
manifest can be read. After a crash the next sweep finds the remaining objects in the listing.

Source: DESIGN section 4 (garbage collection); PROTOCOL P7, P16; docs/decisions/0007.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.catalogue import FOLDERS, ObjectCatalogue
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import HoldfastError
from holdfast.ports import Lane


class Sweep:
    """The sweeps of one run, one at a time; only the newest waiting request is kept."""

    def __init__(self, repository: Repository, lane: Callable[[], Lane]) -> None:
        self._repository, self._lane = repository, lane
        self._catalogue = ObjectCatalogue()
        self._kept: set[int] = set()
        self._busy = False
        self._next: Job | None = None
        self.problem: HoldfastError | None = None
        """Why the last sweep did not complete; the next one retries."""

    def request(self, job: Job) -> None:
        """Sweep as of this fold of the log, once the sweep in progress has ended."""
        self._next = job
        self._start()

    def _start(self) -> None:
        if self._busy or self._next is None:
            return
        job, self._next, self._busy = self._next, None, True
        self._lane().submit(lambda: self._run(job), self._ended)

    def _ended(self, result: object) -> None:
        self._busy = False
        if isinstance(result, BaseException) and not isinstance(result, HoldfastError):
            raise result
        self.problem = result if isinstance(result, HoldfastError) else None
        self._start()

    def _run(self, job: Job) -> int:
        """Mark from the retained manifests, then delete; return how many objects were deleted."""
        repository, catalogue = self._repository, self._catalogue
        for named in repository.named_in([each.body.manifest for each in catalogue.unread(job)]):
            catalogue.add(named)
        expired_objects = catalogue.expire(job)
        repository.delete_all(expired_objects)
        left = 0
        for folder in FOLDERS:
            garbage = catalogue.garbage(job, repository.names(folder))
            repository.delete_all(garbage)
            left += len(garbage)
        if job.log_start:
            repository.prune(job.log_start, self._kept)
        repository.tidy()
        return len(expired_objects) + left
