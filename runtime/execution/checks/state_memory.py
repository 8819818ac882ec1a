"""A budget for state in which the plan cannot run."""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.runtime.config.settings import MICROBATCH
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.plan.memory import too_little_memory


def check(facts: Facts) -> ConfigError | None:
    """Refuse it. Microbatches exchange records through Spark's shuffle, so no memory is for channels."""
    settings = facts.settings
    channels = (1, 0) if settings.mode == MICROBATCH else (settings.parallelism, settings.channel_bytes_max)
    return too_little_memory(facts.plan, settings.state_memory, *channels)
