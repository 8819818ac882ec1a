"""The topics of a Kafka target: creates missing ones, checks existing ones, and warns of settings that lose records.

Source: kafka.apache.org/documentation, topic configs; docs/design/0076-kafka-sink.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from holdfast.errors import ConfigError
from holdfast.sinks.kafka.client import WAIT_S, raised_for, translated
from holdfast.sinks.kafka.options import Options, admin_options, message_max_bytes
from holdfast.sinks.kafka.progress import progress_topic

_log = logging.getLogger(__name__)
PROGRESS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(1 << 20),
}
"""Each start reads the whole progress topic, so it is cleaned often."""


@dataclass(frozen=True)
class Topic:
    """A topic as it exists.

    Args:
        settings: None if this user may not read them.
    """

    partitions: int
    replicas: int
    settings: Mapping[str, str] | None


class Topics:
    """Looks at the topics of a cluster, and creates them.

    Args:
        where: How messages name the target.
        keyed: The records have keys.
        replaces: The newest record of a key counts: a missing topic is created as a compacted one.
    """

    def __init__(self, where: str, servers: str, options: Options, keyed: bool, replaces: bool) -> None:
        self._where, self._options, self._keyed, self._replaces = where, options, keyed, replaces
        with translated(where):
            self._admin = AdminClient(admin_options(servers, options))

    def prepare(self, topic: str) -> None:
        """Create the topic and its progress topic if they are missing, else check that they fit.

        Raises:
            ConfigError: an existing topic does not fit, or one cannot be created.
            Unavailable: the brokers are unreachable now.
        """
        found = self._found(topic)
        if found is None:
            self._create(topic, {"cleanup.policy": "compact"} if self._replaces else {})
            found = self._found(topic) or Topic(1, 1, None)
        self._check(found)
        name = progress_topic(topic)
        progress = self._found(name)
        if progress is None:
            in_sync = (found.settings or {}).get("min.insync.replicas")
            shared = {} if in_sync is None else {"min.insync.replicas": in_sync}
            self._create(name, {**PROGRESS_CONFIG, **shared}, 1, found.replicas)
        else:
            self._check_progress(name, progress)
        for warning in warnings_of(self._where, topic, found):
            _log.warning("%s", warning)

    def _found(self, topic: str) -> Topic | None:
        """Return the topic; None if it is missing."""
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=WAIT_S)[topic]
        try:
            partitions = self._result(described).partitions
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise raised_for(self._where, error.args[0]) from error
        return Topic(len(partitions), min((len(each.replicas) for each in partitions), default=1), self._settings(topic))

    def _settings(self, topic: str) -> Mapping[str, str] | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found = self._result(self._admin.describe_configs([resource], request_timeout=WAIT_S)[resource])
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                _log.warning("%s: this user may not read the settings of topic %s; they are not checked", self._where, topic)
                return None
            raise raised_for(self._where, error.args[0]) from error
        return {name: str(entry.value) for name, entry in found.items()}

    def _create(self, topic: str, settings: Mapping[str, str], partitions: int = -1, replicas: int = -1) -> None:
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=dict(settings))
        try:
            self._result(
                self._admin.create_topics([wanted], request_timeout=WAIT_S, operation_timeout=WAIT_S)[topic]
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise raised_for(self._where, error.args[0]) from error

    def _result(self, future: Future[Any]) -> Any:
        return future.result(timeout=2 * WAIT_S)

    def _check(self, found: Topic) -> None:
        settings = found.settings or {}
        if not self._keyed and "compact" in settings.get("cleanup.policy", ""):
            raise ConfigError(
                f"{self._where}: the topic is compacted and takes no records without a key, but the sink has no key",
                not_done="the job was not started, the topic was not changed",
                next_step="give the sink key=[...], or name another topic; a missing one is created to fit",
            )
        largest, limit = message_max_bytes(self._options), int(settings.get("max.message.bytes", 1 << 31))
        if limit < largest:
            raise ConfigError(
                f"{self._where}: the topic takes batches of {limit:,} bytes, the producer sends up to {largest:,}",
                not_done="the job was not started, the topic was not changed",
                next_step=f'give options={{"message.max.bytes": {limit}}}, or raise max.message.bytes of the topic',
            )

    def _check_progress(self, name: str, found: Topic) -> None:
        policy = (found.settings or {}).get("cleanup.policy", "compact")
        if policy == "compact" and found.partitions == 1:
            return
        fault = f"has cleanup.policy={policy}" if policy != "compact" else f"has {found.partitions} partitions"
        raise ConfigError(
            f"{self._where}: the topic {name}, which holds the tags of all deliveries, {fault}",
            not_done="the job was not started, no topic was changed",
            next_step="it must have cleanup.policy=compact, so that no tag is ever deleted, and one partition: set the "
            "policy, or delete the topic if no job has written to it yet",
        )


def warnings_of(where: str, topic: str, found: Topic) -> list[str]:
    """Return what in a topic's settings lets the brokers lose records that they have confirmed."""
    settings = found.settings or {}
    warnings = []
    in_sync = int(settings.get("min.insync.replicas", 0))
    if found.replicas > 1 and in_sync == 1:
        warnings.append(
            f"{where}: topic {topic} has {found.replicas} replicas, but min.insync.replicas=1: a record may be confirmed "
            "by one broker alone, and is lost with it. Next: set min.insync.replicas=2"
        )
    if settings.get("unclean.leader.election.enable") == "true":
        warnings.append(
            f"{where}: topic {topic} has unclean.leader.election.enable=true: a broker that lacks confirmed records may "
            "become the leader, and they are lost. Next: set it to false"
        )
    return warnings
