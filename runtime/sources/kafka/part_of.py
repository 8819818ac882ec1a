"""The facts and functions that a source with several topics gives to each of them.

Source: docs/decisions/0095-topics-by-pattern.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.storage.kafka.questions import Topic


@dataclass(frozen=True)
class PartOf:
    """That a topic is one of several of a source.

    Args:
        known: The topic as the source knows it.
        number: Returns the source's number of a partition of the topic.
        partitions: Returns how many partitions the source has.
        bell: Returns the bell of the source.
        await_all: Waits until this time, by the monotonic clock, for all topics of the source that no broker knows, and
            lets those that it waited for in vain know that by `was_missing`. The source waits once.
        ended: Returns whether the source knows by now that the topic has ended; None: it must not end.
    """

    known: Topic
    number: Callable[[int], int]
    partitions: Callable[[], int]
    bell: Callable[[], Bell]
    await_all: Callable[[float], None]
    ended: Callable[[], bool] | None = None
