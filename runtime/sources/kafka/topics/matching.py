"""Which topics a pattern means, and what a listing adds to the catalogue.

Pure: no clock, thread or I/O. Source: docs/decisions/0095-topics-by-pattern.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.runtime.sources.kafka.topics.catalogue import Added, Listed
from holdfast.storage.kafka.questions import Topic

_INTERNAL = "__"
_PROGRESS = "-holdfast-progress"
"""Topics in which sinks keep their tags."""


def matches(pattern: re.Pattern[str], topic: str) -> bool:
    """Return whether a topic is one of those that a pattern means: it matches the whole name.

    Internal topics are meant only if the pattern says so.
    """
    if topic.startswith(_INTERNAL) and _INTERNAL not in pattern.pattern:
        return False
    if topic.endswith(_PROGRESS) and _PROGRESS not in pattern.pattern.replace("\\-", "-"):
        return False
    return pattern.fullmatch(topic) is not None


def added(known: Mapping[str, Listed], found: Mapping[str, Topic]) -> list[Added]:
    """Return the partitions that exist now and that the catalogue lacks, by topic, sorted by name.

    Args:
        found: Topics as they are now; those that are known have the same id.
    """
    further = (
        Added(name, found[name].id, len(found[name].partitions) - len(known[name].numbers if name in known else ()))
        for name in sorted(found)
    )
    return [each for each in further if each.partitions > 0]


def left_out(pattern: re.Pattern[str], topics: Iterable[str]) -> list[str]:
    """Return the topics of a catalogue that a pattern does not mean."""
    return [topic for topic in sorted(topics) if not matches(pattern, topic)]
