"""What a rewind reads again of each source partition, and whether the source still has it.

A plan shows it; the driver of a running job looks before it begins one, as who asks by the job's name does not know its
sources. Both go by the same rows.

Invariants
    - What is not known is None, never 0, and stands in the way of nothing.
    - A partition that was known then or is known now has a row.

Source: DESIGN section 9; API.md, JSON `rewind`; PROTOCOL P16; docs/design/0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.model import SourcePosition
from holdfast.runtime.plan import Plan
from holdfast.runtime.sources.source import same_from
from holdfast.runtime.steps import SourceSpec

_Place = tuple[str, int]
"""Source and partition."""
_NOWHERE = 1 << 63
"""Behind every offset."""


def source_rows(there: Manifest, here: Manifest, sources: Sequence[SourceSpec]) -> list[dict[str, Any]]:
    """Return a row of the plan's `sources` for every partition.

    Args:
        there: The checkpoint to go back to.
        here: The newest one.
        sources: Those that can be asked; of others it is not known what they still have.
    """
    back = {(at.source, at.partition): at.offset for at in there.positions}
    now = {(at.source, at.partition): at.offset for at in here.positions}
    starts = _starts(there.positions, sources)
    return [_row(place, back.get(place), now.get(place), starts.get(place)) for place in {**now, **back}]


def first_missing(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Say which records that would be read again are gone; None if none is known to be."""
    for row in rows:
        if row["available"] is False:
            where = f"source {row['name']!r}, partition {row['partition']}"
            return f"{where}: its records from offset {row['to_offset'] or 0} on are no longer all there"
    return None


def missing_records(repository: Repository, job: Job, epoch: int, plan: Plan) -> str | None:
    """Say which records that were read since an epoch cannot be read again; None if all can."""
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
    """Return the lowest offset from which all can be read again, of every partition of a source that is known.

    Of a source with another history than the one that was read, that is none.
    """
    found: dict[_Place, int] = {}
    for spec in sources:
        opened = spec.source.open()
        try:
            for at in back:
                if at.source == spec.name:
                    other = at.offset > 0 and at.identity is not None and opened.changed(at.identity) is not None
                    found[at.source, at.partition] = _NOWHERE if other else same_from(opened, at.partition)
        finally:
            opened.close()
    return found
