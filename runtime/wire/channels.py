"""The data plane as the loop sees it: ordered channels, newly opened for every generation.

A channel carries record batches, barriers and watermarks, in order. All channels of a generation close together
at rollback, so no batch from before it can be taken after it (P2).

Invariants
    - Frames come out of a channel in the order they went in, or the channel breaks; none is skipped.
    - The loop asks for `room` before work that puts frames; a queue is bounded in bytes, give or take one batch.

Source: DESIGN section 3 (data plane); PROTOCOL P2, P9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

import pyarrow as pa

from holdfast.errors import JobFailed
from holdfast.model import Barrier, ChannelId, Generation, JobUuid, Subtask, Watermark

Frame: TypeAlias = pa.RecordBatch | Barrier | Watermark

CHANNEL_BYTES_MAX = 8 << 20
BATCH_BYTES_MAX = 64 << 20
"""A larger batch is sent in parts: far below the limit of a frame, however the frame counts its bytes."""
ROW_BYTES_MAX = 1 << 29
"""Half the limit of a frame."""


class Links(Protocol):
    """All channels of one subtask in one generation."""

    def take(self, channel: ChannelId) -> Frame | None:
        """Return the next frame of an input channel, or None if none has arrived."""

    def room(self, channel: ChannelId) -> bool:
        """Return whether an output channel takes more frames now."""

    def put(self, channel: ChannelId, frame: Frame) -> None:
        """Queue the frame; never blocks.

        Raises:
            JobFailed: a row of the frame is larger than the channel can carry.
        """

    def close(self) -> None:
        """Close every channel immediately; queued frames are dropped."""


class Network(Protocol):
    """Opens the channels of a generation."""

    def open(self, request: OpenLinks) -> Links:
        """Open the channels; they connect in the background."""


class OpenLinks:
    """Which channels a subtask needs, and where its peers are.

    Args:
        broken: Reports a broken channel, why, and whether the reason is silence: the peer's machine answers nothing.
    """

    def __init__(
        self,
        job_uuid: JobUuid,
        generation: Generation,
        subtask: Subtask,
        inputs: Iterable[ChannelId],
        outputs: Iterable[ChannelId],
        addresses: Mapping[Subtask, tuple[str, int]],
        schemas: Mapping[int, pa.Schema],
        broken: Callable[[Generation, ChannelId, str, bool], None],
    ) -> None:
        self.job_uuid, self.generation, self.subtask = job_uuid, generation, subtask
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.addresses, self.schemas, self.broken = addresses, schemas, broken


def parts_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Split the batch into parts that fit a frame of the data plane, in order.

    Raises:
        JobFailed: one row alone is too large.
    """
    if batch.nbytes <= BATCH_BYTES_MAX:
        return [batch]
    if batch.num_rows > 1:
        half = batch.num_rows // 2
        return [*parts_of(batch.slice(0, half)), *parts_of(batch.slice(half))]
    if batch.nbytes > ROW_BYTES_MAX:
        raise JobFailed(
            f"a row of {batch.nbytes:,} bytes is too large to send to another worker; the limit is "
            f"{ROW_BYTES_MAX:,} bytes",
            not_done="the row was not sent and the epoch was not completed; state and output stay as of the last "
            "checkpoint",
            next_step="leave out or shorten large columns before key_by, then run the job again",
        )
    return [batch]


def size_of(frame: Frame) -> int:
    """Return the bytes that a frame counts for against a queue's limit."""
    return 64 if isinstance(frame, Barrier | Watermark) else int(frame.nbytes) + 64


class FrameQueue:
    """One channel's frames in memory, bounded in bytes. One thread may put while another takes, no more."""

    def __init__(self, bytes_max: int = CHANNEL_BYTES_MAX) -> None:
        self._frames: deque[tuple[Frame, int]] = deque()
        self._bytes_in = self._bytes_out = 0
        self._bytes_max = bytes_max

    def put(self, frame: Frame) -> None:
        """Append at the end; only one thread puts."""
        size = size_of(frame)
        self._frames.append((frame, size))
        self._bytes_in += size

    def take(self) -> Frame | None:
        """Remove from the front; only one thread takes."""
        try:
            frame, size = self._frames.popleft()
        except IndexError:
            return None
        self._bytes_out += size
        return frame

    def room(self) -> bool:
        """Return whether less than the limit is queued."""
        return self._bytes_in - self._bytes_out < self._bytes_max

    def __len__(self) -> int:
        return len(self._frames)


class MemoryNetwork:
    """Channels between workers in one process: the test driver's network."""

    def __init__(self) -> None:
        self._queues: dict[tuple[Generation, ChannelId], FrameQueue] = {}

    def open(self, request: OpenLinks) -> Links:
        """Open the channels; a peer that opens later finds what was put before."""
        for old in [key for key in self._queues if key[0] < request.generation]:
            del self._queues[old]
        wanted = (*request.inputs, *request.outputs)
        queues = {c: self._queues.setdefault((request.generation, c), FrameQueue()) for c in wanted}
        return _MemoryLinks(queues)


class _MemoryLinks:
    def __init__(self, queues: dict[ChannelId, FrameQueue]) -> None:
        self._queues = queues

    def take(self, channel: ChannelId) -> Frame | None:
        return self._queues[channel].take()

    def room(self, channel: ChannelId) -> bool:
        return self._queues[channel].room()

    def put(self, channel: ChannelId, frame: Frame) -> None:
        self._queues[channel].put(frame)

    def close(self) -> None:
        self._queues = {}
