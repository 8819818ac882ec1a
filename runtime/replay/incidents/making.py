"""Makes an incident file's content from a job: the epoch is taken, cut, redacted, and proved by a replay of the result.

Invariants
    - An incident whose values were replaced replays as the epoch did, but for these values; else it is refused.
    - How the replay of an incident differs from the epoch is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.checkpoint.audit import Audit
from holdfast.errors import ConfigError, Where
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.incidents.cutting import only
from holdfast.runtime.replay.incidents.incident import About, Incident, taken
from holdfast.runtime.replay.incidents.redaction import NOT_WRITTEN, redacted, with_digests_of
from holdfast.runtime.replay.player import Code, Player
from holdfast.runtime.replay.proof import Proof


def made(
    code: Code, epoch: Replayable, about: About, key: str | None = None, columns: Sequence[str] = ()
) -> tuple[Incident, Proof]:
    """Return an incident, and how its replay compares with the epoch.

    Args:
        key: Keep the state of this key's group alone; None: all.
        columns: Those of sources whose values are replaced.

    Raises:
        ConfigError: records were removed, the key does not fit, or a column cannot be redacted.
        Damaged, Unavailable: what is needed cannot be read.
        JobFailed: the job's code fails.
    """
    plan = code.plan
    incident = taken(code, epoch, about, None if key is None else only(plan, epoch.manifest, key))
    proof = incident.replayed(incident.code(plan))
    if columns:
        incident = _with_digests(redacted(incident, plan, columns), plan)
        before, proof = proof, incident.replayed(incident.code(plan))
        _refuse_other_results(incident, before, proof)
    verdict = tuple(f"{each.kind} {each.name!r}" for each in proof.differences)
    return replace(incident, about=replace(about, verdict=verdict)), proof


def _with_digests(incident: Incident, plan: Plan) -> Incident:
    audits = list[Audit | None]()

    def seen(player: Player) -> None:
        stored = player.stored()
        audits.append(stored.repository.load_manifest(stored.job.completed[-1].body.manifest).audited)

    incident.replayed(incident.code(plan), seen)
    return with_digests_of(incident, audits[0])


def _refuse_other_results(incident: Incident, before: Proof, after: Proof) -> None:
    known = {(each.kind, each.name) for each in before.differences}
    for each in after.differences:
        if (each.kind, each.name) not in known:
            columns = ", ".join(incident.redacted)
            raise ConfigError(
                f"with other values in {columns}, the epoch gives other results: {each.kind} {each.name!r}",
                not_done=NOT_WRITTEN,
                next_step="leave the column that filters or functions look into unredacted",
                where=Where(job=incident.job, epoch=incident.end.manifest.epoch),
            )
