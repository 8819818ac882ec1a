"""Data that tasks of a microbatch send to each other: blocks of frames, and the results of tasks.

A block is one value in Spark's shuffle: a header in msgpack, then the record batches of its frames in Arrow's IPC form.
A task has sent everything once its barriers have arrived. Spark keeps no order among the rows that one task sends to
another, so blocks are numbered.

Invariants
    - Frames leave `BlockInbox` in the order in which their sender put them.
    - A task reads blocks of one attempt of each sender, and its result names them (P26).

Pure.
Source: PROTOCOL P26; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.checkpoint.audit import PartAudit
from holdfast.errors import ErrorReport, Unavailable
from holdfast.model import Barrier, ChannelId, ObjectRef, SegmentRef, SourcePosition, Staged, Subtask, Watermark
from holdfast.runtime.wire.channels import Frame
from holdfast.runtime.wire.messages import WorkerProgress

BLOCK_BYTES = 4 << 20
"""A block is sent once its record batches have this size."""
_LENGTH = struct.Struct("<I")


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of one task."""

    layer: int
    subtask: Subtask
    id: str
    """Unique among all attempts; the objects that it stores carry it in their names."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Result of one attempt of a task for an epoch; every object that it names is durable."""

    attempt: Attempt
    read_from: tuple[Attempt, ...] = ()
    """The attempts whose blocks it read."""
    positions: tuple[SourcePosition, ...] = ()
    segment: SegmentRef | None = None
    staged: dict[str, Staged] = {}
    audit: PartAudit | None = None
    progress: WorkerProgress = WorkerProgress()
    filled: float = 0.0
    """Its changes of state, as a share of the memory that there is for them."""
    orders: tuple[ObjectRef, ...] | None = None
    """As in SubtaskPart."""
    error: ErrorReport | None = None
    """Why there is nothing else in this result."""
    permanent: bool = False
    """Another attempt would fail in the same way."""


class _Piece(msgspec.Struct, frozen=True):
    """One frame of a block: a barrier, a watermark, or this many bytes of rows."""

    edge: int
    size: int = 0
    barrier: Barrier | None = None
    watermark: Watermark | None = None


class _Frames(msgspec.Struct, frozen=True, tag="frames"):
    """The header of a block of frames."""

    attempt: Attempt
    layer: int
    """Where its frames are taken."""
    number: int
    """Number of the block among those from this attempt to this receiver and layer."""
    pieces: tuple[_Piece, ...]


_HEADER: msgspec.msgpack.Decoder[Result | _Frames] = msgspec.msgpack.Decoder(Result | _Frames)


class Parcel(NamedTuple):
    """A value in the shuffle, and the subtask whose task receives it."""

    to: Subtask
    data: bytes


def parcel_of(result: Result) -> Parcel:
    """Return a result for the shuffle; every later task of the subtask passes it on."""
    return Parcel(result.attempt.subtask, _packed(result, []))


def _packed(header: Result | _Frames, bodies: list[pa.Buffer]) -> bytes:
    head = msgspec.msgpack.encode(header)
    return b"".join([_LENGTH.pack(len(head)), head, *(memoryview(body) for body in bodies)])


