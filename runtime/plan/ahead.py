"""Readers of source partitions: one that reads ahead in the background, and one that reads when it is asked.

A background lane reads the batch after the one that the worker works on, so that the operator thread seldom waits for
a disk or a network. The operator thread takes the result; no other thread touches a reader.

A reader whose source has its records in many small pieces joins reads: the lane goes on reading what is there while the
worker is busy, and all of that is handed over together, piece by piece.

Invariants
    - Records are handed over in order, each once; the offsets are those that reading one after the other gives.
    - A read ahead never reports that there was no record, or that the source was unreachable: it may be out of date.
      Any other error is kept, as a source may notice only once that it changed.
    - Records that the source no longer confirms (`take`) are read again.
    - The readers of a source keep at most `bytes_max` ahead of the worker, besides the bytes that the worker has asked
      for.
    - A piece is what one read gave: joining changes neither where pieces begin nor their order, and waits for none.

Pure: the lane does the reading. Source: docs/decisions/0032-connectors.md, 0126-joined-batches.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.ports import Lane

AHEAD_BYTES_MAX = 64 << 20
"""Bytes that the readers of one source may keep in memory ahead of a worker."""
JOINED_ROWS = 16_384
"""So many rows are enough for one batch: what it costs whatever its size is nothing beside them."""
JOINED_FOR_S = 0.01
"""How long a lane reads on what is there when the worker already waits: then reading is the slower part."""


@dataclass(frozen=True)
class Read:
    """Result of one read.

    Args:
        batch: Records, as `OpenSource.read` describes them; None: there were none.
        following: The offset after them; without records, the offset to read from next: after a gap, if there was one.
        token: A value by which the source recognises whether it still confirms them.
        lost: Only without records: the source has removed the records before `following`, and its policy is to
            continue.
        further: The pieces behind these records that were found with them.
    """

    batch: pa.RecordBatch | None
    following: int
    token: object = None
    lost: bool = False
    further: tuple[Read, ...] = ()


@dataclass(frozen=True)
class LaneAnswer:
    """The answer of a lane: pieces, and the error after them, if the source will not report it again."""

    pieces: tuple[Read, ...]
    error: BaseException | None = None

    def is_nothing(self) -> bool:
        """Return whether nothing was found, which is an answer only if it was asked for."""
        if not self.pieces:
            return isinstance(self.error, Unavailable)
        return self.pieces[0].batch is None


class JoinedReads:
    """Pieces that are joined until they are enough for one batch, give or take one piece.

    Args:
        bytes_max: How many bytes they may have together.
    """

    def __init__(self, bytes_max: int) -> None:
        self.pieces: list[Read] = []
        self._bytes_max, self._bytes, self._last = bytes_max, 0, 0
        self.rows = 0

    def add(self, piece: Read) -> None:
        """Put a piece behind the others."""
        self.pieces.append(piece)
        if piece.batch is not None:
            self._last = piece.batch.nbytes
            self.rows, self._bytes = self.rows + piece.batch.num_rows, self._bytes + self._last

    def has_room(self) -> bool:
        """Return whether they are few, so that another one like the last may join them."""
        gap = bool(self.pieces) and self.pieces[-1].batch is None
        return not gap and self.rows < JOINED_ROWS and self._bytes + self._last <= self._bytes_max


class SynchronousLane:
    """A lane that does the work before `submit` returns."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Do the work, and hand over its result."""
        result: object
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the reader, which raises it
            result = error
        done(result)


