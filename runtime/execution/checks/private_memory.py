"""Places in the memory of one process: workers are separate processes and cannot read them."""

from __future__ import annotations

from holdfast.errors import ConfigError, Where
from holdfast.runtime.execution.facts import Facts


def check(facts: Facts) -> ConfigError | None:
    """Refuse them as root, source or sink."""
    places = [("the root", facts.settings.root)]
    places += [(f"source {s.name!r}", path) for s in facts.plan.sources for path in s.source.traits.local_paths]
    places += [(f"sink {s.name!r}", path) for s in facts.outputs for path in s.sink.traits.local_paths]
    for name, path in places:
        if path.startswith("memory://"):
            return ConfigError(
                f"{name} is {path}, which is in the memory of one process; workers are separate processes and cannot "
                "read it",
                not_done="the job was not started, and nothing was opened",
                next_step="use a folder that all workers reach, or an object store (s3://bucket/prefix); "
                "for a test without files use hf.testing.TestDriver",
                where=Where(job=facts.plan.app),
            )
    return None
