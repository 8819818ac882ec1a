"""The bell that the client library rings when messages come: what waits for it, and when it stops waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from kafka_server import KafkaServer
from patience import WALL_S

from holdfast.runtime.plan.ahead import Ahead, inline
from holdfast.runtime.sources.kafka.batches import BatchFeed
from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.storage.kafka.library import found
from holdfast.storage.kafka.place import KafkaPlace


def ring(bell: Bell) -> None:
    os.write(bell.handle, b"\0")


class TestBell:
    def test_ends_a_wait(self) -> None:
        bell = Bell()
        rings = threading.Thread(target=ring, args=(bell,))
        rings.start()
        assert bell.wait(WALL_S)
        rings.join()

    def test_a_bell_that_rang_before_ends_one_wait_however_often_it_rang(self) -> None:
        bell = Bell()
        for _ in range(3):
            ring(bell)
        assert bell.wait(WALL_S) and not bell.wait(0)

    def test_a_bell_rung_until_its_pipe_is_full_still_ends_a_wait(self) -> None:
        bell = Bell()
        with pytest.raises(BlockingIOError):
            while True:
                ring(bell)
        assert bell.wait(0)

    def test_closes_its_handles_with_its_last_owner(self) -> None:
        bell = Bell()
        handle = bell.handle
        del bell
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


class TestFeed:
    @pytest.mark.kafka
    def test_rings_when_records_come_into_any_partition(self, kafka: KafkaServer) -> None:
        library, bell, topic = found(), Bell(), kafka.topic(2)
        assert library is not None
        feed = BatchFeed(KafkaPlace(kafka.servers, topic, ()), library, False, lambda: 2, bell=bell)
        for partition in (0, 1):
            assert feed.take(partition, 0, 1 << 20).messages is None
        for partition in (1, 0, 1):
            at = feed._partitions[partition].following
            while bell.wait(0):
                pass
            kafka.producer.produce(topic, b"{}", partition=partition)
            kafka.producer.flush()
            while (taken := feed.take(partition, at, 1 << 20)).messages is None:
                assert bell.wait(WALL_S), "records came, but nothing rang"
            assert len(taken.messages) == 1
        feed.close()


class Lane:
    """A lane whose work the test ends."""

    def __init__(self) -> None:
        self.ends = list[Callable[[object], None]]()

    def submit(self, _work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.ends.append(done)


class TestAhead:
    def test_waits_once_for_all_readers_of_a_source(self) -> None:
        lane = Lane()
        ahead = Ahead(Lane(), watch=lambda: lane)
        ahead.watch(bool)
        ahead.watch(bool)
        assert len(lane.ends) == 1
        lane.ends[0](True)
        ahead.watch(bool)
        assert len(lane.ends) == 2

    def test_waits_for_nothing_in_the_thread_that_works(self) -> None:
        def wait() -> None:
            raise AssertionError("the worker would stand still")

        inline().watch(wait)
