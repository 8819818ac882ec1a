"""Which records of each source partition a rewind reads again, and whether the source still has them.

A plan shows them. The driver of a running job also checks them before it starts a rewind: a request by the job's name
does not know the sources. Both use the same rows.

A partition that the checkpoint to go back to does not know, because it was added later, is read again from its first
record (P12). Whether that is still the record with which the job began is known only if no record was ever removed.

Invariants
    - An unknown value is None, never 0, and prevents nothing.
    - Every partition known then or now has a row.

Source: DESIGN section 9; API.md, JSON `rewind`; PROTOCOL P12, P16; docs/decisions/0014-log-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from msgspec import UNSET

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.model import SourcePosition
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import OpenSource, same_from
from holdfast.runtime.plan.units import units_of

_Place = tuple[str, int]
"""Source and partition."""
_Opened = tuple[SourceSpec, OpenSource]
_NOWHERE = 1 << 63
"""Above every offset."""


def source_rows(there: Manifest, here: Manifest, sources: Sequence[SourceSpec]) -> list[dict[str, Any]]:
    """Return a row of the plan's `sources` for every partition.

    A row has a `reason` if nothing of the partition exists any longer, and a `unit` if it counts bytes, not records.

    Args:
        there: The checkpoint to return to.
        here: The newest checkpoint.
        sources: The sources that can be queried; the remaining records of other sources are unknown.
    """
    back = {(at.source, at.partition): at.offset for at in there.positions}
    now = {(at.source, at.partition): at.offset for at in here.positions}
    with ExitStack() as stack:  # each is opened once, as one may wait for a topic that a broker does not know
        opened = [(spec, stack.enter_context(closing(spec.source.open()))) for spec in sources]
        starts, firsts = _starts(there.positions, opened), _firsts(now.keys() - back.keys(), opened)
        again = [place for place, at in now.items() if at > max(0, back.get(place, 0))]
        loss_reasons = _lost(again, opened)
    rows = [_row(place, back.get(place), now.get(place), starts.get(place)) for place in {**now, **back}]
    rows = [row | _from_first(row, firsts[place]) if (place := _place(row)) in firsts else row for row in rows]
    units = {} if here.shape is UNSET else units_of(here.shape)
    rows = [row | {"unit": unit} if (unit := units.get(row["name"])) else row for row in rows]
    return [
        row | {"available": False, "reason": loss_reasons[place]} if (place := _place(row)) in loss_reasons else row
        for row in rows
    ]


def first_missing(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Report records that would have to be read again but no longer exist; None if no such records are known."""
    for row in rows:
        if row["available"] is False:
            where, first = f"source {row['name']!r}, partition {row['partition']}", row["to_offset"] or 0
            if (reason := row.get("reason")) is not None:
                return f"{where}: {reason}, and its records from offset {first} on would have to be read again"
            return f"{where}: some of its records from offset {first} on no longer exist"
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
    is_comparable = offset is not None and back is not None
    return {
        "name": place[0],
        "partition": place[1],
        "from_offset": offset,
        "to_offset": back if is_comparable else None,
        "records": offset - back if offset is not None and back is not None else None,
        "available": None if start is None or to is None else start <= (start if to == at else max(to, 0)) < _NOWHERE,
    }


def _place(row: Mapping[str, Any]) -> _Place:
    return row["name"], row["partition"]


def _from_first(row: Mapping[str, Any], first: tuple[int, int]) -> dict[str, Any]:
    """Return the changed fields in the row of a partition that is read again from its first record.

    Args:
        first: The offset of the first record, and the lowest one from which on no record was ever removed.
    """
    offset, whole = first
    at = row["from_offset"]
    return {"to_offset": offset, "records": None if at is None else at - offset, "available": whole <= offset or None}


def _firsts(places: Iterable[_Place], sources: Sequence[_Opened]) -> dict[_Place, tuple[int, int]]:
    """Return, for every one of these partitions that a known source has, what `_from_first` needs."""
    first_offsets: dict[_Place, tuple[int, int]] = {}
    for spec, open_source in sources:
        if mine := sorted(partition for source, partition in places if source == spec.name):
            there = set(open_source.partitions())
            for partition in (each for each in mine if each in there):
                first = open_source.retention_start(partition)
                first_offsets[spec.name, partition] = first, same_from(open_source, partition)
    return first_offsets


def _starts(back: Sequence[SourcePosition], sources: Sequence[_Opened]) -> dict[_Place, int]:
    """Return the lowest offset from which all records can be read again, for every partition of a known source.

    For a source whose history is not the one that was read, the result is above every offset.
    """
    start_offsets: dict[_Place, int] = {}
    for spec, opened in sources:
        for at in (each for each in back if each.source == spec.name):
            other = at.offset > 0 and at.identity is not None and opened.changed(at.identity) is not None
            start_offsets[at.source, at.partition] = _NOWHERE if other else same_from(opened, at.partition)
    return start_offsets


def _lost(again: Iterable[_Place], sources: Sequence[_Opened]) -> dict[_Place, str]:
    """Return the reason for each partition that no longer exists and has records to read again."""
    loss_reasons: dict[_Place, str] = {}
    for spec, opened in sources:
        for source, partition in again:
            if source == spec.name and (why := opened.gone(partition)) is not None:
                loss_reasons[source, partition] = why
    return loss_reasons
