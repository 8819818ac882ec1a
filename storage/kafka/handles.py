"""Clients of librdkafka itself: how one is made, and what it reports on its own, which comes as events.

Source: librdkafka, rdkafka.h; docs/decisions/0089-kafka-batches.md, 0127-producer-by-the-batch.md.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.storage.kafka.library import ERROR_BYTES, Librdkafka, Metadata
from holdfast.storage.kafka.place import KafkaPlace

log = logging.getLogger("holdfast.kafka")
PRODUCER, CONSUMER = 0, 1
REPORTS, LOGS, ERRORS = 0x1, 0x4, 0x8
"""Kinds of events. Reports are of records that were sent, or not."""
_LEVELS = (logging.CRITICAL, logging.CRITICAL, logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO)
"""By the severity of syslog; the rest is for debugging."""
_TOKENS = ("sasl.oauthbearer", "sasl.mechanism")
"""Options with which confluent-kafka may fetch tokens itself, in Python."""


def takes_tokens(place: KafkaPlace) -> bool:
    """Return whether clients log in by OAuth tokens, which only those of confluent-kafka may fetch."""
    return any(name.startswith(_TOKENS) and "OAUTH" in f"{name}{value}".upper() for name, value in place.options)


def wrong(code: int, text: str, **more: bool) -> Exception:
    """Return an error as confluent-kafka raises it."""
    from confluent_kafka import KafkaError, KafkaException

    raised: Exception = KafkaException(KafkaError(code, text, **more))
    return raised


def named(library: Librdkafka, code: int) -> str:
    """Return what the library says of an error."""
    return (library.err2str(code) or b"").decode(errors="replace")


def opened(library: Librdkafka, kind: int, settings: Mapping[str, Any], events: int) -> int:
    """Return the handle of a new client.

    Args:
        kind: `PRODUCER` or `CONSUMER`.
        settings: Options of librdkafka, with secrets.
        events: Kinds of events, added up.

    Raises:
        KafkaException: an option is wrong.
    """
    from confluent_kafka import KafkaError

    text, options = ctypes.create_string_buffer(ERROR_BYTES), library.conf_new()
    for name, value in {**settings, "log.queue": True}.items():
        given = str(value).lower() if isinstance(value, bool) else str(value)
        if library.conf_set(options, name.encode(), given.encode(), text, ERROR_BYTES):
            library.conf_destroy(options)
            raise wrong(KafkaError._INVALID_ARG, text.value.decode(errors="replace"))
    library.conf_set_events(options, events)
    handle = library.new(kind, options, text, ERROR_BYTES)
    if not handle:
        library.conf_destroy(options)
        raise wrong(KafkaError._INVALID_ARG, text.value.decode(errors="replace"))
    return int(handle)


def partition_count(library: Librdkafka, handle: int, topic: str, timeout_s: float) -> int:
    """Return how many partitions a topic has, which the client then knows. Raises KafkaException."""
    metadata, of = ctypes.POINTER(Metadata)(), library.topic_new(handle, topic.encode(), None)
    try:
        code = library.metadata(handle, 0, of, ctypes.byref(metadata), int(timeout_s * 1_000))
    finally:
        library.topic_destroy(of)
    if code:
        raise wrong(code, named(library, code))
    try:
        [described] = metadata.contents.topics[: metadata.contents.topic_cnt]
        if described.err:
            raise wrong(described.err, named(library, described.err))
        return int(described.partition_cnt)
    finally:
        library.metadata_destroy(metadata)


def raise_for(library: Librdkafka, error: int | None) -> None:
    """Raise `rd_kafka_error_t` as KafkaException; None is no error."""
    if error:
        code, text = library.error_code(error), library.error_string(error).decode(errors="replace")
        kinds = {
            "fatal": bool(library.error_is_fatal(error)),
            "retriable": bool(library.error_is_retriable(error)),
            "txn_requires_abort": bool(library.error_txn_requires_abort(error)),
        }
        library.error_destroy(error)
        raise wrong(code, text, **kinds)


def take_in(library: Librdkafka, handle: int, event: int, reported: Callable[[Any], None]) -> None:
    """Pass on an error that concerns the whole client, and log a line of the library; other events say nothing.

    Args:
        reported: Gets the error, a `confluent_kafka.KafkaError`; of a fatal one, what caused it.
    """
    kind = library.event_type(event)
    if kind == ERRORS:
        reported(_error_of(library, handle, event))
    elif kind == LOGS:
        facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        library.event_log(event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level))
        severity = _LEVELS[level.value] if level.value < len(_LEVELS) else logging.DEBUG
        log.log(severity, "%s: %s", _text(facility), _text(text))


def _error_of(library: Librdkafka, handle: int, event: int) -> Any:
    from confluent_kafka import KafkaError

    code = library.event_error(event)
    if code == KafkaError._FATAL:
        text = ctypes.create_string_buffer(ERROR_BYTES)
        cause = library.fatal_error(handle, text, ERROR_BYTES)
        return KafkaError(cause or code, text.value.decode(errors="replace"), fatal=True)
    return KafkaError(code, (library.event_error_string(event) or b"").decode(errors="replace"))


def _text(found: ctypes.c_char_p) -> str:
    return (found.value or b"").decode(errors="replace")
