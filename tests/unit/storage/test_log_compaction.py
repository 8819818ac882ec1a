"""A compacted log: the newest row of every key under the offset it always had, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dying_objects import Dying
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.examples.flights_hours_oracle import read_log
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.log.sink import plan_repair, repair, writer_name
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.compacted import Covered, covered_with, due
from holdfast.storage.log.compaction import CompactionResult, Compactor, Wishes
from holdfast.storage.log.format import commit_path
from holdfast.storage.log.keyhash import key_hashes
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.newest import Shown, newest_of_each_key, unpacked
from holdfast.storage.log.rewrite import Sizes
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects, MemoryObjects

pytestmark = pytest.mark.thorough

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field("word", pa.utf8())])
ANY_BYTES = 1 << 30
JOB, WRITER = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
SMALL = Sizes(keys_max=3, segment_bytes=200)
EVERYTHING = Wishes(0, 10**15)
Row = tuple[int | None, int | None]
"""Key and value; no value is a tombstone."""


def rows(*pairs: Row) -> pa.Table:
    keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    words = [None if v is None else f"w{v}" for v in values]
    columns = [pa.array(keys, pa.int64()), pa.array(values, pa.int64()), pa.array(words, pa.utf8())]
    return pa.table(columns, SCHEMA.names)


@dataclass
class Clock:
    """A wall clock that stops until it is moved."""

    at: int = 1_000_000

    def __call__(self) -> int:
        return self.at


@dataclass
class World:
    """A log, a clock, and the operations on them."""

    store: MemoryObjects = field(default_factory=MemoryObjects)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        create_log(self.store, SCHEMA, partitions=2, key=["k"])

    def append(self, *pairs: Row, partition: int = 0) -> None:
        LogWriter(self.store, pause=lambda _: None, wall_us=self.clock).append({partition: rows(*pairs)})

    def deliver(self, epoch: int, *pairs: Row, timeline: int = 1) -> None:
        log = LogWriter(self.store, pause=lambda _: None, wall_us=self.clock)
        tag = Tag(Timeline(timeline), Epoch(epoch))
        assert log.append_tagged({0: rows(*pairs)}, writer_name(JOB, WRITER), tag) is not None

    def rewind(self, epoch: int, timeline: int = 2) -> int:
        log = LogWriter(self.store, pause=lambda _: None, wall_us=self.clock)
        back = TakeBack(Tag(Timeline(timeline), Epoch(epoch)), (writer_name(JOB, WRITER),), lambda _: False)
        return sum(map(len, log.take_back(back)))

    def compact(self, wishes: Wishes = EVERYTHING, store: MemoryObjects | None = None) -> CompactionResult:
        return Compactor(store or self.store, pause=lambda _: None, wall_us=self.clock).compact(wishes)

    def named(self) -> set[str]:
        """Return the paths of all objects that the log needs."""
        commits = Commits(self.store, LogReader(self.store).meta)
        compaction = commits.at(commits.tail.compact).compaction
        through = 0 if compaction is None else compaction.through
        names = {"meta.json"} | {commit_path(n) for n in range(1, commits.tail.sequence + 1)}
        names |= {s.path for s in (() if compaction is None else compaction.segments)}
        return names | {s.path for n in range(through + 1, commits.tail.sequence + 1) for s in commits.at(n).segments}


def placed(
    reader: LogReader, partition: int = 0, offset: int = 0, max_bytes: int = ANY_BYTES
) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield offset, key and value of all rows from an offset on."""
    while True:
        batch, offsets, following = reader.read_placed(partition, offset, max_bytes)
        if batch is None:
            assert following == offset
            return
        at = range(following - batch.num_rows, following) if offsets is None else offsets.tolist()
        yield from zip(at, batch.column("k").to_pylist(), batch.column("v").to_pylist(), strict=True)
        assert following > offset
        offset = following


