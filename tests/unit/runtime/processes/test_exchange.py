"""Channels over real sockets: order, who may connect, and what becomes of a channel that breaks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pytest
from patience import WALL_S, wait

from holdfast.errors import Unavailable
from holdfast.model import Barrier, ChannelId, Epoch, Generation, JobUuid, Subtask, Watermark
from holdfast.runtime.processes.exchange import Hello, TcpNetwork, _TcpLinks
from holdfast.runtime.processes.streams import SILENT_AFTER_S, PeerStream, StreamClosed, close_listener, connect, listen
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire.channels import Frame, Links, OpenLinks
from holdfast.runtime.wire.mailbox import Mailbox, ThreadLanes

SCHEMA = pa.schema([pa.field("n", pa.int64())])
SECRET = Credentials(b"s" * 32)
JOB = JobUuid("job")
LEFT_TO_RIGHT = ChannelId(0, Subtask(0), Subtask(1))


class End:
    """One worker's end of the network, and the broken channels reported to it."""

    def __init__(self, credentials: Credentials = SECRET, silent_after_s: float = SILENT_AFTER_S) -> None:
        self.mailbox = Mailbox()
        self.network = TcpNetwork("127.0.0.1", credentials, self.mailbox, silent_after_s=silent_after_s)
        self.broken: list[tuple[int, str, str]] = []
        self.links: Links | None = None

    def open(self, subtask: int, generation: int, peers: dict[Subtask, tuple[str, int]]) -> Links:
        sends = subtask == 0
        self.links = self.network.open(
            OpenLinks(
                JOB,
                Generation(generation),
                Subtask(subtask),
                () if sends else (LEFT_TO_RIGHT,),
                (LEFT_TO_RIGHT,) if sends else (),
                peers,
                {0: SCHEMA},
                self.hear,
            )
        )
        return self.links

    def hear(self, generation: Generation, channel: ChannelId, why: str, silent: bool) -> None:
        assert not silent, "all ends are on this machine"
        self.broken.append((generation, threading.current_thread().name, why))

    def close(self) -> None:
        if self.links is not None:
            self.links.close()
        self.network.close()


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    both = End(), End()
    yield both
    for end in both:
        end.close()


def opened(ends: tuple[End, End], generation: int = 1) -> tuple[Links, Links]:
    peers = {Subtask(i): end.network.address for i, end in enumerate(ends)}
    return ends[0].open(0, generation, peers), ends[1].open(1, generation, peers)


def taken(links: Links, count: int) -> list[Frame]:
    frames: list[Frame] = []

    def more() -> bool:
        frame = links.take(LEFT_TO_RIGHT)
        if frame is not None:
            frames.append(frame)
        return len(frames) == count

    wait(more, f"{count} frames")
    return frames


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def refused(stream: PeerStream) -> None:
    """Wait until the other end closes the stream."""
    stream.hurry(time.monotonic() + 10.0)
    with pytest.raises(StreamClosed, match="its process ended|reset by peer"):
        stream.receive()
    stream.close()


