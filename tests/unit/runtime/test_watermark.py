"""Watermarks: the minimum of what is not idle, never going back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import SourcePosition
from holdfast.runtime.cluster import VirtualClock
from holdfast.runtime.event_time import EventTime
from holdfast.runtime.sources.source import OpenSource
from holdfast.runtime.steps import SourceSpec
from holdfast.runtime.watermark import LAST_US, NEVER_US, Minimum, Watermark, begin, told


def after(*said: tuple[str, int, bool], parts: str = "ab") -> Minimum[str]:
    state = begin(parts)
    for part, at_us, idle in said:
        state, _ = told(state, part, Watermark(at_us, idle))
    return state


class TestMinimum:
    def test_before_every_part_has_spoken_there_is_none(self) -> None:
        assert after(("a", 5, False)).now == Watermark(NEVER_US)

    def test_it_is_that_of_the_part_that_is_furthest_behind(self) -> None:
        assert after(("a", 5, False), ("b", 3, False)).now == Watermark(3)

    def test_an_idle_part_holds_nothing_back(self) -> None:
        assert after(("a", 5, False), ("b", 3, True)).now == Watermark(5)

    def test_it_holds_when_all_are_idle(self) -> None:
        assert after(("a", 5, False), ("b", 3, False), ("b", 3, True), ("a", 9, True)).now == Watermark(5, idle=True)

    def test_a_part_that_wakes_does_not_pull_it_back(self) -> None:
        assert after(("b", 3, True), ("a", 5, False), ("b", 3, False)).now == Watermark(5)

    def test_a_subtask_that_reads_nothing_is_idle_from_the_start(self) -> None:
        assert begin("").now == Watermark(NEVER_US, idle=True)

    def test_the_last_watermark_ends_idleness(self) -> None:
        assert after(("a", 5, True), ("b", 3, True), ("a", LAST_US, False), ("b", LAST_US, False)).now.at_us == LAST_US

    def test_a_change_is_told_from_none(self) -> None:
        state = after(("a", 5, False), ("b", 3, False))
        assert told(state, "a", Watermark(7))[1] is False
        assert told(state, "b", Watermark(4))[1] is True

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9), st.booleans())))
    def test_it_never_goes_back_and_never_passes_a_part_that_is_not_idle(
        self, said: list[tuple[str, int, bool]]
    ) -> None:
        state = begin("abc")
        for part, at_us, idle in said:
            following, changed = told(state, part, Watermark(at_us, idle))
            assert following.now.at_us >= state.now.at_us
            assert changed == (following.now != state.now)
            lowest = min((p.at_us for p in following.parts.values() if not p.idle), default=LAST_US)
            assert following.now.at_us <= max(lowest, state.now.at_us)
            state = following


def at_second(second: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def us(second: int) -> int:
    return int(at_second(second).timestamp()) * 1_000_000


SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False)])


class Source:
    """A source that is only configured."""

    schema = SCHEMA

    def check(self) -> None:
        """Nothing to look at."""

    def open(self) -> OpenSource:
        raise AssertionError("nothing is read")


class Reading:
    """The event time of partitions 0 and 1, idle after 10 s, 2 s out of order; and what it sent."""

    def __init__(self, *positions: SourcePosition) -> None:
        self.clock, self.sent = VirtualClock(), list[Watermark]()
        spec = SourceSpec("s", Source(), 0, "at", 2_000_000, 10.0)
        self.time = EventTime(spec, object(), list(positions), self.clock, self.sent.append)

    def take(self, partition: int, *seconds: int) -> None:
        self.time.woke(partition)
        rows = [{"at": at_second(second)} for second in seconds]
        self.time.emitted(partition, pa.RecordBatch.from_pylist(rows, schema=SCHEMA), len(rows))


FRESH = (SourcePosition("s", 0, -1), SourcePosition("s", 1, -1))


class TestEventTimeOfASource:
    def test_the_slower_partition_decides(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 5, 9, 3)
        reading.take(1, 4)
        assert reading.sent == [Watermark(NEVER_US), Watermark(us(2))]
        assert (reading.time.known(0), reading.time.known(1)) == (us(7), us(2))

    def test_it_goes_on_where_the_checkpoint_left_it(self) -> None:
        assert Reading(SourcePosition("s", 0, 7, 50), SourcePosition("s", 1, 9, 40)).sent == [Watermark(40)]

    def test_an_older_record_does_not_move_it_back(self) -> None:
        reading = Reading(SourcePosition("s", 0, 7, us(9)))
        reading.take(0, 3)
        assert reading.time.known(0) == us(9)

    def test_a_quiet_partition_is_idle_after_a_while_and_wakes_before_its_rows(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        assert not reading.time.found_nothing(1, 0, ended=False)
        reading.clock.now += 10
        assert reading.time.found_nothing(1, 0, ended=False)
        assert not reading.time.found_nothing(0, 1, ended=False)
        reading.clock.now += 10
        assert reading.time.found_nothing(0, 1, ended=False)
        assert reading.time.woke(1)
        assert reading.sent[1:] == [Watermark(us(7)), Watermark(us(7), idle=True), Watermark(us(7))]

    def test_the_lowest_watermark_goes_first_but_for_what_was_just_found_empty(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        assert sorted([0, 1], key=reading.time.turn) == [1, 0]
        reading.time.found_nothing(1, 0, ended=False)
        assert sorted([0, 1], key=reading.time.turn) == [0, 1]
        reading.clock.now += 0.1
        assert sorted([0, 1], key=reading.time.turn) == [1, 0]

    def test_a_partition_that_was_read_to_its_end_leaves_at_once(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        assert reading.time.found_nothing(1, 0, ended=True)
        assert reading.sent[-1] == Watermark(us(7))

    def test_the_last_watermark_does_not_become_that_of_a_partition(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.time.finish()
        assert reading.sent[-1] == Watermark(LAST_US)
        assert (reading.time.known(0), reading.time.known(1)) == (us(7), None)
