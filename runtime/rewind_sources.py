"""Whether the sources still have what a running job would read again after a rewind.

The driver looks before it begins one: who asks by the job's name does not know its sources.

Source: DESIGN section 9; PROTOCOL P16; docs/design/0014-log-compaction.md.
"""

from __future__ import annotations

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.plan import Plan
from holdfast.runtime.sources.source import same_from


def missing_records(repository: Repository, job: Job, epoch: int, plan: Plan) -> str | None:
    """Say which records that were read since an epoch cannot be read again; None if all can."""
    base = next((each for each in job.completed if each.body.epoch == epoch), None)
    if base is None:
        return None  # refused for another reason
    there, last = repository.load_manifest(base.body.manifest), job.completed[-1]
    here = there if last is base else repository.load_manifest(last.body.manifest)
    reached = {(at.source, at.partition): at.offset for at in here.positions}
    for spec in plan.sources:
        opened = spec.source.open()
        try:
            for at in there.positions:
                if at.source != spec.name or at.offset == reached.get((at.source, at.partition)):
                    continue
                if same_from(opened, at.partition) > (start := max(at.offset, 0)):
                    where = f"source {at.source!r}, partition {at.partition}"
                    return f"{where}: its records from offset {start} on are no longer all there"
        finally:
            opened.close()
    return None
