"""The bell that librdkafka rings when messages come into an empty queue; a worker that has read all waits for it.

The library writes a byte to a pipe. If it rings while nothing waits, the next wait ends immediately: a ring is never
lost, and says only that it is worth looking again.

Source: librdkafka, rdkafka.h, rd_kafka_queue_io_event_enable.
"""

from __future__ import annotations

import os
import select
import weakref

WAIT_S = 0.05
"""How long one wait lasts; the loop of a worker looks again after that time, even without a ring."""
_ROOM = 1 << 16


class Bell:
    """One bell for all partitions of a source. Any thread may ring, one waits."""

    def __init__(self) -> None:
        self._hears, self.handle = os.pipe()
        """The library writes to the handle."""
        for each in (self._hears, self.handle):
            os.set_blocking(each, False)  # a full pipe rings loudly enough
        self._rung = select.poll()
        self._rung.register(self._hears, select.POLLIN)
        weakref.finalize(self, _closed, self._hears, self.handle)

    def wait(self, seconds: float = WAIT_S) -> bool:
        """Wait until it rings, at most this long; return whether it has rung since the last wait."""
        rung = bool(self._rung.poll(seconds * 1_000))
        if rung:
            os.read(self._hears, _ROOM)
        return rung


def _closed(*handles: int) -> None:
    for each in handles:
        os.close(each)
