"""The cluster that librdkafka can simulate in this process: brokers that answer with errors, or late, as they are told.

Source: librdkafka, rdkafka_mock.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition, cimpl
from patience import Patience

from holdfast.storage.kafka import library
from holdfast.storage.kafka.handles import PRODUCER, opened

PRODUCE, INIT_PRODUCER_ID, END_TXN = 0, 22, 26
"""Kinds of requests."""
READ_MAX, READ_WAIT_S = 10_000, 0.1
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "mock_cluster_new": (c_void_p, c_void_p, c_int),
    "mock_cluster_destroy": (None, c_void_p),
    "mock_cluster_bootstraps": (c_char_p, c_void_p),
    "mock_topic_create": (c_int, c_void_p, c_char_p, c_int, c_int),
    "mock_push_request_errors_array": (None, c_void_p, c_int16, c_size_t, c_void_p),
    "mock_clear_request_errors": (None, c_void_p, c_int16),
    "mock_broker_set_rtt": (c_int, c_void_p, c_int32, c_int),
    "mock_broker_set_down": (c_int, c_void_p, c_int32),
    "mock_broker_set_up": (c_int, c_void_p, c_int32),
    "test_fatal_error": (c_int, c_void_p, c_int, c_char_p),
}


class MockKafka:
    """One broker.

    Args:
        functions: By name.
        cluster: Its handle.
    """

    def __init__(self, functions: dict[str, Any], cluster: int) -> None:
        self._functions, self._cluster, self._topics = functions, cluster, dict[str, int]()
        self.servers: str = functions["mock_cluster_bootstraps"](cluster).decode()

    def topic(self, partitions: int = 1) -> str:
        """Create a topic."""
        name = f"topic-{len(self._topics)}"
        assert self._functions["mock_topic_create"](self._cluster, name.encode(), partitions, 1) == 0
        self._topics[name] = partitions
        return name

    def refuse(self, kind: int, *codes: int) -> None:
        """Answer the next requests of a kind with these errors; 0 is none."""
        given = (c_int * len(codes))(*codes)
        self._functions["mock_push_request_errors_array"](self._cluster, kind, len(codes), given)

    def serve(self, kind: int) -> None:
        """Answer requests of a kind again."""
        self._functions["mock_clear_request_errors"](self._cluster, kind)

    def delay(self, seconds: float) -> None:
        """Answer each request so much later."""
        assert self._functions["mock_broker_set_rtt"](self._cluster, 1, int(seconds * 1_000)) == 0

    def away(self, is_away: bool) -> None:
        """Break every connection and refuse others, or serve again."""
        assert self._functions["mock_broker_set_down" if is_away else "mock_broker_set_up"](self._cluster, 1) == 0

    def break_for_good(self, handle: int, code: int) -> None:
        """Let a client of the library fail fatally."""
        assert self._functions["test_fatal_error"](handle, code, b"a test") == 0

    def records(self, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
        """Return so many records, and those that come with them: partition, key and value, by partition in order."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "test", "log_level": 0})
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(self._topics[topic])])
        found = list[tuple[int, bytes | None, bytes | None]]()
        patience, quiet = Patience(None), 0
        while len(found) < count or quiet < 2:
            came = consumer.consume(READ_MAX, READ_WAIT_S)
            assert not any(each.error() for each in came)
            found += [(each.partition(), each.key(), each.value()) for each in came]
            quiet = 0 if came else quiet + 1
            assert not patience.over, f"{len(found)} of {count} records are in the topic"
        consumer.close()
        return sorted(found, key=lambda each: each[0])


@contextmanager
def simulated() -> Iterator[MockKafka]:
    """Run a broker."""
    known = library.found()
    assert known is not None
    loaded = ctypes.CDLL(cimpl.__file__)
    functions = dict[str, Any]()
    for name, (result, *parameters) in _FUNCTIONS.items():
        functions[name] = getattr(loaded, f"rd_kafka_{name}")
        functions[name].restype, functions[name].argtypes = result, parameters
    handle = opened(known, PRODUCER, {"log_level": 0}, 0)
    cluster = functions["mock_cluster_new"](handle, 1)
    try:
        yield MockKafka(functions, cluster)
    finally:
        functions["mock_cluster_destroy"](cluster)
        known.destroy(handle)
