"""Questions to the brokers about a topic: whether it exists, which one it is, its partitions, and their offsets.

Connections fail in the background, where a client reports why; the request itself only times out. So a wait for an
answer looks at what the client has reported, and ends early if no wait can help.

Invariants
    - Every wait is bounded, and ends within 0.1 s once `interrupted` says so; only that for `names` does not.
    - After a question that got no answer, `offsets` asks nothing for `AWAY_S`.

Source: docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.errors import HoldfastError, Unavailable
from holdfast.storage.kafka.errors import (
    PERMANENT,
    NoOffsets,
    no_client,
    no_topic,
    offset_of,
    outcome_of,
    translated,
    unavailable,
)
from holdfast.storage.kafka.place import KafkaPlace

FIRST_ANSWER_WITHIN_S = 10.0
"""How long the first answer may take: a connection has to be opened, which may need a new address."""
ANSWER_WITHIN_S = 3.0
AWAY_S = 4.0
"""Longer than a question waits, so that while one thread asks, others do not wait too."""
MISSING_FOR_S = 5.0
"""How long a topic is missing before that is believed: a broker that starts may not know its topics yet."""
LOOK_EVERY_S = 0.05
Offsets = Literal["first", "end", "written"]
log = logging.getLogger("holdfast.kafka")


@dataclass(frozen=True)
class Topic:
    """A topic as the brokers describe it now.

    Args:
        id: Differs between topics of one name; None if the brokers have no such ids.
        partitions: All partitions, in order.
        leaderless: Partitions that no broker serves now.
        rights: Operations that the user may perform, such as "READ"; None: the brokers do not say.
    """

    cluster: str
    id: str | None
    partitions: tuple[int, ...]
    leaderless: frozenset[int]
    rights: frozenset[str] | None


@dataclass(frozen=True)
class TopicRetention:
    """The retention of a topic.

    Args:
        age_ms: Older records are removed; None: no limit, or it is not known.
        size_bytes: Bytes per partition; beyond, the oldest records are removed. None: no limit, or it is not known.
    """

    age_ms: int | None
    size_bytes: int | None


class Reported:
    """The reports of a client about its connections: why it cannot connect."""

    def __init__(self) -> None:
        self.error: Any = None

    def __call__(self, error: Any) -> None:
        # "All brokers are down" follows the error that says why, and would hide it.
        if self.error is None or error.name() != "_ALL_BROKERS_DOWN":
            self.error = error


class Questions:
    """A client that asks about one topic. It may be used by several threads, and again after `close`.

    Args:
        interrupted: Whether answers are no longer of interest.
    """

    def __init__(self, place: KafkaPlace, interrupted: Callable[[], bool] = lambda: False) -> None:
        self._place, self._interrupted = place, interrupted
        self._client: Any = None
        self._reported = Reported()
        self._answered = False
        self._away_until = 0.0

    def topic(self, not_done: str = "nothing was read") -> Topic | None:
        """Return the topic; None if there is none of this name.

        Raises:
            ConfigError: the options are wrong.
            NotAdmitted: the credentials are refused, or the user may not see the topic.
            Unavailable: no broker answers.
        """
        from confluent_kafka import TopicCollection

        client, within = self._opened(not_done), self._within_s()
        named = TopicCollection([self._place.topic])
        [described] = client.describe_topics(named, request_timeout=within, include_authorized_operations=True).values()
        asked = client.describe_cluster(request_timeout=within)
        found, cluster = self._answer(described, within, not_done), self._answer(asked, within, not_done)
        return None if found is None else _topic(found, cluster.cluster_id)

    def existing(self, not_done: str = "nothing was read") -> Topic:
        """Return the topic. Raises ConfigError if no broker has known it for `MISSING_FOR_S`; see `topic`."""
        until = time.monotonic() + MISSING_FOR_S
        while (topic := self.topic(not_done)) is None:
            if self._interrupted():
                raise unavailable(self._place, "the wait was interrupted", not_done)
            if time.monotonic() >= until:
                raise no_topic(self._place, not_done)
            time.sleep(LOOK_EVERY_S)
        return topic

    def names(self, not_done: str = "nothing was read") -> tuple[str, list[str]]:
        """Return the id of the cluster, and the names of all topics that the user may see. Not interrupted.

        Raises:
            ConfigError, NotAdmitted, Unavailable: as `topic`.
        """
        from confluent_kafka import KafkaException

        client, within = self._opened(not_done), self._within_s()
        try:
            metadata = client.list_topics(timeout=within)
        except KafkaException as error:
            raise self._meaning(self._cause(error.args[0]), not_done) from None
        self._answered, self._away_until, self._reported.error = True, 0.0, None
        return metadata.cluster_id, sorted(name for name, each in metadata.topics.items() if each.error is None)

    def missing(self, topics: Collection[str], until: float, not_done: str = "nothing was read") -> set[str]:
        """Wait for topics; return which of them no broker knows.

        Args:
            until: How long at most, by the monotonic clock.

        Raises:
            ConfigError, NotAdmitted, Unavailable: as `topic`.
        """
        while missing := set(topics) - set(self.names(not_done)[1]):
            if time.monotonic() >= until:
                break
            if self._interrupted():
                raise unavailable(self._place, "the wait was interrupted", not_done)
            time.sleep(LOOK_EVERY_S)
        return missing

    def offsets(self, partitions: Iterable[int], which: Offsets | int) -> dict[int, int]:
        """Return an offset of each partition.

        Args:
            which: "first" is the offset of the first record, "end" the one before which no transaction is open, and
                "written" the one after the last record, also where an open transaction hides it. A number asks for the
                first record with this timestamp, in milliseconds since 1970, or a later one; -1 if there is none.

        Raises:
            ConfigError, Unavailable: as `topic`.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        not_done = "the offsets of its partitions are not known"
        self.refuse_while_away()
        if isinstance(which, int):
            spec = OffsetSpec.for_timestamp(which)
        else:
            spec = OffsetSpec.earliest() if which == "first" else OffsetSpec.latest()
        client, within = self._opened(not_done), self._within_s()
        specs = {TopicPartition(self._place.topic, each): spec for each in partitions}
        isolation = IsolationLevel.READ_UNCOMMITTED if which == "written" else IsolationLevel.READ_COMMITTED
        until = time.monotonic() + within
        while True:
            left = max(until - time.monotonic(), LOOK_EVERY_S)
            asked = client.list_offsets(specs, isolation_level=isolation, request_timeout=left)
            try:
                found = {place.partition: self._answer(each, left, not_done) for place, each in asked.items()}
                if None in found.values():
                    raise unavailable(self._place, "a broker does not know its partitions yet", not_done)
                return {partition: offset_of(each, self._place, not_done) for partition, each in found.items()}
            except NoOffsets:
                if self._interrupted() or time.monotonic() >= until:
                    self._away_until = time.monotonic() + AWAY_S
                    raise
            time.sleep(LOOK_EVERY_S)

    def remove(self, before: Mapping[int, int]) -> None:
        """Remove the records before an offset of each partition.

        Raises:
            NotAdmitted: the user has no right to.
            ConfigError, Unavailable: as `topic`.
        """
        from confluent_kafka import TopicPartition

        not_done = "some records may be left"
        client, within = self._opened(not_done), self._within_s()
        places = [TopicPartition(self._place.topic, each, offset) for each, offset in before.items()]
        for asked in client.delete_records(places, request_timeout=within).values():
            self._answer(asked, within, not_done)

    def refuse_while_away(self) -> None:
        """Raise Unavailable if a question got no answer a moment ago: for a thread that must not wait for another."""
        if time.monotonic() < self._away_until:
            raise unavailable(self._place, "it did not answer a moment ago", "nothing was asked")

    def removes_single_records(self) -> bool:
        """Return whether the topic is compacted, or may be: the user has no right to see its settings."""
        found = self._settings_of("it is unknown whether the topic is compacted")
        return found is None or "compact" in found["cleanup.policy"].value

    def limits(self) -> TopicRetention:
        """Return how long, and how much of a partition, the topic keeps.

        Raises:
            ConfigError, Unavailable: as `topic`.
        """
        found = self._settings_of("it is not known how long the topic keeps records")
        if found is None or "delete" not in found["cleanup.policy"].value:
            return TopicRetention(None, None)
        age_ms, size = int(found["retention.ms"].value), int(found["retention.bytes"].value)
        return TopicRetention(None if age_ms < 0 else age_ms, None if size < 0 else size)

    def _settings_of(self, not_done: str) -> Any:
        """Return the settings of the topic, by name; None if the user has no right to see them."""
        from confluent_kafka.admin import ConfigResource

        client, within = self._opened(not_done), self._within_s()
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._place.topic)
        [asked] = client.describe_configs([resource], request_timeout=within).values()
        return self._answer(asked, within, not_done, forgiven=("TOPIC_AUTHORIZATION_FAILED",))

    def close(self) -> None:
        """Drop the client."""
        self._client = None

    def _opened(self, not_done: str) -> Any:
        if self._client is None:
            try:
                from confluent_kafka import KafkaException
                from confluent_kafka.admin import AdminClient
            except ImportError as error:
                raise no_client(error) from error
            self._reported, self._answered = Reported(), False
            settings = self._place.settings()
            try:
                self._client = AdminClient({**settings, "error_cb": self._reported}, logger=log)
            except KafkaException as error:
                raise translated(error.args[0], self._place, not_done) from None
        return self._client

    def _within_s(self) -> float:
        return ANSWER_WITHIN_S if self._answered else FIRST_ANSWER_WITHIN_S

    def _answer(
        self, asked: Any, within_s: float, not_done: str, forgiven: tuple[str, ...] = ("UNKNOWN_TOPIC_OR_PART",)
    ) -> Any:
        """Return the answer to a request; None for an error that is forgiven."""
        until = time.monotonic() + within_s + LOOK_EVERY_S
        while True:
            try:
                answer, fault = outcome_of(asked, LOOK_EVERY_S)
                break
            except TimeoutError:
                self._keep_waiting(until, not_done)
        if fault is not None and fault.name() not in forgiven:
            raise self._meaning(self._cause(fault), not_done)
        self._answered, self._away_until, self._reported.error = True, 0.0, None
        return answer

    def _keep_waiting(self, until: float, not_done: str) -> None:
        if (client := self._client) is not None:
            client.poll(0)  # the client reports why it cannot connect
        client_error = self._reported.error
        if client_error is not None and client_error.name() in PERMANENT:
            raise self._meaning(client_error, not_done)
        if self._interrupted():
            raise unavailable(self._place, "the wait was interrupted", not_done)
        if time.monotonic() > until:
            self._away_until = time.monotonic() + AWAY_S
            why = "it gives no answer" if client_error is None else self._place.without_secrets(client_error.str())
            raise unavailable(self._place, why, not_done)

    def _meaning(self, fault: Any, not_done: str) -> HoldfastError:
        """Return the error to raise. Credentials that were accepted before are not wrong: a broker may be starting."""
        error = translated(fault, self._place, not_done)
        if self._answered and fault.name() in PERMANENT:
            error = unavailable(self._place, self._place.without_secrets(fault.str()), not_done)
        if isinstance(error, Unavailable):
            self._away_until = time.monotonic() + AWAY_S
        return error

    def _cause(self, fault: Any) -> Any:
        """Return why a request timed out, if the client has reported it."""
        timed_out = fault.name() in ("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT")
        return self._reported.error if timed_out and self._reported.error is not None else fault


def topic_id(found: Any) -> str | None:
    """Return what differs between topics of one name, from a description; None if the brokers have no such ids."""
    return None if found.topic_id is None or str(found.topic_id).strip("A") == "" else str(found.topic_id)


def _topic(found: Any, cluster: str) -> Topic:
    without = (each.id for each in found.partitions if each.leader is None or each.leader.id < 0)
    rights = found.authorized_operations
    return Topic(
        cluster,
        topic_id(found),
        tuple(sorted(each.id for each in found.partitions)),
        frozenset(without),
        None if not rights else frozenset(each.name for each in rights),
    )
