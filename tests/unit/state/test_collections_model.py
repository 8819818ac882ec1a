"""Lists, maps and timers of one worker against Python lists and dictionaries, through every way a store can go."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cramped import CrampedState
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from killed_worker import GROUPS, RewoundWorker

from holdfast.model import Epoch
from holdfast.state.collections.lists import Lists
from holdfast.state.collections.maps import Maps
from holdfast.state.collections.rows import EXPIRES, NEVER, drop_absent, expire
from holdfast.state.collections.timers import AT, Timers
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.store import Piece, StateStore
from holdfast.state.tables.spec import ColumnSpec

pytestmark = pytest.mark.thorough

BY_NAME = KeyType(("name",), (pa.utf8(),), (True,))
BY_NUMBER = KeyType(("number_of_user",), (pa.int64(),))
MAP_KEY = KeyType(("entry", "level"), (pa.utf8(), pa.int32()), (True, False))
VALUE = ColumnSpec("n", np.dtype(np.int64))
SPECS = (
    Lists.spec(1, "lists", BY_NAME, [VALUE], expiring=True),
    Maps.spec(2, "maps", BY_NUMBER, MAP_KEY, [VALUE], expiring=True),
    Timers.spec(3, "timers", BY_NAME),
    Timers.spec(4, "timers by number", BY_NUMBER),
)
NAMES = ["a", "a\x00", "", None, "user 000001", "user 000002"]
ENTRIES = ["", "b", "b\x00", "bb", None, "long entry 1", "long entry 2"]
NUMBERS = [0, -1, 5, 1 << 40]
Entry = tuple[str | None, int]
Element = tuple[int, int]
"""A value, and when it expires."""

times = st.integers(0, 20) | st.just(NEVER)
users = st.integers(0, 5)
rows = st.lists(st.tuples(users, st.integers(0, 99), times), min_size=1, max_size=12)
entries = st.tuples(st.sampled_from(ENTRIES), st.integers(-1, 2))
puts = st.lists(st.tuples(st.integers(0, 3), entries, st.integers(0, 99), times), min_size=1, max_size=12)
timers = st.lists(st.tuples(users, st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=8)


@dataclass
class Model:
    """What the collections hold; a timer's key is the number of its table, the user key, and its own number."""

    lists: dict[str | None, list[Element]] = field(default_factory=dict)
    maps: dict[int, dict[Entry, Element]] = field(default_factory=dict)
    timers: dict[tuple[int, Any, int], int] = field(default_factory=dict)


def by_name(names: list[str | None]) -> Keys:
    return BY_NAME.encode([pa.array(names, pa.utf8())])


def by_number(numbers: list[int]) -> Keys:
    return BY_NUMBER.encode([pa.array(numbers, pa.int64())])


def entry_arrays(keys: list[Entry]) -> list[pa.Array]:
    return [pa.array([entry for entry, _ in keys], pa.utf8()), pa.array([level for _, level in keys], pa.int32())]


def rank(cell: Any) -> Any:
    """Return what sorts as canonical bytes do: nulls first."""
    return (0, b"") if cell is None else (1, cell.encode() if isinstance(cell, str) else cell)


def entry_rank(entry: Entry) -> Any:
    return rank(entry[0]), entry[1]


def contents(store: StateStore) -> Model:
    """Return everything that a store holds."""
    lists, maps, model = Lists(store.table(1)), Maps(store.table(2)), Model()
    found = lists.find(by_name(NAMES))
    values = iter(zip(*(each.tolist() for each in lists.values(found.slots).values()), strict=True))
    for name, count in zip(NAMES, found.counts.tolist(), strict=True):
        if count:
            model.lists[name] = [next(values) for _ in range(count)]
    found = maps.find(by_number(NUMBERS))
    keys = zip(*(column.to_pylist() for column in maps.map_keys(found.slots)), strict=True)
    cells = zip(keys, zip(*(each.tolist() for each in maps.values(found.slots).values()), strict=True), strict=True)
    for number, count in zip(NUMBERS, found.counts.tolist(), strict=True):
        if count:
            listed = [next(cells) for _ in range(count)]
            assert [key for key, _ in listed] == sorted((key for key, _ in listed), key=entry_rank)
            model.maps[number] = dict(listed)
    for operator in (3, 4):
        table = store.table(operator)
        slots = table.present()
        keys = zip(*(column.to_pylist() for column in table.key_columns(slots)), strict=True)
        for (user, timer), at in zip(keys, table.column(AT.name)[slots].tolist(), strict=True):
            model.timers[operator, user, timer] = at
    return model


