"""librdkafka itself, which confluent-kafka brings along: the functions that take and give messages by the batch.

`consume()` of confluent-kafka makes an object of every message, and `produce()` takes one call and one report for each:
several times as much as all that the library does for it. The functions here are those of rdkafka.h, whose symbols and
structures stay compatible within version 2. Clients are made by them too: the one inside a `confluent_kafka.Consumer`
or `Producer` cannot be borrowed, since its callbacks end the process if anything but its own methods serves them. Here
nothing calls back: what the library reports is read as events.

Invariants
    - `found` is None unless every function is there, the version and the processor are such as the structures below are
      written for, and the library gives back what it is given in them. Then messages go one by one.
    - Nothing is loaded but what confluent-kafka has loaded: symbols are looked up through its module.

Source: librdkafka, rdkafka.h; docs/decisions/0089-kafka-batches.md, 0127-producer-by-the-batch.md.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from typing import Any

MAJOR = 2
ERROR_BYTES = 512


class Message(Structure):
    """rd_kafka_message_t. Kernels read it by words: see gathering.py."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("_private", c_void_p),
    )


class TopicPartition(Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("_private", c_void_p),
    )


class _MetadataTopic(Structure):
    _fields_ = (("topic", c_char_p), ("partition_cnt", c_int), ("partitions", c_void_p), ("err", c_int))


class Metadata(Structure):
    """rd_kafka_metadata_t."""

    _fields_ = (
        ("broker_cnt", c_int),
        ("brokers", c_void_p),
        ("topic_cnt", c_int),
        ("topics", POINTER(_MetadataTopic)),
        ("orig_broker_id", c_int32),
        ("orig_broker_name", c_char_p),
    )


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    # name: what it returns, its parameters
    "version": (c_int,),
    "conf_new": (c_void_p,),
    "conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "conf_set_events": (None, c_void_p, c_int),
    "conf_destroy": (None, c_void_p),
    "new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "destroy": (None, c_void_p),
    "consumer_close": (c_int, c_void_p),
    "poll_set_consumer": (c_int, c_void_p),
    "set_log_queue": (c_int, c_void_p, c_void_p),
    "queue_get_consumer": (c_void_p, c_void_p),
    "queue_get_partition": (c_void_p, c_void_p, c_char_p, c_int32),
    "queue_forward": (None, c_void_p, c_void_p),
    "queue_io_event_enable": (None, c_void_p, c_int, c_char_p, c_size_t),
    "queue_destroy": (None, c_void_p),
    "queue_poll": (c_void_p, c_void_p, c_int),
    "event_type": (c_int, c_void_p),
    "event_error": (c_int, c_void_p),
    "event_error_string": (c_char_p, c_void_p),
    "event_log": (c_int, c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)),
    "event_destroy": (None, c_void_p),
    "topic_partition_list_new": (c_void_p, c_int),
    "topic_partition_list_add": (POINTER(TopicPartition), c_void_p, c_char_p, c_int32),
    "topic_partition_list_destroy": (None, c_void_p),
    "incremental_assign": (c_void_p, c_void_p, c_void_p),
    "error_code": (c_int, c_void_p),
    "error_string": (c_char_p, c_void_p),
    "error_destroy": (None, c_void_p),
    "err2str": (c_char_p, c_int),
    "topic_new": (c_void_p, c_void_p, c_char_p, c_void_p),
    "topic_destroy": (None, c_void_p),
    "metadata": (c_int, c_void_p, c_int, c_void_p, POINTER(POINTER(Metadata)), c_int),
    "metadata_destroy": (None, c_void_p),
    "consume_batch_queue": (c_ssize_t, c_void_p, c_int, c_void_p, c_size_t),
    "message_destroy": (None, c_void_p),
    "message_timestamp": (c_int64, c_void_p, c_void_p),
    "message_headers": (c_int, c_void_p, c_void_p),
    "queue_get_main": (c_void_p, c_void_p),
    "queue_yield": (None, c_void_p),
    "produce_batch": (c_int, c_void_p, c_int32, c_int, c_void_p, c_int),
    "flush": (c_int, c_void_p, c_int),
    "purge": (c_int, c_void_p, c_int),
    "outq_len": (c_int, c_void_p),
    "event_message_count": (c_size_t, c_void_p),
    "event_message_array": (c_size_t, c_void_p, c_void_p, c_size_t),
    "fatal_error": (c_int, c_void_p, c_char_p, c_size_t),
    "init_transactions": (c_void_p, c_void_p, c_int),
    "begin_transaction": (c_void_p, c_void_p),
    "commit_transaction": (c_void_p, c_void_p, c_int),
    "abort_transaction": (c_void_p, c_void_p, c_int),
    "error_is_fatal": (c_int, c_void_p),
    "error_is_retriable": (c_int, c_void_p),
    "error_txn_requires_abort": (c_int, c_void_p),
    "header_get_all": (c_int, c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t)),
}


class Librdkafka:
    """The functions by their names without `rd_kafka_`.

    Args:
        loaded: The module that holds them.

    Raises:
        AttributeError: one is missing.
    """

    def __init__(self, loaded: Any) -> None:
        self._functions: dict[str, Any] = {}
        for name, (result, *parameters) in _FUNCTIONS.items():
            function = getattr(loaded, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, parameters
            self._functions[name] = function

    def __getattr__(self, name: str) -> Any:
        return self._functions[name]

    def address(self, name: str) -> int:
        """Return where a function is, for a kernel that calls it."""
        return ctypes.cast(self._functions[name], c_void_p).value or 0


@cache
def found() -> Librdkafka | None:
    """Return the library of this process; None if it is not as expected.

    Raises:
        ImportError: there is no confluent-kafka.
    """
    from confluent_kafka import cimpl

    if ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        return None
    try:
        library = Librdkafka(ctypes.CDLL(cimpl.__file__))
    except (OSError, AttributeError):  # another build of it, which hides the library's symbols
        return None
    return library if library.version() >> 24 == MAJOR else None
