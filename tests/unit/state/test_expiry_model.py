"""Windows that expire by ranges, through every order of epochs, merges, kills and rescales, against dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from cramped import CrampedState
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from merged_pieces import compact

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state import blocks, changelog, packing
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.state.tables import indexed
from holdfast.state.tables.expiry import NOTHING, Through, covered
from holdfast.state.tables.slab import PLAIN, Memory
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    """Write segments in several record batches, restore them in several parts, and shrink small tables."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(indexed, "_SHRUNK_FROM", 1)
        patched.setattr(changelog, "ROWS_AT_ONCE", 4)
        patched.setattr(changelog, "BATCH_BYTES", 200)
        patched.setattr(changelog, "PACKED_FROM_BYTES", 0)
        patched.setattr(packing, "_is_worth_it", lambda *_: True)
        patched.setattr(blocks, "ROWS_AT_ONCE", 3)
        yield


JOB, WORKER, GROUPS = JobUuid("job"), WorkerId("w"), 4
IDENTITY = Identity(JOB, Generation(1), Timeline(1), WORKER)
KEY = KeyType(("window_end", "user"), (pa.timestamp("us", "UTC"), pa.utf8()), (False, True), unrouted=1)
SPEC = TableSpec(1, "windows", KEY, (ColumnSpec("count", np.dtype(np.int64)),))
WHOLE = (0, GROUPS)
Row = tuple[int, str | None]
Rows = dict[Row, int]

rows_given = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["", "a", "b", "cc", "a\x00", None, "long enough for two words"])),
    min_size=1,
    max_size=10,
    unique=True,
)
bounds = st.lists(st.sampled_from([NOTHING, 0, 1, 2, 3, 4]), min_size=GROUPS, max_size=GROUPS)


class Stored(NamedTuple):
    """A segment; a merge of several has the place of its last."""

    epoch: Epoch
    follows: Epoch
    data: bytes


def keys_of(rows: list[Row]) -> Keys:
    ends, users = zip(*rows, strict=True)
    return KEY.encode([pa.array(ends, pa.int64()).view(KEY.types[0]), pa.array(users, pa.utf8())])


def rows_in(table: StateTable) -> Rows:
    slots = table.present()
    ends, users = table.key_columns(slots)
    found = zip(ends.view(pa.int64()).to_pylist(), users.to_pylist(), strict=True)
    return dict(zip(found, table.column("count")[slots].tolist(), strict=True))


def header(epoch: Epoch, follows: Epoch) -> SegmentHeader:
    return SegmentHeader(JOB, Generation(1), Timeline(1), epoch, follows, WORKER)


