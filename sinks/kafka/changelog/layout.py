"""Whether a topic is still the one to which a changelog was delivered, and holds nothing else.

Partitions that are added later are not used: records go by the number of the first delivery. Records of another job or
sink would break the chain of deliveries, so that no state could be restored: nothing is written beside them.

Pure. Source: docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from holdfast.errors import ConfigError, Damaged
from holdfast.model import CHANGELOG
from holdfast.sinks.kafka.progress import Layout, Progress


def check_layout(where: str, had: Layout, now: Layout) -> None:
    """Refuse a topic that was deleted and created again: the records of the former one no longer exist.

    Raises:
        Damaged: it is not the topic to which the changelog was delivered.
    """
    other = had.topic is not None and now.topic is not None and had.topic != now.topic
    if not other and now.partitions >= had.partitions:
        return
    what = f"its id is {now.topic}, but was {had.topic}" if other else f"it has fewer than {had.partitions} partitions"
    raise Damaged(
        f"{where}: the topic was deleted and created again: {what} when the changelog was first delivered to it",
        not_done="no state was restored, and nothing was delivered or removed",
        next_step="the records of the former topic are the state of the job: without them, give the job a new name and "
        "another topic, and start from the beginning",
    )


def check_alone(where: str, progress: Progress, job_uuid: str | None, not_done: str) -> None:
    """Refuse a topic to which another job or a sink has delivered.

    Raises:
        ConfigError: see there.
    """
    for owner, tag in progress.others(job_uuid, CHANGELOG):
        raise refused(where, f"holds the changelog of another job, {owner}, up to epoch {tag.epoch}", not_done)
    if progress.layout is None and progress.any_tag:
        raise refused(where, "holds the output of a sink", not_done)


def refused(where: str, what: str, not_done: str) -> ConfigError:
    """Return the error for a topic that holds something else."""
    return ConfigError(
        f"{where}: {what}",
        not_done=not_done,
        next_step="name another topic as the changelog; a missing one is created to fit",
    )
