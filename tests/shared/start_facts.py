"""What a start knows of a job whose log is in a store of the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.execution.facts import NO_CHOICES, Facts, JobFolder
from holdfast.runtime.plan.model import SinkSpec


def folder_of(repository: Repository, job: Job | None) -> JobFolder:
    """Return the folder of a job with this log."""
    folder = JobFolder("" if job is None else job.name, "")
    vars(folder).update(repository=repository, job=job)
    return folder


def facts_of_targets(repository: Repository, job: Job, outputs: Sequence[SinkSpec]) -> Facts:
    """Return the facts that checks of targets ask; there are no others."""
    absent = cast(Any, None)
    facts = Facts(absent, absent, NO_CHOICES, folder_of(repository, job), lambda _: None)
    vars(facts).update(outputs=tuple(outputs))
    return facts
