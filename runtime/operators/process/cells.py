"""The state of a keyed function while it handles a batch: the run-time form of its attributes.

A batch touches few keys, numbered from 0 in a `Frame`. Values are read once per batch for all of these keys, lists and
maps at their first use in the batch; the function then works on Python objects, and changes are written once. So
a key that occurs a thousand times costs one read and one write.

Invariants
    - Nothing is written to a table before the whole batch is handled, so a batch can be handled again.
    - `undo` returns to the state before the current record or timer.
    - A value whose time has come is not returned, whether or not it was deleted already.

Pure.
Source: docs/decisions/0065-keyed-functions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappush
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime.functions.users.keyed_process import EVENT
from holdfast.runtime.rows.row_types import values_of
from holdfast.runtime.rows.state_types import StateType, WrongValue
from holdfast.state.collections.lists import Lists
from holdfast.state.collections.maps import Maps
from holdfast.state.collections.rows import EXPIRES, NEVER, drop_absent, expire
from holdfast.state.collections.timers import AT, Timers
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.table import StateTable

VALUE = "value"
"""The column of values in the tables of lists, maps and values with a time to live."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
Rows = NDArray[np.int64]


@dataclass
class Frame:
    """The keys of one batch, and the current record or timer."""

    users: Keys
    slots: Rows
    """Per key: its row in the operator's own table."""
    k: int = 0
    """The number of the current key."""
    at_us: int = NEVER_US
    """Event time of the record, or of the timer if it is one of event time."""
    clock_us: int = NEVER_US
    """Event time that the key has reached."""
    now_us: int = 0
    journal: list[tuple[Callable[..., None], int, Any]] | None = None
    """How to undo the changes so far; None if nothing is ever undone."""
    firing: Firing | None = None

    def seen_us(self) -> int:
        """Return event time as the function sees it: the last time of all once the input has ended."""
        firing = self.firing
        is_last = firing is not None and firing.clock == EVENT and firing.horizon_us == LAST_US
        return LAST_US if is_last else self.clock_us

    def undo(self) -> None:
        """Undo all changes in the journal."""
        assert self.journal is not None
        for back, k, old in reversed(self.journal):
            back(k, old)
        self.journal.clear()


@dataclass
class Firing:
    """The timers that one round fires, in order of (time, key, timer)."""

    clock: str
    """Whether they are timers of event time or of processing time."""
    horizon_us: int
    """The watermark, or the processing time: timers that are set for a time up to this one are due too."""
    at_us: int = NEVER_US
    """The time of the current timer."""
    heap: list[tuple[int, int, int]] = field(default_factory=list)


class Life:
    """When values expire, by the clock that their declaration names."""

    def __init__(self, frame: Callable[[], Frame], clock: str, ttl_us: int) -> None:
        self._frame, self._event, self.ttl_us = frame, clock == EVENT, ttl_us

    def ends(self) -> int:
        """Return when a value that is set now expires."""
        if not self.ttl_us:
            return NEVER
        frame = self._frame()
        base = max(frame.at_us, frame.clock_us) if self._event else frame.now_us
        return min(base + self.ttl_us, NEVER - 1)

    def now_us(self) -> int:
        """Return the time up to which values have expired; it is at least that of the current record.

        The watermark comes after the records, in microbatch mode after all of an epoch.
        """
        frame = self._frame()
        return min(max(frame.at_us, frame.clock_us) if self._event else frame.now_us, NEVER - 1)


class Own:
    """Base of all cells: their table, and the current frame."""

    table: StateTable
    frame: Frame

    def current(self) -> Frame:
        """Return the current frame."""
        return self.frame

    def begin(self, frame: Frame) -> None:
        """Begin a batch."""
        self.frame = frame

    def store(self) -> None:
        """Write what changed."""

    def expire(self, clock: str, at_us: int) -> None:
        """Delete values that have expired by this clock."""

    def tidy(self) -> None:
        """Drop slots without a row, if there are many; called at a barrier."""


