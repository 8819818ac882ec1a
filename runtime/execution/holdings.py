"""The owners and newest tags of targets, as a start and a rewind read them.

An unreachable target is compared when it is first written to, in that transaction (sinks/contract/owners.py).

Source: PROTOCOL P1, P17, P24; docs/decisions/0021-owned-targets.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.checkpoint.joblog import Job
from holdfast.errors import Unavailable
from holdfast.runtime.plan.model import SinkSpec
from holdfast.sinks.contract.owners import Holding


def read_holdings(job: Job | None, specs: Iterable[SinkSpec]) -> Mapping[str, Holding]:
    """Return the owner and newest tag of every reachable target.

    Args:
        job: None: it is about to be created, so it owns nothing.
    """
    holdings: dict[str, Holding] = {}
    for spec in specs:
        if (ownership := spec.sink.ownership) is not None:
            try:
                holdings[spec.name] = ownership.holding("" if job is None else job.uuid, spec.name)
            except Unavailable:
                continue
    return holdings


def adopted_from(job: Job | None, holdings: Mapping[str, Holding], adopt: Collection[str]) -> tuple[str, ...]:
    """Return the owners from which the named sinks' targets may be taken over, once `checks.adoption` has passed.

    They are the owners of targets of other histories, and of the sinks to which targets belong.

    Args:
        job: None: it is about to be created, so it owns nothing.
    """
    named = [holdings[name] for name in adopt if name in holdings]
    held = [each.held.owner for each in named if each.held is not None]
    rivals = [each.rival.held.owner for each in named if each.rival is not None and each.rival.held is not None]
    return (*(owner for owner in held if job is not None and owner not in job.owners), *rivals)


def named(specs: Sequence[SinkSpec], name: str) -> str:
    """Return the name of a sink's target in messages."""
    sink = next(spec.sink for spec in specs if spec.name == name)
    return f"{sink.where}, sink {name!r}"
