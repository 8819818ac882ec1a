"""Backpressure and frame limits of the data plane: how much a sender may send, and how much a receiver buffers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pytest
from patience import WALL_S, wait

from holdfast.errors import JobFailed
from holdfast.model import Barrier, Epoch, Generation
from holdfast.runtime.processes import streams
from holdfast.runtime.processes.exchange import Hello, _TcpLinks
from holdfast.runtime.processes.streams import PeerStream, connect
from holdfast.runtime.wire import channels
from holdfast.runtime.wire.channels import CHANNEL_BYTES_MAX, parts_of
from tests.unit.runtime.processes.test_exchange import JOB, LEFT_TO_RIGHT, SECRET, End, batch, opened, taken

BATCH_BYTES = 1 << 20
BATCHES = 96
"""Far more than the receiver's queue and the buffers of both sockets hold."""


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    both = End(), End()
    yield both
    for end in both:
        end.close()


def numbered(number: int) -> pa.RecordBatch:
    return batch(*[number] * (BATCH_BYTES // 8))


class TestAReceiver:
    def test_reads_only_what_its_queue_has_room_for_and_resumes_later(self, ends: tuple[End, End]) -> None:
        _, receiver = ends
        links = receiver.open(1, 1, {})
        assert isinstance(links, _TcpLinks)
        hello = msgspec.msgpack.encode(Hello(JOB, Generation(1), LEFT_TO_RIGHT))
        stream = connect(receiver.network.address, SECRET, hello)
        all_sent = threading.Event()

        def send() -> None:
            for number in range(BATCHES):
                stream.send(1, memoryview(numbered(number).serialize()))
            all_sent.set()

        threading.Thread(target=send, daemon=True).start()
        queue = links._in[LEFT_TO_RIGHT]
        wait(lambda: all_sent.is_set() or (queue._full and not queue.room()), "the receiver to wait for room")
        assert not all_sent.is_set()
        assert queue._bytes_in - queue._bytes_out <= CHANNEL_BYTES_MAX + 2 * BATCH_BYTES
        frames = taken(links, BATCHES)
        assert [frame.column(0)[0].as_py() for frame in frames if isinstance(frame, pa.RecordBatch)] == list(
            range(BATCHES)
        )
        assert all_sent.wait(WALL_S)
        stream.close()

    def test_a_receiver_that_reads_nothing_leaves_its_sender_without_room(self, ends: tuple[End, End]) -> None:
        sender, receiver = opened(ends)
        assert isinstance(sender, _TcpLinks) and isinstance(receiver, _TcpLinks)
        queue, waiting = sender._out[LEFT_TO_RIGHT], receiver._in[LEFT_TO_RIGHT]
        sent = 0

        def full() -> bool:
            nonlocal sent
            while sender.room(LEFT_TO_RIGHT) and sent < BATCHES:
                sender.put(LEFT_TO_RIGHT, numbered(sent))
                sent += 1
            return sent == BATCHES or (waiting._full and not waiting.room() and not queue.room())

        wait(full, "both queues to be full")
        assert sent < BATCHES
        taken(receiver, sent)
        assert sender.room(LEFT_TO_RIGHT)


class TestBatchLargerThanAFrame:
    def test_is_sent_in_parts_in_order_and_before_the_barrier(
        self, ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(channels, "BATCH_BYTES_MAX", 4_096)
        monkeypatch.setattr(streams, "FRAME_BYTES_MAX", 8_192)
        sender, receiver = opened(ends)
        barrier = Barrier(Epoch(1), Epoch(0), last=False)
        sender.put(LEFT_TO_RIGHT, batch(*range(10_000)))
        sender.put(LEFT_TO_RIGHT, barrier)
        rows: list[int] = []
        while (frame := taken(receiver, 1)[0]) != barrier:
            assert isinstance(frame, pa.RecordBatch)
            rows += frame.column(0).to_pylist()
        assert rows == list(range(10_000))
        for end in ends:
            end.mailbox.drain()
        assert [end.broken for end in ends] == [[], []]

    def test_is_refused_if_it_is_one_row(self, ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(channels, "BATCH_BYTES_MAX", 1_000)
        monkeypatch.setattr(channels, "ROW_BYTES_MAX", 2_000)
        large = pa.record_batch([pa.array(["x", "y" * 3_000])], names=["text"])
        with pytest.raises(JobFailed, match=r"a row of 3,0\d\d bytes .* the limit is 2,000 bytes"):
            parts_of(large)
        assert [part.num_rows for part in parts_of(pa.record_batch([["x", "y" * 1_500]], names=["text"]))] == [1, 1]

    def test_a_batch_within_the_limit_is_not_copied(self) -> None:
        whole = batch(1, 2, 3)
        assert parts_of(whole)[0] is whole

    def test_a_row_at_the_limit_fits_into_a_frame_with_its_overhead(self) -> None:
        """What Arrow adds to a row are its schema-less header and padding: a few hundred bytes per column."""
        row = pa.record_batch([pa.array(["x" * 100_000])] * 300, names=[f"c{n}" for n in range(300)])
        assert len(row.serialize()) < row.nbytes + 300 * 512
        assert 2 * channels.ROW_BYTES_MAX <= streams.FRAME_BYTES_MAX
        assert channels.BATCH_BYTES_MAX <= channels.ROW_BYTES_MAX


class TestOversizedFrame:
    def joined(self, ends: tuple[End, End]) -> PeerStream:
        ends[1].open(1, 1, {})
        return connect(
            ends[1].network.address, SECRET, msgspec.msgpack.encode(Hello(JOB, Generation(1), LEFT_TO_RIGHT))
        )

    def test_is_refused_by_its_sender_and_the_stream_stays_open(
        self, ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streams, "FRAME_BYTES_MAX", 10_000)
        stream = self.joined(ends)
        with pytest.raises(JobFailed, match="a frame of 10,001 bytes .* the limit is 10,000 bytes"):
            stream.send(1, bytes(10_001))
        stream.send(1, memoryview(batch(7).serialize()))
        assert ends[1].links is not None
        (frame,) = taken(ends[1].links, 1)
        assert isinstance(frame, pa.RecordBatch) and frame.equals(batch(7))
        stream.close()

    def test_is_refused_by_a_receiver_before_memory_is_allocated(
        self, ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = self.joined(ends)
        stream._bytes.sendall(streams._HEADER.pack(1, streams.FRAME_BYTES_MAX + 1))

        def reported() -> bool:
            ends[1].mailbox.drain()
            return any("was announced" in why for _, _, why in ends[1].broken)

        wait(reported, "a report")
        stream.close()
