"""Compiled tables against the NumPy tables that they replaced and against a dictionary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cramped import MEMORIES, UNIT_BITS
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracle_table import NumpyTable

from holdfast.model import Epoch
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables import epochs, indexed, placing
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.kernels.layout import Control, Do
from holdfast.state.tables.slab import Memory
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec, Values
from holdfast.state.tables.table import StateTable

GROUPS = 4
TIME = pa.timestamp("us", "UTC")
COLUMNS = (
    ColumnSpec("n", np.dtype(np.int64)),
    ColumnSpec("low", np.dtype(np.int16), 99),
    ColumnSpec("top", np.dtype(np.float32), float("nan")),
    ColumnSpec("seen", np.dtype(np.bool_)),
    ColumnSpec("note", pa.utf8(), nullable=True),
    ColumnSpec("size", np.dtype(np.int16), nullable=True),
    ColumnSpec("blob", pa.binary()),
    ColumnSpec("sure", np.dtype(np.bool_), nullable=True),
    ColumnSpec("level", np.dtype(np.float32), nullable=True),
)
PLAIN = 4
GIVEN: dict[str, list[Any]] = {
    "note": [None, "", "a", "b\x00", "é", "a longer text than one word", "x" * 300],
    "size": [None, 0, -1, 300],
    "blob": [b"", b"\x00", b"\xff\xfe", b"y" * 200],
    "sure": [None, True, False],
    "level": [None, 0.5, float("nan"), -1.0],
}
"""Values of columns that are not plain."""
KINDS = {
    "integer": KeyType(("k",), (pa.int64(),)),
    "nullable": KeyType(("k",), (pa.int32(),), (True,)),
    "window": KeyType(("end", "k"), (TIME, pa.int64()), unrouted=1),
    "mixed": KeyType(("end", "b", "d"), (TIME, pa.bool_(), pa.date32()), (False, True, True), unrouted=1),
    "text": KeyType(("k",), (pa.utf8(),), (True,)),
    "window of text": KeyType(("end", "k"), (TIME, pa.large_utf8()), unrouted=1),
}
TEXTS = ["", "a", "a\x00b", "same start", "same stars", "long enough for more than one word", None, "b", "\x00", "ccc"]
Row = tuple[Any, ...]


def key_of(kind: KeyType, number: int) -> Row:
    """Return the key with this number; different numbers are different keys."""
    values: list[Any] = []
    for i, (column, nullable) in enumerate(zip(kind.types, kind.nullable, strict=True)):
        if kind.unrouted and i == 0:
            values.append(number % 5)
            number //= 5
        elif pa.types.is_boolean(column):
            values.append((None, True, False)[number % 3])
            number //= 3
        elif pa.types.is_string(column) or pa.types.is_large_string(column):
            text = TEXTS[number % 10]
            values.append(text if number < 10 and (nullable or text is not None) else f"{text}{number}")
        else:
            values.append(None if nullable and number == 0 else number)
    return tuple(values)


def encoded(kind: KeyType, numbers: list[int]) -> Keys:
    columns = zip(*(key_of(kind, number) for number in numbers), strict=True)
    return kind.encode([_array(column, each) for column, each in zip(columns, kind.types, strict=True)])


def _array(column: Row, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(kind):
        return pa.array(column, pa.int32()).view(kind)
    return pa.array(column, pa.int64()).view(kind) if pa.types.is_timestamp(kind) else pa.array(column, kind)


def values_of(column: ColumnSpec, values: list[Any]) -> Values:
    return np.array(values, column.dtype) if column.plain else pa.array(values, column.arrow)


def at_slots(table: Any, column: ColumnSpec, slots: Any) -> Values:
    """Return working values, of a table or of the oracle."""
    if column.plain or isinstance(table, NumpyTable):
        return table.column(column.name)[slots]
    return table.read(column.name, slots)


def rows_of(keys: Keys, columns: Columns) -> dict[bytes, Row]:
    values = zip(*(columns[column.name].tolist() for column in COLUMNS), strict=True)
    return dict(zip(keys.canonical().to_pylist(), (tuple(map(_comparable, row)) for row in values), strict=True))


def _comparable(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def delta_of(delta: OperatorDelta) -> tuple[Any, ...]:
    puts = dict(zip(delta.keys.canonical().to_pylist(), delta.puts.tolist(), strict=True))
    through = None if delta.through is None else delta.through.tolist()
    return delta.epoch, delta.follows, puts, rows_of(delta.keys, delta.columns), through


class Tables(RuleBasedStateMachine):
    """The life of one table, beside the oracle and a dictionary of counts. It is compacted and shrinks all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(indexed, "COMPACTED_FROM", 64)
        self.patched.setattr(indexed, "_SHRUNK_FROM", 1)
        self.patched.setattr(epochs, "COPIED_AT_ONCE", 7)
        self.patched.setattr(epochs, "LISTED_COPIED", 20)

        self.patched.setattr(placing, "UNIT_BITS", UNIT_BITS)

    @initialize(kind=st.sampled_from(sorted(KINDS)), mask=st.sampled_from([0, 3, -1]), memory=MEMORIES)
    def start(self, kind: str, mask: int, memory: Memory) -> None:
        self.kind = KINDS[kind]
        spec = TableSpec(1, kind, self.kind, COLUMNS)
        self.table, self.oracle = StateTable(spec, GROUPS, memory=memory), NumpyTable(spec, GROUPS)
        self.table._control[Control.MASK] &= mask
        self.mask = int(self.table._control[Control.MASK])
        self.steps = self.table.program(
            [(Do.COUNT, "n", 3), (Do.MIN_INT, "low", 0), (Do.MAX_FLOAT32, "top", 1), (Do.SET, "seen", 2)]
        )
        self.both: tuple[Any, Any] = (self.table, self.oracle)
        self.counts: dict[bytes, int] = {}
        self.committed: dict[bytes, int] = {}
        self.frozen: dict[Epoch, dict[bytes, int]] = {}
        self.uncompared: dict[Epoch, Any] = {}
        self.newest = Epoch(0)

    numbers = st.lists(st.integers(0, 40), min_size=1, max_size=30)

    values = st.lists(st.one_of(st.none(), st.integers(-300, 300)), min_size=30, max_size=30)

    @rule(numbers=numbers, values=values, at_slots=st.booleans())
    def fold(self, numbers: list[int], values: list[int | None], at_slots: bool) -> None:
        keys, low = encoded(self.kind, numbers), pa.array(values[: len(numbers)], pa.int16())
        whole = low.fill_null(-999).to_numpy().astype(np.int64)
        kept = [
            KernelInput(whole, low),
            KernelInput(whole.astype(np.float64), low),
            KernelInput(np.ones_like(whole)),
            KernelInput(None),
        ]
        inputs = sources_of(kept)
        if at_slots:
            self.table.fold_at(self.table.slots(keys), self.steps, inputs)
        else:
            self.table.fold(keys, self.steps, inputs)
        slots, rows = self.oracle.slots(keys), np.flatnonzero(low.is_valid().to_numpy(zero_copy_only=False))
        given = low.fill_null(0).to_numpy()[rows]
        np.add.at(self.oracle.column("n"), slots, 1)
        np.minimum.at(self.oracle.column("low"), slots[rows], given)
        np.fmax.at(self.oracle.column("top"), slots[rows], given.astype(np.float32))
        self.oracle.column("seen")[slots] = True
        self.oracle.touch(slots)
        for key in keys.canonical().to_pylist():
            self.counts[key] = self.counts.get(key, 0) + 1

    @rule(numbers=numbers, data=st.data())
    def write(self, numbers: list[int], data: st.DataObject) -> None:
        keys, of = encoded(self.kind, numbers), {column.name: column for column in COLUMNS}
        names = data.draw(st.lists(st.sampled_from(sorted(GIVEN)), min_size=1, unique=True))
        seed = data.draw(st.integers(0, 999))
        random = np.random.default_rng(seed)
        given = {name: [GIVEN[name][i] for i in random.integers(0, len(GIVEN[name]), len(keys))] for name in names}
        slots = self.table.slots(keys)
        self.table.write(slots, {name: values_of(of[name], values) for name, values in given.items()})
        slots = self.oracle.slots(keys)
        for name, values in given.items():
            for slot, value in zip(slots.tolist(), values, strict=True):
                self.oracle.column(name)[slot] = value
        self.oracle.touch(slots)
        for key in keys.canonical().to_pylist():
            self.counts.setdefault(key, 0)

    @rule(first=st.integers(0, 3_000), count=st.integers(200, 1_500))
    def grow(self, first: int, count: int) -> None:
        if self.mask < 4:
            count //= 10  # every key collides
        keys = encoded(self.kind, list(range(first, first + count)))
        for table in self.both:
            slots = table.slots(keys)
            np.add.at(table.changing(slots)("n"), slots, 1)
        for key in keys.canonical().to_pylist():
            self.counts[key] = self.counts.get(key, 0) + 1

    @rule(numbers=numbers)
    def delete(self, numbers: list[int]) -> None:
        keys = encoded(self.kind, numbers)
        for table in self.both:
            table.delete(table.slots(keys))
        for key in keys.canonical().to_pylist():
            self.counts.pop(key, None)

    @precondition(lambda self: self.kind.unrouted)
    @rule(last=st.integers(0, 5), groups=st.integers(1, GROUPS))
    def expire(self, last: int, groups: int) -> None:
        through = np.full(GROUPS, -(1 << 63))
        through[:groups] = last
        for table in self.both:
            slots = table.present()
            ends = table.keys_at(slots).leading()
            gone = ends <= through[table.keys_at(slots).key_groups(GROUPS)]
            table.expire(slots[gone], through)
        keys = self.kind.from_canonical(pa.array(list(self.counts), pa.large_binary()))
        kept = keys.leading() > through[keys.key_groups(GROUPS)]
        self.counts = {
            key: count for (key, count), stays in zip(self.counts.items(), kept.tolist(), strict=True) if stays
        }

    @rule(completes=st.booleans())
    def barrier(self, completes: bool) -> None:
        self.newest = epoch = Epoch(self.newest + 1)
        base = self.table.committed_through
        for table in self.both:
            table.freeze(epoch, base)
        self.uncompared[epoch] = delta_of(self.oracle.delta(epoch))
        self.frozen[epoch] = dict(self.counts)
        if completes:
            self.compare_frozen()
            for table in self.both:
                table.commit(epoch)
            self.committed, self.frozen = self.frozen[epoch], {}

    @rule(records=st.integers(1, 8))
    def advance(self, records: int) -> None:
        self.table.advance(records)

    @rule()
    def compare_frozen(self) -> None:
        """What was frozen has not changed since."""
        for epoch, expected in self.uncompared.items():
            assert delta_of(self.table.delta(epoch).whole()) == expected
        self.uncompared.clear()

    @rule()
    def roll_back(self) -> None:
        self.uncompared.clear()
        base = self.table.committed_through
        assert self.table.roll_back(base) and self.oracle.roll_back(base)
        self.counts, self.frozen = dict(self.committed), {}

    @rule(numbers=numbers, puts=st.lists(st.booleans(), min_size=30, max_size=30))
    def absorb(self, numbers: list[int], puts: list[bool]) -> None:
        self.roll_back()
        numbers = sorted(set(numbers))
        keys = encoded(self.kind, numbers)
        columns: Columns = {
            column.name: np.full(len(keys), 7 + i, column.dtype) for i, column in enumerate(COLUMNS[:PLAIN])
        }
        for column in COLUMNS[PLAIN:]:
            known = GIVEN[column.name]
            columns[column.name] = values_of(column, [known[number % len(known)] for number in numbers])
        self.newest = Epoch(self.newest + 1)
        put = np.array(puts[: len(numbers)])
        delta = OperatorDelta(self.newest, Epoch(self.newest - 1), 1, GROUPS, keys, put, columns)
        for table in self.both:
            table.absorb(delta)
            table.committed_through = self.newest
        for key, there in zip(keys.canonical().to_pylist(), put.tolist(), strict=True):
            self.counts.pop(key, None)
            self.counts |= {key: 7} if there else {}
        self.committed = dict(self.counts)

    @rule()
    def drop_vacant(self) -> None:
        slots = self.table.changed()
        before = self.table.keys_at(slots).canonical().to_pylist()
        self.table.drop_vacant()
        self.oracle.drop_vacant()
        assert self.table.keys_at(slots).canonical().to_pylist() == before, "slots of remaining records changed"

    @rule()
    def list_present(self) -> None:
        for table in self.both:
            slots = table.present()
            counts = table.column("n")[slots].tolist()
            assert dict(zip(table.keys_at(slots).canonical().to_pylist(), counts, strict=True)) == self.counts

    @rule(numbers=numbers)
    def look(self, numbers: list[int]) -> None:
        keys, both = encoded(self.kind, numbers), []
        for table in self.both:
            slots = table.slots(keys)
            both.append(
                (
                    table.is_present(slots).tolist(),
                    rows_of(keys, {c.name: at_slots(table, c, slots) for c in COLUMNS}),
                )
            )
        assert both[0] == both[1]
        key = key_of(self.kind, numbers[0])
        if not self.kind.unrouted:
            one, two = self.table.get_committed(key), self.oracle.get_committed(key)
            assert (one and list(map(_comparable, one.values()))) == (two and list(map(_comparable, two.values())))

    @invariant()
    def the_index_knows_every_record(self) -> None:
        if not hasattr(self, "table"):
            return
        used = self.table._scan(0)
        assert len(self.table) == used.size
        assert self.table.find(self.table.keys_at(used)).tolist() == used.tolist()

    def teardown(self) -> None:
        self.patched.undo()
        if hasattr(self, "table"):
            self.list_present()


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
