"""Feeds the log that a job reads while faults strike: rows of a finished log, at a rate, in their partitions and order.

The last rows are held back until the faults are over, so that records follow the last fault. Faults come later than
planned when they have to wait for a victim; so, unless a rate is given, the feed slows down before the held-back rows:
every fault then strikes a job that has work to do. A full disk has no effect on a job that writes nothing.

Invariants
    - The fed log gets every row of the finished one exactly once, in the same partition, in the same order.
    - It is sealed only after all of them.
"""

from __future__ import annotations

import threading
import time

import pyarrow as pa

from holdfast.errors import ConfigError, HoldfastError
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import open_objects

EVERY_S = 0.25
HELD_BACK = 0.02
"""The share of every partition that waits for the end of the faults."""
TAIL = 0.125
"""The share that is fed at a falling rate."""
READ_BYTES = 8 << 20


def share_fed(elapsed: float, lingering: bool) -> float:
    """Return the part of every partition that is fed before the faults are over.

    Args:
        elapsed: Time since the beginning; at 1 all rows would be fed at the initial rate.
        lingering: Whether the rate falls towards the end.
    """
    most = 1.0 - HELD_BACK
    later = elapsed - (most - TAIL)
    return most - TAIL / (1.0 + 2.0 * later / TAIL) ** 0.5 if lingering and later > 0 else min(most, elapsed)


class Feeder:
    """Copies one log into another in its own thread.

    Args:
        source: Path of a log; its present rows are fed.
        target: Path of a log that is created here.
        records_per_second: All partitions together; None: the rate at which most rows take `duration_s`.

    Raises:
        ConfigError: there is no log to read, it is empty or holds rows that a rewind took back, or the target exists.
    """

    def __init__(self, source: str, target: str, records_per_second: int | None, duration_s: float) -> None:
        self._reader = LogReader(open_objects(source))
        self._ends = self._reader.end_offsets()
        self.total = sum(self._ends.values())
        if not self.total or any(self._reader.rows(partition) != end for partition, end in self._ends.items()):
            raise ConfigError(
                f"the log {source} holds " + ("rows that a rewind took back" if self.total else "nothing"),
                not_done="nothing was fed",
                next_step="name a log with rows, all of them valid",
            )
        store = open_objects(target)
        meta = self._reader.meta
        create_log(store, meta.rows, meta.partitions, meta.key, changelog=meta.changelog)
        self._writer = LogWriter(store)
        self._next = dict.fromkeys(self._ends, 0)
        self._lingering = records_per_second is None
        self._rate = records_per_second or max(1.0, self.total / max(duration_s, 1.0))
        self._released, self._closed = threading.Event(), threading.Event()
        self.error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Start feeding."""
        self._thread.start()

    def release(self) -> None:
        """Feed all remaining rows, and seal the log."""
        self._released.set()

    @property
    def done(self) -> bool:
        """Return whether the log is sealed, or feeding has failed."""
        return not self._thread.is_alive() and self._thread.ident is not None

    def close(self) -> None:
        """Stop feeding."""
        self._closed.set()
        self._released.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        try:
            self._feed()
        except HoldfastError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - reported by `error`; otherwise the job would look stuck
            self.error = HoldfastError(
                f"unexpected {type(error).__name__}: {error}",
                not_done="the log was not fed completely",
                next_step="check the log that is read; see docs/decisions/0016-live-chaos.md",
            )

    def _feed(self) -> None:
        began = time.monotonic()
        while not self._closed.is_set():
            is_final = self._released.is_set()
            elapsed = (time.monotonic() - began) * self._rate / self.total
            share = 1.0 if is_final else share_fed(elapsed, self._lingering)
            self._writer.append({p: rows for p, end in self._ends.items() if (rows := self._rows(p, int(end * share)))})
            if is_final:
                self._writer.seal()
                return
            self._released.wait(EVERY_S)

    def _rows(self, partition: int, end: int) -> pa.Table | None:
        batches = []
        while self._next[partition] < end:
            batch, following = self._reader.read(partition, self._next[partition], READ_BYTES)
            assert batch is not None and following == self._next[partition] + batch.num_rows, "rows without a gap"
            taken = min(batch.num_rows, end - self._next[partition])
            batches.append(batch.slice(0, taken))
            self._next[partition] += taken
        return pa.Table.from_batches(batches) if batches else None
