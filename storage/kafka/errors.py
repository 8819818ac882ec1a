"""The meaning of Kafka errors: who has to act, and what to do.

Invariants
    - No message shows the value of a secret.
    - A refused login or right is NotAdmitted: an administrator may grant it while the job runs, and nothing is lost.
    - An error that a later retry may cure is `Unavailable`, and so is every error that is not known here.

Source: librdkafka, rdkafka.h; kafka.apache.org/protocol (error codes).
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.extras import install
from holdfast.storage.kafka.place import KafkaPlace

NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
"""A broker, or the client's copy of what brokers know, lacks the topic or one of its partitions."""
NO_RIGHT = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
)
NO_LEADER = "_NOENT"
"""No partition that was asked about has a leader. The client says so at the first answer without one, and does not ask
again, though a topic that was created a moment ago, or whose brokers start, has one soon.
"""
OFFSET_INVALID = -1001
"""RD_KAFKA_OFFSET_INVALID."""
COORDINATOR_STARTS = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
"""The broker that keeps a group's offsets is not ready, as when the group is used first."""
GROUP_IN_USE = ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP")
"""The group has members, which alone store offsets."""
_CREDENTIALS = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")
_SETTINGS = ("_INVALID_ARG", "_UNKNOWN_PROTOCOL", "_NOT_CONFIGURED")
PERMANENT = (*_CREDENTIALS, "_SSL")
"""Errors of connections that no wait cures; a client reports them beside the request that then times out."""


class NoOffsets(Unavailable):
    """The leader of a partition did not say its offsets now: there is none, or the connection to it broke."""


def translated(error: Any, place: KafkaPlace, not_done: str) -> HoldfastError:
    """Return the error of Holdfast for a `confluent_kafka.KafkaError`."""
    name, text = error.name(), place.without_secrets(error.str())
    if name in NO_TOPIC:
        return no_topic(place, not_done)
    if name in NO_RIGHT:
        return NotAdmitted(
            f"{place.where}: the server does not permit this: {text}",
            not_done=not_done,
            next_step=f"grant the job's user the rights that the documentation lists, such as DESCRIBE and READ on "
            f"topic {place.topic!r}",
        )
    if name in _CREDENTIALS:
        return NotAdmitted(
            f"{place.where}: the server refused the credentials: {text}",
            not_done=not_done,
            next_step="correct security.protocol, sasl.mechanism, sasl.username and sasl.password in options=, "
            "or the secret that they refer to",
        )
    if name == "_SSL":
        return ConfigError(
            f"{place.where}: no encrypted connection: {text}",
            not_done=not_done,
            next_step="correct security.protocol and the ssl.* options: ssl.ca.location names the authority that "
            "signed the server's certificate",
        )
    if name == NO_LEADER:
        return NoOffsets(
            f"{place.where}: no broker leads its partitions now",
            not_done=not_done,
            next_step="check that all brokers of the cluster run, and that enough of them hold a copy of the topic",
        )
    if name in _SETTINGS:
        return ConfigError(f"{place.where}: {text}", not_done=not_done, next_step="correct options=")
    return unavailable(place, f"{name.strip('_').lower().replace('_', ' ')}: {text}", not_done)


def outcome_of(asked: Any, timeout_s: float) -> tuple[Any, Any]:
    """Return the result of a request of an AdminClient, or None, and its `confluent_kafka.KafkaError`, or None.

    The error is not raised: its traceback would keep the client in a cycle of references. The garbage collector may
    run in a thread of that client, which ends the process if the client is destroyed there.

    Raises:
        TimeoutError: there is no answer yet.
    """
    error = asked.exception(timeout_s)
    return (asked.result(), None) if error is None else (None, error.args[0])


def offset_of(found: Any, place: KafkaPlace, not_done: str) -> int:
    """Return the offset that a leader gave for a partition.

    If the request to the leader failed, as when its connection breaks, the client gives OFFSET_INVALID and no error.

    Raises:
        NoOffsets: it gave none.
    """
    offset = int(found.offset)
    if offset == OFFSET_INVALID:
        raise NoOffsets(
            f"{place.where}: the connection to the leader of a partition broke before it gave an offset",
            not_done=not_done,
            next_step="check the network between this machine and the brokers",
        )
    return offset


def no_topic(place: KafkaPlace, not_done: str) -> ConfigError:
    """Return the error for a topic that does not exist."""
    return ConfigError(
        f"{place.where} does not exist",
        not_done=not_done,
        next_step=f"create it: kafka-topics.sh --bootstrap-server {place.servers} --create --topic {place.topic} "
        "--partitions 4; or correct the name",
    )


def unavailable(place: KafkaPlace, why: str, not_done: str) -> Unavailable:
    """Return the error for servers that give no answer."""
    return Unavailable(
        f"{place.where} is unreachable: {why}",
        not_done=not_done,
        next_step="check that the brokers run and that this machine reaches the addresses they advertise "
        "(advertised.listeners); a listener with TLS or a login also needs security.protocol in options=",
    )


def no_client(error: ImportError) -> ConfigError:
    """Return the error for a machine without the client library."""
    return ConfigError(
        f"hf.Kafka needs confluent-kafka, which cannot be imported: {error}",
        not_done="nothing was opened",
        next_step=f"install it here and on every worker: {install('kafka')}",
    )
