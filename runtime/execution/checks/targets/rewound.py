"""Rewound jobs whose code lacks a sink with output to undo, or has one that cannot undo it: targets come first."""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.driver.repair import writers_of
from holdfast.runtime.execution.facts import Facts


def check(facts: Facts) -> ConfigError | None:
    """Refuse to run them."""
    job, before = facts.folder.job, facts.folder.before
    if job is None or before is None or not job.repair_due:
        return None
    accepted = job.rewinds[-1].accepted
    written = {writer.sink for writer in writers_of(facts.folder.repository, job, before, ())}
    known = {s.name for s in facts.outputs if s.sink.repairs is not None or f"{s.name}:impossible" in accepted}
    if not (missing := sorted(written - known)):
        return None
    return ConfigError(
        f"the job was rewound and sink {missing[0]!r} may hold output to undo, but the app no longer has this sink "
        "or has one that cannot undo output",
        not_done="the job was not started; state and output are untouched",
        next_step=f"put the sink {missing[0]!r} back as it was and run the job: it repairs its targets first",
        where=Where(job=facts.plan.app),
    )
