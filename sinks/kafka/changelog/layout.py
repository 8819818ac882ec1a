"""Whether a topic is still the one to which a changelog was delivered.

Partitions that are added later are not used: records go by the number of the first delivery.

Pure. Source: docs/design/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from holdfast.errors import Damaged
from holdfast.sinks.kafka.progress import Layout


def check_layout(where: str, had: Layout, now: Layout) -> None:
    """Refuse a topic that was deleted and created again: the records of the former one are gone.

    Raises:
        Damaged: it is not the topic to which the changelog was delivered.
    """
    other = had.topic is not None and now.topic is not None and had.topic != now.topic
    if not other and now.partitions >= had.partitions:
        return
    what = f"its id is {now.topic}, but was {had.topic}" if other else f"it has fewer than {had.partitions} partitions"
    raise Damaged(
        f"{where}: the topic was deleted and created again: {what} when the changelog was first delivered to it",
        not_done="no state was restored, and nothing was delivered",
        next_step="the records of the former topic are the state of the job: without them, give the job a new name and "
        "another topic, and start from the beginning",
    )
