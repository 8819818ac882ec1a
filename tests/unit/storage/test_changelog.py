"""A changelog: records that put and delete rows by key, compacted by their mark and read as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from dying_objects import Dying
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.changelog import DELETED, puts_and_deletes
from holdfast.storage.log.compaction import CompactionResult, Compactor, Wishes
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.log.partitioning import partition_rows
from holdfast.storage.log.rewrite import Sizes
from holdfast.storage.log.table import read_table, table_schema
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import MemoryObjects

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64(), nullable=False), pa.field("word", pa.utf8())])
KEEP, DROP = Wishes(0, 10**15), Wishes(0, 0)
SMALL = Sizes(keys_max=3, segment_bytes=200)
DELETE, NOTHING = "delete", None
WRITER = "job/out/0"
Change = tuple[int, int | str | None]
"""A key, and its value, DELETE, or NOTHING: a put of nulls."""


@dataclass
class Clock:
    at: int = 1_000_000

    def __call__(self) -> int:
        return self.at


@dataclass
class World:
    """A changelog, a clock, and the operations on them."""

    store: MemoryObjects = field(default_factory=MemoryObjects)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        create_log(self.store, ROWS, partitions=2, key=["k"], changelog=True)

    def writer(self) -> LogWriter:
        return LogWriter(self.store, pause=lambda _: None, wall_us=self.clock)

    def append(self, *changes: Change) -> None:
        self.writer().append(self.records(*changes))

    def deliver(self, epoch: int, *changes: Change, timeline: int = 1) -> None:
        tag = Tag(Timeline(timeline), Epoch(epoch))
        assert self.writer().append_tagged(self.records(*changes), WRITER, tag) is not None

    def rewind(self, epoch: int, timeline: int = 2) -> None:
        self.writer().take_back(TakeBack(Tag(Timeline(timeline), Epoch(epoch)), (WRITER,), lambda _: False))

    def compact(self, wishes: Wishes = KEEP, store: MemoryObjects | None = None) -> CompactionResult:
        return Compactor(store or self.store, pause=lambda _: None, wall_us=self.clock).compact(wishes)

    def table(self, store: MemoryObjects | None = None, sizes: Sizes | None = None) -> dict[int, int | None]:
        found = [row for each in read_table(store or self.store, sizes) for row in each.rows.to_pylist()]
        assert all(row["word"] == (None if row["v"] is None else f"w{row['v']}") for row in found)
        assert len({row["k"] for row in found}) == len(found), "a key has one row"
        return {row["k"]: row["v"] for row in found}

    def records(self, *changes: Change) -> dict[int, pa.Table]:
        values = [None if isinstance(v, str) else v for _, v in changes]
        words = [None if v is None else f"w{v}" for v in values]
        columns = [
            pa.array([k for k, _ in changes], pa.int64()),
            pa.array(values, pa.int64()),
            pa.array(words, pa.utf8()),
        ]
        deleted = pa.chunked_array([pa.array([v == DELETE for _, v in changes], pa.bool_())])
        rows = pa.Table.from_arrays(columns, ROWS.names)
        return partition_rows(puts_and_deletes(rows, deleted, ["k"]), ["k"], 2)


@pytest.fixture
def world() -> World:
    return World()


class TestColumns:
    def test_the_mark_comes_first_the_key_is_never_null_and_values_may_be(self, world: World) -> None:
        meta = read_meta(world.store)
        assert meta is not None and meta.changelog and table_schema(meta) == pa.schema(list(meta.schema)[1:])
        shown = [(f.name, f.nullable) for f in meta.schema]
        assert shown == [("holdfast_deleted", False), ("k", False), ("v", True), ("word", True)]

    @pytest.mark.parametrize(
        ("schema", "key", "why"),
        [
            (ROWS, None, "a changelog needs a key"),
            (ROWS.append(DELETED), ["k"], "a row has the column 'holdfast_deleted'"),
            (ROWS, ["absent"], "key column 'absent' is not in the schema"),
            (ROWS.append(pa.field("f", pa.float64())), ["f"], "the column 'f' of type double cannot be a key"),
            (ROWS.append(ROWS.field("k")), ["k"], "has no column, or one twice"),
        ],
    )
    def test_a_changelog_that_cannot_be_is_not_created(self, schema: pa.Schema, key: list[str], why: str) -> None:
        store = MemoryObjects()
        with pytest.raises(ConfigError, match=why):
            create_log(store, schema, key=key, changelog=True)
        assert store.list("") == []

    def test_columns_are_added_behind_the_others(self, world: World) -> None:
        world.append((1, 10))
        world.writer().grow(pa.schema([pa.field("size", pa.int32())]))
        world.append((2, 20), (1, DELETE))
        world.compact()
        assert world.table() == {2: 20}
        (row,) = [row for each in read_table(world.store) for row in each.rows.to_pylist()]
        assert row == {"k": 2, "v": 20, "word": "w20", "size": None}
        meta = read_meta(world.store)
        assert meta is not None and meta.changelog and meta.schema.names[0] == DELETED.name


class TestRecords:
    def test_a_delete_has_no_value_of_any_type(self) -> None:
        rows = pa.table({"k": [1, 2], "list": [[1], [2]], "at": pa.array([{"x": 1}, {"x": 2}]), "s": ["a", "b"]})
        found = puts_and_deletes(rows, pa.chunked_array([[False, True]]), ["k"])
        assert found.to_pylist() == [
            {"holdfast_deleted": False, "k": 1, "list": [1], "at": {"x": 1}, "s": "a"},
            {"holdfast_deleted": True, "k": 2, "list": None, "at": None, "s": None},
        ]

    def test_a_delete_with_a_value_is_refused(self, world: World) -> None:
        (partition, good), *_ = world.records((1, 10), (1, DELETE)).items()
        bad = good.set_column(3, "word", pa.array(["x", "y"]))
        with pytest.raises(ConfigError, match="row 2 deletes its key, but column 'word' has a value"):
            world.writer().append({partition: bad})
        assert LogReader(world.store).newest().sequence == 0

    @pytest.mark.parametrize("column", ["holdfast_deleted", "k"])
    def test_a_null_as_mark_or_key_is_refused(self, world: World, column: str) -> None:
        (partition, good), *_ = world.records((1, 10)).items()
        at = good.schema.get_field_index(column)
        bad = good.set_column(at, column, pa.nulls(1, good.schema.field(at).type))
        with pytest.raises(ConfigError, match=f"column '{column}' holds a null"):
            world.writer().append({partition: bad})


class TestCompaction:
    def test_a_put_of_nulls_is_kept_and_a_delete_is_removed_after_its_retention(self, world: World) -> None:
        world.append((1, 10), (2, 20))
        world.append((1, NOTHING), (2, DELETE))
        assert sum(p.tombstones for p in world.compact(Wishes(0, 1_000)).partitions) == 1
        assert world.table() == {1: None}
        world.clock.at += 1_000
        result = world.compact(Wishes(0, 1_000))
        assert (sum(p.records_after for p in result.partitions), sum(p.tombstones for p in result.partitions)) == (1, 0)
        assert world.table() == {1: None}

    def test_a_put_of_nulls_is_a_tombstone_in_a_log_that_is_no_changelog(self) -> None:
        store = MemoryObjects()
        create_log(store, pa.schema([("k", pa.int64()), ("v", pa.int64())]), partitions=1, key=["k"])
        rows = pa.table({"k": [1, 2, 1], "v": pa.array([1, 2, None], pa.int64())})
        LogWriter(store).append({0: rows})
        assert [row for each in read_table(store) for row in each.rows.to_pylist()] == [{"k": 2, "v": 2}]
        Compactor(store, pause=lambda _: None).compact(DROP)
        assert [row for each in read_table(store) for row in each.rows.to_pylist()] == [{"k": 2, "v": 2}]

    @pytest.mark.thorough
    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_any_operation_changes_no_row_of_the_table(self, after: bool) -> None:
        outcomes = set()
        for operations in range(1, 300):
            world = World()
            world.append((1, 10), (2, 20), (3, 30), (4, NOTHING))
            world.append((3, DELETE))
            world.compact()
            world.append((1, 11), (4, NOTHING), (2, DELETE), (5, 50))
            want = {1: 11, 4: None, 5: 50}
            try:
                world.compact(DROP, store=Dying(world.store, operations, after=after))
            except Unavailable:
                outcomes.add(LogReader(world.store).newest().kind)
                assert world.table() == want
                world.append((6, 60))
                world.compact(DROP)
                assert world.table() == {**want, 6: 60}
                continue
            assert world.table() == want and outcomes == {"append", "compact"} and operations > 20
            return
        raise AssertionError("it never came to its end")


class Meddled(MemoryObjects):
    """The objects of another store; before one of its segments is read, something else happens."""

    def __init__(self, real: MemoryObjects, before: Callable[[], object], times: int = 1) -> None:
        super().__init__()
        self.real, self.before, self.times = real, before, times
        self.create, self.put, self.delete, self.list = real.create, real.put, real.delete, real.list  # type: ignore[method-assign]

    def get(self, path: str) -> bytes:
        if path.endswith(".arrow") and self.times:
            self.times -= 1
            self.before()
        return self.real.get(path)


class TestTable:
    def test_it_has_the_newest_put_of_every_key_that_was_not_deleted(self, world: World) -> None:
        world.append((1, 10), (2, 20), (3, 30))
        world.append((1, 11), (2, DELETE), (4, DELETE))
        world.append((1, DELETE), (1, 12), (3, NOTHING))
        assert world.table() == {1: 12, 3: None}

    def test_rows_have_their_partition_and_offset(self, world: World) -> None:
        for value in range(30):
            world.append((value % 7, value), (6, DELETE))
        for each in read_table(world.store):
            for row, offset in zip(each.rows.to_pylist(), each.offsets.tolist(), strict=True):
                batch, _, following = LogReader(world.store).read_placed(each.partition, offset, 1)
                assert batch is not None and following == offset + 1
                assert batch.to_pylist() == [{"holdfast_deleted": False, **row}]

    def test_an_empty_log_has_no_row(self, world: World) -> None:
        assert (read_table(world.store), world.table()) == ([], {})

    def test_a_log_without_a_key_has_no_table(self) -> None:
        store = MemoryObjects()
        create_log(store, ROWS)
        with pytest.raises(ConfigError, match="the log has no key"):
            read_table(store)

    def test_a_rewind_shows_the_rows_as_of_the_base_epoch(self, world: World) -> None:
        world.deliver(1, (1, 10), (2, 20), (4, DELETE))
        world.deliver(2, (1, 11), (2, DELETE), (3, 30), (4, 40))
        assert world.table() == {1: 11, 3: 30, 4: 40}
        world.rewind(1)
        assert world.table() == {1: 10, 2: 20}
        world.deliver(3, (2, 22), timeline=2)
        world.compact()
        assert world.table() == {1: 10, 2: 22}

    def test_a_compaction_during_the_read_makes_it_start_over(self, world: World) -> None:
        world.append((1, 10), (2, 20))
        world.append((1, 11), (2, DELETE), (3, 30))

        def compacted() -> None:
            world.append((5, 50))
            world.compact(DROP)

        assert world.table(Meddled(world.store, compacted)) == {1: 11, 3: 30, 5: 50}

    def test_a_read_that_compactions_keep_interrupting_ends_with_an_error(self, world: World) -> None:
        world.append((1, 10))

        def compacted() -> None:
            world.append((1, 11))
            world.compact(DROP)

        with pytest.raises(Unavailable, match="compacted 3 times while it was read"):
            world.table(Meddled(world.store, compacted, times=99))

    def test_a_missing_object_that_no_compaction_explains_is_damage(self, world: World) -> None:
        world.append((1, 10))
        world.store.delete(world.store.list("data")[0])
        with pytest.raises(Damaged, match="is missing"):
            world.table()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("deliver"),
            st.dictionaries(st.integers(0, 5), st.one_of(st.just(DELETE), st.none(), st.integers(0, 99)), max_size=5),
        ),
        st.tuples(st.just("rewind"), st.integers(0, 3)),
        st.tuples(st.just("compact"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
        st.tuples(st.just("tick"), st.integers(1, 2)),
    ),
    max_size=20,
)


class TestAnyHistory:
    @given(steps=STEPS)
    @settings(max_examples=150, deadline=None)
    def test_the_table_equals_a_dictionary(self, steps: list[tuple[str, Any]]) -> None:
        """The dictionary is kept as of every epoch, so that a rewind goes back to one of them."""
        world, epoch, timeline = World(), 0, 1
        states: dict[int, dict[int, object]] = {0: {}}
        world.clock.at = 100
        for kind, what in steps:
            newest = max(states)
            if kind == "deliver":
                epoch += 1
                world.deliver(epoch, *what.items(), timeline=timeline)
                changed = states[newest] | {k: v for k, v in what.items() if v != DELETE}
                states[epoch] = {k: v for k, v in changed.items() if what.get(k) != DELETE}
            elif kind == "rewind":
                kept = {at: state for at, state in states.items() if at <= max(0, newest - what)}
                try:
                    world.rewind(max(kept), timeline + 1)
                except ConfigError as error:
                    assert "which removed the rows that they replaced" in error.what and self.compacted(world)
                else:
                    states, timeline = kept, timeline + 1
            elif kind == "compact":
                older_than, keep = what
                world.compact(Wishes(older_than, keep, sizes=SMALL))
            else:
                world.clock.at += what
            assert world.table() == world.table(sizes=SMALL) == states[max(states)]

    @staticmethod
    def compacted(world: World) -> bool:
        return LogReader(world.store).newest().compact > 0
