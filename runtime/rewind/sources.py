"""Which records of each source partition a rewind reads again, and whether the source still has them.

A plan shows them. The driver of a running job also checks them before it starts a rewind, because a request by the
job's name is made without knowledge of its sources. Both use the same rows.

Invariants
    - An unknown value is None, never 0, and prevents nothing.
    - Every partition known then or now has a row.

Source: DESIGN section 9; API.md, JSON `rewind`; PROTOCOL P16; docs/design/0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.model import SourcePosition
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import same_from

_Place = tuple[str, int]
"""Source and partition."""
_NOWHERE = 1 << 63
"""Above every offset."""


def source_rows(there: Manifest, here: Manifest, sources: Sequence[SourceSpec]) -> list[dict[str, Any]]:
    """Return a row of the plan's `sources` for every partition.

    Args:
        there: The checkpoint to return to.
        here: The newest checkpoint.
        sources: The sources that can be queried; what other sources still have is unknown.
    """
    back = {(at.source, at.partition): at.offset for at in there.positions}
    now = {(at.source, at.partition): at.offset for at in here.positions}
    starts = _starts(there.positions, sources)
    return [_row(place, back.get(place), now.get(place), starts.get(place)) for place in {**now, **back}]


def first_missing(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Report the records to read again that are gone; None if none are known to be."""
    for row in rows:
        if row["available"] is False:
            where = f"source {row['name']!r}, partition {row['partition']}"
            return f"{where}: some of its records from offset {row['to_offset'] or 0} on no longer exist"
    return None


def missing_records(repository: Repository, job: Job, epoch: int, plan: Plan) -> str | None:
    """Report the records that were read since an epoch and cannot be read again; None if all can."""
    base = next((each for each in job.completed if each.body.epoch == epoch), None)
    if base is None:
        return None  # refused for another reason
    there, last = repository.load_manifest(base.body.manifest), job.completed[-1]
    here = there if last is base else repository.load_manifest(last.body.manifest)
    return first_missing(source_rows(there, here, plan.sources))


def _row(place: _Place, to: int | None, at: int | None, start: int | None) -> dict[str, Any]:
    offset, back = (None if each is None or each < 0 else each for each in (at, to))
    known = offset is not None and back is not None
    return {
        "name": place[0],
        "partition": place[1],
        "from_offset": offset,
        "to_offset": back if known else None,
        "records": offset - back if offset is not None and back is not None else None,
        "available": None if start is None or to is None else start <= (start if to == at else max(to, 0)) < _NOWHERE,
    }


def _starts(back: Sequence[SourcePosition], sources: Sequence[SourceSpec]) -> dict[_Place, int]:
    """Return the lowest offset from which all records can be read again, for every partition of a known source.

    For a source whose history is not the one that was read, the result is above every offset.
    """
    found: dict[_Place, int] = {}
    for spec in sources:
        opened = spec.source.open()
        try:
            for at in back:
                if at.source == spec.name:
                    other = at.offset > 0 and at.identity is not None and opened.changed(at.identity) is not None
                    found[at.source, at.partition] = _NOWHERE if other else same_from(spec.source, opened, at.partition)
        finally:
            opened.close()
    return found