def read(world: World, partition: int = 0, offset: int = 0) -> list[tuple[int, int | None, int | None]]:
    return list(placed(LogReader(world.store), partition, offset))


@pytest.fixture
def world() -> World:
    """A log with the offsets 0 to 5 in partition 0, three of them of key 1."""
    made = World()
    made.append((1, 10), (2, 20))
    made.append((1, 11), (3, 30))
    made.append((1, 12), (4, 40))
    return made


class TestKeptRows:
    def test_the_newest_row_of_every_key_keeps_its_offset(self, world: World) -> None:
        world.compact()
        assert read(world) == [(1, 2, 20), (3, 3, 30), (4, 1, 12), (5, 4, 40)]

    def test_offsets_are_not_reused(self, world: World) -> None:
        world.compact()
        world.append((1, 13))
        assert read(world, offset=5) == [(5, 4, 40), (6, 1, 13)]
        assert LogReader(world.store).end_offsets() == {0: 7, 1: 0}

    def test_partitions_are_compacted_independently(self, world: World) -> None:
        world.append((1, 99), (1, 98), partition=1)
        world.compact()
        assert read(world, 1) == [(1, 1, 98)]
        assert (4, 1, 12) in read(world)

    def test_null_is_a_key(self, world: World) -> None:
        world.append((None, 1), (None, 2))
        world.compact()
        assert read(world, offset=6) == [(7, None, 2)]

    def test_recent_rows_are_kept_and_replace_nothing(self, world: World) -> None:
        world.clock.at += 100
        world.append((2, 21), (2, 22))
        world.compact(Wishes(50, 10**15))
        assert read(world) == [(1, 2, 20), (3, 3, 30), (4, 1, 12), (5, 4, 40), (6, 2, 21), (7, 2, 22)]

    def test_rows_after_the_last_commit_to_compact_are_kept_and_replace_nothing(self, world: World) -> None:
        """A changelog needs them for checkpoints after the horizon (docs/decisions/0055-changelog-topic.md)."""
        assert world.compact(Wishes(0, 10**15, through_max=2)).committed
        assert read(world) == [(1, 2, 20), (2, 1, 11), (3, 3, 30), (4, 1, 12), (5, 4, 40)]

    def test_a_second_compaction_continues_from_the_first(self, world: World) -> None:
        world.compact()
        world.append((4, 41), (2, 22))
        world.compact()
        assert read(world) == [(3, 3, 30), (4, 1, 12), (6, 4, 41), (7, 2, 22)]

    def test_a_read_of_any_size_from_any_offset_gives_the_kept_rows(self, world: World) -> None:
        world.compact()
        for offset in range(7):
            for size in (1, 40, ANY_BYTES):
                found = list(placed(LogReader(world.store), 0, offset, size))
                assert found == [row for row in read(world) if row[0] >= offset]

    def test_a_sealed_log_may_be_compacted_and_stays_sealed(self, world: World) -> None:
        LogWriter(world.store).seal()
        assert world.compact().committed
        assert LogReader(world.store).sealed and len(read(world)) == 4
        with pytest.raises(ConfigError, match="sealed"):
            world.append((1, 1))
        LogWriter(world.store).seal()
        assert not world.compact().committed

    def test_a_log_without_a_key_is_refused(self) -> None:
        store = MemoryObjects()
        create_log(store, SCHEMA)
        with pytest.raises(ConfigError, match="has no key"):
            Compactor(store)

    def test_key_columns_that_make_no_key_are_refused(self) -> None:
        store = MemoryObjects()
        create_log(store, pa.schema([("k", pa.float64()), ("v", pa.int64())]), key=["k"])
        with pytest.raises(ConfigError, match="cannot be a key"):
            Compactor(store)

    def test_nothing_is_compacted_without_new_rows(self, world: World) -> None:
        world.compact()
        before = world.store.list("")
        assert not world.compact().committed
        assert world.store.list("") == before

    def test_the_report_counts_rows_tombstones_and_bytes(self, world: World) -> None:
        world.append((7, None))
        world.clock.at += 100
        world.append((1, 1), (1, 2))
        (one, _) = world.compact(Wishes(50, 10**15)).partitions
        assert (one.records_before, one.records_after, one.tombstones, one.untouched) == (7, 5, 1, 2)
        assert one.bytes_after == sum(len(world.store.get(path)) for path in world.store.list("compacted"))

    def test_a_dry_run_counts_the_same_and_changes_nothing(self, world: World) -> None:
        before = world.store.list("")
        dry = world.compact(Wishes(0, 10**15, dry_run=True))
        assert (dry.committed, world.store.list("")) == (False, before)
        assert world.compact().partitions == dry.partitions

    def test_segments_that_lose_no_row_are_listed_again_and_not_rewritten(self, world: World) -> None:
        world.compact(Wishes(0, 10**15, sizes=Sizes(segment_bytes=1)))
        before = set(world.store.list("compacted"))
        world.append((9, 90))
        world.compact(Wishes(0, 10**15, sizes=Sizes(segment_bytes=1)))
        assert before < set(world.store.list("compacted"))

    def test_segments_above_the_limit_are_compacted_in_several_steps(self, world: World) -> None:
        wishes = Wishes(0, 10**15, segments_max=2)
        assert world.compact(wishes).more
        assert read(world) == [(1, 2, 20), (2, 1, 11), (3, 3, 30), (4, 1, 12), (5, 4, 40)]
        assert not world.compact(wishes).more
        assert len(read(world)) == 4


