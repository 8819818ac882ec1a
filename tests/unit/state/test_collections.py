"""Lists, maps, timers and times to live, one behaviour each; test_collections_model.py plays them all together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.collections.lists import Lists
from holdfast.state.collections.maps import Maps
from holdfast.state.collections.rows import EXPIRES, NEVER, drop_absent, expire
from holdfast.state.collections.timers import AT, Timers
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.state.tables.spec import ColumnSpec

IDENTITY = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
USER = KeyType(("user",), (pa.utf8(),))
TEXT = KeyType(("entry",), (pa.utf8(),))
VALUE = ColumnSpec("n", np.dtype(np.int64))
SPECS = (
    Lists.spec(1, "lists", USER, [VALUE], expiring=True),
    Maps.spec(2, "maps", USER, TEXT, [VALUE]),
    Timers.spec(3, "timers", USER),
)
GROUPS = 8


def users(*names: str) -> Keys:
    return USER.encode([pa.array(names, pa.utf8())])


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


class Worker:
    """A store with one table of each collection, and the segments of its epochs."""

    def __init__(self, store: StateStore | None = None) -> None:
        self.store = store or StateStore(IDENTITY, SPECS, GROUPS, (0, GROUPS))
        self.lists, self.maps = Lists(self.store.table(1)), Maps(self.store.table(2))
        self.timers = Timers(self.store.table(3))
        self.segments: dict[Epoch, bytes] = {}

    def freeze(self, number: int) -> None:
        for spec in SPECS:
            self.store.freeze(spec.operator, Epoch(number), Epoch(number - 1))

    def complete(self, number: int) -> None:
        header = SegmentHeader(
            JobUuid("job"), Generation(1), Timeline(1), Epoch(number), Epoch(number - 1), WorkerId("w")
        )
        self.segments[Epoch(number)] = seal(header, self.store.deltas(Epoch(number)))
        self.store.commit(Epoch(number))

    def checkpoint(self, number: int) -> None:
        self.freeze(number)
        self.complete(number)

    def restored(self, number: int, owned: tuple[int, int] = (0, GROUPS)) -> Worker:
        """Return another worker with the state as of an epoch."""
        store = StateStore(IDENTITY, SPECS, GROUPS, owned)
        pieces = [Piece(data, (0, GROUPS)) for epoch, data in self.segments.items() if epoch <= number]
        store.restore(Epoch(number), pieces)
        return Worker(store)

    def append(self, name: str, *values: int, expires: int = NEVER) -> None:
        self.lists.append(users(*[name] * len(values)), {"n": ints(*values), EXPIRES: ints(*[expires] * len(values))})

    def list_of(self, name: str) -> list[int]:
        values: list[int] = self.lists.values(self.lists.find(users(name)).slots)["n"].tolist()
        return values

    def put(self, name: str, **entries: int) -> None:
        arrays = [pa.array(list(entries), pa.utf8())]
        self.maps.put(users(*[name] * len(entries)), arrays, {"n": ints(*entries.values())})

    def map_of(self, name: str) -> dict[str, int]:
        slots = self.maps.find(users(name)).slots
        return dict(zip(self.maps.map_keys(slots)[0].to_pylist(), self.maps.values(slots)["n"].tolist(), strict=True))

    def fire(self, through: int) -> list[tuple[str, int, int]]:
        fired = self.timers.fire(through)
        names = fired.users.type.decode(fired.users)[0].to_pylist()
        return list(zip(names, fired.timers.tolist(), fired.at_us.tolist(), strict=True))


class TestLists:
    def test_append_keeps_the_order_of_the_rows(self) -> None:
        worker = Worker()
        worker.lists.append(users("a", "b", "a", "b", "a"), {"n": ints(1, 2, 3, 4, 5)})
        worker.append("a", 6)
        assert (worker.list_of("a"), worker.list_of("b"), worker.list_of("c")) == ([1, 3, 5, 6], [2, 4], [])
        assert worker.lists.counts(users("c", "a")).tolist() == [0, 4]

    def test_pop_returns_the_first_elements_and_leaves_the_others(self) -> None:
        worker = Worker()
        worker.append("a", 1, 2, 3)
        worker.append("b", 9)
        popped = worker.lists.pop(users("b", "a"), 2)
        assert (popped.counts.tolist(), popped.values["n"].tolist()) == ([1, 2], [9, 1, 2])
        worker.append("a", 4)
        worker.append("b", 8)
        assert (worker.list_of("a"), worker.list_of("b")) == ([3, 4], [8])

    def test_what_was_appended_after_a_barrier_is_not_in_its_epoch(self) -> None:
        worker = Worker()
        worker.append("a", 1)
        worker.freeze(1)
        worker.append("a", 2)
        worker.lists.pop(users("a"), 1)
        worker.complete(1)
        assert (worker.restored(1).list_of("a"), worker.list_of("a")) == ([1], [2])


class TestMaps:
    def test_entries_are_in_the_order_of_their_keys(self) -> None:
        worker = Worker()
        worker.put("a", z=1, m=2, mm=3)
        worker.put("a", m=4)
        worker.put("ab", x=5)
        assert list(worker.map_of("a").items()) == [("m", 4), ("mm", 3), ("z", 1)]
        names = [pa.array(["m", "q", "m"])]
        assert (worker.maps.get(users("a", "a", "b"), names) >= 0).tolist() == [True, False, False]

    def test_deleting_a_range_deletes_nothing_else_also_after_a_restore(self) -> None:
        worker = Worker()
        worker.put("a", k=1, l=2, m=3, n=4)
        worker.put("b", l=5)
        worker.checkpoint(1)
        assert worker.maps.delete(users("a"), [pa.array(["l"])], [pa.array(["n"])]) == 2
        worker.checkpoint(2)
        for each in (worker, worker.restored(2)):
            assert (each.map_of("a"), each.map_of("b")) == ({"k": 1, "n": 4}, {"l": 5})
        assert worker.maps.delete(users("a")) == 2
        worker.checkpoint(3)
        assert (worker.restored(3).map_of("a"), worker.restored(2).map_of("a")) == ({}, {"k": 1, "n": 4})

    def test_looking_for_entries_adds_none(self) -> None:
        worker = Worker()
        worker.put("a", k=1)
        worker.maps.get(users("a", "b"), [pa.array(["x", "y"])])
        worker.timers.clear(users("a"), ints(1))
        assert (len(worker.maps.table), len(worker.timers.table)) == (1, 0)


class TestTimers:
    def test_fire_in_order_up_to_a_time_and_once(self) -> None:
        worker = Worker()
        worker.timers.set(users("b", "a", "a", "c"), ints(0, 1, 0, 0), ints(10, 10, 10, 11))
        assert worker.timers.next_us() == 10
        assert worker.fire(9) == []
        assert worker.fire(10) == [("a", 0, 10), ("a", 1, 10), ("b", 0, 10)]
        assert worker.fire(10) == [] and worker.timers.next_us() == 11

    def test_setting_a_timer_again_replaces_its_time(self) -> None:
        worker = Worker()
        worker.timers.set(users("a", "b"), ints(0, 0), ints(5, 6))
        worker.timers.set(users("a"), ints(0), ints(8))
        assert worker.fire(7) == [("b", 0, 6)]
        worker.timers.clear(users("a", "b"), ints(0, 0))
        assert worker.fire(NEVER - 1) == [] and worker.timers.next_us() is None

    def test_fire_again_after_a_rollback_and_not_after_a_commit(self) -> None:
        worker = Worker()
        worker.timers.set(users("a", "b"), ints(0, 0), ints(5, 6))
        worker.checkpoint(1)
        assert worker.fire(5) == [("a", 0, 5)]
        worker.timers.set(users("b", "c"), ints(0, 0), ints(1, 1))
        assert worker.timers.next_us() == 1  # the order has seen these changes
        assert worker.store.roll_back(Epoch(1))
        assert worker.fire(5) == [("a", 0, 5)]
        worker.checkpoint(2)
        assert worker.store.roll_back(Epoch(2))
        assert worker.fire(9) == [("b", 0, 6)]
        assert worker.restored(1).fire(9) == [("a", 0, 5), ("b", 0, 6)]
        assert worker.restored(2).fire(9) == [("b", 0, 6)]

    def test_fire_on_one_of_the_workers_that_share_the_state(self) -> None:
        worker = Worker()
        names = [f"user {number}" for number in range(40)]
        worker.timers.set(users(*names), np.zeros(40, np.int64), np.arange(40))
        worker.checkpoint(1)
        halves = [worker.restored(1, owned).fire(99) for owned in ((0, 3), (3, GROUPS))]
        assert all(half == sorted(half, key=lambda fired: fired[2]) and half for half in halves)
        assert sorted(name for half in halves for name, _, _ in half) == sorted(names)

    def test_fired_timers_leave_no_slots_behind(self) -> None:
        worker = Worker()
        for epoch in range(1, 4):
            names = [f"user {epoch}.{number}" for number in range(2_000)]
            worker.timers.set(users(*names), np.zeros(2_000, np.int64), np.arange(2_000))
            worker.fire(NEVER - 1)
            worker.checkpoint(epoch)
            drop_absent(worker.timers.table, AT.name)
        assert len(worker.timers.table) == 0


class TestTimeToLive:
    def test_is_exact(self) -> None:
        worker = Worker()
        worker.append("a", 1, expires=10)
        worker.append("a", 2, expires=11)
        worker.append("a", 3)
        assert expire(worker.lists.table, 9) == 0
        assert expire(worker.lists.table, 10) == 1
        assert worker.list_of("a") == [2, 3]

    def test_the_time_to_live_of_a_row_is_the_same_after_a_restore_and_a_rewind(self) -> None:
        worker = Worker()
        worker.append("a", 1, expires=10)
        worker.checkpoint(1)
        worker.append("a", 2, expires=20)
        expire(worker.lists.table, 15)
        worker.checkpoint(2)
        rewound, restored = worker.restored(1), worker.restored(2)
        assert (rewound.list_of("a"), restored.list_of("a")) == ([1], [2])
        assert (expire(rewound.lists.table, 9), expire(restored.lists.table, 19)) == (0, 0)
        assert (expire(rewound.lists.table, 10), expire(restored.lists.table, 20)) == (1, 1)

    def test_counts_from_the_last_write_of_a_row(self) -> None:
        worker = Worker()
        slots = worker.lists.append(users("a"), {"n": ints(1), EXPIRES: ints(10)})
        assert expire(worker.lists.table, 5) == 0
        worker.lists.table.changing(slots)(EXPIRES)[slots] = 30
        assert expire(worker.lists.table, 29) == 0 and expire(worker.lists.table, 30) == 1
