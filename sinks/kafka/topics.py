"""The topics of a Kafka target: creates missing ones, checks existing ones, and warns of settings that lose records.

Source: kafka.apache.org/documentation, topic configs; docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from holdfast.errors import ConfigError, NotAdmitted
from holdfast.sinks.kafka.client import WAIT_S, raised_for
from holdfast.sinks.kafka.options import message_max_bytes
from holdfast.sinks.kafka.progress import progress_topic
from holdfast.storage.kafka.errors import outcome_of
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions

_log = logging.getLogger("holdfast.kafka")
PROGRESS_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(1 << 20),
}
"""Each start reads the whole progress topic, so it is cleaned often."""
WRITTEN, READ_AND_WRITTEN = ("WRITE",), ("READ", "WRITE")
"""Rights, as brokers name them."""
NOT_STARTED = "the job was not started"
_NO_RIGHT = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class ExistingTopic:
    """A topic as it exists.

    Args:
        settings: None if this user may not read them.
        rights: Operations that this user may perform, such as "WRITE"; None: the brokers do not say.
    """

    partitions: int
    replicas: int
    settings: Mapping[str, str] | None
    rights: frozenset[str] | None = None


def prepare(place: KafkaPlace, keyed: bool, replaces: bool, tagged: bool = True) -> None:
    """Create a topic and its progress topic if they are missing, else check that they fit.

    Args:
        keyed: The records have keys.
        replaces: The newest record of a key counts: a missing topic is created as a compacted one.
        tagged: There is a progress topic.

    Raises:
        ConfigError: an existing topic does not fit, or one cannot be created.
        NotAdmitted: the login or a right is refused.
        Unavailable: the brokers are unreachable now.
    """
    topic = found_or_created(place, {"cleanup.policy": "compact"} if replaces else {})
    check_topic(place, topic, keyed)
    check_rights(place, topic.rights, *WRITTEN)
    if tagged:
        prepare_progress(place, topic)
    warn_of(place, topic)


def probe(place: KafkaPlace, keyed: bool, tagged: bool = True) -> str:
    """Return what a start would find or create, as a clause; refuse what it would refuse, and create nothing."""
    topic = existing(place)
    if tagged:
        probe_progress(place)
    if topic is None:
        return "the first start creates the topic"
    check_topic(place, topic, keyed)
    check_rights(place, topic.rights, *WRITTEN)
    return f"the topic exists{risks_of(place, topic)}"


def found_or_created(place: KafkaPlace, settings: Mapping[str, str], partitions: int = -1) -> ExistingTopic:
    """Return the topic; a missing one is created with these settings. Raises as `prepare`."""
    topic = existing(place)
    if topic is None:
        create(place, settings, partitions)
        topic = existing(place) or ExistingTopic(max(partitions, 1), -1, settings)
    return topic


def warn_of(place: KafkaPlace, found: ExistingTopic) -> None:
    """Log what can make the promises of a topic void."""
    for warning in warnings_of(place, found):
        _log.warning("%s", warning)


def prepare_progress(place: KafkaPlace, found: ExistingTopic) -> None:
    """Create the progress topic of a topic if it is missing, else check that it fits; raises as `prepare`."""
    beside = replace(place, topic=progress_topic(place.topic))
    progress = existing(beside)
    if progress is None:
        in_sync = (found.settings or {}).get("min.insync.replicas")
        alike = {} if in_sync is None else {"min.insync.replicas": in_sync}
        create(beside, {**PROGRESS_SETTINGS, **alike}, 1, found.replicas)
        created = Questions(beside).topic(NOT_STARTED)
        check_rights(beside, None if created is None else created.rights, *READ_AND_WRITTEN)
    else:
        check_progress_topic(beside, progress)


def probe_progress(place: KafkaPlace) -> None:
    """Check the progress topic of a topic, unless it is missing; raises as `prepare`."""
    beside = replace(place, topic=progress_topic(place.topic))
    if (progress := existing(beside)) is not None:
        check_progress_topic(beside, progress)


def check_rights(place: KafkaPlace, rights: frozenset[str] | None, *needed: str) -> None:
    """Refuse a user who may not do what deliveries do: the first one comes after a commit. Raises NotAdmitted."""
    if lacking := [] if rights is None else [each for each in needed if each not in rights]:
        raise NotAdmitted(
            f"{place.where}: the job's user has no right to {' or '.join(lacking)}",
            not_done=NOT_STARTED,
            next_step=f"grant the user {' and '.join(lacking)} on topic {place.topic!r}",
        )


def check_topic(place: KafkaPlace, found: ExistingTopic, keyed: bool) -> None:
    """Refuse a topic that cannot take the records. Raises ConfigError."""
    settings = found.settings or {}
    if not keyed and "compact" in settings.get("cleanup.policy", ""):
        raise ConfigError(
            f"{place.where} is compacted and takes no record without a key, but the sink has no key",
            not_done=f"{NOT_STARTED}, the topic was not changed",
            next_step="give the sink key=[...], or name another topic; a missing one is created to fit",
        )
    largest, limit = message_max_bytes(place), int(settings.get("max.message.bytes", 1 << 31))
    if limit < largest:
        raise ConfigError(
            f"{place.where} takes batches of at most {limit:,} bytes, but the sink sends up to {largest:,}",
            not_done=f"{NOT_STARTED}, the topic was not changed",
            next_step=f'give options={{"message.max.bytes": {limit}}}, or raise max.message.bytes of the topic',
        )


def check_progress_topic(place: KafkaPlace, found: ExistingTopic) -> None:
    """Refuse a progress topic that would forget a tag, or hide one, or may. Raises ConfigError, NotAdmitted."""
    if found.settings is None:
        raise settings_unknown(place, "they are the tags of deliveries, without which rows come twice")
    policy = found.settings.get("cleanup.policy", "compact")
    if policy == "compact" and found.partitions == 1:
        return check_rights(place, found.rights, *READ_AND_WRITTEN)
    fault = f"has cleanup.policy={policy}" if policy != "compact" else f"has {found.partitions} partitions"
    raise ConfigError(
        f"{place.where}, which holds the tags of deliveries, {fault}",
        not_done=f"{NOT_STARTED}, no topic was changed",
        next_step="it needs one partition and cleanup.policy=compact, so that no tag is ever deleted: set the policy, "
        "or delete the topic if no job has written to it yet",
    )


def settings_unknown(place: KafkaPlace, records: str) -> NotAdmitted:
    """Return the refusal of a topic whose brokers may remove records.

    Args:
        records: A clause that describes the records.
    """
    return NotAdmitted(
        f"{place.where}: this user has no right to read its settings, so it is unknown whether the brokers remove "
        f"records, by default after seven days; {records}",
        not_done=NOT_STARTED,
        next_step=f"grant the user DESCRIBE_CONFIGS on topic {place.topic!r}",
    )


def warnings_of(place: KafkaPlace, found: ExistingTopic) -> list[str]:
    """Return what in a topic's settings lets the brokers lose records that they have confirmed."""
    settings, warnings = found.settings or {}, []
    if found.replicas > 1 and settings.get("min.insync.replicas") == "1":
        warnings.append(
            f"{place.where} has {found.replicas} replicas, but min.insync.replicas=1: one broker alone may confirm a "
            "record, which is lost with it. Next: set min.insync.replicas=2, also of the progress topic"
        )
    if settings.get("unclean.leader.election.enable") == "true":
        warnings.append(
            f"{place.where} has unclean.leader.election.enable=true: a broker that lacks confirmed records may become "
            "the leader, and they are lost. Next: set it to false, also of the progress topic"
        )
    return warnings


