"""Blocks of frames in a shuffle that keeps no order."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from holdfast.errors import Unavailable
from holdfast.model import Barrier, ChannelId, Epoch, Subtask, Watermark
from holdfast.runtime.microbatch.blocks import (
    BLOCK_BYTES,
    Attempt,
    BlockInbox,
    Outbox,
    Parcel,
    Result,
    parcel_of,
    result_in,
)
from holdfast.runtime.wire.channels import Frame

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
MINE, OTHER = Subtask(0), Subtask(1)
CHANNEL = ChannelId(0, OTHER, MINE)
BARRIER, WATERMARK = Barrier(Epoch(3), Epoch(2), last=False), Watermark(17, idle=True)


def rows(first: int, count: int = 3) -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    return pa.record_batch([numbers, [f"row {n}" for n in numbers]], schema=SCHEMA)


def inbox(layer: int = 1) -> BlockInbox:
    return BlockInbox(layer, MINE, {0: SCHEMA, 1: SCHEMA})


def sent(*frames: Frame, attempt: str = "a", layer: int = 1) -> list[Parcel]:
    """Return one block per frame, as one attempt sends them."""
    out, parcels = Outbox(Attempt(0, OTHER, attempt)), list[Parcel]()
    for frame in frames:
        out.put(layer, CHANNEL, frame)
        parcels += out.rest()
    return parcels


def taken(into: BlockInbox, parcels: list[Parcel]) -> list[tuple[ChannelId, Frame]]:
    return [frame for parcel in parcels for frame in into.take(parcel.data) or []]


class TestFrames:
    def test_come_out_as_they_went_in(self) -> None:
        out = Outbox(Attempt(0, OTHER, "a"))
        frames: list[Frame] = [rows(0), WATERMARK, rows(3), BARRIER]
        for frame in frames:
            out.put(1, CHANNEL, frame)
        (parcel,) = out.rest()
        assert parcel.to == MINE
        assert taken(inbox(), [parcel]) == [(CHANNEL, frame) for frame in frames]

    @pytest.mark.parametrize("seed", range(5))
    def test_come_out_in_order_whatever_order_the_blocks_have(self, seed: int) -> None:
        frames = [rows(3 * number) for number in range(8)]
        parcels = sent(*frames, BARRIER)
        random.Random(seed).shuffle(parcels)
        assert [frame for _, frame in taken(inbox(), parcels)] == [*frames, BARRIER]

    def test_frames_of_rows_are_aligned_at_any_block_address(self) -> None:
        (parcel,) = sent(rows(0))
        shifted = memoryview(b"x" + parcel.data)[1:]
        ((_, batch),) = inbox().take(shifted) or []
        assert isinstance(batch, pa.RecordBatch)
        assert batch.column(0).buffers()[1].address % 8 == 0

    def test_a_block_is_closed_once_it_is_large(self) -> None:
        out = Outbox(Attempt(0, OTHER, "a"))
        large = rows(0, BLOCK_BYTES // 16)
        out.put(1, CHANNEL, large)
        out.put(1, CHANNEL, BARRIER)
        first, second = list(out.full()), list(out.rest())
        assert len(first) == len(second) == 1
        assert [frame for _, frame in taken(inbox(), [*second, *first])] == [large, BARRIER]

    def test_for_a_later_layer_are_not_taken(self) -> None:
        (parcel,) = sent(rows(0), layer=2)
        assert inbox(layer=1).take(parcel.data) is None
        assert result_in(parcel.data) is None


class TestAttempts:
    def test_attempts_that_were_read_are_known(self) -> None:
        into = inbox()
        taken(into, sent(rows(0)))
        assert into.read_from == (Attempt(0, OTHER, "a"),)

    def test_blocks_of_two_attempts_of_one_task_are_refused(self) -> None:
        into = inbox()
        taken(into, sent(rows(0)))
        with pytest.raises(Unavailable, match="twice, and later tasks read the output of both"):
            taken(into, sent(rows(0), attempt="b"))


class TestResults:
    def test_pass_through_every_layer(self) -> None:
        result = Result(Attempt(0, OTHER, "a"))
        parcel = parcel_of(result)
        assert parcel.to == OTHER
        assert inbox().take(parcel.data) is None
        assert result_in(parcel.data) == result
