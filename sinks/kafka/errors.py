"""What an error of Kafka or of its client library means for a delivery: who acts.

Invariants
    - What may succeed when it is tried again is Unavailable; nothing else is.
    - No code means that a transaction was committed.

Source: kafka.apache.org/protocol, error codes; librdkafka's rdkafka.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError

from holdfast.errors import ConfigError, HoldfastError, Unavailable

Meaning = Callable[[str, str], HoldfastError]
"""Makes the error from the name of the target and what the client said."""

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


def is_fenced(error: KafkaError) -> bool:
    """Return whether a newer producer of the transactional id exists."""
    return error.code() in _FENCED


def meaning_of(where: str, error: KafkaError) -> HoldfastError:
    """Return what the error means for a delivery."""
    return _BY_CODE.get(error.code(), _unavailable)(where, f"{error.str()} ({error.name()})")


def _unavailable(where: str, said: str) -> HoldfastError:
    return Unavailable(
        f"{where}: {said}",
        not_done="it is not known whether this delivery is in",
        next_step="nothing: delivery reads the progress topic and retries; if it stays so, check that the brokers run, "
        "that this host reaches them, and that enough replicas are in sync",
    )


def _configured(what: str, next_step: str) -> Meaning:
    """Return the meaning of an error that only the configuration of the cluster or of the job can mend."""
    return lambda where, said: ConfigError(
        f"{where}: {what}: {said}", not_done="nothing was committed to the topic", next_step=next_step
    )


_TOPIC = _configured(
    "the topic or its progress topic is missing",
    "restore it, or restart the job, which creates a missing topic; after the loss of a progress topic it is not known "
    "what was delivered",
)
_TOPIC_PERMISSION = _configured(
    "this user may not use the topic",
    "grant it: Describe, DescribeConfigs and Write on the topic, and Describe, DescribeConfigs, Read and Write on the "
    "topic of the same name with the suffix -holdfast-progress; Create too if they are missing",
)
_ID_PERMISSION = _configured(
    "this user may not use the transactional id",
    "grant Describe and Write on transactional ids with the prefix holdfast-",
)
_CLUSTER_PERMISSION = _configured(
    "this user lacks a permission on the cluster",
    "grant Create on the cluster, or create both topics beforehand; brokers before 2.8 also ask for IdempotentWrite",
)
_GROUP_PERMISSION = _configured("this user may not use the group", "grant Read on the group holdfast")
_CREDENTIALS = _configured(
    "the brokers did not let this user in", "check security.protocol, sasl.* and ssl.* in options, on every worker"
)
_TOO_LARGE = _configured(
    "a record is too large",
    "raise max.message.bytes of the topic and message.max.bytes in options, or make the rows smaller. Rows that the "
    "topic can never take stay first in line: correct the job, and leave them behind with holdfast rewind JOB.py "
    "--to-epoch N --apply, where N is the epoch that was last delivered (holdfast status JOB)",
)
_RECORD = _configured(
    "the brokers refuse a record",
    "a compacted topic takes no record without a key: give the sink key=[...], or use a topic that is not compacted",
)
_TIMEOUT = _configured(
    "the brokers do not allow a transaction timeout of 60 s", "raise transaction.max.timeout.ms of the brokers"
)
_OLD = _configured("the brokers are too old", "use brokers of version 2.5 or newer")

_BY_CODE: Mapping[int, Meaning] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: _TOPIC,
    KafkaError._UNKNOWN_TOPIC: _TOPIC,
    KafkaError._UNKNOWN_PARTITION: _TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _TOPIC_PERMISSION,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ID_PERMISSION,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _CLUSTER_PERMISSION,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _GROUP_PERMISSION,
    KafkaError.SASL_AUTHENTICATION_FAILED: _CREDENTIALS,
    KafkaError._AUTHENTICATION: _CREDENTIALS,
    KafkaError._SSL: _CREDENTIALS,
    KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    KafkaError.INVALID_RECORD: _RECORD,
    KafkaError.POLICY_VIOLATION: _RECORD,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: _TIMEOUT,
    KafkaError._UNSUPPORTED_FEATURE: _OLD,
    KafkaError.UNSUPPORTED_VERSION: _OLD,
}
