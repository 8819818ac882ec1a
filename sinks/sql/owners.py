"""The owner of a SQL target: the driver that last took it over, compared and noted inside a transaction.

The table `holdfast_owner` is created by `prepare`; in a target that an earlier version prepared, by the first
transaction that notes an owner.

Source: PROTOCOL P17; sinks/contract/owners.py; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

from holdfast.model import Generation, Writer
from holdfast.sinks.contract.owners import Claim, Held
from holdfast.sinks.sql import tags
from holdfast.sinks.sql.dialect import Upsert
from holdfast.sinks.sql.session import Session


def held(s: Session, job_uuid: str, sink: str, hold: bool = False) -> Held | None:
    """Return who owns a sink's target; None if it was never noted.

    Args:
        hold: The owner stays the same until the transaction ends.
    """
    if not s.has(tags.OWNER):
        return None
    params = s.given()
    row = s.execute(
        f"SELECT owner, generation FROM {s.own(tags.OWNER)} WHERE {tags.of_sink(params, job_uuid, sink)}"
        f"{s.dialect.hold if hold else ''}",
        params,
    ).fetchone()
    return None if row is None else Held(row[0], Generation(row[1]))


def check(s: Session, where: str, job_uuid: str, sink: str, claim: Claim | None, hold: bool = False) -> None:
    """Refuse a claim if another history owns the target, and note nothing.

    Args:
        hold: The answer has to hold until the transaction ends, because it writes.

    Raises:
        Fenced: another history owns the target.
        Damaged: another history delivered to it.
    """
    if claim is not None:
        claim.must_take_over(where, held(s, job_uuid, sink, hold), lambda: tags.newest(s, job_uuid, sink))


def take_over(
    s: Session, where: str, job_uuid: str, sink: str, claim: Claim | None, moved: Writer | None = None
) -> None:
    """Inside a transaction: compare the owner, and note the claim if the owner is another driver.

    Args:
        moved: The writer whose tag this transaction has moved already, from where the writer knew it.

    Raises:
        Fenced: another history owns the target.
        Damaged: another history delivered to it.
    """
    newest = lambda: tags.newest(s, job_uuid, sink, but=moved)
    if claim is not None and claim.must_take_over(where, held(s, job_uuid, sink, hold=True), newest):
        s.execute(tags.create_owner(s.dialect))
        given = s.given()
        source = f"VALUES ({given(job_uuid, sink, claim.owner, claim.generation)})"
        columns = ("job", "sink", "owner", "generation")
        s.dialect.upsert(s.db, Upsert(s.own(tags.OWNER), columns, ("job", "sink"), source, given.values))