class Collections(RewoundWorker):
    """One worker's life: batches, barriers, lost epochs, rollbacks, kills, rewinds, rescales."""

    specs = SPECS

    def __init__(self) -> None:
        super().__init__(Model())

    def continue_from(self, epoch: Epoch) -> None:
        self.working = deepcopy(self.completed[epoch])

    def wrap(self, store: StateStore) -> None:
        super().wrap(store)
        self.lists, self.maps = Lists(store.table(1)), Maps(store.table(2))
        self.timers = {operator: Timers(store.table(operator)) for operator in (3, 4)}

    # Lists

    @rule(given=rows)
    def append(self, given: list[tuple[int, int, int]]) -> None:
        names = [NAMES[user] for user, _, _ in given]
        values, at = (np.array([row[part] for row in given]) for part in (1, 2))
        self.lists.append(by_name(names), {VALUE.name: values, EXPIRES: at})
        for name, (_, value, expires) in zip(names, given, strict=True):
            self.working.lists.setdefault(name, []).append((value, expires))

    @rule(picked=st.lists(users, min_size=1, unique=True), limits=st.lists(st.integers(0, 4), min_size=6, max_size=6))
    def pop(self, picked: list[int], limits: list[int]) -> None:
        names, limit = [NAMES[user] for user in picked], limits[: len(picked)]
        popped = self.lists.pop(by_name(names), np.array(limit))
        expected = [self.working.lists.get(name, [])[:most] for name, most in zip(names, limit, strict=True)]
        for name, most in zip(names, limit, strict=True):
            self.keep_list(name, self.working.lists.get(name, [])[most:])
        assert popped.counts.tolist() == [len(each) for each in expected]
        values = zip(*(each.tolist() for each in popped.values.values()), strict=True)
        assert list(values) == [element for each in expected for element in each]

    @rule(picked=st.lists(users, min_size=1, unique=True))
    def clear(self, picked: list[int]) -> None:
        names = [NAMES[user] for user in picked]
        assert self.lists.clear(by_name(names)) == sum(len(self.working.lists.pop(name, [])) for name in names)

    @rule(user=users, skip=st.integers(0, 4), limit=st.integers(0, 4), descending=st.booleans())
    def look(self, user: int, skip: int, limit: int, descending: bool) -> None:
        found = self.lists.find(by_name([NAMES[user]] * 2), skip=skip, limit=limit, descending=descending)
        elements = [value for value, _ in self.working.lists.get(NAMES[user], [])][:: -1 if descending else 1]
        assert self.lists.values(found.slots)[VALUE.name].tolist() == elements[skip : skip + limit] * 2

    def keep_list(self, name: str | None, elements: list[Element]) -> None:
        self.working.lists.pop(name, None)
        if elements:
            self.working.lists[name] = elements

    # Maps

    @rule(given=puts)
    def put(self, given: list[tuple[int, Entry, int, int]]) -> None:
        numbers = [NUMBERS[user] for user, _, _, _ in given]
        values, at = (np.array([row[part] for row in given]) for part in (2, 3))
        self.maps.put(by_number(numbers), entry_arrays([row[1] for row in given]), {VALUE.name: values, EXPIRES: at})
        for number, (_, key, value, expires) in zip(numbers, given, strict=True):
            self.working.maps.setdefault(number, {})[key] = (value, expires)

    @rule(picked=st.lists(st.tuples(st.integers(0, 3), entries), min_size=1, max_size=6), remove=st.booleans())
    def get(self, picked: list[tuple[int, Entry]], remove: bool) -> None:
        numbers, keys = by_number([NUMBERS[user] for user, _ in picked]), entry_arrays([key for _, key in picked])
        held = [self.working.maps.get(NUMBERS[user], {}).get(key, (-1, 0))[0] for user, key in picked]
        slots = self.maps.get(numbers, keys)
        values = self.store.table(2).column(VALUE.name)
        assert [int(values[slot]) if slot >= 0 else -1 for slot in slots] == held
        if remove:
            known = {(user, key) for user, key in picked if key in self.working.maps.get(NUMBERS[user], {})}
            assert self.maps.remove(numbers, keys) == len(known)
            for user, key in known:
                self.keep_map(NUMBERS[user], {k: v for k, v in self.working.maps[NUMBERS[user]].items() if k != key})

    @rule(user=st.integers(0, 3), first=entries, end=entries, parts=st.integers(0, 2))
    def delete_range(self, user: int, first: Entry, end: Entry, parts: int) -> None:
        low, high = entry_rank(first)[:parts], entry_rank(end)[:parts]
        number = NUMBERS[user]
        bounds = [entry_arrays([bound])[:parts] for bound in (first, end)]
        before = self.working.maps.get(number, {})
        gone = [key for key in before if not parts or low <= entry_rank(key)[:parts] < high]
        assert self.maps.delete(by_number([number]), *bounds) == len(gone)
        self.keep_map(number, {key: value for key, value in before.items() if key not in gone})

    def keep_map(self, number: int, kept: dict[Entry, Element]) -> None:
        self.working.maps.pop(number, None)
        if kept:
            self.working.maps[number] = kept

    # Timers and expiry

    def users_of(self, operator: int, picked: list[int]) -> tuple[Keys, list[Any]]:
        if operator == 3:
            names = [NAMES[user] for user in picked]
            return by_name(names), list(names)
        numbers = [NUMBERS[user % 4] for user in picked]
        return by_number(numbers), list(numbers)

    @rule(operator=st.sampled_from([3, 4]), given=timers, unset=st.booleans())
    def set_timers(self, operator: int, given: list[tuple[int, int, int]], unset: bool) -> None:
        keys, named = self.users_of(operator, [user for user, _, _ in given])
        numbers = np.array([timer for _, timer, _ in given])
        if unset:
            self.timers[operator].clear(keys, numbers)
        else:
            self.timers[operator].set(keys, numbers, np.array([at for _, _, at in given]))
        for user, (_, timer, at) in zip(named, given, strict=True):
            self.working.timers.pop((operator, user, timer), None)
            if not unset:
                self.working.timers[operator, user, timer] = at
        held = [self.working.timers.get((operator, u, t), NEVER) for u, (_, t, _) in zip(named, given, strict=True)]
        assert self.timers[operator].at_us(keys, numbers).tolist() == held

    @rule(operator=st.sampled_from([3, 4]), through=st.integers(-1, 21), limit=st.none() | st.integers(0, 5))
    def fire(self, operator: int, through: int, limit: int | None) -> None:
        own = {key: at for key, at in self.working.timers.items() if key[0] == operator}
        assert self.timers[operator].next_us() == min(own.values(), default=None)
        due = sorted((at, rank(key[1]), key[2], key) for key, at in own.items() if at <= through)[:limit]
        fired = self.timers[operator].fire(through, limit)
        columns = (fired.at_us.tolist(), fired.users.type.decode(fired.users)[0].to_pylist(), fired.timers.tolist())
        assert list(zip(*columns, strict=True)) == [(at, key[1], key[2]) for at, _, _, key in due]
        for *_, key in due:
            del self.working.timers[key]

    @rule(now=st.integers(0, 20))
    def expire_rows(self, now: int) -> None:
        count = expire(self.store.table(1), now) + expire(self.store.table(2), now)
        for name, elements in list(self.working.lists.items()):
            count -= sum(at <= now for _, at in elements)
            self.keep_list(name, [(value, at) for value, at in elements if at > now])
        for number, held in list(self.working.maps.items()):
            count -= sum(at <= now for _, at in held.values())
            self.keep_map(number, {key: (value, at) for key, (value, at) in held.items() if at > now})
        assert count == 0

    # The store

    @rule(completes=st.booleans(), announced=st.booleans())
    def barrier(self, completes: bool, announced: bool) -> None:
        """Close an epoch; the one before is given up if it is not sealed."""
        self.close(Epoch(self.newest + 1), deepcopy(self.working), completes=completes, announced=announced)

    @rule(given=puts, due=timers, copied=st.integers(0, 8), announced=st.booleans())
    def return_to_a_barrier(self, given: Any, due: Any, copied: int, announced: bool) -> None:
        """Change rows and timers before a barrier and after it, and return to it."""
        self.put(given)
        self.set_timers(3, due, False)
        self.barrier(True, announced)
        self.store.advance(copied)
        self.put([(user, key, value + 1, expires) for user, key, value, expires in given])
        self.set_timers(3, due, True)
        self.seal()
        self.roll_back()
        self.compare()

    @rule(given=timers, later=rows, overwritten=st.booleans(), through=st.integers(-1, 21), announced=st.booleans())
    def lose_the_last_epoch(self, given: Any, later: Any, overwritten: bool, through: int, announced: bool) -> None:
        """Timers of a completed epoch fire in the next one; some are set again between a barrier and its upload."""
        again = later, [(user, timer, 20 - at) for user, timer, at in given]
        self.set_timers(3, given, False)
        self.complete(announced, again if overwritten else None)
        self.fire(3, through, None)
        self.complete(announced, again)
        self.kill(0.5)
        self.compare()

    def complete(self, announced: bool, later: Any) -> None:
        """Complete an epoch; `later`, if given, is written between its barrier and its segment."""
        self.barrier(True, announced)
        if later is not None:
            self.append(later[0])
            self.set_timers(3, later[1], False)
        self.seal()

    @rule()
    def drop(self) -> None:
        for operator, by in ((1, EXPIRES), (2, EXPIRES), (3, AT.name), (4, AT.name)):
            self.store.table(operator).drop_vacant()
            drop_absent(self.store.table(operator), by)

    @rule()
    def compare(self) -> None:
        assert contents(self.store) == self.working

    @rule(middle=st.integers(0, GROUPS))
    def rescale(self, middle: int) -> None:
        """Restore the head on two other workers, each with its share of the key groups."""
        both = Model()
        for owned in ((0, middle), (middle, GROUPS)):
            store = self.new_store(owned)
            store.restore(self.head, [Piece(data, (0, GROUPS)) for data in self.segments.values()])
            half = contents(store)
            assert not both.lists.keys() & half.lists.keys() and not both.maps.keys() & half.maps.keys()
            both.lists |= half.lists
            both.maps |= half.maps
            both.timers |= half.timers
        assert both == self.completed[self.head]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.compare()


class CrampedCollections(CrampedState, Collections):
    """The same in tables that are larger than their budget."""


TestCollections = Collections.TestCase
TestCollections.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestCrampedCollections = CrampedCollections.TestCase
TestCrampedCollections.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
