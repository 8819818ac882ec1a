"""Targets that belong to another sink, unless the user moves them.

Source: PROTOCOL P1, P24; docs/decisions/0104-tables-with-one-owner.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.joblog import Job
from holdfast.errors import HoldfastError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.execution.holdings import named
from holdfast.runtime.plan.model import SinkSpec
from holdfast.sinks.contract.owners import Holding, at_start, belongs_to


def check(facts: Facts) -> HoldfastError | None:
    """Refuse the first such target."""
    others = {name: one for name, one in facts.targets.holdings.items() if name not in facts.choices.adopt_targets}
    return refusal(facts.plan.app, facts.folder.job, facts.outputs, others)


def refusal(
    name: str, job: Job | None, specs: Sequence[SinkSpec], holdings: Mapping[str, Holding]
) -> HoldfastError | None:
    """Return why the first such target is refused.

    Args:
        name: The name of the job, for the error.
        job: None: it is about to be created.
    """
    uuid = None if job is None else job.uuid
    for sink, holding in holdings.items():
        if holding.rival is not None:
            error = at_start(belongs_to(named(specs, sink), uuid, holding.rival))
            error.where = Where(job=name)
            return error
    return None
