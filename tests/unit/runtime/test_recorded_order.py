"""The record of the order in which a subtask took its input: what is put in comes out, and it is small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged
from holdfast.model import LAST_US, NEVER_US, ChannelId, Epoch, Subtask, Watermark
from holdfast.runtime.operators.portions import FollowedPortions, Portions, RecordedPortions
from holdfast.runtime.replay.reads import Reads, Sent, reads_of
from holdfast.runtime.replay.script import Script
from holdfast.runtime.replay.spans import Range, Span, offsets_in
from holdfast.runtime.worker.order import (
    CLOCK,
    SENT,
    TIME,
    FragmentSteps,
    FromChannel,
    FromPartition,
    Recorder,
    SubtaskOrder,
    decode,
    encode,
    sent_at,
)

NOW_US = 1_700_000_000_000_000
MINE = Subtask(1)


def channel(edge: int, sender: int) -> ChannelId:
    return ChannelId(edge, Subtask(sender), MINE)


class TestRecord:
    def test_has_ranges_of_partitions_and_rows_of_channels_with_times_between_them(self) -> None:
        record = Recorder(MINE, {})
        record.read(0, "rows", 3, 100, 112)
        record.read(0, "rows", 1, 7, 8)
        record.read(0, "rows", 3, 115, 127)  # 112 to 114 are a gap
        record.took(1, channel(0, 0), 5)
        record.took(1, channel(0, 0), 5)
        record.time(1, NOW_US)
        record.took(1, channel(0, 1), 5)
        record.time(1, NOW_US + 10)
        record.clock(1, NOW_US + 20)
        record.closed(0, Epoch(4))
        record.closed(1, Epoch(4))
        order = record.take(Epoch(4))
        assert order is not None and (order.epoch, order.subtask) == (4, MINE)
        first, second = order.fragments[0], order.fragments[1]
        assert first.places == (FromPartition("rows", 3, 100), FromPartition("rows", 1, 7))
        assert list(first.taken()) == [(0, 12), (1, 1), (0, 15)]
        assert second.places == (FromChannel(0, Subtask(0)), FromChannel(0, Subtask(1)))
        assert list(second.taken()) == [
            (0, 5),
            (0, 5),
            (TIME, NOW_US),
            (1, 5),
            (TIME, NOW_US + 10),
            (CLOCK, NOW_US + 20),
        ]
        assert record.take(Epoch(4)) is None

    def test_has_the_watermarks_of_a_source_and_begins_with_the_last_one(self) -> None:
        record = Recorder(MINE, {})
        first, second = Watermark(NEVER_US, quiet=True), Watermark(LAST_US, idle=True, over=True)
        record.sent(0, first)
        record.read(0, "rows", 0, 0, 1)
        record.sent(0, second)
        record.closed(0, Epoch(1))
        record.closed(0, Epoch(2))
        steps = [list(order.fragments[0].taken()) for at in (1, 2) if (order := record.take(Epoch(at))) is not None]
        assert [sent_at(*step) for step in (steps[0][0], steps[0][2])] == [first, second]
        assert steps[0][1] == (0, 1) and [sent_at(*step) for step in steps[1]] == [second]

    def test_the_order_of_a_microbatch_has_the_last_watermark_at_the_end(self) -> None:
        record = Recorder(MINE, {}, at_end=True)
        for at_us in (NOW_US, NOW_US + 1):
            record.sent(0, Watermark(at_us))
            record.read(0, "rows", 0, at_us, at_us + 1)
        record.closed(0, Epoch(1))
        order = record.take(Epoch(1))
        assert order is not None and list(order.fragments[0].taken()) == [(0, 1), (0, 1), (SENT, NOW_US + 1)]

    def test_ends_at_the_barrier_of_each_fragment(self) -> None:
        record = Recorder(MINE, {})
        record.read(0, "rows", 0, 0, 1)
        record.closed(0, Epoch(1))
        record.read(0, "rows", 0, 1, 3)
        record.took(1, channel(0, 0), 1)
        record.closed(1, Epoch(1))
        record.closed(0, Epoch(2))
        record.closed(1, Epoch(2))
        before, after = record.take(Epoch(1)), record.take(Epoch(2))
        assert before is not None and after is not None
        assert {at: list(steps.taken()) for at, steps in before.fragments.items()} == {0: [(0, 1)], 1: [(0, 1)]}
        assert after.fragments == {0: FragmentSteps((FromPartition("rows", 0, 1),), (0, 2, 1))}

    def test_packs_steps_that_repeat(self) -> None:
        record = Recorder(MINE, {})
        for n in range(1_000):
            record.read(0, "rows", 0, 10 * n, 10 * n + 10)
        record.closed(0, Epoch(1))
        order = record.take(Epoch(1))
        assert order is not None and order.fragments[0].steps == (0, 10, 1_000)
        assert len(encode(order)) < 200

    def test_comes_back_as_it_was_stored(self) -> None:
        record = Recorder(MINE, {"sums": 2})
        record.portions("sums").end(5, NOW_US)
        record.read(2, "rows", 0, 1, 3)
        record.closed(2, Epoch(9))
        order = record.take(Epoch(9))
        assert order is not None and decode(encode(order), "orders/1") == order
        assert order.fragments[2].portions == {"sums": (5, NOW_US)}

    def test_a_damaged_or_newer_order_is_refused(self) -> None:
        data = encode(SubtaskOrder(Epoch(1), MINE, {}))
        for wrong in (data[:-1], b"", data[:12] + b"\0\0\0" + data[15:]):
            with pytest.raises(Damaged, match="orders/1 cannot be read"):
                decode(wrong, "orders/1")
        with pytest.raises(ConfigError, match="has format 2; this version of Holdfast reads format 1"):
            decode(b"\x81\xa1v\x02", "orders/1")


events = st.tuples(st.integers(1, 50), st.none() | st.integers(0, NOW_US))


class TestPortions:
    def test_portions_that_nothing_records_are_those_asked_for(self) -> None:
        assert Portions().begin(7, lambda: NOW_US) == (7, NOW_US)
        assert Portions().time(NOW_US) == NOW_US

    @given(st.lists(events, max_size=20), st.integers(1, 50))
    def test_show_each_event_the_time_that_it_was_shown(self, made: list[tuple[int, int | None]], most: int) -> None:
        """However many events are there at a time."""
        recorded = RecordedPortions()
        for count, at_us in made:
            recorded.end(count, at_us)
        followed, seen = FollowedPortions([recorded.take()]), list[int | None]()
        shown = [at_us for count, at_us in made for _ in range(count)]
        while len(seen) < len(shown):
            limit, at_us = followed.begin(most, lambda: pytest.fail("a clock was looked at"))
            count = min(limit, most, len(shown) - len(seen))
            assert count > 0
            seen += [at_us] * count
            followed.end(count, at_us)
        assert [then for then, now in zip(shown, seen, strict=True) if then not in (None, now)] == []
        assert followed.begin(most, lambda: 5) == (most, 5), "behind the record, the present counts"

    def test_the_portions_of_an_epoch_begin_with_a_time_of_their_own(self) -> None:
        recorded = RecordedPortions()
        runs = []
        for at_us in (NOW_US, NOW_US + 5):
            recorded.end(2, at_us)
            assert recorded.time(at_us + 1) == at_us + 1
            runs.append(recorded.take())
        followed = FollowedPortions(runs)
        for at_us in (NOW_US, NOW_US + 5):
            assert followed.begin(9, lambda: 0) == (2, at_us)
            followed.end(2, at_us)
            assert followed.time(0) == at_us + 1

    def test_without_a_time_shown_are_added_up(self) -> None:
        recorded = RecordedPortions()
        for _ in range(1_000):
            recorded.end(3, None)
        assert len(recorded.take()) == 2


def span_of(counts: dict[int, int]) -> Span:
    return tuple(Range("rows", partition, 10, 10 + count) for partition, count in sorted(counts.items()))


class TestReads:
    @given(
        st.dictionaries(st.integers(0, 3), st.integers(0, 30), min_size=1),
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=30),
    )
    def test_are_cut_into_pieces_that_follow_them(self, counts: dict[int, int], made: list[tuple[int, int]]) -> None:
        """Each piece holds what was read next, and in the end each is one record."""
        at, items = dict.fromkeys(counts, 10), list[Range | Sent]()
        for partition, count in made:
            if partition in at:
                items.append(Range("rows", partition, at[partition], at[partition] + count))
                at[partition] += count
        reads, whole = Reads(items), span_of(counts)
        left, single = [whole], list[tuple[int, int]]()
        while left:
            span = left.pop()
            if offsets_in(span) <= 1:
                single += [(each.partition, each.first) for each in span if each.offsets]
                continue
            pieces = reads.cut(span)
            assert len(pieces) >= 2 and all(0 < offsets_in(piece) < offsets_in(span) for piece in pieces)
            left += pieces[::-1]
        read = [(each.partition, n) for each in items if isinstance(each, Range) for n in range(each.first, each.end)]
        wanted = [(partition, n) for partition, n in read if n < 10 + counts[partition]]
        assert single[: len(wanted)] == wanted
        assert sorted(single) == [(each.partition, n) for each in whole for n in range(each.first, each.end)]

    def test_the_reads_of_subtasks_are_merged_by_their_shares(self) -> None:
        steps = {
            (Epoch(1), Subtask(0), 0): FragmentSteps((FromPartition("rows", 0, 0),), (0, 5, 4)),
            (Epoch(1), Subtask(1), 0): FragmentSteps(
                (FromPartition("rows", 1, 7),), (SENT, 50, 1, 0, 9, 1, SENT, 3, 1)
            ),
        }
        items = reads_of(Script(2, (Epoch(1),), steps)).items
        assert items == (
            Range("rows", 0, 0, 5),
            Sent(0, Subtask(1), Watermark(50)),
            Range("rows", 0, 5, 10),
            Range("rows", 1, 7, 16),
            Range("rows", 0, 10, 15),
            Range("rows", 0, 15, 20),
            Sent(0, Subtask(1), Watermark(53)),
        )
