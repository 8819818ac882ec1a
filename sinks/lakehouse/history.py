"""The commits of a table as its history shows them, and whether another program took back a sink's deliveries.

Going back to an older version is a separate commit in Delta, and another current snapshot in Iceberg. Neither changes
the book: the tag then claims rows that no longer exist, and the job would continue without them. So the newest commit
of the sink is looked for among the versions that the table's rows are made of.

Pure: no clock, thread or I/O. Source: the Delta protocol, RESTORE; iceberg.apache.org/spec, snapshot references;
docs/decisions/0119-what-others-do-to-targets.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.model import Epoch, Tag, Timeline

UNKNOWN = -1
"""Marks a version that the history no longer has."""


@dataclass(frozen=True)
class Entry:
    """One commit of a table's history.

    Args:
        info: The description that a Holdfast sink wrote into its commit; None: another program made the commit.
        after: The version that it was made on; None: the number before its own.
        restored: The version whose rows another program restored with it, `UNKNOWN` if the commit does not name it;
            None: it restored none.
    """

    version: int
    operation: str
    info: Mapping[str, Any] | None
    after: int | None = None
    restored: int | None = None


def tag_of(entry: Entry, job_uuid: str, sink: str) -> Tag | None:
    """Return the tag of a commit of this sink; None: it is another one's."""
    info = entry.info
    if info is None or (info.get("job"), info.get("sink")) != (job_uuid, sink):
        return None
    try:
        return Tag(Timeline(int(info["timeline"])), Epoch(int(info["epoch"])))
    except (KeyError, TypeError, ValueError):
        return None  # not written by a sink, even if it claims so


def said(entry: Entry) -> str:
    """Return the program that made a commit, for messages."""
    who = "" if entry.info is None else f" by sink {entry.info.get('sink')!r} of job {entry.info.get('job')}"
    return f"{entry.operation}{who} in version {entry.version}"


def taken_back(history: Iterable[Entry], job_uuid: str, sink: str, newest: Tag) -> str | None:
    """Return the action of another program that took back rows of a sink, as a clause; None: the history shows none.

    Args:
        history: The commits that are left, the newest first.
        newest: The sink's newest tag in the book.
    """
    through: int | None = None
    by = "an older snapshot was made the current one"
    ends, behind = True, False
    for entry in history:
        tag = tag_of(entry, job_uuid, sink)
        if tag == newest:
            return None if through is None or entry.version <= through else by
        behind = behind or tag is not None
        if entry.restored is not None and (through is None or entry.version <= through):
            through, by = entry.restored, said(entry)
        ends = entry.after == 0 if entry.after is not None else entry.version == 0
    return by if ends or behind else None