class ExpiringWorker(RuleBasedStateMachine):
    """One worker's windows."""

    tables_memory: Memory = PLAIN

    def __init__(self) -> None:
        super().__init__()
        self.newest = Epoch(0)
        self.working: Rows = {}
        self.completed: dict[Epoch, Rows] = {Epoch(0): {}}
        self.segments: list[Stored] = []

    @initialize()
    def start(self) -> None:
        self.store = StateStore(IDENTITY, [SPEC], GROUPS, WHOLE, self.tables_memory)

    @property
    def head(self) -> Epoch:
        return max(self.completed)

    @rule(rows=rows_given, again=st.booleans())
    def put(self, rows: list[Row], again: bool) -> None:
        """Into any window, also into one that expired just now: the table itself promises more than windows ask."""
        table = self.store.table(1)
        for _ in range(1 + again):
            slots = table.slots(keys_of(rows))
            table.changing(slots)("count")[slots] += 1
            for row in rows:
                self.working[row] = self.working.get(row, 0) + 1

    @rule(rows=rows_given)
    def delete(self, rows: list[Row]) -> None:
        table = self.store.table(1)
        table.delete(table.slots(keys_of(rows)))
        for row in rows:
            self.working.pop(row, None)

    @rule(given=bounds)
    def expire(self, given: list[int]) -> None:
        table, through = self.store.table(1), np.array(given, np.int64)
        slots = table.present()
        table.expire(slots[covered(table.keys_at(slots), through)], through)
        self.working = {row: count for row, count in self.working.items() if not self.is_over(row, through)}

    def is_over(self, row: Row, through: Through) -> bool:
        return bool(row[0] <= through[int(keys_of([row]).key_groups(GROUPS)[0])])

    @rule(rows=rows_given)
    def look(self, rows: list[Row]) -> None:
        table = self.store.table(1)
        slots = table.slots(keys_of(rows))
        assert table.is_present(slots).tolist() == [row in self.working for row in rows]
        assert table.column("count")[slots].tolist() == [self.working.get(row, 0) for row in rows]

    @rule(rows=rows_given)
    def read_committed(self, rows: list[Row]) -> None:
        for row in rows:
            found = self.store.get_committed(1, row)
            expected = self.completed[self.store.committed_through].get(row)
            assert (None if found is None else found["count"]) == expected

    @rule(completes=st.booleans(), announced=st.booleans(), given=st.none() | bounds, later=st.just([]) | rows_given)
    def barrier(self, completes: bool, announced: bool, given: list[int] | None, later: list[Row]) -> None:
        self.newest = epoch = Epoch(self.newest + 1)
        follows = self.head
        self.store.freeze(1, epoch, follows)
        frozen = dict(self.working)
        if given is not None:  # changes records that are not copied yet
            self.store.advance(2)
            self.expire(given)
        if later:
            self.put(later, False)
        self.store.supersede(epoch)
        deltas = self.store.deltas(epoch)
        assert all(delta.follows == follows for delta in deltas)
        if completes:
            self.segments.append(Stored(epoch, follows, seal(header(epoch, follows), deltas)))
            self.completed[epoch] = frozen
            if announced:
                self.store.commit(epoch)

    @rule(rows=rows_given, given=bounds, later=rows_given, completes=st.sampled_from([True, True, False]))
    def epoch(self, rows: list[Row], given: list[int], later: list[Row], completes: bool) -> None:
        """Rows, ranges and newer rows in one epoch, or the ranges in the next one."""
        self.put(rows, False)
        self.barrier(completes, False, None, [])
        self.expire(given)
        self.put(later[:2], False)
        self.barrier(not completes, True, given, later)

    @rule()
    def roll_back(self) -> None:
        assert self.store.roll_back(self.head)
        self.working = dict(self.completed[self.head])

    @rule()
    def free(self) -> None:
        self.store.table(1).drop_vacant()

    @precondition(lambda self: len(self.segments) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.segments) - 2))
        last = data.draw(st.integers(first + 1, len(self.segments) - 1))
        parts = self.segments[first : last + 1]
        epoch, follows = parts[-1].epoch, parts[0].follows
        merged = compact(header(epoch, follows), [(part.data, WHOLE) for part in parts], [SPEC])
        self.segments[first : last + 1] = [Stored(epoch, follows, merged)]
        self.restore_from_segments()

    @rule()
    def restore_from_segments(self) -> None:
        assert rows_in(self.restored(WHOLE).table(1)) == self.completed[self.head]

    @rule()
    def kill(self) -> None:
        self.store = self.restored(WHOLE)
        self.working = dict(self.completed[self.head])
        self.list_present()

    @rule(cut=st.integers(0, GROUPS))
    def rescale(self, cut: int) -> None:
        """Another key-group split gives the same rows together."""
        parts = [rows_in(self.restored(owned).table(1)) for owned in ((0, cut), (cut, GROUPS))]
        assert {**parts[0], **parts[1]} == self.completed[self.head]

    def restored(self, owned: tuple[int, int]) -> StateStore:
        store = StateStore(IDENTITY, [SPEC], GROUPS, owned, self.tables_memory)
        store.restore(self.head, [Piece(part.data, owned) for part in self.segments])
        return store

    @rule()
    def list_present(self) -> None:
        assert rows_in(self.store.table(1)) == self.working

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.list_present()


class CrampedExpiringWorker(CrampedState, ExpiringWorker):
    """The same in tables that are larger than their budget."""


TestExpiringWorker = ExpiringWorker.TestCase
TestExpiringWorker.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCrampedExpiringWorker = CrampedExpiringWorker.TestCase
TestCrampedExpiringWorker.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