class TestTombstones:
    DAY = Wishes(0, 1_000)

    def test_a_tombstone_replaces_earlier_rows_and_is_kept_until_it_expires(self, world: World) -> None:
        world.append((1, None))
        assert world.compact(self.DAY).partitions[0].tombstones == 1
        assert read(world) == [(1, 2, 20), (3, 3, 30), (5, 4, 40), (6, 1, None)]
        world.clock.at += 999
        assert not world.compact(self.DAY).committed

    def test_a_tombstone_is_removed_after_its_retention(self, world: World) -> None:
        world.append((1, None))
        world.compact(self.DAY)
        world.clock.at += 1_000
        assert world.compact(self.DAY).committed
        assert read(world) == [(1, 2, 20), (3, 3, 30), (5, 4, 40)]
        assert LogReader(world.store).last_position(0) == 6

    def test_the_retention_of_a_tombstone_begins_with_its_first_compaction(self, world: World) -> None:
        world.append((1, None))
        world.clock.at += 5_000
        world.compact(self.DAY)
        assert read(world)[-1] == (6, 1, None)

    def test_a_row_after_a_tombstone_is_kept(self, world: World) -> None:
        world.append((1, None), (1, 14))
        world.compact(Wishes(0, 0))
        assert read(world)[-1] == (7, 1, 14)

    def test_a_row_with_one_value_is_not_a_tombstone(self) -> None:
        world = World()
        table = pa.table([pa.array([1, 1]), pa.array([None, None], pa.int64()), pa.array(["x", None])], SCHEMA.names)
        LogWriter(world.store).append({0: table.slice(0, 1)})
        world.compact(Wishes(0, 0))
        assert len(read(world)) == 1

    def test_rows_of_a_log_with_only_key_columns_are_not_tombstones(self) -> None:
        store = MemoryObjects()
        create_log(store, pa.schema([("k", pa.int64())]), partitions=1, key=["k"])
        LogWriter(store).append({0: pa.table({"k": [1, 1, 2]})})
        Compactor(store, pause=lambda _: None).compact(Wishes(0, 0))
        batch, following = LogReader(store).read(0, 0, ANY_BYTES)
        assert batch is not None and (batch.num_rows, following) == (2, 3)

    def test_a_reader_of_a_sealed_log_ends_before_removed_tombstones(self, world: World) -> None:
        world.append((8, None))
        LogWriter(world.store).seal()
        world.compact(Wishes(0, 0))
        reader = LogReader(world.store)
        assert [at for at, _, _ in placed(reader)] == [1, 3, 4, 5]
        assert reader.last_position(0) == 6
        assert reader.read(0, 7, ANY_BYTES) == (None, 7)

    def test_a_partition_may_have_no_rows_left(self) -> None:
        world = World()
        world.append((1, None))
        world.compact(Wishes(0, 0))
        assert (read(world), LogReader(world.store).last_position(0), LogReader(world.store).rows(0)) == ([], 0, 0)
        world.append((1, 5))
        assert read(world) == [(1, 1, 5)]

    def test_first_compaction_times_are_kept_in_a_bounded_list(self) -> None:
        since: tuple[Covered, ...] = ()
        for n in range(1, 500):
            since = covered_with(since, Covered(n, n), 0)
        assert len(since) <= 64 and since[-1] == Covered(499, 499)
        assert due(since, 400) <= 400
        assert covered_with(since, Covered(500, 500), 499) == (Covered(499, 499), Covered(500, 500))