class Outbox:
    """Collects the frames that one attempt sends to tasks of later layers."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._waiting: dict[tuple[int, Subtask], tuple[list[_Piece], list[pa.Buffer]]] = {}
        self._sizes: dict[tuple[int, Subtask], int] = {}
        self._numbers: dict[tuple[int, Subtask], int] = {}
        self._full: deque[Parcel] = deque()

    def put(self, layer: int, channel: ChannelId, frame: Frame) -> None:
        """Add a frame for a task of this layer."""
        place = layer, channel.receiver
        pieces, bodies = self._waiting.setdefault(place, ([], []))
        if isinstance(frame, Barrier | Watermark):
            whole = {"barrier" if isinstance(frame, Barrier) else "watermark": frame}
            pieces.append(_Piece(channel.edge, **whole))  # type: ignore[arg-type]
            return
        body = frame.serialize()
        pieces.append(_Piece(channel.edge, body.size))
        bodies.append(body)
        self._sizes[place] = self._sizes.get(place, 0) + body.size
        if self._sizes[place] >= BLOCK_BYTES:
            self._close(place)

    def full(self) -> Iterator[Parcel]:
        """Yield the blocks that are full."""
        while self._full:
            yield self._full.popleft()

    def rest(self) -> Iterator[Parcel]:
        """Yield all other blocks."""
        for place in list(self._waiting):
            self._close(place)
        yield from self.full()

    def _close(self, place: tuple[int, Subtask]) -> None:
        layer, receiver = place
        pieces, bodies = self._waiting.pop(place)
        self._sizes.pop(place, None)
        number = self._numbers[place] = self._numbers.get(place, -1) + 1
        header = _Frames(self._attempt, layer, number, tuple(pieces))
        self._full.append(Parcel(receiver, _packed(header, bodies)))


class BlockInbox:
    """Takes the blocks that one task of a layer receives.

    Args:
        schemas: Schema of every edge.
    """

    def __init__(self, layer: int, subtask: Subtask, schemas: dict[int, pa.Schema]) -> None:
        self._layer, self._subtask, self._schemas = layer, subtask, schemas
        self._senders: dict[tuple[int, Subtask], Attempt] = {}
        self._next: dict[Attempt, int] = {}
        self._early: dict[tuple[Attempt, int], tuple[_Frames, memoryview]] = {}

    @property
    def read_from(self) -> tuple[Attempt, ...]:
        """Return the attempts whose blocks were taken."""
        return tuple(self._senders[key] for key in sorted(self._senders))

    def take(self, data: bytes | memoryview) -> list[tuple[ChannelId, Frame]] | None:
        """Return the frames that are next now that this value has come; None: it is for a later layer.

        Raises:
            Unavailable: blocks of two attempts of a task have come.
        """
        view = memoryview(data)
        (length,) = _LENGTH.unpack_from(view)
        header, body = _HEADER.decode(view[4 : 4 + length]), view[4 + length :]
        if isinstance(header, Result) or header.layer != self._layer:
            return None
        sender = header.attempt
        if self._senders.setdefault((sender.layer, sender.subtask), sender) != sender:
            raise mixed(sender.layer, sender.subtask)
        self._early[sender, header.number] = header, body
        frames: list[tuple[ChannelId, Frame]] = []
        while (ready := self._early.pop((sender, self._next.get(sender, 0)), None)) is not None:
            self._next[sender] = self._next.get(sender, 0) + 1
            frames += self._frames(*ready)
        return frames

    def _frames(self, header: _Frames, body: memoryview) -> Iterator[tuple[ChannelId, Frame]]:
        at = 0
        for piece in header.pieces:
            channel = ChannelId(piece.edge, header.attempt.subtask, self._subtask)
            if (mark := piece.barrier or piece.watermark) is not None:
                yield channel, mark
                continue
            # A copy, since kernels need numbers at even addresses, and Spark puts the bytes anywhere.
            rows = pa.py_buffer(bytes(body[at : at + piece.size]))
            yield channel, pa.ipc.read_record_batch(rows, self._schemas[piece.edge])
            at += piece.size


def result_in(data: bytes | memoryview) -> Result | None:
    """Return the result that a value holds; None if it is a block."""
    view = memoryview(data)
    (length,) = _LENGTH.unpack_from(view)
    header = _HEADER.decode(view[4 : 4 + length])
    return header if isinstance(header, Result) else None


def mixed(layer: int, subtask: Subtask) -> Unavailable:
    """Return the error for output of two attempts of one task in one job."""
    return Unavailable(
        f"Spark ran task {subtask} of layer {layer} twice, and later tasks read the output of both",
        not_done="the epoch was not completed",
        next_step="its job runs again from the same offsets",
    )
