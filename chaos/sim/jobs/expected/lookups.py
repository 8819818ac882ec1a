"""Which version of a table a record may find.

Every third record is a version of the row of its bucket, and half of these delete it. A version that event time had
passed when it came may count or not; everything else follows from the times.

Source: docs/decisions/0067-tables-and-lookups.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.chaos.sim.jobs.oracle import Input


def is_version(record: Input) -> bool:
    """Return whether a record changes the table."""
    return record.value % 3 == 0


def deletes(version: Input) -> bool:
    """Return whether a version deletes the row."""
    return version.value % 2 == 0


def findable(record: Input, versions: Iterable[Input], prompt: Collection[int]) -> set[int | None]:
    """Return the ids of the versions that a record may find; None is among them if it may find nothing.

    Args:
        prompt: The ids of versions that came before event time passed them.
    """
    past = [each for each in versions if each.bucket == record.bucket and each.at <= record.at]
    version_ids: set[int | None] = set()
    for version in past:
        after = [each for each in past if each.at > version.at and each.id in prompt]
        newest = max((each.at for each in after), default=None)
        # Nothing is left of a row that was deleted, so an older version that comes late shows it again.
        shown_again = version.id not in prompt and any(deletes(each) for each in after if each.at == newest)
        if not deletes(version) and (not after or shown_again):
            version_ids.add(version.id)
    ends = [each.at for each in past if deletes(each)]
    if all(max(ends, default=each.at - 1) >= each.at for each in past if each.id in prompt and not deletes(each)):
        version_ids.add(None)
    return version_ids