class TestChannels:
    def test_batches_barriers_and_watermarks_arrive_in_order(self, ends: tuple[End, End]) -> None:
        sender, receiver = opened(ends)
        barrier = Barrier(Epoch(1), Epoch(0), last=False)
        time, idle = Watermark(7), Watermark(8, idle=True)
        for frame in (batch(1, 2), time, barrier, idle, batch(3)):
            sender.put(LEFT_TO_RIGHT, frame)
        first, *times, third = taken(receiver, 5)
        second = times.pop(1)
        assert times == [time, idle]
        assert isinstance(first, pa.RecordBatch) and first.equals(batch(1, 2))
        assert second == barrier
        assert isinstance(third, pa.RecordBatch) and third.equals(batch(3))

    def test_a_full_queue_has_no_room_until_it_is_read(self, ends: tuple[End, End]) -> None:
        sender, receiver = opened(ends)
        large = batch(*range(500_000))
        sent = 0
        while sender.room(LEFT_TO_RIGHT):
            sender.put(LEFT_TO_RIGHT, large)
            sent += 1
            assert sent < 100
        taken(receiver, sent)
        wait(lambda: sender.room(LEFT_TO_RIGHT), "room")

    def test_a_peer_that_was_deployed_first_is_kept_waiting(self, ends: tuple[End, End]) -> None:
        peers = {Subtask(i): end.network.address for i, end in enumerate(ends)}
        sender = ends[0].open(0, 2, peers)
        sender.put(LEFT_TO_RIGHT, batch(7))
        wait(lambda: ends[1].network._waiting, "the connection")
        (frame,) = taken(ends[1].open(1, 2, peers), 1)
        assert isinstance(frame, pa.RecordBatch) and frame.equals(batch(7))
        assert ends[1].network._waiting == {}

    def test_a_waiting_peer_that_reconnects_replaces_its_connection(self, ends: tuple[End, End]) -> None:
        hello = msgspec.msgpack.encode(Hello(JOB, Generation(1), LEFT_TO_RIGHT))
        network = ends[1].network
        first = connect(network.address, SECRET, hello)
        wait(lambda: network._waiting, "the first connection")
        second = connect(network.address, SECRET, hello)
        refused(first)
        barrier = Barrier(Epoch(1), Epoch(0), last=False)
        second.send(2, msgspec.msgpack.encode(barrier))
        assert taken(ends[1].open(1, 1, {}), 1) == [barrier]
        second.close()

    def test_closing_frees_the_threads_that_wait_for_frames_or_room(self, ends: tuple[End, End]) -> None:
        before = set(threading.enumerate())

        def channels() -> list[str]:
            names = [thread.name for thread in threading.enumerate() if thread not in before]
            return sorted(name for name in names if name.startswith(("send-", "receive-")))

        sender, _ = opened(ends)
        sender.put(LEFT_TO_RIGHT, batch(1))
        wait(lambda: channels() == ["receive-0-0", "send-0-1"], "both threads")
        for end in ends:
            end.close()
        wait(lambda: channels() == [], "their end")

    def test_peers_of_an_older_generation_are_refused(self, ends: tuple[End, End]) -> None:
        """P2"""
        opened(ends, generation=2)
        hello = msgspec.msgpack.encode(Hello(JOB, Generation(1), LEFT_TO_RIGHT))
        stale = connect(ends[1].network.address, SECRET, hello)
        refused(stale)

    @pytest.mark.parametrize(
        "hello",
        [
            Hello(JobUuid("another"), Generation(1), LEFT_TO_RIGHT),
            Hello(JOB, Generation(1), ChannelId(0, Subtask(1), Subtask(0))),
            Hello(JOB, Generation(1), ChannelId(5, Subtask(0), Subtask(1))),
        ],
        ids=["another job", "a channel the other way", "an edge that is not"],
    )
    def test_channels_of_another_job_or_subtask_are_refused(self, ends: tuple[End, End], hello: Hello) -> None:
        """P2"""
        opened(ends)
        stranger = connect(ends[1].network.address, SECRET, msgspec.msgpack.encode(hello))
        refused(stranger)


