"""Whether a source is still the one whose records a job has read (P12).

Asked where a job starts, at every recovery, by a plan, and before partitions that were added to a source are read.

Pure: the source does the reading. Source: PROTOCOL P12; docs/decisions/0022-source-identity.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.errors import Damaged, Where
from holdfast.model import SourcePosition
from holdfast.runtime.plan.source import OpenSource


def refuse_other_sources(job: str, positions: Iterable[SourcePosition], opened: Mapping[str, OpenSource]) -> None:
    """Refuse to continue in a source other than the one whose records were read up to these positions.

    Raises:
        Damaged: a source was recreated, or restored from a copy that lacks records that were read.
    """
    identities: dict[tuple[str, str], SourcePosition] = {}
    for at in positions:
        if at.identity is not None and at.offset > 0 and at.source in opened:
            identities.setdefault((at.source, at.identity), at)
    for (source, identity), at in identities.items():
        if (why := opened[source].changed(identity)) is not None:
            raise Damaged(
                f"source {source!r}: {why}",
                not_done=f"no record was read; job {job!r} is at its last checkpoint, at offset {at.offset} of "
                f"partition {at.partition}, and its state and output are untouched",
                next_step="restore the source as it was; or, if it was restored from an older copy, rewind to before "
                f"the end of that copy: holdfast rewind JOB.py --to-offset {source}:{at.partition}:OFFSET; or, to read "
                "the present records from the first one, give the job another name",
                where=Where(job=job, source=source, partition=at.partition, offset=at.offset),
            )


def other_rows(opened: OpenSource, positions: Sequence[SourcePosition]) -> str | None:
    """Return why a source has other records than those that were read up to these positions, its ends; None if not."""
    for at in positions:
        if at.identity is not None and at.offset > 0 and (why := opened.changed(at.identity)) is not None:
            return why
    read = sum(at.offset for at in positions)
    there = sum(opened.end_offsets().values())
    return None if there == read else f"it has {there:,} rows, and {read:,} were read"