class TestVoidRanges:
    def test_void_rows_are_removed_and_the_rows_they_replaced_are_kept(self) -> None:
        world = World()
        world.deliver(1, (1, 10))
        world.deliver(2, (1, 11), (2, 20))
        world.rewind(1)
        world.deliver(9, (3, 30), timeline=2)
        world.compact()
        assert read(world) == [(0, 1, 10), (3, 3, 30)]
        assert LogReader(world.store).rows(0) == 2

    def test_a_reader_at_an_offset_in_a_void_range_is_still_refused(self) -> None:
        world = World()
        world.deliver(1, (1, 10))
        world.deliver(2, (1, 11), (2, 20))
        world.rewind(1)
        world.compact()
        for offset in (2, 3):
            with pytest.raises(Damaged, match="removed by a rewind"):
                LogReader(world.store).read(0, offset, ANY_BYTES)
        assert LogReader(world.store).last_position(0) == 1

    def test_a_void_range_across_the_compacted_end_is_counted_correctly(self) -> None:
        world = World()
        world.deliver(1, (1, 10))
        world.deliver(2, (2, 20))
        world.clock.at += 100
        world.deliver(3, (3, 30))
        world.rewind(1)
        world.deliver(9, (4, 40), timeline=2)
        world.compact(Wishes(50, 10**15))
        reader = LogReader(world.store)
        assert (read(world), reader.rows(0)) == ([(0, 1, 10), (3, 4, 40)], 2)

    def test_rows_after_the_compacted_end_can_be_undone(self) -> None:
        world = World()
        world.deliver(1, (1, 10))
        world.clock.at += 100
        world.deliver(2, (1, 11))
        world.compact(Wishes(50, 10**15))
        assert world.rewind(1) == 1
        assert read(world) == [(0, 1, 10)]

    def test_undoing_compacted_rows_is_refused_and_changes_nothing(self) -> None:
        world = World()
        world.deliver(1, (1, 10))
        world.deliver(2, (1, 11))
        world.compact()
        to = Rewinding(JOB, "out", Tag(Timeline(2), Epoch(1)), (WRITER,))
        plan = plan_repair("the log", world.store, to)
        assert plan.verdict == "impossible" and "compacted up to offset 2" in (plan.reason or "")
        before = world.store.list("")
        with pytest.raises(ConfigError, match="which removed the rows that they replaced"):
            repair("the log", world.store, to, pause=lambda _: None)
        assert world.store.list("") == before
        world.deliver(3, (1, 12))


