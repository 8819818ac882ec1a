"""The settings of librdkafka that a Kafka sink gives to its clients, besides those of the job.

Pure: no clock, thread or I/O. Source: docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError
from holdfast.storage.kafka.place import KafkaPlace

TRANSACTION_TIMEOUT_MS = 60_000
"""Default: after this time the brokers abort a transaction. So long readers wait at most for one that was left open."""
MESSAGE_MAX_BYTES = 1_000_000
"""librdkafka's default of `message.max.bytes`: the largest record that a producer takes."""
GROUP = "holdfast"
"""The name that librdkafka wants of every reader; no group is formed."""
FIXED: Mapping[str, str] = {
    "delivery.report.only.error": "Holdfast reads the reports",
    "enable.gapless.guarantee": "a transaction fails as a whole",
}
"""Options that a sink sets itself, besides those that sources set too, and why."""
_PRODUCER: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 256 * 1024,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
}
"""Defaults that a job may change. The partitioner is that of Java's clients; the queue is bounded in bytes alone."""


def check_options(place: KafkaPlace) -> None:
    """Refuse options that a sink sets itself. Raises ConfigError."""
    for name, _ in place.options:
        if name in FIXED:
            raise ConfigError(
                f"{place.where}: the option {name!r} is set by the sink: {FIXED[name]}",
                not_done="the job was not planned",
                next_step=f"leave {name!r} out",
            )


def reader_settings(place: KafkaPlace) -> dict[str, Any]:
    """Return the settings of the reader of the progress topic, with secrets."""
    return {
        "fetch.wait.max.ms": 50,
        "group.id": GROUP,
        **place.settings(
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="error",
            enable_partition_eof=True,
        ),
    }


def producer_settings(place: KafkaPlace, transactional_id: str) -> dict[str, Any]:
    """Return the settings of a transactional producer, with secrets."""
    return {
        **_PRODUCER,
        **place.settings(
            transactional_id=transactional_id,
            enable_idempotence=True,
            delivery_report_only_error=True,
        ),
    }


def repeating_settings(place: KafkaPlace) -> dict[str, Any]:
    """Return the settings of a producer without transactions, with secrets.

    A record has no time limit: it is resent until the brokers have it, and Holdfast watches how long that takes.
    Records that arrive are reported too, so that a wait for them ends with the last one. A flush does not linger.
    """
    return {
        **{name: value for name, value in _PRODUCER.items() if name != "transaction.timeout.ms"},
        "message.timeout.ms": 0,
        **place.settings(enable_idempotence=True, delivery_report_only_error=False),
    }


def message_max_bytes(place: KafkaPlace) -> int:
    """Return the size of the largest record that a producer takes."""
    max_bytes = dict(place.options).get("message.max.bytes", MESSAGE_MAX_BYTES)
    if not isinstance(max_bytes, int) or max_bytes < 1_000:
        raise ConfigError(
            f"{place.where}: the option 'message.max.bytes' is {max_bytes!r}, which is no number of bytes",
            not_done="the job was not planned",
            next_step="give a number of at least 1,000",
        )
    return max_bytes
