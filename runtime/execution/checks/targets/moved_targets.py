"""Rewound jobs that would complete the rewind in other targets than those that have the output to undo."""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.rewind.moved import moved_from


def check(facts: Facts) -> ConfigError | None:
    """Refuse the first sink with another target."""
    job = facts.folder.job
    if job is None or not job.repair_due or job.ended is not None:  # the record that ends a rewind follows its repairs
        return None
    newest = {each.timeline: each for each in job.abandoned}
    abandoned_manifests = [facts.folder.repository.load_manifest(each.body.manifest) for each in newest.values()]
    accepted, holdings = job.rewinds[-1].accepted, facts.targets.holdings
    for spec in facts.outputs:
        if spec.name not in holdings or f"{spec.name}:impossible" in accepted:
            continue
        for last in abandoned_manifests:
            if (moved := moved_from(last, spec, holdings[spec.name])) is not None:
                return ConfigError(
                    f"the job was rewound, and the output of sink {spec.name!r} is not undone yet: {moved}",
                    not_done="the job was not started; state and output are untouched",
                    next_step=f"put the sink {spec.name!r} back as it was, and run the job: it repairs targets first",
                    where=Where(job=job.name),
                )
    return None