class Ahead:
    """How the readers of one source read in the background, and how many bytes they may keep.

    Args:
        lane: Does the reading.
        bytes_max: 0 reads nothing before it is asked for.
        watch: Returns a lane that waits for records; None: the worker looks for them from time to time.
        alone_for: For this many epochs, read in the thread that asks, and nothing ahead: then only code that this
            thread has marked runs (docs/decisions/0121). None: always.
        now: A clock, in seconds; None: a lane that joins reads stops as soon as the worker waits.
    """

    def __init__(
        self,
        lane: Lane,
        bytes_max: int = AHEAD_BYTES_MAX,
        watch: Callable[[], Lane] | None = None,
        alone_for: int | None = 0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._lane, self._left, self._watch, self._watched = lane, bytes_max, watch, False
        self._alone_for, self.now = alone_for, now or (lambda: math.inf)
        self.used = False
        """Whether a reader reads ahead, so that the source serves lanes too."""
        self.joins = False
        """Whether the source has its records in pieces that may be small, so that reads are joined."""

    @property
    def alone(self) -> bool:
        """Return whether reads run in the thread that asks for them."""
        return self._alone_for is None or self._alone_for > 0

    def epoch_closed(self) -> None:
        """Count an epoch: reads are alone for some."""
        if self._alone_for:
            self._alone_for -= 1

    @property
    def lane(self) -> Lane:
        """Return the lane that does the next read."""
        return SynchronousLane() if self.alone else self._lane

    def watch(self, wait: Callable[[], object]) -> None:
        """Have a lane call `wait`, unless one of the source's readers waits already; its result wakes the worker."""
        if self._watch is None or self._watched:
            return
        self._watched = True

        def ended(result: object) -> None:
            self._watched = False
            if isinstance(result, BaseException):
                raise result

        self._watch().submit(wait, ended)

    def reserve(self, size: int) -> bool:
        """Return whether this many bytes may be read ahead; if so, they are taken."""
        if self.alone or size > self._left:
            return False
        self._left -= size
        return True

    def release(self, size: int) -> None:
        """Give back bytes that were taken."""
        self._left += size


def inline() -> Ahead:
    """Return a way to read without a background: for tests, the simulator, and readers of a whole range."""
    return Ahead(SynchronousLane(), 0, alone_for=None)


class DirectReader:
    """Reads when it is asked: for records that are computed, or in memory already."""

    def __init__(self, read: Callable[[int, int], Read], offset: int) -> None:
        self._read, self._offset = read, offset

    def poll(self, bytes_max: int) -> Read | None:
        """See PartitionReader.poll."""
        found = self._read(self._offset, bytes_max)
        self._offset = found.following
        return found

    def close(self) -> None:
        """Nothing is held."""


class ReaderAhead:
    """Reads the next batch while the worker is busy with the last one.

    Args:
        read: Reads from an offset, at most this many bytes; called in the lane.
        take: Called in the operator thread when records are about to be handed over; returns whether the source still
            confirms them. May raise.
        offset: Where to begin.
        wait: Waits for a short time, or until it is worth reading again; None: the source cannot signal it. It is
            called in a separate lane when there were no records, so that the worker need not look for them all the
            time.
        known: Reads as `read` does, without a look for what is new; of a source whose reads may be small. The lane
            reads on by it; in the thread that asks, the caller reads on, and marks every read.
    """

    def __init__(
        self,
        read: Callable[[int, int], Read],
        take: Callable[[int, Read], bool],
        offset: int,
        ahead: Ahead,
        wait: Callable[[], object] | None = None,
        known: Callable[[int, int], Read] | None = None,
    ) -> None:
        self._read, self._take, self._offset, self._ahead, self._wait = read, take, offset, ahead, wait
        self._known = known
        ahead.used, ahead.joins = True, known is not None
        self._answer: LaneAnswer | None = None
        self._pending = self._closed = False
        self._wanted = False
        """The worker waits for the read that is under way; the lane looks at it."""
        self._reserved = 0

    def poll(self, bytes_max: int) -> Read | None:
        """See PartitionReader.poll."""
        if self._answer is None and not self._pending:
            self._ask(bytes_max)
        answer, self._answer = self._answer, None
        if answer is None:
            self._wanted = True
            return None
        self._release()
        if not answer.pieces:
            assert answer.error is not None
            raise answer.error
        if answer.pieces[0].batch is None:
            self._offset = answer.pieces[0].following
            if self._wait is not None:
                self._ahead.watch(self._wait)
            return answer.pieces[0]
        reads = self._taken(answer.pieces)
        if not reads:
            return self.poll(bytes_max)  # asked for again, so the answer is up to date
        if answer.error is not None and len(reads) == len(answer.pieces):
            self._answer = LaneAnswer((), answer.error)
        elif self._ahead.reserve(bytes_max):
            self._reserved = bytes_max
            self._ask(bytes_max)
        return reads[0] if len(reads) == 1 else replace(reads[0], further=tuple(reads[1:]))

    def close(self) -> None:
        """Drop records that were read ahead or are still being read."""
        self._closed, self._answer = True, None
        self._release()

    def _taken(self, pieces: Sequence[Read]) -> list[Read]:
        """Return the pieces, up to the first one that the source no longer stands by."""
        reads = list[Read]()
        for piece in pieces:
            if not self._take(self._offset, piece):
                break
            self._offset = piece.following
            reads.append(piece)
        return reads

    def _ask(self, bytes_max: int) -> None:
        offset, ahead, self._pending = self._offset, self._reserved > 0, True
        read_on, self._wanted = None if self._ahead.alone else self._known, not ahead

        def work() -> LaneAnswer | None:
            if self._closed:
                return None
            first = self._read(offset, bytes_max)
            return LaneAnswer((first,)) if read_on is None else self._joined(first, read_on, bytes_max)

        def done(result: object) -> None:
            self._pending = False
            if self._closed:
                return
            answer = LaneAnswer((), result) if isinstance(result, BaseException) else result
            assert isinstance(answer, LaneAnswer), "a source gives records or fails"
            if ahead and answer.is_nothing():
                self._release()
            else:
                self._answer = answer

        self._ahead.lane.submit(work, done)

    def _joined(self, first: Read, known: Callable[[int, int], Read], bytes_max: int) -> LaneAnswer:
        """Read on in the lane while records are there, they are few, and the worker is busy or this takes no time."""
        reads, until = JoinedReads(bytes_max), self._ahead.now() + JOINED_FOR_S
        reads.add(first)
        while reads.has_room() and not self._closed and (not self._wanted or self._ahead.now() < until):
            try:
                piece = known(reads.pieces[-1].following, bytes_max)
            except Unavailable:
                break  # it is asked for again
            except Exception as error:  # noqa: BLE001 - raised by the poll after the one that returns the pieces
                return LaneAnswer(tuple(reads.pieces), error)
            if piece.batch is None:
                break
            reads.add(piece)
        return LaneAnswer(tuple(reads.pieces))

    def _release(self) -> None:
        self._ahead.release(self._reserved)
        self._reserved = 0