def risks_of(place: KafkaPlace, found: ExistingTopic) -> str:
    """Return the warnings as further clauses of a sentence."""
    return "".join(f"; {warning}" for warning in warnings_of(place, found))


def existing(place: KafkaPlace) -> ExistingTopic | None:
    """Return the topic; None if it is missing."""
    if (topic := Questions(place).topic(NOT_STARTED)) is None:
        return None
    admin, resource = AdminClient(place.settings(), logger=_log), ConfigResource(ResourceType.TOPIC, place.topic)
    described = admin.describe_topics(TopicCollection([place.topic]), request_timeout=WAIT_S)[place.topic]
    asked = admin.describe_configs([resource], request_timeout=WAIT_S)[resource]
    partitions = _answer(place, described).partitions
    settings = _answer(place, asked, forgiven=_NO_RIGHT)
    if settings is None:
        _log.warning("%s: this user has no right to read its settings, so they are not checked", place.where)
    return ExistingTopic(
        len(partitions),
        min((len(each.replicas) for each in partitions), default=-1),
        None if settings is None else {name: str(entry.value) for name, entry in settings.items()},
        topic.rights,
    )


def create(place: KafkaPlace, settings: Mapping[str, str], partitions: int = -1, replicas: int = -1) -> None:
    """Create a topic, unless it exists. With -1 the brokers' defaults hold. Raises as `prepare`."""
    wanted = NewTopic(place.topic, num_partitions=partitions, replication_factor=replicas, config=dict(settings))
    admin = AdminClient(place.settings(), logger=_log)
    asked = admin.create_topics([wanted], request_timeout=WAIT_S, operation_timeout=WAIT_S)[place.topic]
    _answer(place, asked, forgiven=(KafkaError.TOPIC_ALREADY_EXISTS,))


def _answer(place: KafkaPlace, asked: Any, forgiven: tuple[int, ...] = ()) -> Any:
    """Return the answer to a request; None for an error that is forgiven."""
    found, fault = outcome_of(asked, 2 * WAIT_S)
    if fault is not None and fault.code() not in forgiven:
        raise raised_for(place, fault)
    return found