class ValueCell:
    """`hf.Value` at run time."""

    __slots__ = ("_decode", "_encode", "_life", "_rows", "dirty", "expires", "values")

    def __init__(self, rows: ValueRows, kind: StateType, life: Life | None) -> None:
        self._rows, self._encode, self._decode, self._life = rows, kind.encode, kind.decode, life
        self.values: list[Any] = []
        """Stored values by number of the key."""
        self.expires: list[int] = []
        self.dirty: set[int] = set()

    def get(self, default: Any = None) -> Any:
        k = self._rows.frame.k
        value = self.values[k]
        if value is None or (self._life is not None and self.expires[k] <= self._life.now_us()):
            return default
        return value if self._decode is None else self._decode(value)

    def set(self, value: Any) -> None:
        self._put(self._encode(value), NEVER if self._life is None else self._life.ends())

    def clear(self) -> None:
        self._put(None, NEVER)

    def _put(self, value: Any, expires: int) -> None:
        frame = self._rows.frame
        k = frame.k
        if frame.journal is not None:
            frame.journal.append((self._back, k, (self.values[k], self.expires[k] if self._life else NEVER)))
        self.values[k] = value
        if self._life is not None:
            self.expires[k] = expires
        self.dirty.add(k)

    def _back(self, k: int, old: tuple[Any, int]) -> None:
        self.values[k] = old[0]
        if self._life is not None:
            self.expires[k] = old[1]


class ValueRows(Own):
    """The values of one table, one row per key.

    Args:
        table: The operator's own table, or that of one value with a time to live.
        kinds: By column.
    """

    def __init__(self, table: StateTable, kinds: dict[str, StateType], clock: str = EVENT, ttl_us: int = 0) -> None:
        self.table, self._kinds, self._clock = table, kinds, clock
        self._expiring = ttl_us > 0
        life = Life(self.current, clock, ttl_us) if self._expiring else None
        self.cells = {name: ValueCell(self, kind, life) for name, kind in kinds.items()}
        self._slots: Rows = np.empty(0, np.int64)
        self.looked_up = 0
        """Slots added since vacant slots were last dropped."""

    def begin(self, frame: Frame) -> None:
        super().begin(frame)
        size = len(self.table)
        self._slots = self.table.slots(frame.users) if self._expiring else frame.slots
        self.looked_up += len(self.table) - size
        for name, cell in self.cells.items():
            cell.values = values_of(self.table.read(name, self._slots))
            cell.dirty.clear()
            if self._expiring:
                cell.expires = self.table.values(EXPIRES, self._slots).tolist()

    def store(self) -> None:
        dirty_keys = sorted(set().union(*(cell.dirty for cell in self.cells.values())))
        if not dirty_keys:
            return
        rows = np.array(dirty_keys, np.int64)
        columns: dict[str, Any] = {}
        present = np.zeros(rows.size, bool)
        for name, cell in self.cells.items():
            array = pa.array([cell.values[k] for k in dirty_keys], self._kinds[name].arrow)
            columns[name] = array
            present |= array.is_valid().to_numpy(zero_copy_only=False)
        if self._expiring:
            (cell,) = self.cells.values()
            columns[EXPIRES] = np.array([cell.expires[k] for k in dirty_keys], np.int64)
        self._write(self._slots[rows], columns, present)

    def _write(self, slots: Rows, columns: dict[str, Any], present: NDArray[np.bool_]) -> None:
        gone = slots[~present]
        if gone.size:
            self.table.delete(gone)
            if gone.size == slots.size:
                return
            slots = slots[present]
            columns = {
                name: values[present] if type(values) is np.ndarray else values.filter(pa.array(present))
                for name, values in columns.items()
            }
        self.table.touch(slots)
        self.table.write(slots, columns)

    def expire(self, clock: str, at_us: int) -> None:
        if self._expiring and clock == self._clock:
            expire(self.table, min(at_us, NEVER - 1))

    def tidy(self) -> None:
        if self.table.mostly_vacant(self.looked_up):
            self.table.drop_vacant()
            self.looked_up = 0


