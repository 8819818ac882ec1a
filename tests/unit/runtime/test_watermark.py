"""Watermarks: the minimum over all parts that are not idle; it never decreases."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import permutations, product
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_source import PlannedSource

from holdfast.model import SourcePosition
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.sources.event_time import EventTime
from holdfast.runtime.testing.lanes import VirtualClock
from holdfast.runtime.time.event_times import watermark_of
from holdfast.runtime.time.watermark import LAST_US, NEVER_US, Minimum, Watermark, begin, reported
from holdfast.runtime.wire.messages import PartitionTime


def after(*said: tuple[str, int, bool], parts: str = "ab") -> Minimum[str]:
    state = begin(parts)
    for part, at_us, idle in said:
        state, _ = reported(state, part, Watermark(at_us, idle))
    return state


class TestMinimum:
    def test_there_is_no_watermark_before_every_part_has_reported_one(self) -> None:
        assert after(("a", 5, False)).now == Watermark(NEVER_US)

    def test_the_watermark_is_the_lowest_of_all_parts(self) -> None:
        assert after(("a", 5, False), ("b", 3, False)).now == Watermark(3)

    def test_an_idle_part_does_not_hold_the_watermark_back(self) -> None:
        assert after(("a", 5, False), ("b", 3, True)).now == Watermark(5)

    def test_the_watermark_holds_while_all_parts_are_idle(self) -> None:
        assert after(("a", 5, False), ("b", 3, False), ("b", 3, True), ("a", 9, True)).now == Watermark(5, idle=True)

    def test_a_part_that_becomes_active_does_not_lower_the_watermark(self) -> None:
        assert after(("b", 3, True), ("a", 5, False), ("b", 3, False)).now == Watermark(5)

    def test_a_subtask_without_partitions_never_holds_the_watermark_back(self) -> None:
        assert begin("").now == Watermark(NEVER_US, idle=True, over=True)

    @given(st.permutations("abc"), st.permutations("abc"))
    def test_parts_that_become_idle_together_do_not_move_the_watermark_in_any_order(
        self, first: list[str], then: list[str]
    ) -> None:
        state = after(("a", 5, False), ("b", 3, False), ("c", 9, False), parts="abc")
        for part in first:
            state, _ = reported(state, part, Watermark(NEVER_US, quiet=True))
            assert state.now.at_us == 3
        for part in then:
            state, _ = reported(state, part, Watermark(NEVER_US, idle=True))
            assert state.now.at_us == 3
        assert state.now == Watermark(3, idle=True)

    def test_an_idle_part_holds_the_watermark_back_while_the_others_are_quiet(self) -> None:
        state = after(("a", 5, False), ("b", 3, False))
        state, _ = reported(state, "a", Watermark(5, quiet=True))
        state, _ = reported(state, "b", Watermark(3, idle=True))
        assert state.now == Watermark(3, quiet=True)
        assert reported(state, "a", Watermark(5))[0].now == Watermark(5)

    def test_a_part_that_is_over_leaves_even_if_all_others_are_idle(self) -> None:
        over = Watermark(3, idle=True, over=True)
        one = after(("a", 5, False), ("b", 3, False), ("a", 5, True))
        other = after(("a", 5, False), ("b", 3, False))
        other, _ = reported(reported(other, "b", over)[0], "a", Watermark(5, idle=True))
        assert reported(one, "b", over)[0].now == other.now == Watermark(5, idle=True)

    def test_the_watermark_is_over_when_every_part_is_over(self) -> None:
        state = after(("a", 5, False), ("b", 3, False))
        for part in "ab":
            state, _ = reported(state, part, Watermark(4, idle=True, over=True))
        assert state.now == Watermark(5, idle=True, over=True)

    @given(st.permutations("abc"))
    def test_once_all_parts_are_over_the_watermark_is_the_largest(self, order: list[str]) -> None:
        state, reached = begin("abc"), {"a": NEVER_US, "b": 3, "c": 9}
        for part in order:
            state, _ = reported(state, part, Watermark(reached[part]))
            state, _ = reported(state, part, Watermark(reached[part], idle=True, over=True))
        assert state.now == Watermark(9, idle=True, over=True)

    def test_a_part_that_reports_a_lower_watermark_keeps_its_previous_one(self) -> None:
        state = after(("a", 5, False), ("b", 7, False), ("a", 2, False))
        assert (state.parts["a"].at_us, state.now) == (5, Watermark(5))

    def test_the_last_watermark_ends_idleness(self) -> None:
        assert after(("a", 5, True), ("b", 3, True), ("a", LAST_US, False), ("b", LAST_US, False)).now.at_us == LAST_US

    def test_an_idle_part_may_still_emit_rows_when_another_has_reported_the_last_watermark(self) -> None:
        assert after(("a", 5, False), ("b", 3, True), ("a", LAST_US, False)).now.at_us == 5
        assert after(("b", 3, True), ("a", LAST_US, False)).now.at_us == 3
        assert after(("b", 3, True), ("a", LAST_US, False), ("b", LAST_US, False)).now.at_us == LAST_US

    def test_a_change_is_distinguished_from_no_change(self) -> None:
        state = after(("a", 5, False), ("b", 3, False))
        assert reported(state, "a", Watermark(7))[1] is False
        assert reported(state, "b", Watermark(4))[1] is True

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9), st.booleans())))
    def test_the_watermark_never_decreases_and_never_passes_an_active_part(
        self, said: list[tuple[str, int, bool]]
    ) -> None:
        state = begin("abc")
        for part, at_us, idle in said:
            following, changed = reported(state, part, Watermark(at_us, idle))
            assert all(following.parts[each].at_us >= state.parts[each].at_us for each in "abc")
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


TOLD = (
    *(Watermark(at_us) for at_us in (10, 20)),
    *(Watermark(at_us, quiet=True) for at_us in (10, 20)),
    *(Watermark(at_us, idle=True) for at_us in (10, 20)),
    *(Watermark(at_us, idle=True, over=True) for at_us in (NEVER_US, 10, 20)),
)
"""What a sender can say last in an epoch."""


def merged(last: tuple[Watermark, ...]) -> int:
    """Return the event time that docs/decisions/0006-watermarks.md gives to parts that said this last."""
    left = [each for each in last if not each.over]
    if not left:
        return max(each.at_us for each in last)
    active = [each for each in left if not each.idle]
    return min(each.at_us for each in (active if any(not each.quiet for each in active) else left))


def closed(last: tuple[Watermark, ...], order: tuple[int, ...], quiet_first: Iterable[int]) -> list[int]:
    """Return the event times while an epoch of microbatch mode closes: some parts are quiet, then all say their last.

    See `_pass_time` in runtime/microbatch/task.py.
    """
    state, seen = begin(range(len(last))), list[int]()
    for part in quiet_first:
        state, _ = reported(state, part, Watermark(last[part].at_us, quiet=True))
        seen.append(state.now.at_us)
    for part in order:
        state, _ = reported(state, part, last[part])
        seen.append(state.now.at_us)
    return seen


class TestTheEndOfAnEpochInMicrobatchMode:
    """Which sender's frames a task takes first is not determined, so it must not matter.

    Senders that are over could be quiet first like those that are idle: they hold nothing back that the others do not.
    So a task that does not leave them out gives the same event time.
    """

    @pytest.mark.parametrize("with_those_over", [False, True])
    def test_moves_event_time_to_the_minimum_in_any_order(self, with_those_over: bool) -> None:
        for last in product(TOLD, repeat=3):
            first = [part for part, each in enumerate(last) if each.idle and (with_those_over or not each.over)]
            for order in permutations(range(3)):
                seen = closed(last, order, first)
                assert seen[-1] == merged(last) == max(seen), (last, order)


class Reading:
    """The event time of partitions 0 and 1, idle after 10 s, 2 s out of order; and the watermarks sent."""

    def __init__(
        self, *positions: SourcePosition, opened: WithWatermarks | None = None, marks: pl.Expr | None = None
    ) -> None:
        self.clock, self.sent = VirtualClock(), list[Watermark]()
        watermark = None if marks is None else watermark_of(marks, SCHEMA, "a test")
        spec = SourceSpec("s", PlannedSource(SCHEMA), 0, "at", 2_000_000, 10.0, watermark=watermark)
        reported: Any = WithWatermarks() if opened is None else opened
        self.time = EventTime(spec, reported, list(positions), self.clock, self.sent.append)

    def quiet(self, seconds: float, *partitions: int) -> None:
        self.clock.now += seconds
        for partition in partitions:
            self.time.found_nothing(partition, 1, ended=False)

    def take(self, partition: int, *seconds: int) -> None:
        self.time.woke(partition)
        rows = [{"at": at_second(second)} for second in seconds]
        self.time.emitted(partition, pa.RecordBatch.from_pylist(rows, schema=SCHEMA), len(rows))


class WithWatermarks:
    """A source that gives its own watermarks."""

    at_us: int | None = None

    def watermark(self, partition: int, offset: int) -> int | None:
        return self.at_us


FRESH = (SourcePosition("s", 0, -1), SourcePosition("s", 1, -1))


class TestEventTimeOfASource:
    def test_the_slower_partition_decides(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 5, 9, 3)
        reading.take(1, 4)
        assert reading.sent == [Watermark(NEVER_US), Watermark(us(2))]
        assert (reading.time.known(0), reading.time.known(1)) == (us(7), us(2))

    def test_event_time_resumes_from_the_checkpoint(self) -> None:
        assert Reading(SourcePosition("s", 0, 7, 50), SourcePosition("s", 1, 9, 40)).sent == [Watermark(40)]

    def test_an_older_record_does_not_lower_the_watermark(self) -> None:
        reading = Reading(SourcePosition("s", 0, 7, us(9)))
        reading.take(0, 3)
        assert reading.time.known(0) == us(9)

    def test_a_quiet_partition_becomes_idle_and_is_active_again_before_its_rows(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        assert not reading.time.found_nothing(1, 0, ended=False)
        reading.quiet(5, 1)
        reading.take(0, 9)
        reading.quiet(5, 1)
        assert reading.sent[1:] == [Watermark(us(7))]
        reading.quiet(0, 0)
        reading.quiet(5, 0, 1)
        reading.quiet(5, 0, 1)
        assert reading.time.woke(1)
        reported = [Watermark(us(7), quiet=True), Watermark(us(7), idle=True), Watermark(us(7))]
        assert reading.sent[2:] == reported

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_partitions_that_become_silent_together_move_nothing_in_any_order(self, order: tuple[int, int]) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.take(1, 5)
        for _ in range(30):
            reading.quiet(1, *order)
        assert {at.at_us for at in reading.sent} == {NEVER_US, us(3)}
        assert reading.sent[-1] == Watermark(us(3), idle=True)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_time_that_passed_without_a_check_makes_no_partition_idle(self, order: tuple[int, int]) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.take(1, 5)
        reading.quiet(0, *order)
        reading.quiet(60, *order)
        reading.quiet(1, *order)
        assert reading.sent[-1].at_us == us(3)

    def test_a_reactivated_partition_is_idle_only_after_the_full_time_again(self) -> None:
        reading = Reading(*FRESH)
        reading.take(1, 5)
        for _ in range(11):
            reading.quiet(1, 1)
            reading.take(0, 9)
        assert reading.sent[-1].at_us == us(7)
        reading.take(1, 20)
        reading.take(0, 30)
        assert reading.sent[-1].at_us == us(18)
        for _ in range(9):
            reading.quiet(1, 1)
            reading.take(0, 40)
        assert reading.sent[-1].at_us == us(18)
        reading.quiet(2, 1)
        assert reading.sent[-1].at_us == us(38)

    def test_a_watermark_of_the_source_counts_as_activity_and_never_decreases(self) -> None:
        source = WithWatermarks()
        reading = Reading(*FRESH, opened=source)
        for _ in range(30):
            reading.quiet(1, 0, 1)
        source.at_us = us(50)
        reading.quiet(1, 0, 1)
        assert reading.sent[-1] == Watermark(us(50))
        source.at_us = us(20)
        reading.quiet(1, 0, 1)
        reading.take(0, 9)
        assert (reading.time.known(0), reading.sent[-1].at_us) == (us(50), us(50))

    def test_the_partition_with_the_lowest_watermark_is_read_first_unless_empty(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        assert sorted([0, 1], key=reading.time.turn) == [1, 0]
        reading.time.found_nothing(1, 0, ended=False)
        assert sorted([0, 1], key=reading.time.turn) == [0, 1]
        reading.clock.now += 0.1
        assert sorted([0, 1], key=reading.time.turn) == [1, 0]

    def test_a_partition_with_new_records_is_read_in_turn_immediately(self) -> None:
        reading = Reading(*FRESH)
        reading.quiet(1, 0)
        assert reading.time.turn(0)[0]
        reading.take(0, 9)
        assert not reading.time.turn(0)[0]

    def test_a_partition_that_was_read_to_its_end_leaves_immediately(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        assert reading.time.found_nothing(1, 0, ended=True)
        assert reading.sent[-1] == Watermark(us(7))

    def test_a_partition_that_this_run_reads_no_further_holds_its_watermark(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.take(1, 5)
        reading.time.at_end(1, ended=False)
        reading.take(0, 90)
        assert reading.sent[-1] == Watermark(us(3))

    def test_a_partition_without_records_leaves_when_this_run_reads_no_further(self) -> None:
        reading = Reading(*FRESH)
        reading.time.at_end(1, ended=False)
        reading.take(0, 9)
        assert reading.sent[-1] == Watermark(us(7))
        reading.time.at_end(0, ended=False)
        assert reading.sent[-1] == Watermark(us(7))

    @pytest.mark.parametrize("read_now", [True, False])
    def test_a_partition_whose_records_told_no_time_holds_it_back(self, read_now: bool) -> None:
        """The next run may find older records in it than those that the others have passed."""
        marks = pl.when(pl.col("at") >= at_second(50)).then(pl.col("at"))
        before = SourcePosition("s", 1, 0 if read_now else 5)
        reading = Reading(FRESH[0], before, marks=marks)
        if read_now:
            reading.take(1, 5)
        reading.time.at_end(1, ended=False)
        reading.take(0, 90)
        assert reading.sent[-1].at_us == NEVER_US
        reading.time.at_end(1, ended=True)
        assert reading.sent[-1] == Watermark(us(90))

    def test_a_sealed_partition_leaves_when_this_run_reads_no_further(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.take(1, 5)
        reading.time.at_end(1, ended=True)
        assert reading.sent[-1] == Watermark(us(7))

    def test_every_partition_reports_its_silence_and_whether_it_holds_time_back(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.quiet(0, 1)
        reading.quiet(4, 1)
        assert reading.time.times() == [PartitionTime("s", 0, None, True), PartitionTime("s", 1, 4_000, True)]
        reading.quiet(2, 1)
        reading.quiet(5, 1)
        assert reading.time.times() == [PartitionTime("s", 0, None, True), PartitionTime("s", 1, 11_000, False)]

    def test_the_last_watermark_is_not_stored_for_a_partition(self) -> None:
        reading = Reading(*FRESH)
        reading.take(0, 9)
        reading.time.finish()
        assert reading.sent[-1] == Watermark(LAST_US)
        assert (reading.time.known(0), reading.time.known(1)) == (us(7), None)
