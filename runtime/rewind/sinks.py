"""The effect that a rewind would have on each target, and the verdicts that the user has to accept by name.

The verdict on a sink that cannot take its output back is *impossible*. The user may accept that its rows stay. Then the
tags of its writers move to the new timeline anyway, so that no writer of the old one can deliver. Output that is
processed again is delivered in addition to the rows in the target.

Invariants
    - An unknown value is None, never 0.
    - A target can be accepted only if the job can deliver to it afterwards and older writers are fenced: not if it is
      missing, damaged, another target or owned by a newer run, takes no more rows, is written immediately, or has no
      sink in the file.

Source: DESIGN section 9; API.md, JSON `rewind`; PROTOCOL P16, P21; docs/decisions/0010-rewind.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import Tag, Timeline
from holdfast.ports import Clock
from holdfast.runtime.driver.repair import Order, not_repairable, writers_of
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.rewind.moved import lacks_output

IMPOSSIBLE = "impossible"
"""The verdict that leaves a target with output of the abandoned timeline."""
STAYS = "if you accept that, its rows stay, and output that is processed again is delivered in addition"


@dataclass(frozen=True)
class Outlook:
    """One sink in the plan.

    Args:
        shown: As in API.md.
        may_be_accepted: Whether the job could continue with this verdict.
        looked_s: How long planning the repair took; None if it was not planned.
    """

    shown: dict[str, Any]
    may_be_accepted: bool = False
    looked_s: float | None = None

    @property
    def refused(self) -> bool:
        """Return whether the target would be left with output that a rewind should take back."""
        return bool(self.shown["verdict"] == IMPOSSIBLE)

    @property
    def accept(self) -> str | None:
        """Return the value that --accept needs; None if it needs none, or none would help."""
        return f"{self.shown['name']}:{self.shown['verdict']}" if self.refused and self.may_be_accepted else None


def outlooks(
    repository: Repository,
    job: Job,
    there: Manifest,
    here: Manifest,
    specs: Sequence[SinkSpec],
    clock: Clock,
    adopted: tuple[str, ...] = (),
) -> list[Outlook]:
    """Examine every target without changing anything.

    Args:
        there: The checkpoint to return to.
        here: The last checkpoint.
        specs: Sinks of the job's file; none if only its name is known.
        adopted: Owners of other histories whose targets may be taken over.
    """
    outlook = [_outlook(repository, job, there, here, spec, clock, adopted) for spec in specs]
    return [*outlook, *_unknown(here, specs)]


def stands_against(outlook: Outlook, accepted: Iterable[str]) -> str | None:
    """Return why this sink forbids the rewind; None if it does not."""
    if not outlook.refused or outlook.accept in set(accepted):
        return None
    why = f"sink {outlook.shown['name']!r} cannot take its output back: {outlook.shown['reason']}"
    return why if outlook.accept is None else f"{why}; to accept that: --accept {outlook.accept}"


def no_such_sink(accepted: Iterable[str], sinks: Iterable[str]) -> str | None:
    """Return the first accepted name that is not a sink's; None if all are."""
    known = set(sinks)
    return next((name for what in accepted if (name := what.rpartition(":")[0]) not in known), None)


def _outlook(
    repository: Repository,
    job: Job,
    there: Manifest,
    here: Manifest,
    spec: SinkSpec,
    clock: Clock,
    adopted: tuple[str, ...],
) -> Outlook:
    if (repairs := spec.sink.repairs) is None:
        if spec.path is not None:
            reason = "it is written immediately, before the commit, and keeps no before-images"
            return Outlook(_shown(spec.name, IMPOSSIBLE, reason))
        return Outlook(_shown(spec.name, IMPOSSIBLE, f"{not_repairable(spec.name).what}; {STAYS}"), True)
    rewinding = Order(job, there, writers_of(repository, job, there, [spec.name]), adopted).rewinding(spec.name)
    to = Tag(Timeline(job.timeline + 1), there.epoch)
    began = clock.monotonic()
    try:
        repair = repairs.plan_repair(replace(rewinding, to=to), spec.schema, spec.upsert_key)
        lacking = lacks_output(there, here, job.uuid, spec)
    except Unavailable as error:  # a repair is retried until the target answers
        return Outlook(_shown(spec.name, None, error.what))
    except HoldfastError as error:  # it would end the repair too, and every start after it
        return Outlook(_shown(spec.name, IMPOSSIBLE, error.what))
    if lacking is not None and repair.verdict != IMPOSSIBLE:
        reason, may_be_accepted = lacking
        return Outlook(
            _shown(spec.name, IMPOSSIBLE, f"{reason}; {STAYS}" if may_be_accepted else reason), may_be_accepted
        )
    took = clock.monotonic() - began
    sink_row = {"name": spec.name, **asdict(repair), "sample": [dict(each) for each in repair.sample]}
    del sink_row["takes_more"]
    if repair.verdict != IMPOSSIBLE:
        return Outlook(sink_row, looked_s=took)
    sink_row["restore"] = sink_row["delete"] = None
    if repair.takes_more:
        sink_row["reason"] = f"{repair.reason}; {STAYS}"
    return Outlook(sink_row, repair.takes_more, took)


def _unknown(here: Manifest, specs: Sequence[SinkSpec]) -> list[Outlook]:
    """Return the sinks that have output but are missing from the job's file."""
    declared_sinks = {spec.name for spec in specs}
    output_sinks = {item.writer.sink for item in here.pending} | {done.writer.sink for done in here.confirmed}
    verdict, reason = (
        (IMPOSSIBLE, "the job's file no longer has it") if specs else (None, "only the job's file describes it")
    )
    return [Outlook(_shown(name, verdict, reason)) for name in sorted(output_sinks - declared_sinks)]


def _shown(name: str, verdict: str | None, reason: str) -> dict[str, Any]:
    unknown: dict[str, Any] = {"restore": None, "delete": None, "changed_by_others": None, "sample": []}
    return {"name": name, "verdict": verdict, **unknown, "reason": reason}