class StoredEntry(NamedTuple):
    """An element of a list or an entry of a map, as it is stored."""

    value: Any
    expires: int


class _Collection(Own):
    """Base of lists and maps."""

    def __init__(self, table: StateTable, kind: StateType, clock: str, ttl_us: int) -> None:
        self.table, self._kind, self._clock, self._expiring = table, kind, clock, ttl_us > 0
        self._life = Life(self.current, clock, ttl_us)
        self.loaded = False

    def begin(self, frame: Frame) -> None:
        super().begin(frame)
        self.loaded = False

    def _kept(self, value: Any) -> StoredEntry:
        return StoredEntry(self._kind.encode(value), self._life.ends())

    def _value(self, kept: StoredEntry) -> Any:
        return kept.value if self._kind.decode is None else self._kind.decode(kept.value)

    def _alive(self, kept: StoredEntry) -> bool:
        return not self._expiring or kept.expires > self._life.now_us()

    def _read(self, slots: Rows) -> list[StoredEntry]:
        values = values_of(self.table.read(VALUE, slots))
        ends = self.table.values(EXPIRES, slots).tolist() if self._expiring else [NEVER] * len(values)
        return list(map(StoredEntry, values, ends))

    def _columns(self, kept: Sequence[StoredEntry]) -> dict[str, Any]:
        columns: dict[str, Any] = {VALUE: pa.array([each.value for each in kept], self._kind.arrow)}
        if self._expiring:
            columns[EXPIRES] = np.array([each.expires for each in kept], np.int64)
        return columns

    def expire(self, clock: str, at_us: int) -> None:
        if self._expiring and clock == self._clock:
            expire(self.table, min(at_us, NEVER - 1))

    def tidy(self) -> None:
        drop_absent(self.table)


@dataclass
class _Listed:
    """The list of one key."""

    items: list[StoredEntry]
    stored: int
    """So many of the first items are rows of the table."""
    popped: int = 0
    """So many rows before them are to be deleted."""
    gone: int = 0
    """So many of the first items were removed; they stay until the frame ends, so removing one moves no others."""

    def rest(self) -> list[StoredEntry]:
        """Return the items that were not removed; the list itself if none was."""
        return self.items[self.gone :] if self.gone else self.items


class ListCell(_Collection):
    """`hf.List` at run time."""

    def __init__(self, table: StateTable, kind: StateType, clock: str, ttl_us: int) -> None:
        super().__init__(table, kind, clock, ttl_us)
        self._lists = Lists(table)
        self._all: list[_Listed] = []
        self._dirty: set[int] = set()

    def get(self) -> list[Any]:
        return [self._value(kept) for kept in self._at().rest() if self._alive(kept)]

    def append(self, value: Any) -> None:
        kept = self._kept(value)
        self._changing().items.append(kept)

    def pop_first(self) -> Any:
        list_state = self._changing()
        while list_state.gone < len(list_state.items):
            first = list_state.items[list_state.gone]
            list_state.gone += 1
            if list_state.stored:
                list_state.stored, list_state.popped = list_state.stored - 1, list_state.popped + 1
            if self._alive(first):
                return self._value(first)
        return None

    def clear(self) -> None:
        listed = self._changing()
        listed.gone, listed.popped, listed.stored = len(listed.items), listed.popped + listed.stored, 0

    def __len__(self) -> int:
        listed = self._at()
        return sum(map(self._alive, listed.rest())) if self._expiring else len(listed.items) - listed.gone

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def store(self) -> None:
        if not self.loaded or not self._dirty:
            return
        dirty = [(k, self._all[k]) for k in sorted(self._dirty)]
        if popped := [(k, listed.popped) for k, listed in dirty if listed.popped]:
            ks, limits = np.array(popped, np.int64).T
            self._lists.pop(self.frame.users.take(ks), limits)
        if added := [(k, kept) for k, listed in dirty for kept in listed.items[listed.gone + listed.stored :]]:
            users = self.frame.users.take(np.array([k for k, _ in added], np.int64))
            self._lists.append(users, self._columns([kept for _, kept in added]))

    def _at(self) -> _Listed:
        if not self.loaded:
            found = self._lists.find(self.frame.users)
            kept, bounds = self._read(found.slots), [0, *np.cumsum(found.counts).tolist()]
            self._all = [_Listed(kept[first:end], end - first) for first, end in pairwise(bounds)]
            self._dirty, self.loaded = set(), True
        return self._all[self.frame.k]

    def _changing(self) -> _Listed:
        list_state, frame = self._at(), self.frame
        if frame.journal is not None:
            old = len(list_state.items), list_state.gone, list_state.stored, list_state.popped
            frame.journal.append((self._back, frame.k, old))
        self._dirty.add(frame.k)
        return list_state

    def _back(self, k: int, old: tuple[int, int, int, int]) -> None:
        listed = self._all[k]
        size, listed.gone, listed.stored, listed.popped = old
        del listed.items[size:]


