"""The topic of a changelog: creates a missing one, and refuses one whose records the brokers would remove.

Source: kafka.apache.org/documentation, topic configs; docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import ConfigError
from holdfast.sinks.kafka.topics import (
    NOT_STARTED,
    READ_AND_WRITTEN,
    ExistingTopic,
    check_rights,
    check_topic,
    existing,
    found_or_created,
    prepare_progress,
    probe_progress,
    risks_of,
    settings_unknown,
    warn_of,
)
from holdfast.storage.kafka.place import KafkaPlace

PARTITIONS = 4
"""For a topic that is created: as many ranges of key groups can be read on their own."""
SETTINGS: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""The brokers remove nothing."""


def prepare(place: KafkaPlace) -> None:
    """Create the topic and its progress topic if they are missing, else check that they fit.

    Raises:
        ConfigError: an existing topic does not fit, or one cannot be created.
        NotAdmitted: the login or a right is refused.
        Unavailable: the brokers are unreachable now.
    """
    found = found_or_created(place, SETTINGS, PARTITIONS)
    check(place, found)
    prepare_progress(place, found)
    warn_of(place, found)


def probe(place: KafkaPlace) -> str:
    """Return what a start would find or create, as a clause; refuse what it would refuse, and create nothing."""
    topic = existing(place)
    probe_progress(place)
    if topic is None:
        return f"the first start creates the topic, with {PARTITIONS} partitions"
    check(place, topic)
    return f"the topic has {topic.partitions} partitions, and keeps its records{risks_of(place, topic)}"


def check(place: KafkaPlace, found: ExistingTopic) -> None:
    """Refuse a topic that cannot hold a changelog. Raises ConfigError, NotAdmitted."""
    check_topic(place, found, keyed=True)
    check_rights(place, found.rights, *READ_AND_WRITTEN)
    if found.settings is None:
        raise settings_unknown(place, "they are the state of the job")
    given = {name: found.settings[name] for name in SETTINGS if name in found.settings}
    if given.get("cleanup.policy") == "":
        return  # since Kafka 4.0: neither deleted nor compacted
    wrong = [f"{name}={value}" for name, value in given.items() if value != SETTINGS[name]]
    if wrong:
        raise ConfigError(
            f"{place.where} has {', '.join(wrong)}: the brokers would remove records of the job's state, and a restore "
            "would be refused",
            not_done=f"{NOT_STARTED}, the topic was not changed",
            next_step=f"set {', '.join(f'{name}={value}' for name, value in SETTINGS.items())} of the topic, before "
            "any record is removed; or name another topic: a missing one is created to fit",
        )