class TestClosedChannels:
    HELLO = msgspec.msgpack.encode(Hello(JOB, Generation(1), LEFT_TO_RIGHT))

    def test_end_for_their_peers_and_are_not_reported(self, ends: tuple[End, End]) -> None:
        links = ends[1].open(1, 1, {})
        peer = connect(ends[1].network.address, SECRET, self.HELLO)
        peer.send(1, memoryview(batch(1).serialize()))
        taken(links, 1)
        links.close()
        with pytest.raises(StreamClosed):
            peer.receive()
        for thread in threading.enumerate():
            if thread.name.startswith("receive-"):
                thread.join(WALL_S)
        ends[1].mailbox.drain()
        assert ends[1].broken == []

    def test_accept_no_further_peer(self, ends: tuple[End, End]) -> None:
        ends[1].open(1, 1, {}).close()
        with pytest.raises(StreamClosed):
            connect(ends[1].network.address, SECRET, self.HELLO).receive()

    def test_the_closed_channels_of_an_exiting_worker_include_its_waiting_peers(self, ends: tuple[End, End]) -> None:
        peer = connect(ends[1].network.address, SECRET, self.HELLO)
        wait(lambda: ends[1].network._waiting, "the peer to wait")
        ends[1].network.close()
        with pytest.raises(StreamClosed):
            peer.receive()

    def test_are_probed_while_they_are_silent(self, ends: tuple[End, End]) -> None:
        """A peer whose packets are dropped sends nothing, also no end."""
        peer = connect(ends[1].network.address, SECRET, self.HELLO)
        options = (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        )
        assert [peer._socket.getsockopt(*option) for option in options] == [1, 5, 2, 3]
        peer.close()

    @pytest.mark.parametrize(
        ("silent_after_s", "first", "every"), [(0.05, 1, 1), (3.0, 1, 1), (5.0, 2, 1), (11.0, 5, 2), (60.0, 24, 12)]
    )
    def test_are_probed_so_that_they_end_after_the_silence_of_the_settings(
        self, silent_after_s: float, first: int, every: int
    ) -> None:
        ends = End(silent_after_s=silent_after_s), End(silent_after_s=silent_after_s)
        for links, end in zip(opened(ends), ends, strict=True):
            assert isinstance(links, _TcpLinks)
            wait(lambda links=links: links._streams, "a connection")
            connection, options = links._streams[0]._socket, (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
            assert [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [first, every]
            end.close()

    def test_are_awaited_for_the_silence_of_the_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A peer whose host does not answer must not hold up the report for the default of the handshake."""
        waited = list[float]()

        def unanswered(
            _address: object, _credentials: object, _hello: bytes, silent_after_s: float = 60.0
        ) -> PeerStream:
            waited.append(silent_after_s)
            raise Unavailable("no answer", next_step="check the network")

        monkeypatch.setattr("holdfast.runtime.processes.exchange.connect", unanswered)
        end = End(silent_after_s=0.75)
        end.open(0, 1, {Subtask(1): ("127.0.0.1", 1)})
        wait(lambda: end.mailbox.drain() or end.broken, "a report")
        assert waited == [0.75]
        end.close()


class TestBrokenChannels:
    def test_are_reported_only_on_the_loops_thread(self, ends: tuple[End, End]) -> None:
        sender, _ = opened(ends)
        sender.put(LEFT_TO_RIGHT, batch(1))
        ends[1].close()
        while_sending = threading.Event()

        def reported() -> bool:
            sender.put(LEFT_TO_RIGHT, batch(1))
            while_sending.wait(0.01)
            return ends[0].mailbox.drain()

        wait(reported, "a report")
        assert ends[0].broken[0][:2] == (1, threading.current_thread().name)

    def test_say_why_in_one_line_if_the_peer_cannot_be_reached(self, ends: tuple[End, End]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = gone.getsockname()[:2]
        ends[0].open(0, 1, {Subtask(1): address})
        wait(ends[0].mailbox.drain, "a report")
        assert ends[0].broken[0][2] == f"no stream to 127.0.0.1:{address[1]}: [Errno 111] Connection refused"

    def test_include_those_that_deliver_unreadable_bytes(self, ends: tuple[End, End]) -> None:
        opened(ends)[0].close()
        ends[1].open(1, 2, {})
        hello = msgspec.msgpack.encode(Hello(JOB, Generation(2), LEFT_TO_RIGHT))
        stream: PeerStream = connect(ends[1].network.address, SECRET, hello)
        stream.send(1, b"no record batch")

        def is_reported() -> bool:
            ends[1].mailbox.drain()
            return any(
                generation == 2 for generation, _, _ in ends[1].broken
            )  # that channel 1 closed may be reported first

        wait(is_reported, "a report")
        stream.close()


class TestAuthentication:
    def test_a_peer_without_the_secret_is_refused(self, ends: tuple[End, End]) -> None:
        with pytest.raises((Unavailable, StreamClosed)):
            connect(ends[1].network.address, Credentials(b"x" * 32), b"hello").receive()

    def test_a_closed_listener_accepts_no_peer(self) -> None:
        listener = listen("127.0.0.1")
        address = listener.getsockname()
        freed = threading.Event()

        def accept() -> None:
            try:
                listener.accept()
            except OSError:
                freed.set()

        threading.Thread(target=accept, daemon=True).start()
        close_listener(listener)
        assert freed.wait(WALL_S)
        with pytest.raises(Unavailable):
            connect(address, SECRET, b"hello")


class TestThreadLanes:
    def test_end_with_their_owner(self) -> None:
        mailbox = Mailbox()
        lanes = ThreadLanes(mailbox)
        done: list[object] = []
        lanes.lane("once-only").submit(lambda: 7, done.append)
        lanes.close()
        wait(lambda: "once-only" not in {thread.name for thread in threading.enumerate()}, "the thread to end")
        mailbox.drain()
        assert done == [7]