class MapCell(_Collection):
    """`hf.Map` at run time."""

    def __init__(
        self,
        table: StateTable,
        kind: StateType,
        clock: str,
        ttl_us: int,
        keys: pa.DataType,
        encode: Callable[[Any], Any],
    ) -> None:
        super().__init__(table, kind, clock, ttl_us)
        self._maps, self._keys, self._encode_key = Maps(table), keys, encode
        self._all: list[dict[Any, StoredEntry]] = []
        self._dirty: dict[tuple[int, Any], None] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        kept = self._at().get(self._encode_key(key))
        return default if kept is None or not self._alive(kept) else self._value(kept)

    def set(self, key: Any, value: Any) -> None:
        self._put(self._encode_key(key), self._kept(value))

    def remove(self, key: Any) -> None:
        self._put(self._encode_key(key), None)

    def clear(self) -> None:
        for key in list(self._at()):
            self._put(key, None)

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, self._value(kept)) for key, kept in sorted(self._at().items()) if self._alive(kept)]

    def __len__(self) -> int:
        entries = self._at()
        return sum(map(self._alive, entries.values())) if self._expiring else len(entries)

    def __contains__(self, key: Any) -> bool:
        kept = self._at().get(self._encode_key(key))
        return kept is not None and self._alive(kept)

    def store(self) -> None:
        if not self.loaded or not self._dirty:
            return
        puts = [(k, key, entry) for k, key in self._dirty if (entry := self._all[k].get(key)) is not None]
        gone = [(k, key) for k, key in self._dirty if key not in self._all[k]]
        if gone:
            self._maps.remove(*self._rows([k for k, _ in gone], [key for _, key in gone]))
        if puts:
            at = self._rows([k for k, _, _ in puts], [key for _, key, _ in puts])
            self._maps.put(*at, self._columns([entry for _, _, entry in puts]))

    def _rows(self, ks: list[int], keys: list[Any]) -> tuple[Keys, list[pa.Array]]:
        return self.frame.users.take(np.array(ks, np.int64)), [pa.array(keys, self._keys)]

    def _at(self) -> dict[Any, StoredEntry]:
        if not self.loaded:
            found = self._maps.find(self.frame.users)
            (keys,) = self._maps.map_keys(found.slots)
            pairs = list(zip(values_of(keys), self._read(found.slots), strict=True))
            bounds = [0, *np.cumsum(found.counts).tolist()]
            self._all = [dict(pairs[first:end]) for first, end in pairwise(bounds)]
            self._dirty, self.loaded = {}, True
        return self._all[self.frame.k]

    def _put(self, key: Any, kept: StoredEntry | None) -> None:
        entries, frame = self._at(), self.frame
        if frame.journal is not None:
            frame.journal.append((self._back, frame.k, (key, entries.get(key))))
        self._dirty[frame.k, key] = None
        if kept is None:
            entries.pop(key, None)
        else:
            entries[key] = kept

    def _back(self, k: int, old: tuple[Any, StoredEntry | None]) -> None:
        key, entry = old
        if entry is None:
            self._all[k].pop(key, None)
        else:
            self._all[k][key] = entry


