"""The owner of a SQLite target: who last took it over, compared and noted inside of a transaction.

The table `holdfast_owner` is created by `prepare`; in a file that an earlier version prepared, by the first transaction
that notes an owner.

Source: PROTOCOL P17; sinks/owners.py; docs/design/0021-owned-targets.md.
"""

from __future__ import annotations

import sqlite3

from holdfast.model import Epoch, Generation, Tag, Timeline
from holdfast.sinks.owners import Claim, Held, Holding
from holdfast.sinks.sql import tags

_THERE = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?"


def held(db: sqlite3.Connection, job_uuid: str, sink: str) -> Held | None:
    """Return who owns a sink's target; None if it was never noted."""
    if db.execute(_THERE, (tags.OWNER,)).fetchone() is None:
        return None
    row = db.execute(tags.read_owner(), (job_uuid, sink)).fetchone()
    return None if row is None else Held(row[0], Generation(row[1]))


def check(db: sqlite3.Connection, where: str, job_uuid: str, sink: str, claim: Claim | None) -> None:
    """Refuse a claim that the target's owner stands against, and note nothing. Raises Fenced."""
    if claim is not None:
        claim.must_take_over(where, held(db, job_uuid, sink))


def take_over(db: sqlite3.Connection, where: str, job_uuid: str, sink: str, claim: Claim | None) -> None:
    """Inside of a transaction: compare the owner, and note the claim if it is another's.

    Raises:
        Fenced: another history owns the target.
    """
    if claim is not None and claim.must_take_over(where, held(db, job_uuid, sink)):
        db.execute(tags.CREATE_OWNER)
        db.execute(tags.take_over(), (job_uuid, sink, claim.owner, claim.generation))


def holding(db: sqlite3.Connection, job_uuid: str, sink: str) -> Holding:
    """Return the owner of a sink's target, and the newest tag of its writers."""
    row = db.execute(tags.read_newest(), (job_uuid, sink)).fetchone()
    newest = None if row is None else Tag(Timeline(row[0]), Epoch(row[1]))
    return Holding(held(db, job_uuid, sink), newest)
