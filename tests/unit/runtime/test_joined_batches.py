"""Which pieces of a source and which frames of a channel become one batch."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.model import LAST_US, NEVER_US, Barrier, ChannelId, Epoch, Subtask, Watermark
from holdfast.runtime.plan.ahead import JOINED_ROWS, Read
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.source import OFFSETS
from holdfast.runtime.time.windows import TIME
from holdfast.runtime.wire.channels import Frame
from holdfast.runtime.worker.joining import ANY_TIME, Inlets, Passing, judged, passings, together
from holdfast.sinks.memory.sink import MemorySink

AT = frozenset({"at"})
CHANNEL = ChannelId(0, Subtask(0), Subtask(0))
BARRIER = Barrier(Epoch(1), Epoch(0), last=False)


def rows(*times: int) -> pa.RecordBatch:
    return pa.record_batch({"at": pa.array(times, pa.int64()).cast(TIME)})


def times_of(frame: Frame | None) -> list[int] | Frame | None:
    return frame["at"].cast(pa.int64()).to_pylist() if isinstance(frame, pa.RecordBatch) else frame


def taken(*frames: Frame, passing: Passing = AT, now_us: int = NEVER_US) -> list[list[int] | Frame | None]:
    """Return what a fragment, whose event time is `now_us`, gets of these frames of a channel."""
    waiting = deque(frames)
    inlets = Inlets(lambda _: waiting.popleft() if waiting else None, {CHANNEL: passing}, lambda _: now_us)
    found = list[list[int] | Frame | None]()
    while (frame := inlets.take(CHANNEL)) is not None:
        found.append(times_of(frame))
    return found


class TestFramesOfAChannel:
    def test_are_joined_as_far_as_they_have_arrived(self) -> None:
        assert taken(rows(1), rows(2, 3), rows(0)) == [[1, 2, 3, 0]]

    def test_are_never_joined_across_a_barrier(self) -> None:
        assert taken(rows(1), rows(2), BARRIER, rows(3)) == [[1, 2], BARRIER, [3]]

    def test_are_joined_across_a_watermark_that_no_row_is_behind(self) -> None:
        assert taken(rows(1), Watermark(1), rows(1, 5), Watermark(4), rows(4)) == [[1, 1, 5, 4], Watermark(4)]

    def test_begin_a_batch_with_a_row_behind_the_watermark_before_it(self) -> None:
        given = rows(1), Watermark(1), rows(5), Watermark(5), rows(6, 4), Watermark(6)
        assert taken(*given) == [[1, 5], Watermark(5), [6, 4], Watermark(6)]

    def test_have_the_newest_of_several_watermarks(self) -> None:
        assert taken(Watermark(1), Watermark(2), Watermark(3), BARRIER) == [Watermark(3), BARRIER]

    def test_are_joined_across_any_watermark_where_no_step_has_to_do_with_time(self) -> None:
        assert taken(rows(9), Watermark(9), rows(1), Watermark(10), passing=ANY_TIME) == [[9, 1], Watermark(10)]

    def test_are_joined_with_nothing_if_a_row_may_be_late(self) -> None:
        assert taken(rows(7), rows(3, 9), rows(4), rows(8), rows(5), now_us=5) == [[7], [3, 9], [4], [8, 5]]

    def test_are_as_they_were_sent_where_a_function_sees_watermarks(self) -> None:
        given = rows(1), rows(2), Watermark(2), rows(3), Watermark(3), Watermark(4)
        assert taken(*given, passing=None) == [[1], [2], Watermark(2), [3], Watermark(3), Watermark(4)]

    @pytest.mark.parametrize("rests", [{"quiet": True}, {"idle": True}, {"idle": True, "over": True}])
    def test_are_not_joined_where_the_sender_rests_or_wakes(self, rests: dict[str, bool]) -> None:
        resting = Watermark(1, **rests)
        given = rows(1), Watermark(1), resting, Watermark(2), rows(3), Watermark(3)
        assert taken(*given) == [[1], Watermark(1), resting, Watermark(2), [3], Watermark(3)]

    def test_with_a_null_time_are_behind_every_watermark(self) -> None:
        null = pa.record_batch({"at": pa.array([None, 9], TIME)})
        assert taken(rows(1), Watermark(1), null)[:2] == [[1], Watermark(1)]

    def test_are_no_more_than_the_limit_give_or_take_one(self) -> None:
        half = rows(*range(JOINED_ROWS // 2 + 1))
        assert [len(each) for each in taken(half, half, half) if isinstance(each, list)] == [JOINED_ROWS + 2, len(half)]


def pieces(
    *batches: pa.RecordBatch | None, late_by: int = 0, at_us: int = NEVER_US, told: int | None = None
) -> list[int]:
    """Return how many pieces each batch takes, of which the first begins at offset 0."""
    offset, reads = 0, list[Read]()
    for batch in batches:
        offset += 7 if batch is None else batch.num_rows
        reads.append(Read(batch, offset))
    times = [np.asarray(() if b is None else b["at"].cast(pa.int64()), np.int64) for b in batches]
    left = deque(judged(reads, 0, times, lambda _: told, at_us, late_by))
    counts = list[int]()
    while left:
        counts.append(1 if left[0].read.batch is None else together(left, None, LAST_US))
        for _ in range(counts[-1]):
            left.popleft()
    return counts


class TestPiecesOfAPartition:
    def test_are_joined_while_no_row_is_behind_the_watermark_of_those_before(self) -> None:
        assert pieces(rows(1), rows(3, 2), rows(3), rows(4)) == [4]

    def test_are_joined_with_nothing_if_a_row_is_behind_the_watermark(self) -> None:
        assert pieces(rows(5), rows(4), rows(5), rows(9), rows(8), rows(8)) == [1, 1, 2, 1, 1]

    def test_may_be_out_of_order_by_what_the_source_allows(self) -> None:
        assert pieces(rows(5), rows(3), rows(9), rows(6), late_by=2) == [3, 1]

    def test_are_behind_the_watermark_of_the_checkpoint_too(self) -> None:
        assert pieces(rows(9), rows(7), at_us=8) == [1, 1]

    def test_are_behind_what_the_source_itself_tells(self) -> None:
        assert pieces(rows(9), rows(7), rows(8), late_by=5, told=8) == [1, 1, 1]

    def test_are_not_joined_over_a_gap_or_with_other_columns(self) -> None:
        other = pa.record_batch({"at": rows(3)["at"], "n": pa.array([1])})
        assert pieces(rows(1), None, rows(2), other, other) == [1, 1, 1, 2]

    def test_are_joined_over_a_gap_if_they_carry_their_offsets(self) -> None:
        carried = [pa.record_batch({"at": rows(n)["at"], OFFSETS: pa.array([n])}) for n in (1, 20)]
        assert len(judged([Read(carried[0], 2), Read(carried[1], 21)], 0, None, lambda _: None, 0, 0)) == 2
        joined = judged([Read(carried[0], 2), Read(carried[1], 21)], 0, None, lambda _: None, 0, 0)
        assert together(joined, None, LAST_US) == 2

    def test_are_no_more_rows_than_may_be_taken_unless_the_first_has_more(self) -> None:
        reads = [Read(rows(1, 2, 3), 3), Read(rows(4), 4), Read(rows(5), 5)]
        joined = judged(reads, 0, None, lambda _: None, 0, 0)
        assert [together(joined, most, LAST_US) for most in (2, 3, 4, 5, None)] == [1, 1, 2, 3, 3]

    def test_end_where_event_time_waits_for_other_subtasks(self) -> None:
        reads = [Read(rows(1), 1), Read(rows(5), 2), Read(rows(9), 3)]
        times = [np.array([1]), np.array([5]), np.array([9])]
        assert together(judged(reads, 0, times, lambda _: None, NEVER_US, 0), None, 4) == 2


SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("at", TIME, nullable=False)])


class Job:
    """A job of one source, and what decides at the source and at the edges behind it."""

    def __init__(self) -> None:
        self.app = hf.App("joined", dlq=None)
        self.rows = self.app.source("rows", hf.Log("rows", SCHEMA), event_time="at")

    def passings(self, *streams: hf.Stream) -> list[Passing]:
        for number, stream in enumerate(streams):
            stream.sink(f"out-{number}", MemorySink(stream.upsert_key))
        plan: Plan = self.app.plan()
        return [found for _, found in sorted(passings(plan).items())]


class Keeps(hf.KeyedProcess[Any, Any]):
    def on_record(self, ctx: hf.Context, row: hf.Row) -> None: ...


class TestWhatDecides:
    def test_is_nothing_without_event_time_behind(self) -> None:
        job = Job()
        assert job.passings(job.rows.key_by("k").agg("n", n=hf.count())) == [ANY_TIME, ANY_TIME]

    def test_is_the_event_time_before_a_window(self) -> None:
        job = Job()
        kept = job.rows.filter(pl.col("k") > 0).select("k", then="at")
        assert job.passings(kept.key_by("k").window(hf.tumbling("1m")).agg("n", n=hf.count())) == [
            AT,
            frozenset({"then"}),
        ]

    def test_is_the_event_time_if_only_one_of_two_outputs_has_to_do_with_it(self) -> None:
        job = Job()
        counts, once = job.rows.key_by("k").agg("n", n=hf.count()), job.rows.key_by("k").dedup("once", within="1m")
        assert job.passings(counts, once)[0] == AT

    def test_is_every_watermark_before_a_function_that_sees_them(self) -> None:
        job = Job()
        assert job.passings(job.rows.key_by("k").process("p", Keeps(), to=SCHEMA)) == [None, None]

    def test_is_every_watermark_before_a_function_that_may_change_event_times(self) -> None:
        job = Job()
        mapped = job.rows.map(lambda row: row, to=SCHEMA)
        assert job.passings(mapped.key_by("k").window(hf.tumbling("1m")).agg("n", n=hf.count())) == [None, AT]

    def test_is_the_event_time_through_a_union_and_late_rows(self) -> None:
        job = Job()
        other = job.app.source("others", hf.Log("others", SCHEMA), event_time="at")
        windows = job.rows.union(other).key_by("k").window(hf.tumbling("1m")).agg("n", n=hf.count())
        assert job.passings(windows, windows.late) == [AT, AT, AT, AT]

    def test_is_nothing_for_a_table_whose_time_no_one_waits_for(self) -> None:
        job = Job()
        table = job.app.table("names", hf.Log("names", SCHEMA), key="k")
        found = job.rows.lookup("named", table, on="k", as_of="latest").key_by("k").dedup("once", within="1m")
        assert job.passings(found) == [AT, ANY_TIME, ANY_TIME, AT, ANY_TIME, AT]