class TimerCell(Own):
    """`hf.Timer` at run time. It has its own table, so timers can be added without a change to the others."""

    def __init__(self, table: StateTable, number: int, name: str, handler: str, clock: str = EVENT) -> None:
        self.table, self.timers = table, Timers(table)
        self.number, self.name, self.handler, self.clock = number, name, handler, clock
        self.due: dict[int, int] = {}
        """By key: the time of the timer that fires in this round."""
        self._changes: dict[int, int | None] = {}

    def begin(self, frame: Frame) -> None:
        super().begin(frame)
        self.due, self._changes = {}, {}

    def set(self, at: datetime) -> None:
        if type(at) is not datetime and not hasattr(at, "utcoffset"):
            raise WrongValue(f"timer {self.name!r} takes a datetime, not {type(at).__name__} {at!r:.80}")
        if at.utcoffset() is None:
            raise WrongValue(f"timer {self.name!r} takes a datetime with a time zone, not {at}")
        at_us, firing = (at - _EPOCH) // _MICROSECOND, self.frame.firing
        if firing is not None and firing.clock != self.clock:
            firing = None  # set in a handler of the other clock, as by a record
        if firing is not None and at_us <= firing.at_us:
            raise WrongValue(f"a timer that fires at {firing.at_us} us set timer {self.name!r} to {at}, not later")
        self._put(at_us)
        if firing is not None and at_us <= firing.horizon_us:
            self.due[self.frame.k] = at_us
            heappush(firing.heap, (at_us, self.frame.k, self.number))

    def clear(self) -> None:
        self._put(None)

    def fired(self, k: int, at_us: int) -> bool:
        """Note that the timer of a key fires; return False if it was set to another time or cleared meanwhile."""
        if self.due.get(k) != at_us:
            return False
        del self.due[k]
        if k in self._changes:
            self._changes[k] = None
        return True

    def _put(self, at_us: int | None) -> None:
        frame, k = self.frame, self.frame.k
        if frame.journal is not None:
            frame.journal.append((self._back, k, (self._changes.get(k, _NONE), self.due.get(k))))
        self.due.pop(k, None)
        self._changes[k] = at_us

    def _back(self, k: int, old: tuple[Any, int | None]) -> None:
        changes, due = old
        _restore(self._changes, k, None if changes is _NONE else changes, changes is not _NONE)
        _restore(self.due, k, due, due is not None)

    def store(self) -> None:
        """Write changes; a timer that was due and did not fire returns to the table."""
        changes = self._changes | self.due
        for is_deletion in (True, False):
            ks = [k for k, at in changes.items() if (at is None) is is_deletion]
            if ks:
                users, zeros = self.frame.users.take(np.array(ks, np.int64)), np.zeros(len(ks), np.int64)
                if is_deletion:
                    self.timers.clear(users, zeros)
                else:
                    self.timers.set(users, zeros, np.array([changes[k] for k in ks], np.int64))

    def first_due(self, through_us: int, limit: int) -> Rows:
        """Return the times of the first timers that are due, at most `limit`."""
        return self.table.values(AT.name, self.table.ordered(AT.name).through(through_us, limit))

    def tidy(self) -> None:
        drop_absent(self.table, AT.name)


_NONE: Any = object()
"""No change is noted, which differs from a noted removal."""


def _restore(mapping: dict[int, Any], key: int, value: Any, there: bool) -> None:
    if there:
        mapping[key] = value
    else:
        mapping.pop(key, None)


def time_of(at_us: int) -> datetime | None:
    """Return a time as functions see it; None before any, the last time of all after the end."""
    if at_us == NEVER_US:
        return None
    return datetime.max.replace(tzinfo=UTC) if at_us == LAST_US else _EPOCH + timedelta(microseconds=at_us)
