"""The right of a driver to write to the targets of its job, as the job log shows it.

Invariants
    - It is the same for deliveries, repairs, the topic, and the checks before a start.

Pure: no clock, thread or I/O.
Source: PROTOCOL P1, P17; docs/design/0021-owned-targets.md, 0057-what-owners-completed.md.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.checkpoint.joblog import Job
from holdfast.model import Epoch, Tag
from holdfast.sinks.contract.owners import Claim


def claim_of(job: Job, adopted: Collection[str] = (), rewind_to: Epoch | None = None) -> Claim:
    """Return the claim of the job's newest owner.

    Args:
        adopted: Owners of other histories. Nothing that they delivered later than this job had completed at the start
            of its owner is taken for its own.
        rewind_to: The target is repaired to this epoch under the claim; None: as far as the log shows that it will be.
    """
    undone_after = job.base_epoch if rewind_to is None and job.repair_due else rewind_to
    theirs = job.before if rewind_to is None else Tag(job.timeline, rewind_to)
    known = {**dict.fromkeys(adopted, theirs), **job.reaches}
    return Claim(job.owner, job.generation, known, undone_after, tuple(adopted))
