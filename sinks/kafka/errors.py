"""The meaning of Kafka errors for a delivery, where they mean more than for a reader.

Invariants
    - An error is Unavailable exactly if another attempt may succeed.
    - No code means that a transaction was committed.
    - No message shows the value of a secret.

Source: kafka.apache.org/protocol, error codes; librdkafka's rdkafka.h.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from holdfast.errors import HoldfastError, NotAdmitted, Unavailable
from holdfast.sinks.contract.phrases import (
    NOTHING,
    RETRIES,
    UNKNOWN,
    Meaning,
    never_takes,
    not_admitted,
    persists,
    refused,
)
from holdfast.storage.kafka.errors import translated
from holdfast.storage.kafka.place import KafkaPlace

NOT_ALL = "the rows since the last write are not all in the topic; no checkpoint completes without them"
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


def is_fenced(error: KafkaError) -> bool:
    """Return whether a newer producer of the transactional id exists."""
    return error.code() in _FENCED


def meaning_of(place: KafkaPlace, error: KafkaError) -> HoldfastError:
    """Return what the error means for a delivery."""
    meaning = _BY_CODE.get(error.code())
    if meaning is not None:
        return meaning(place.where, place.without_secrets(error.str()))
    failure = translated(error, place, UNKNOWN)
    if isinstance(failure, Unavailable) and not isinstance(failure, NotAdmitted):
        failure.next_step = persists(
            "no action needed: delivery reads the progress topic and retries", failure.next_step
        )
    else:
        failure.not_done = NOTHING
    return failure


def meaning_for_rows(place: KafkaPlace, error: KafkaError) -> HoldfastError:
    """Return what the error means for rows that are written as they come."""
    meaning = _FOR_ROWS.get(error.code(), _BY_CODE.get(error.code()))
    if meaning is not None:
        failure = meaning(place.where, place.without_secrets(error.str()))
    else:
        failure = translated(error, place, NOT_ALL)
    failure.not_done = NOT_ALL
    return failure


def unconfirmed(place: KafkaPlace, within_s: float) -> Unavailable:
    """Return the error for rows that the brokers do not confirm."""
    return Unavailable(
        f"{place.where}: no record was confirmed within {within_s:g} s",
        not_done=NOT_ALL,
        next_step=persists(
            "no action needed: the records are kept and sent until the brokers confirm them",
            "check the brokers, and that enough replicas are in sync",
        ),
    )


def late(place: KafkaPlace, what: str, within_s: float) -> Unavailable:
    """Return the error for brokers that took too long before anything was committed."""
    return Unavailable(
        f"{place.where}: {what} within {within_s:g} s",
        not_done=NOTHING,
        next_step=persists(RETRIES, "check the brokers, and that enough replicas are in sync"),
    )


_TOPIC_RIGHT = not_admitted(
    "the server does not permit this",
    "grant the job's user WRITE and DESCRIBE on the topic, and READ, WRITE and DESCRIBE on the topic of the same name "
    "with the suffix -holdfast-progress; CREATE too if they are missing",
)
_ID_RIGHT = not_admitted(
    "the server does not permit this transactional id",
    "grant the job's user WRITE and DESCRIBE on transactional ids with the prefix holdfast-",
)
_CLUSTER_RIGHT = not_admitted(
    "the server does not permit this",
    "grant the job's user CREATE on the cluster, or create both topics beforehand; brokers before 2.8 also want "
    "IDEMPOTENT_WRITE",
)
_TOO_LARGE = refused(
    "a record is too large",
    "raise max.message.bytes of the topic and message.max.bytes in options=, or make the rows smaller. "
    + never_takes("topic"),
)
_RECORD = refused(
    "the server refuses a record",
    "a compacted topic takes no record without a key: give the sink key=[...], or name a topic that is not compacted",
)
_TIMEOUT = refused(
    "the server does not allow transactions of this length",
    "raise transaction.max.timeout.ms of the brokers, or give a smaller transaction.timeout.ms in options=",
)

_BY_CODE: Mapping[int, Meaning] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _TOPIC_RIGHT,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ID_RIGHT,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _CLUSTER_RIGHT,
    KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    KafkaError.INVALID_RECORD: _RECORD,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: _TIMEOUT,
}

_FOR_ROWS: Mapping[int, Meaning] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: not_admitted(
        "the server does not permit this",
        "grant the job's user WRITE and DESCRIBE on the topic; CREATE too if it is missing",
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: refused(
        "a record is too large",
        "raise max.message.bytes of the topic and message.max.bytes in options=, or make the rows smaller",
    ),
}
"""The differences for rows that are written without a transaction."""
