"""The cost of closing a window with many keys: by one range per key group, and by one delete per key, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from harness import Bench

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.time.windows import END_COLUMN, TIME, WINDOW_END
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import KeyType
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.epochs import COPIED_AT_ONCE
from holdfast.state.tables.table import ColumnSpec, TableSpec

GROUPS = 128
KEY = KeyType((WINDOW_END, "k"), (TIME, pa.int64()), unrouted=1)
SPEC = TableSpec(1, "windows", KEY, (END_COLUMN, ColumnSpec("n", np.dtype(np.int64))))
JOB, WORKER = JobUuid("bench"), WorkerId("bench")
OVER_US, OPEN_US = 10_000_000, 20_000_000


def bench_window_expiry(bench: Bench) -> None:
    """One window is closed, another with as many keys is open; both are committed."""
    keys = bench.size("keys", smoke=10_000, full=1_000_000)
    by_key, by_range = Window(keys), Window(keys)
    deleted = by_key.leaves(by_key.delete)
    with bench.timed():
        erased = by_range.leaves(by_range.expire)
    assert by_key.left() == by_range.left() == keys
    bench.report(per=keys, unit="key", check=by_range.left())
    for part in deleted:
        ratio = deleted[part] / max(erased[part], 1e-9)
        bench.note(f"{part}: {deleted[part]:,.6g} by keys, {erased[part]:,.6g} by ranges, ratio {ratio:,.1f}")


class Window:
    """A store with one expired and one open window."""

    def __init__(self, keys: int) -> None:
        identity = Identity(JOB, Generation(1), Timeline(1), WORKER)
        self._state = StateStore(identity, [SPEC], GROUPS, (0, GROUPS))
        self._table = self._state.table(1)
        for end in (OVER_US, OPEN_US):
            columns = [pa.array(np.full(keys, end)).view(TIME), pa.array(np.arange(keys))]
            slots = self._table.slots(KEY.encode(columns))
            self._table.changing(slots)(WINDOW_END)[slots] = end
        self._state.freeze(1, Epoch(1), Epoch(0))
        self._commit(1)

    def leaves(self, erase: Callable[[], None]) -> dict[str, float]:
        """Remove the expired window everywhere; return seconds of CPU per part, and the segment's bytes."""
        header = SegmentHeader(JOB, Generation(1), Timeline(1), Epoch(2), Epoch(1), WORKER)
        segment = b""

        def seal_it() -> None:
            nonlocal segment
            segment = seal(header, self._state.deltas(Epoch(2)))

        parts: dict[str, Callable[[], object]] = {
            "erase s": erase,
            "freeze s": lambda: self._state.freeze(1, Epoch(2), Epoch(1)),
            "seal s": seal_it,
            "commit s": lambda: self._commit(2),
        }
        spent = {}
        for part, work in parts.items():
            start = time.thread_time()
            work()
            spent[part] = time.thread_time() - start
        return {**spent, "all s": sum(spent.values()), "segment bytes": len(segment)}

    def delete(self) -> None:
        """Delete by one tombstone per key."""
        self._table.delete(self._over())

    def expire(self) -> None:
        """Expire by one range per key group."""
        self._table.expire(self._over(), np.full(GROUPS, OVER_US))

    def left(self) -> int:
        """Return how many rows are left."""
        return self._table.present().size

    def _over(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        slots = self._table.present()
        return slots[self._table.column(WINDOW_END)[slots] <= OVER_US]

    def _commit(self, epoch: int) -> None:
        self._state.commit(Epoch(epoch))
        while self._state.uncommitted:
            self._state.advance(COPIED_AT_ONCE)