class Hooked(MemoryObjects):
    """Calls a function once, right before a commit is created."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] | None = None

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("commits/") and self.before is not None:
            before, self.before = self.before, None
            before()
        super().create(path, data)


class TestRaces:
    @pytest.fixture
    def hooked(self) -> World:
        made = World(Hooked())
        made.deliver(1, (1, 10), (2, 20))
        made.deliver(2, (1, 11))
        return made

    @staticmethod
    def between(world: World, what: Callable[[], object]) -> None:
        assert isinstance(world.store, Hooked)
        world.store.before = what

    def test_an_append_during_a_compaction_is_kept_after_it(self, hooked: World) -> None:
        self.between(hooked, lambda: hooked.append((1, 12), (5, 50)))
        assert hooked.compact().committed
        assert read(hooked) == [(1, 2, 20), (2, 1, 11), (3, 1, 12), (4, 5, 50)]

    def test_a_compaction_during_an_append_moves_no_offset(self, hooked: World) -> None:
        self.between(hooked, lambda: hooked.compact())
        hooked.append((1, 12))
        assert read(hooked) == [(1, 2, 20), (2, 1, 11), (3, 1, 12)]

    def test_a_seal_during_a_compaction_is_kept(self, hooked: World) -> None:
        self.between(hooked, lambda: LogWriter(hooked.store).seal())
        assert hooked.compact().committed
        assert LogReader(hooked.store).sealed and len(read(hooked)) == 2

    def test_a_rewind_during_a_compaction_restarts_it(self, hooked: World) -> None:
        self.between(hooked, lambda: hooked.rewind(1))
        assert hooked.compact().committed
        assert read(hooked) == [(0, 1, 10), (1, 2, 20)]

    def test_a_compaction_during_a_rewind_makes_the_rewind_refused(self, hooked: World) -> None:
        self.between(hooked, lambda: hooked.compact())
        with pytest.raises(ConfigError, match="which removed the rows that they replaced"):
            hooked.rewind(1)
        assert read(hooked) == [(1, 2, 20), (2, 1, 11)]

    def test_one_of_two_compactions_wins_and_no_orphans_are_left(self, hooked: World) -> None:
        self.between(hooked, lambda: hooked.compact())
        hooked.compact()
        assert read(hooked) == [(1, 2, 20), (2, 1, 11)]
        hooked.append((2, 21))
        hooked.compact()
        assert set(hooked.store.list("")) == hooked.named()

    def test_a_compaction_that_always_loses_stops_with_an_error(self, hooked: World) -> None:
        epochs = iter(range(10, 100))

        def again() -> None:
            epoch = next(epochs)
            hooked.deliver(epoch, (1, epoch), timeline=epoch)
            hooked.rewind(epoch - 1, timeline=epoch + 1)
            self.between(hooked, again)

        self.between(hooked, again)
        with pytest.raises(Unavailable, match="committed first 3 times"):
            hooked.compact()
        assert isinstance(hooked.store, Hooked)
        hooked.store.before = None
        assert read(hooked) == [(0, 1, 10), (1, 2, 20), (2, 1, 11)]

    def test_a_reader_with_an_older_listing_refreshes_when_objects_are_missing(self, hooked: World) -> None:
        old = LogReader(hooked.store)
        hooked.compact()
        assert list(placed(old)) == [(1, 2, 20), (2, 1, 11)]
        slow = LogReader(hooked.store)
        hooked.append((2, 21))
        hooked.compact()
        assert list(placed(slow)) == [(2, 1, 11), (3, 2, 21)]

    def test_a_missing_object_that_no_compaction_explains_is_damage(self, hooked: World) -> None:
        hooked.compact()
        hooked.store.delete(hooked.store.list("compacted")[0])
        with pytest.raises(Damaged, match="is missing"):
            read(hooked)

    def test_objects_are_deleted_only_after_the_grace_period(self, hooked: World) -> None:
        seen: list[tuple[float, int]] = []
        compactor = Compactor(hooked.store, pause=lambda s: seen.append((s, len(hooked.store.list("data")))))
        assert compactor.compact(Wishes(0, 10**15, grace_s=10.0)).deleted == 2
        assert seen == [(10.0, 2)]
        assert hooked.store.list("data") == []

    def test_an_interrupted_deletion_of_uploaded_objects_is_completed(self) -> None:
        world = World()
        log = LogWriter(world.store, pause=lambda _: None, wall_us=world.clock)
        for number in range(3):
            log.append_staged(log.stage({0: rows((number, number))}, f"uploaded/{number}"))

        def die(_s: float) -> None:
            raise Unavailable("dead", next_step="none")

        with pytest.raises(Unavailable):
            Compactor(world.store, pause=die, wall_us=world.clock).compact(Wishes(0, 10**15, grace_s=1.0))
        assert len(world.store.list("data")) == 3
        world.append((9, 9))
        world.compact()
        world.compact()
        assert world.store.list("data") == []


class TestCrashes:
    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_any_operation_leaves_the_log_unchanged_or_compacted(self, after: bool) -> None:
        outcomes = set()
        for operations in range(1, 200):
            world = World()
            world.append((1, 10), (2, 20), (3, None))
            world.compact()
            world.append((1, 11), (4, 40))
            world.append((2, 21), partition=1)
            before = read(world)
            done = [(1, 2, 20), (2, 3, None), (3, 1, 11), (4, 4, 40)]
            try:
                world.compact(store=Dying(world.store, operations, after=after))
            except Unavailable:
                now = read(world)
                assert now in (before, done)
                outcomes.add(now == done)
                world.append((5, 50))
                world.compact()
                assert read(world) == [*done, (5, 5, 50)]
                assert set(world.store.list("")) == world.named()
                continue
            assert outcomes == {False, True} and operations > 20
            return
        raise AssertionError("it never came to its end")

    def test_a_lost_reply_to_the_commit_is_settled_by_its_owner_token(self, world: World) -> None:
        class Lossy(MemoryObjects):
            get, list, put, delete = world.store.get, world.store.list, world.store.put, world.store.delete

            def create(self, path: str, data: bytes) -> None:
                world.store.create(path, data)
                raise Unavailable("the reply was lost", next_step="try again")

        assert world.compact(store=Lossy()).committed
        assert len(read(world)) == 4 and set(world.store.list("")) == world.named()

    def test_orphans_of_a_crashed_compaction_are_deleted_by_the_next(self, world: World) -> None:
        world.store.put(f"compacted/{0:020d}/{'a' * 32}/0-0.arrow", b"?")
        world.compact()
        assert set(world.store.list("")) == world.named()

    def test_objects_of_a_compaction_based_on_the_newest_are_not_deleted(self, world: World) -> None:
        world.compact()
        mine = f"compacted/{4:020d}/{'a' * 32}/0-0.arrow"
        world.store.put(mine, b"?")
        late = Compactor(world.store, pause=lambda _: None)
        world.append((1, 13))
        # A sweep of the compaction before, which is late, must not touch it either.
        commits = Commits(world.store, late.meta)
        compaction = commits.at(4).compaction
        assert compaction is not None and mine not in list(late._dead(commits, 0, compaction))

    def test_objects_of_appends_in_progress_are_not_deleted(self, world: World) -> None:
        world.store.put(f"data/0/{'b' * 32}.arrow", b"?")
        world.compact()
        assert world.store.list("data") == [f"data/0/{'b' * 32}.arrow"]


class TestDamage:
    @pytest.mark.parametrize("field", [b'"first":1,', b'"last":5,', b'"rows":4,'])
    def test_a_compacted_segment_that_differs_from_its_record_is_found(self, world: World, field: bytes) -> None:
        world.compact()
        reader = LogReader(world.store)
        (segment,) = reader._commits.at(4).compaction.segments  # type: ignore[union-attr]
        data = bytearray(world.store.get(segment.path))
        data[len(data) // 2] ^= 1
        world.store.put(segment.path, bytes(data))
        with pytest.raises(Damaged, match="does not match its hash"):
            list(placed(reader))
        record = world.store.get(commit_path(4))
        assert field in record
        world.store.put(commit_path(4), record.replace(field, field.replace(b":", b":9")))
        with pytest.raises(Damaged):
            LogReader(world.store)


class TestWholeFrom:
    def test_whole_from_is_after_every_segment_with_a_gap(self, world: World) -> None:
        reader = LogReader(world.store)
        assert reader.whole_from(0) == 0
        world.compact()
        reader.refresh()
        assert (reader.whole_from(0), reader.whole_from(1)) == (6, 0)
        world.append((1, 1))
        reader.refresh()
        assert reader.whole_from(0) == 6

    def test_a_compaction_that_removed_nothing_leaves_whole_from_at_zero(self) -> None:
        world = World()
        world.append((1, 1), (2, 2))
        world.compact()
        assert LogReader(world.store).whole_from(0) == 0


class TestKeyHashes:
    def test_texts_of_adjacent_columns_are_not_joined(self) -> None:
        schema = pa.schema([("a", pa.utf8()), ("b", pa.utf8())])
        pairs = [("x\x1fvy", "z"), ("x", "y\x1fvz"), ("x", None), (None, "x"), ("n", "x"), ("", "nx"), ("1,2", "3")]
        batch = pa.RecordBatch.from_pylist([dict(zip("ab", pair, strict=True)) for pair in pairs], schema)
        assert len(set(map(tuple, key_hashes(batch, ["a", "b"]).T.tolist()))) == len(pairs)

    def test_times_that_differ_in_nanoseconds_are_different_keys(self) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.timestamp("ns"))], ["t"])
        assert len(set(key_hashes(batch, ["t"])[0].tolist())) == 2


class TestNewestOfEachKey:
    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=9), max_size=8),
        st.integers(1, 20),
        st.integers(1, 12),
        st.booleans(),
    )
    def test_the_newest_rows_equal_those_of_a_dictionary_at_any_memory_limit(
        self, pieces: list[list[tuple[int, bool]]], keys_max: int, chunk: int, alike: bool
    ) -> None:
        def hashed(key: int) -> tuple[int, int]:
            # Alike: many keys share their first hash, as no two would in a million years.
            return (key % 3 * (1 << 62) if alike else key * 0x9E3779B97F4A7C15 % (1 << 64)), key

        shown = [
            Shown(
                np.array([hashed(key) for key, _ in piece], np.uint64).reshape(-1, 2).T,
                np.array([counts for _, counts in piece], bool),
            )
            for piece in pieces
        ]
        marks = newest_of_each_key(lambda: shown, keys_max, chunk)
        seen: set[int] = set()
        for piece, bits in zip(pieces, marks, strict=True):
            want = []
            for key, counts in piece:
                want.append(counts and key not in seen)
                seen |= {key} if counts else set()
            assert unpacked(bits, len(piece)).tolist() == want


Step = tuple[str, Any]
PAIRS = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=5
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), PAIRS),
        st.tuples(st.just("deliver"), PAIRS),
        st.tuples(st.just("rewind"), st.integers(0, 2)),
        st.tuples(st.just("compact"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
        st.tuples(st.just("tick"), st.integers(1, 2)),
        st.tuples(st.just("read"), st.integers(0, 40)),
        st.tuples(st.just("seal"), st.none()),
    ),
    max_size=16,
)


@dataclass
class Appended:
    """A row in the model."""

    offset: int
    pair: Row
    at: int
    epoch: int
    covered: int | None = None
    """When a compaction first reached it."""


class Model:
    """The same log as a list in plain Python."""

    def __init__(self) -> None:
        self.kept: list[Appended] = []
        self.end = self.compacted = 0
        self.commits: list[tuple[int, int]] = []
        """Time and end of each append."""

    def append(self, pairs: list[Row], at: int, epoch: int = 0) -> None:
        for pair in pairs:
            self.kept.append(Appended(self.end, pair, at, epoch))
            self.end += 1
        self.commits.append((at, self.end))

    def compact(self, now: int, older_than: int, keep: int) -> None:
        for at, end in self.commits:
            if older_than and at > now - older_than:
                break
            self.compacted = max(self.compacted, end)
        newest = {row.pair[0]: row.offset for row in self.kept if row.offset < self.compacted}
        stays = []
        for row in self.kept:
            if row.offset < self.compacted:
                row.covered = now if row.covered is None else row.covered
                expired = row.pair[1] is None and row.covered <= now - keep
                if newest[row.pair[0]] != row.offset or expired:
                    continue
            stays.append(row)
        self.kept = stays

    def rows(self, offset: int) -> list[tuple[int, int | None, int | None]]:
        return [(row.offset, *row.pair) for row in self.kept if row.offset >= offset]


class TestAnyHistory:
    @given(steps=STEPS)
    @settings(max_examples=120, deadline=None)
    def test_every_reader_gets_exactly_the_rows_of_the_model(self, steps: list[Step]) -> None:
        world, model = World(), Model()
        world.clock.at = 100
        epoch, timeline, sealed = 1, 1, False
        following, voids = LogReader(world.store), set[int]()
        for kind, what in steps:
            if kind == "append" and not sealed:
                world.append(*what)
                model.append(what, world.clock.at)
            elif kind == "deliver" and not sealed:
                epoch += 1
                world.deliver(epoch, *what, timeline=timeline)
                model.append(what, world.clock.at, epoch)
            elif kind == "rewind" and not sealed:
                back = max(0, epoch - what)
                gone = [row for row in model.kept if row.epoch > back]
                if self._is_lost(world, back, timeline + 1):
                    with pytest.raises(ConfigError, match="which removed the rows that they replaced"):
                        world.rewind(back, timeline + 1)
                    continue
                assert all(row.offset >= model.compacted for row in gone)
                timeline += 1
                world.rewind(back, timeline)
                voids |= {row.offset for row in gone}
                model.kept = [row for row in model.kept if row.epoch <= back]
                following = LogReader(world.store)
            elif kind == "compact":
                older_than, keep = what
                world.compact(Wishes(older_than, keep, sizes=SMALL))
                model.compact(world.clock.at, older_than, keep)
            elif kind == "tick":
                world.clock.at += what
            elif kind == "seal":
                LogWriter(world.store, wall_us=world.clock).seal()
                sealed = True
            offset = min(what, model.end) if kind == "read" else 0
            if offset not in voids and offset - 1 not in voids:
                want = model.rows(offset)
                assert list(placed(LogReader(world.store), 0, offset)) == want
                following.refresh()
                assert list(placed(following, 0, offset, 1)) == want
            reader = LogReader(world.store)
            assert reader.rows(0) == len(model.kept) and reader.end_offset(0) == model.end
            assert reader.last_position(0) <= model.end
            assert list(placed(reader, 0, reader.last_position(0))) == []
        world.compact(Wishes(0, 10**15))
        world.append((1, 1)) if not sealed else None
        world.compact(Wishes(0, 10**15))
        assert set(world.store.list("")) == world.named()

    @staticmethod
    def _is_lost(world: World, back: int, timeline: int) -> bool:
        to = Rewinding(JOB, "out", Tag(Timeline(timeline), Epoch(back)), (WRITER,))
        return plan_repair("the log", world.store, to).verdict == "impossible"


class TestTheOracle:
    def test_the_oracle_reads_a_compacted_log_by_the_documented_format(self, tmp_path: Path) -> None:
        store = LocalObjects(tmp_path)
        create_log(store, SCHEMA, partitions=1, key=["k"])
        writer = LogWriter(store)
        writer.append({0: rows((1, 10), (2, 20))})
        writer.append({0: rows((1, 11))})
        Compactor(store, pause=lambda _: None).compact(EVERYTHING)
        writer.append({0: rows((1, 12), (3, 30))})
        found = read_log(tmp_path).select("k", "v").rows()
        assert found == [(2, 20), (1, 11), (1, 12), (3, 30)]
