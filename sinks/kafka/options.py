"""The settings of librdkafka that a Kafka sink gives to its clients.

Users add settings of their own, such as security. Those on which exactly-once delivery rests cannot be changed.

Pure: no clock, thread or I/O. Source: docs/design/0076-kafka-sink.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from holdfast.errors import ConfigError

Options: TypeAlias = Mapping[str, str | int | float | bool]

TRANSACTION_TIMEOUT_MS = 60_000
"""After this time the brokers abort a transaction that its producer left open; readers wait for that long at most."""
MESSAGE_MAX_BYTES = 1_000_000
"""librdkafka's default of `message.max.bytes`: the largest record that a producer takes."""
FIXED: Mapping[str, str] = {
    "bootstrap.servers": "give the servers as the first argument",
    "transactional.id": "it names the job and the sink, and fences older writers",
    "transaction.timeout.ms": "a transaction holds one delivery only, and is begun again after a timeout",
    "enable.idempotence": "transactions need it",
    "enable.gapless.guarantee": "transactions fail as a whole",
    "acks": "transactions need acks=all",
    "request.required.acks": "transactions need acks=all",
    "isolation.level": "tags are read as read_committed",
    "group.id": "no consumer group is used",
    "enable.auto.commit": "no consumer group is used",
    "auto.offset.reset": "the progress topic is read from its start",
    "enable.partition.eof": "the progress topic is read to its end",
    "delivery.report.only.error": "Holdfast reads delivery reports",
    "message.timeout.ms": "it follows from the transaction timeout",
    "delivery.timeout.ms": "it follows from the transaction timeout",
}
"""Settings that a user cannot give, and why."""
_COMMON: Options = {
    "client.id": "holdfast",
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "log_level": 3,
}


def check_options(where: str, options: Options) -> None:
    """Refuse settings on which exactly-once delivery rests.

    Raises:
        ConfigError: names the setting.
    """
    for name in options:
        if name in FIXED or name.endswith("_cb"):
            raise ConfigError(
                f"{where}: options has {name!r}, which a sink sets itself: {FIXED.get(name, 'callbacks are its own')}",
                not_done="the job was not planned",
                next_step=f"leave {name!r} out",
            )


def admin_options(servers: str, options: Options) -> dict[str, str | int | float | bool]:
    """Return the settings of the client that looks at topics."""
    return {**_COMMON, **options, "bootstrap.servers": servers}


def reader_options(servers: str, options: Options) -> dict[str, str | int | float | bool]:
    """Return the settings of the reader of the progress topic."""
    return {
        **_COMMON,
        "fetch.wait.max.ms": 50,
        **options,
        "bootstrap.servers": servers,
        "group.id": "holdfast",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def producer_options(servers: str, options: Options, transactional_id: str) -> dict[str, str | int | float | bool]:
    """Return the settings of a transactional producer."""
    return {
        **_COMMON,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 256 * 1024,
        **options,
        "bootstrap.servers": servers,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "enable.idempotence": True,
        "delivery.report.only.error": True,
    }


def message_max_bytes(options: Options) -> int:
    """Return the size of the largest record that a producer takes."""
    return int(options.get("message.max.bytes", MESSAGE_MAX_BYTES))
